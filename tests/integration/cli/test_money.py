"""`bench costs` and `bench budget`: what a person may say of money, and what is asked first."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.ledger.budget import HoldTerms, add_cost, hold
from orchestrator.core.ledger.unlisted import most_of, outstanding_images
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.unit.core.builders import RUN

pytestmark = pytest.mark.usefixtures("cloud")


@pytest.mark.parametrize(
    "amount", ["-3", "0", "NaN", "inf", "1e30", "1_000", "1,50", "1.0000001", "٣", "1" * 12, "$-1", "--3"]
)
def test_what_is_no_amount_is_refused_and_nothing_is_recorded(bench: Bench, amount: str) -> None:
    ran = bench("costs", "add", "--", amount, code=2)
    assert "not an amount in dollars: " in ran.err
    assert bench("costs", "--json").document["costs"] == []


def test_an_amount_as_large_as_a_cap_is_asked_about_first(bench: Bench) -> None:
    assert "--yes answers yes" in bench("costs", "add", "5.00", code=2).err
    bench("costs", "add", "4.99")
    bench("costs", "add", "1000", "--yes")
    assert [cost["usd"] for cost in bench("costs", "--json").document["costs"]] == ["4.99", "1000"]


def test_a_cost_is_taken_back_by_an_entry_that_can_be_seen(bench: Bench) -> None:
    added = bench("costs", "add", "1.50", "--category", "ai", "--json").document["id"]
    assert bench("costs", "--json").document["windows"]["total"]["spent_usd"] == "1.50"
    assert "took back $1.50" in bench("costs", "rm", added).out
    bench("costs", "rm", added)
    document = bench("costs", "--json").document
    assert document["windows"]["total"]["spent_usd"] == "0"
    assert [cost["takes_back"] for cost in document["costs"]] == ["", added]
    assert bench("costs").out.split("day")[0].count("-$1.5000") == 1
    assert "cost not found: cost-00000000" in bench("costs", "rm", "cost-00000000", code=2).err


def test_a_threshold_is_told_when_a_cost_is_added(bench: Bench) -> None:
    assert "50 % of the budget" in bench("costs", "add", "2.60").out
    assert "50 %" not in bench("costs", "add", "0.10").out


def test_what_is_left_is_what_a_launch_from_here_is_judged_by(bench: Bench) -> None:
    now = wire().clock.now()
    terms = HoldTerms("cpu", pretend=True)
    wire().accounts().change(lambda ledger: hold(ledger, RUN, Decimal("4.9999"), 60, now, terms))
    budget = bench("budget", "--json").document
    day = next(row for row in budget["practice_windows"] if row["window"] == "day")
    assert {row["held_usd"] for row in budget["windows"]} == {"0"}
    assert (day["held_usd"], day["left_usd"]) == ("4.9999", "0.0001")
    assert "needs at least $" in bench("plan", "--gpu", "l4", code=3).err
    assert "simulated prices" in bench("budget").out
    costs = bench("costs", "--json").document["practice_windows"]["day"]
    assert (costs["spent_usd"], costs["held_usd"]) == (day["spent_usd"], day["held_usd"])


def test_caps_of_the_bucket_bind_everybody_and_say_who_set_them(bench: Bench) -> None:
    assert "this bucket has no caps of its own" in bench("budget").out
    said = bench("budget", "set", "--day", "0.5", "--total", "9").out
    assert "caps of this bucket: day $0.5, total $9 (set by ada" in said
    bench("budget", "set", "--total", "none")
    document = bench("budget", "--json").document
    assert {row["window"]: row["cap_usd"] for row in document["windows"]}["day"] == "0.5"
    assert document["caps_of_the_bucket"]["total"] is None
    assert document["caps_of_the_bucket"]["by"] == "ada"
    bench("budget", "set", "--day", "0")
    refused = bench("plan", "--gpu", "l4", code=3)
    assert "ada set this cap for the whole bucket; raise it with `bench budget set --day USD`" in refused.err
    assert "no cap given" in bench("budget", "set", code=2).err


def test_practice_money_and_real_money_do_not_meet(bench: Bench) -> None:
    bench("costs", "add", "1000", "--yes")
    bench("plan", "--gpu", "l4")
    now = wire().clock.now()
    wire().accounts().change(lambda ledger: hold(ledger, RUN, Decimal("0.05"), 60, now, HoldTerms("cpu", pretend=True)))
    rows = {line.split("\t")[0]: line for line in bench("budget").out.splitlines()}
    assert ("$1000.00" in rows["total"], "$0.0500" in rows["total"]) == (True, False)
    assert ("$1000.00" in rows["total (practice)"], "$0.0500" in rows["total (practice)"]) == (False, True)
    windows = bench("costs", "--json").document
    assert windows["windows"]["day"]["spent_usd"] == "1000"
    assert windows["practice_windows"]["day"]["held_usd"] == "0.05"


def test_an_image_that_is_being_made_is_told_of_by_whoever_lists_images(bench: Bench) -> None:
    name = "bench-image-l4-20261121-040506-7f3a"
    wiring = wire()
    now = wiring.clock.now()
    wiring.accounts().change(
        lambda ledger: add_cost(ledger, "image", Decimal("0.01"), "", now, most_of(name), pretend=True)
    )
    assert f"note: {name}: its client may be about to begin" in bench("image", "list").err
    assert "-back" not in str(wiring.ledger.read().costs)
    bench("status")
    bench("costs")
    bench("reap", "--yes")
    assert list(outstanding_images(wiring.ledger.read())) == [name]
