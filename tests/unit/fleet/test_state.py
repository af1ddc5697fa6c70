"""The fold of a fleet, the laws of trying again, and the money."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.fleet.jobs import JobCost, divide_machines, machines_within, worst_case_usd
from orchestrator.core.fleet.state import (
    ATTEMPTS,
    STATES,
    ChildLine,
    decode_line,
    encode_line,
    fold_fleet,
    judge_retry,
    merge_lines,
)
from orchestrator.core.fleet.sweep import Sweep, expand_children
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.naming import LEDGER, Mode
from orchestrator.core.text import clean_line
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.rebuild import rebuild_from_events
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.fleets import FleetRecord
from tests.unit.core.builders import T0
from tests.unit.fleet.stage import FleetStage, sweep_of

CHILDREN = expand_children(Sweep(axes={"gpu": ["l4", "t4"], "measure.seed": [1, 2, 3]}, repeats=4), lambda _: ())
names = st.sampled_from(["n1", "n2", "n3", "n4"])
lines = st.builds(
    ChildLine,
    child=st.integers(0, len(CHILDREN) + 2),
    state=st.sampled_from(STATES),
    attempt=st.integers(0, ATTEMPTS),
    machine=names,
    cases_done=st.integers(0, 9),
    cases_total=st.just(9),
    usd=st.decimals(0, 9, places=4),
    seconds=st.integers(0, 9999),
    reason=st.sampled_from(["", "out of memory", "no CUDA"]),
    failed_on=st.lists(names, unique=True).map(lambda found: tuple(sorted(found))),
)


@given(lines)
def test_a_line_survives_the_metadata_of_an_object(line: ChildLine) -> None:
    assert decode_line(encode_line(line)) == line
    assert all(text.isascii() and text.isprintable() for text in encode_line(line).values())


@given(st.dictionaries(st.sampled_from(sorted(encode_line(ChildLine(1)))), st.text(max_size=20)))
def test_metadata_of_a_stranger_is_no_line_or_a_harmless_one(metadata: dict[str, str]) -> None:
    line = decode_line(metadata)
    assert line is None or (line.child >= 0 and line.usd >= 0 and clean_line(line.reason, 300) == line.reason)


@given(*[lines.map(lambda line: replace(line, child=0))] * 3)
def test_what_two_know_of_a_child_is_the_same_in_every_order(a: ChildLine, b: ChildLine, c: ChildLine) -> None:
    assert merge_lines(a, b) == merge_lines(b, a)
    assert merge_lines(merge_lines(a, b), c) == merge_lines(a, merge_lines(b, c))
    assert merge_lines(merge_lines(a, b), b) == merge_lines(a, b)


@given(st.lists(lines, max_size=12), st.randoms())
def test_a_fleets_state_does_not_depend_on_the_order_of_its_lines(found: list[ChildLine], chance: object) -> None:
    again = [*found, *found]
    chance.shuffle(again)  # type: ignore[attr-defined]
    assert fold_fleet(CHILDREN, again) == fold_fleet(CHILDREN, found)


@given(st.lists(lines, max_size=12))
def test_what_is_stored_is_never_measured_again(found: list[ChildLine]) -> None:
    state = fold_fleet(CHILDREN, found)
    stored = {line.child for line in found if line.state in ("stored", "wrong") and line.child < len(CHILDREN)}
    assert stored.isdisjoint(child.index for child in state.open)
    verdict = judge_retry(state)
    assert stored.isdisjoint(verdict.again)
    assert stored.isdisjoint(verdict.given_up)


def test_a_configuration_failing_on_three_machines_is_given_up_in_all_repeats() -> None:
    config = CHILDREN[0].config
    same = [child.index for child in CHILDREN if child.config == config]
    failed = [
        ChildLine(index, "failed", 1, machine, reason="no kernel image", failed_on=(machine,))
        for index, machine in zip(same, ("n1", "n2", "n3"), strict=False)
    ]
    stored = ChildLine(same[3], "stored", 1)
    verdict = judge_retry(fold_fleet(CHILDREN, [*failed, stored]), persisted=True)
    assert verdict.given_up == dict.fromkeys(same[:3], "failed on 3 machines: no kernel image")
    assert verdict.again == ()


def test_three_failures_on_one_machine_are_the_machines_and_are_tried_again() -> None:
    same = [child.index for child in CHILDREN if child.config == CHILDREN[0].config][:3]
    verdict = judge_retry(
        fold_fleet(CHILDREN, [ChildLine(index, "failed", 1, "n1", failed_on=("n1",)) for index in same])
    )
    assert verdict.again == tuple(same)
    assert not verdict.given_up


@pytest.mark.parametrize(("attempt", "gone"), [(2, False), (3, True)])
def test_with_two_machines_a_configuration_is_given_up_after_three_tries_on_both(attempt: int, gone: bool) -> None:
    line = ChildLine(0, "failed", attempt, "n2", reason="no kernel image", failed_on=("n1", "n2"))
    assert not judge_retry(fold_fleet(CHILDREN, [line])).given_up
    given_up = judge_retry(fold_fleet(CHILDREN, [line]), machines=2).given_up
    assert given_up.get(0) == ("failed on 2 machines: no kernel image" if gone else None)
    once = replace(line, failed_on=("n2",))
    assert not judge_retry(fold_fleet(CHILDREN, [once]), machines=2).given_up


def test_a_machine_that_was_lost_counts_against_nobody_until_there_are_too_many() -> None:
    lost = ChildLine(0, "lost", ATTEMPTS - 1, "n1")
    assert judge_retry(fold_fleet(CHILDREN, [lost])).again == (0,)
    worn = replace(lost, attempt=ATTEMPTS, reason="taken back")
    assert judge_retry(fold_fleet(CHILDREN, [worn])).given_up == {0: f"tried {ATTEMPTS} times: taken back"}


@pytest.mark.parametrize(
    ("failures", "stored", "pauses"), [(3, 17, False), (4, 16, True), (4, 0, True), (4, 20, False)]
)
def test_four_failures_among_the_first_twenty_pause_the_fleet(failures: int, stored: int, pauses: bool) -> None:
    order = [*range(stored), *range(stored, stored + failures)] if stored >= 20 else [*range(stored + failures)]
    found = [ChildLine(index, "stored", 1, f"n{place}") for place, index in enumerate(order)]
    found[stored:] = [replace(line, state="failed", failed_on=(line.machine,)) for line in found[stored:]]
    state = fold_fleet(CHILDREN, found)
    assert bool(judge_retry(state).pause) is pauses
    assert not judge_retry(state, persisted=True).pause


def test_a_child_that_was_given_up_can_be_taken_back_in() -> None:
    given_up = ChildLine(0, "given_up", 3, reason="failed on 3 machines")
    assert merge_lines(given_up, ChildLine(0, "waiting", 4)).state == "waiting"


costs = st.builds(
    JobCost,
    gpu=st.just("l4"),
    machines=st.integers(1, 500),
    usd_per_hour=st.decimals(0, 40, places=4),
    wall_s=st.integers(60, 40_000),
    children=st.integers(0, 1000),
    child_s=st.integers(1, 2000),
)


@given(costs)
def test_the_hold_covers_every_machine_to_its_end_and_a_tenth_more(job: JobCost) -> None:
    worst = Fraction(job.usd_per_hour) * job.machines * (job.wall_s + 30) / 3600
    assert worst * Fraction(11, 10) <= Fraction(job.hold) < worst * Fraction(11, 10) + Fraction(1, 10**6)


def test_the_hold_of_a_fleet_of_l4s_is_what_its_page_says() -> None:
    job = JobCost("l4", 50, Decimal("0.36"), 4 * 3600, 1000, 600)
    assert job.hold == Decimal("79.365")
    assert job.expected_usd == 60
    assert job.expected_s == 12_000


@given(st.lists(costs, min_size=1, max_size=4), st.decimals(0, 1000, places=2))
def test_as_many_machines_as_fit_do_fit(jobs: list[JobCost], dollars: Decimal) -> None:
    asked = sum(job.machines for job in jobs)
    fits = machines_within(dollars, jobs)
    assert 0 <= fits <= asked
    assert Fraction(worst_case_usd(jobs)) * fits / asked <= Fraction(dollars) or worst_case_usd(jobs) == 0


def test_machines_are_divided_by_shares_and_nobody_gets_more_than_it_can_use() -> None:
    assert divide_machines(10, {"l4": 100, "h100": 100}, {"h100": 0.6}) == {"l4": 4, "h100": 6}
    assert divide_machines(9, {"l4": 2, "t4": 50, "a100": 50}, {}) == {"l4": 2, "t4": 3, "a100": 3}
    assert divide_machines(1, {"l4": 5, "t4": 5}, {}) == {"l4": 1, "t4": 1}, "each GPU gets one"


@pytest.mark.parametrize("usd", ["NaN", "Infinity", "-1", "a lot"])
def test_a_cost_that_is_no_amount_makes_no_line(usd: str) -> None:
    assert decode_line({**encode_line(ChildLine(1)), "usd": usd}) is None


# A fleet's one entry in the ledger.


HOLD = Decimal("79.365")


def purse(tmp_path: Path, caps: Caps = Caps()) -> Purse:  # noqa: B008 - it is frozen
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 4), caps=caps)
    record = FleetRecord(
        fleet=stage.fleet, engine="slurm", mode=Mode.HOST, user="ada", sweep=stage.sweep, created_at=T0,
        ends_at=T0 + timedelta(hours=4), hold_usd=HOLD,
    )  # fmt: skip
    return Purse(stage.world(), record)


def test_a_fleet_that_does_not_fit_under_a_cap_holds_nothing(tmp_path: Path) -> None:
    mine = purse(tmp_path, Caps(day=Decimal(50)))
    with pytest.raises(BudgetExceeded, match=r"up to \$79\.365, which is \$\S+ more than the cap of \$50 for day"):
        mine.take(HOLD)
    assert not mine.world.ledger.read().runs


def test_the_hold_of_a_fleet_is_one_entry_however_often_it_is_taken(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    mine.take(HOLD)
    assert [entry.held for entry in mine.world.ledger.read().runs.values()] == [HOLD]


def test_whoever_looks_after_holds_leaves_that_of_a_fleet_to_its_own_commands(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    (found,) = reconcile_holds(mine.world)
    assert not found.settled
    assert "bench fleet status" in found.what
    assert mine.world.ledger.read().runs[mine.record.fleet].held == HOLD


def test_a_fleet_that_is_resumed_settles_only_what_it_has_cost_since(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    mine.settle(Decimal(20))
    mine.settle(Decimal(25))
    mine.take(HOLD, 1)
    mine.settle(Decimal(32), 1)
    entries = mine.world.ledger.read().runs
    assert [entry.settled_usd for _, entry in sorted(entries.items())] == [Decimal(20), Decimal(12)]


def test_old_prices_are_held_with_their_margin_and_never_expected_with_it() -> None:
    fresh, old = (JobCost("l4", 2, Decimal("0.50"), 3600, 4, 900, margin=Decimal(m)) for m in ("0", "0.20"))
    assert old.hold > fresh.hold
    assert abs(old.hold - fresh.hold * Decimal("1.2")) <= Decimal("0.01")
    assert old.expected_usd == fresh.expected_usd


def test_a_ledger_that_was_lost_is_rebuilt_with_what_fleets_hold(tmp_path: Path) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4", "t4"), 4))
    follower = stage.launch()
    follower.store.list_as({"state": "open"})
    (before,) = stage.world().ledger.read().runs.values()
    stage.bucket.replace(LEDGER, b"{}", generation=None)
    done = rebuild_from_events(stage.world())
    assert done.added == (stage.fleet,)
    (after,) = done.ledger.runs.values()
    assert (after.hold_usd, after.settled_usd) == (before.hold_usd, None)
    assert rebuild_from_events(stage.world()).added == ()
    Purse(stage.world(), follower.record).settle(Decimal("0.01"))
    assert stage.world().ledger.read().runs[stage.fleet].settled_usd == Decimal("0.01")
