"""Which way computes a problem: all there are, and the one to take."""

from __future__ import annotations

from kernels.attention.cuda.decode import Decode, plan_decode
from kernels.attention.cuda.decode import why_not as why_not_decode
from kernels.attention.cuda.launching import Way
from kernels.attention.cuda.planning import Machine, Problem, plan
from kernels.attention.cuda.portable import Portable


def ways(problem: Problem, machine: Machine) -> list[Way]:
    """Every way that computes this problem, the portable one first. Raises `Unsupported` when there is none."""
    found: list[Way] = []
    if problem.mask is None and problem.lengths is None and problem.window_offset is None:
        found.append(Portable(plan(problem, machine)))
    if why_not_decode(problem) is None:
        found.append(Decode(plan_decode(problem, machine)))
    return found


def choose(problem: Problem, machine: Machine) -> tuple[Way, str]:
    """The way to take, and why. Raises `Unsupported`."""
    found = ways(problem, machine)
    if isinstance(found[-1], Decode) and problem.seq_k >= 512:
        return found[-1], "few queries over many keys: decoding reads K and V once for a whole group of heads"
    return found[0], "the only way there is"
