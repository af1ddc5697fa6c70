"""Which way computes a problem: all there are, and the one to take."""

from __future__ import annotations

from kernels.attention.cuda import hopper, small, small_hopper
from kernels.attention.cuda.launching import Way
from kernels.attention.cuda.planning import Machine, Problem, plan
from kernels.attention.cuda.portable import Portable


def ways(problem: Problem, machine: Machine, *, dependent: bool = False) -> list[Way]:
    """Every way that computes this problem. Raises `Unsupported` when there is none.

    `dependent`: those instead that begin while the launch before them on the stream is ending; there may be none.
    """
    few_keys = [*(way for kind in (small, small_hopper) for way in kind.ways(problem, machine, dependent=dependent))]
    if dependent:
        return few_keys
    return [*hopper.ways(problem, machine), Portable(plan(problem, machine)), *few_keys]


def choose(problem: Problem, machine: Machine) -> tuple[Way, str]:
    """The way to take, and why. Raises `Unsupported`."""
    return ways(problem, machine)[0], "the first that computes it"
