"""Which way computes a problem: all there are, and the one to take."""

from __future__ import annotations

from kernels.attention.cuda import hopper
from kernels.attention.cuda.decode import Decode, plan_decode
from kernels.attention.cuda.decode import why_not as why_not_decode
from kernels.attention.cuda.general import General, plan_general
from kernels.attention.cuda.launching import Way
from kernels.attention.cuda.planning import Machine, Problem, plan
from kernels.attention.cuda.portable import Portable

LEAST_KEYS_TO_DECODE = 512


def ways(problem: Problem, machine: Machine) -> list[Way]:
    """Every way that computes this problem. Raises `Unsupported` when there is none."""
    found: list[Way] = [*hopper.ways(problem, machine)]
    if problem.is_plain:
        found.append(Portable(plan(problem, machine)))
    general = plan_general(problem, machine)
    if not problem.is_plain or general.pack > 1:
        found.append(General(general))
    if why_not_decode(problem) is None:
        found.append(Decode(plan_decode(problem, machine)))
    return found


def choose(problem: Problem, machine: Machine) -> tuple[Way, str]:
    """The way to take, and why. Raises `Unsupported`."""
    found = ways(problem, machine)
    by_kind: dict[type, Way] = {type(way): way for way in found}
    if Decode in by_kind and problem.seq_k >= LEAST_KEYS_TO_DECODE:
        return by_kind[Decode], "few queries over many keys: decoding reads K and V once for a whole group of heads"
    if problem.is_plain and General in by_kind:
        return by_kind[General], "the queries of one head do not fill a tile: the heads of a group are packed"
    return found[0], "the first that computes it"
