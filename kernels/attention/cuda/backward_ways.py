"""Which ways there are of computing a backward pass, and which to take."""

from __future__ import annotations

from kernels.attention.cuda.backward_plan import BackwardProblem, HopperBackward, PairBackward, hopper_refusal
from kernels.attention.cuda.backward_small import SmallBackward, is_surely_faster, small_ways
from kernels.attention.cuda.planning import Machine

BackwardWay = PairBackward | HopperBackward | SmallBackward


def backward_ways(problem: BackwardProblem, machine: Machine) -> list[BackwardWay]:
    """Every way of computing the problem, the one to take first at the head; the first that is not Hopper's sums is for
    whoever wants the same bits in every run."""
    hopper: list[BackwardWay] = [HopperBackward(machine)] if hopper_refusal(problem, machine) is None else []
    pair, small = PairBackward(machine), small_ways(problem, machine)
    if not small or not small[0].is_one_round(problem):
        return [*hopper, pair, *small]
    return [*small, *hopper, pair] if is_surely_faster(small[0], problem) else [*hopper, *small, pair]
