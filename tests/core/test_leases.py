"""Leases on the cases of a shared grid: nobody measures what a living holder has, and all of it is measured."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.core.run.leases import (
    BATCH,
    TTL,
    GridUnreadable,
    SharedGrid,
    complete,
    give_up,
    hand_out,
    living,
    superseded,
)

HOLDERS = ("a", "b", "c")
CASES = tuple(f"case-{n}" for n in range(7))
GRID = SharedGrid(cases=CASES, members={holder: f"ada@{holder}" for holder in HOLDERS})
T0 = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


class Together(RuleBasedStateMachine):
    """Any number of holders that come, measure, die, are cut off and come back, in any order, on the bucket's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = GRID
        self.now = T0
        self.beats: dict[str, datetime] = {}
        self.in_hand: dict[str, list[str]] = {holder: [] for holder in HOLDERS}
        """What each holder believes to have."""
        self.stored: dict[str, set[str]] = {holder: set() for holder in HOLDERS}
        self.measured_alive: list[str] = []
        """Each case that a holder measured whom nobody could take for dead at any time since it was handed out."""
        self.doubted: set[tuple[str, str]] = set()

    def alive(self) -> frozenset[str]:
        return living(self.beats, self.now)

    @rule(holder=st.sampled_from(HOLDERS))
    def beats_and_is_given_cases(self, holder: str) -> None:
        self.beats[holder] = self.now
        before = self.grid
        self.grid = hand_out(before, holder, self.alive())
        given_now = [case for case in self.grid.held_by(holder) if before.leases.get(case) != holder]
        for case in given_now:
            had = before.leases.get(case)
            assert had is None or had not in living(self.beats, self.now), "a living holder's case was taken"
            assert case not in before.done
        self.in_hand[holder] = list(self.grid.held_by(holder))

    @rule(holder=st.sampled_from(HOLDERS))
    def measures_one(self, holder: str) -> None:
        """Also one that has lost its lease meanwhile and does not know: it was cut off and went on."""
        if not self.in_hand[holder]:
            return
        case = self.in_hand[holder].pop(0)
        self.stored[holder].add(case)
        if holder in self.alive() and self.grid.leases.get(case) == holder:
            self.measured_alive.append(case)
        self.grid = complete(self.grid, holder, [case])

    @rule(seconds=st.sampled_from([1, 20, 61, 200]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(holder=st.sampled_from(HOLDERS))
    def ends(self, holder: str) -> None:
        self.grid = give_up(self.grid, holder)
        self.beats.pop(holder, None)
        self.in_hand[holder] = []

    @invariant()
    def a_case_has_one_holder_or_is_done(self) -> None:
        assert not set(self.grid.leases) & set(self.grid.done)
        assert set(self.grid.leases) | set(self.grid.done) <= set(CASES)

    @invariant()
    def nobody_has_more_than_a_batch_in_hand(self) -> None:
        assert all(len(self.grid.held_by(holder)) <= BATCH for holder in HOLDERS)

    @invariant()
    def no_case_is_measured_twice_by_holders_that_live(self) -> None:
        assert len(self.measured_alive) == len(set(self.measured_alive))

    @invariant()
    def what_is_done_was_stored_by_whom_it_is_said_to_be(self) -> None:
        assert all(case in self.stored[holder] for case, holder in self.grid.done.items())

    @precondition(lambda self: not self.grid.over)
    @rule(holder=st.sampled_from(HOLDERS))
    def a_single_holder_that_lives_can_always_finish(self, holder: str) -> None:
        grid, now = self.grid, self.now + TTL + timedelta(seconds=1)
        for _ in range(len(CASES) + 1):
            grid = hand_out(grid, holder, living({holder: now}, now))
            grid = complete(grid, holder, grid.held_by(holder))
        assert grid.over


TestTogether = Together.TestCase


@given(st.permutations(CASES), st.lists(st.sampled_from(HOLDERS), min_size=1, max_size=30))
def test_what_was_done_first_stays_done_by_whom(order: list[str], who: list[str]) -> None:
    grid = GRID
    first: dict[str, str] = {}
    for holder, case in zip(who, order * 5, strict=False):
        grid = complete(grid, holder, [case])
        first.setdefault(case, holder)
    assert grid.done == first


def test_handing_out_and_completing_twice_changes_nothing() -> None:
    once = hand_out(GRID, "a", {"a"})
    assert hand_out(once, "a", {"a"}) == once
    done = complete(once, "a", once.held_by("a"))
    assert complete(done, "a", once.held_by("a")) == done
    assert give_up(done, "a") == done


def test_the_cases_of_a_dead_holder_go_to_the_living_and_those_of_a_living_one_do_not() -> None:
    grid = hand_out(hand_out(GRID, "a", {"a", "b"}, batch=4), "b", {"a", "b"}, batch=3)
    assert grid.held_by("b") == CASES[4:]
    assert hand_out(grid, "b", {"a", "b"}, batch=7) == grid
    assert hand_out(grid, "b", {"b"}, batch=7).held_by("b") == CASES


def test_a_holder_is_dead_when_the_bucket_has_not_heard_of_it_for_too_long() -> None:
    beats = {"a": T0, "b": T0 + TTL}
    assert living(beats, T0 + TTL) == {"a", "b"}
    assert living(beats, T0 + TTL + timedelta(seconds=1)) == {"b"}


def test_what_came_too_late_is_known_and_whose_it_is() -> None:
    grid = complete(complete(GRID, "a", ["case-0"]), "b", ["case-0", "case-1"])
    assert (grid.done_by("a"), grid.done_by("b")) == (("case-0",), ("case-1",))
    assert superseded(grid, {"a": ["case-0"], "b": ["case-0", "case-1"]}) == (("b", "case-0"),)


def test_a_grid_survives_a_trip_through_the_bucket_and_anything_else_is_refused() -> None:
    grid = complete(hand_out(GRID, "a", {"a"}), "a", ["case-0"])
    assert SharedGrid.parse(grid.dump()) == grid
    assert not grid.over
    with pytest.raises(GridUnreadable):
        SharedGrid.parse(b"{}")
