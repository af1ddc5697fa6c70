"""Ctrl-C in `bench profile` leaves the new run to go on by itself, or leaves nothing, as it does in `bench launch`."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.naming import plan_object
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.run import events as ev
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.support.foreground import ctrl_c_at, run_here
from tests.support.patience import await_truth
from tests.unit.core.builders import RUN, planned

pytestmark = [pytest.mark.usefixtures("cloud")]


def profiled(case: str, at: str) -> tuple[int, str, str]:
    """Code and output of a profile that gets one Ctrl-C as soon as it has said `at`."""
    ran = run_here("profile", RUN, "--case", case, hear=ctrl_c_at(at))
    return ran.code, ran.out, ran.err


@pytest.fixture
def measured(bench: Bench) -> str:
    """A case of a run that is over, whose plan is all that a profile needs."""
    wiring = wire()
    made = wiring.plan(*wiring.configured(LaunchOptions("l4", None, ())))
    wiring.bucket.replace(plan_object(RUN), json.dumps(plan_document(made)).encode(), generation=None)
    log = wiring.log(RUN)
    log.append(planned(mode="embedded"))
    log.append(ev.RunClosed(outcome="succeeded"))
    return str(made.cases[0])


def the_new_run(bench: Bench) -> str:
    (new,) = [run["run_id"] for run in bench("status", "--json").document["runs"] if run["run_id"] != RUN]
    return str(new)


def assert_paid_as_billed(bench: Bench, run_id: str) -> None:
    entry = wire().ledger.read().runs[run_id]
    billed = sum((Decimal(row["usd"]) for row in bench.bill(run_id)), Decimal(0))
    assert entry.settled_usd is not None
    assert abs(entry.settled_usd - billed) < Decimal("0.005")


def test_ctrl_c_leaves_a_profile_that_has_a_machine_to_go_on_by_itself(
    bench: Bench, measured: str, weather: Any
) -> None:
    weather({"fault": "hang", "target": "harness", "at": {"phase": "environment"}})  # it is not done before it is left
    code, out, err = profiled(measured, "phase preflight")
    new = the_new_run(bench)
    assert (code, "detached; the run continues" in out) == (130, True), out + err
    assert f"run {new} goes on without this terminal" in err
    assert f"bench stop {new}" in err
    assert "profile.html" not in out
    assert len(bench.alive()) == 1
    await_truth(lambda: bench.fired() == [1])
    bench("stop", new)
    assert bench.alive() == []
    assert_paid_as_billed(bench, new)


def test_ctrl_c_before_a_profile_asked_for_a_machine_returns_its_hold(bench: Bench, measured: str) -> None:
    """However fast it is then: a machine that was asked for is waited for, and the run goes on."""
    code, out, err = profiled(measured, "payload ")
    new = the_new_run(bench)
    if code == 130:
        assert "detached; the run continues" in out, out + err
        bench("stop", new)
    else:
        assert code == 9, out + err
        assert f"run {new} stopped: interrupted before a machine existed" in err
    assert bench.alive() == []
    assert_paid_as_billed(bench, new)
