"""`bench image build` on the embedded cloud: made, interrupted, and paid for as it ended."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.ledger.budget import counted_costs
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.support.foreground import ctrl_c_at, run_here

pytestmark = [pytest.mark.usefixtures("cloud")]
Paced = Callable[..., tuple[str, ...]]


def spent_on_images() -> Decimal:
    """What the ledger counts, beside machines."""
    return sum((cost.usd for cost in counted_costs(wire().ledger.read()).values()), Decimal(0))


def assert_machines_are_paid_for_as_billed(bench: Bench) -> None:
    billed = sum((Decimal(row["usd"]) for row in bench.control("/control/bill")["rows"]), Decimal(0))
    runs = wire().ledger.read().runs.values()
    assert all(entry.settled_usd is not None for entry in runs)
    assert abs(billed - sum((entry.settled_usd or Decimal(0) for entry in runs), Decimal(0))) < Decimal("0.005")


def test_an_image_is_made_within_the_default_caps_and_a_launch_boots_from_it(bench: Bench, paced: Paced) -> None:
    made = bench("image", "build", "--gpu", "l4", "--json", *paced()[:2]).document
    assert Decimal(made["usd_until_expiry"]) == spent_on_images() > 0
    (listed,) = bench("image", "list", "--json").document["images"]
    assert (listed["name"], listed["state"]) == (made["name"], "unproven")
    assert bench("plan", "--gpu", "l4", "--json").document["image"].endswith(made["name"])
    assert_machines_are_paid_for_as_billed(bench)
    gone = bench("image", "rm", made["name"], "--json").document
    assert spent_on_images() == Decimal(gone["cost_usd"])
    assert "-$" in bench("costs").out


@pytest.mark.parametrize("at", ["payload", "phase environment", "copying its disk"])
def test_a_build_that_is_interrupted_leaves_no_machine_no_image_and_no_amount(
    bench: Bench, paced: Paced, weather: Any, at: str
) -> None:
    weather({"fault": "image_pending"})  # it is not made before it is interrupted, however busy this machine is
    ran = run_here("image", "build", "--gpu", "l4", *paced()[:2], hear=ctrl_c_at(at))
    assert (ran.code, "interrupted" in ran.err) == (130, True), ran.out + ran.err
    assert "deleting the machine of image" in ran.out
    assert bench.alive() == []
    assert bench("reap", "--json").document["images"] == []
    assert {run["phase"] for run in bench("status", "--json").document["runs"]} <= {"stopped", "failed"}
    assert spent_on_images() == 0
    assert_machines_are_paid_for_as_billed(bench)
