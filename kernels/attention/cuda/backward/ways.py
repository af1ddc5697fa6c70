"""The ways of computing a backward pass, and which one to take."""

from __future__ import annotations

from kernels.attention.cuda.backward.ampere import AmpereBackward, ampere_ways
from kernels.attention.cuda.backward.costs import (
    best_parts,
    possible_parts,
    three_launches_cyclic,
    three_launches_in_turns,
)
from kernels.attention.cuda.backward.few import FewBackward, few_ways, is_before_hopper, is_before_ordered
from kernels.attention.cuda.backward.kernels import HOPPER_KEYS, Order
from kernels.attention.cuda.backward.plan import (
    BackwardProblem,
    HopperBackward,
    PairBackward,
    cyclic_refusal,
    hopper_refusal,
    is_small,
)
from kernels.attention.cuda.backward.small import SmallBackward, is_surely_faster, small_ways
from kernels.attention.cuda.backward.turing import turing_ways
from kernels.attention.cuda.backward.wide import WideBackward, wide_ways
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import padded_head_dim

BackwardWay = PairBackward | HopperBackward | SmallBackward | FewBackward | AmpereBackward | WideBackward
SMALL_ROWS, SMALL_KEYS = 32, {64: 64, 128: 32}
"""Where the kernels for few keys go before Hopper's one launch: where they keep so many rows, and, by padded head
dimension, up to so many keys otherwise (`results/backward-small-h200.jsonl`)."""


def backward_ways(problem: BackwardProblem, machine: Machine) -> list[BackwardWay]:
    """Every way of computing the problem; the preferred one is the first. The first one with `same_bits` is for callers
    that want the same bits in every run. In batch-invariant calls there is one, whatever the batch."""
    if problem.forward.is_shaped:
        pair: list[BackwardWay] = [PairBackward(machine)]
        is_alone = problem.forward.invariant
        return pair if is_alone else [*wide_ways(problem, machine), *ampere_ways(problem, machine), *pair]
    is_hoppers = hopper_refusal(problem, machine) is None
    if problem.forward.invariant:
        return [HopperBackward(machine, order=Order.KEYS) if is_hoppers else PairBackward(machine)]
    hopper: list[BackwardWay] = [*unordered_ways(problem, machine)] if is_hoppers else []
    ordered = ordered_ways(problem, machine) if is_hoppers else []
    small, few = small_ways(problem, machine), few_ways(problem, machine)
    summing = [*ampere_ways(problem, machine), *turing_ways(problem, machine)]
    portable: list[BackwardWay] = [*wide_ways(problem, machine), *summing, PairBackward(machine)]
    small_fits = bool(small) and small[0].is_one_round(problem)
    if small_fits and is_surely_faster(small[0], problem) and (not few or is_small_enough(small[0], problem)):
        return [*small, *few, *hopper, *ordered, *portable]
    other_ways: list[BackwardWay] = [*small, *portable] if small_fits else [*portable, *small]
    if few and is_before_hopper(few[0], problem):
        return [*few, *hopper, *ordered, *other_ways]
    if few and ordered and is_before_ordered(few[0], problem, expected_us(ordered[0], problem)):
        return [*hopper, *few, *ordered, *other_ways]
    return [*hopper, *ordered, *few, *other_ways]


def unordered_ways(problem: BackwardProblem, machine: Machine) -> list[HopperBackward]:
    """Hopper's kernel with sums in any order; the preferred one is the first. Where heads have a group there is one for
    each number of parts, to be asked for by name."""
    possible, best = possible_parts(problem), best_parts(problem, machine)
    if len(possible) == 1:
        return [HopperBackward(machine)]
    return [HopperBackward(machine, parts=parts) for parts in sorted(possible, key=lambda parts: parts != best)]


def ordered_ways(problem: BackwardProblem, machine: Machine) -> list[HopperBackward]:
    """Hopper's kernel with sums in each order; the preferred one is the first."""
    by_keys = HopperBackward(machine, order=Order.KEYS)
    if cyclic_refusal(problem, machine) is not None:
        return [by_keys]
    both = [by_keys, HopperBackward(machine, order=Order.CYCLIC)]
    if is_small(problem, machine, HOPPER_KEYS):
        both.sort(key=lambda way: expected_us(way, problem))
    return both


def expected_us(way: HopperBackward, problem: BackwardProblem) -> float:
    """The microseconds that Hopper's kernel is expected to take with its sums in an order."""
    cost = three_launches_cyclic if way.order is Order.CYCLIC else three_launches_in_turns
    return cost(problem, way.machine.sm_count)


def is_small_enough(way: SmallBackward, problem: BackwardProblem) -> bool:
    """Whether the way was measured to be faster than Hopper's one launch."""
    return (
        way.shape.rows == SMALL_ROWS or problem.forward.seq_k <= SMALL_KEYS[padded_head_dim(problem.forward.head_dim)]
    )
