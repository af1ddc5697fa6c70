"""`bench launch --keep` on real processes: the next launch takes the machine over, and the books balance."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_real_machines import CASES, SMALL, Paced, rows_of
from tests.support.foreground import Ran, beside, run_here
from tests.support.patience import await_truth

pytestmark = [pytest.mark.usefixtures("cloud")]


def test_a_kept_machine_is_advised_on_taken_over_and_paid_for_once(bench: Bench, paced: Paced) -> None:
    first = bench("launch", "--gpu", "l4", "--json", "--keep", *SMALL, *paced()).document
    assert (first["state"], first["cases_done"]) == ("kept", 2)
    assert first["cold_start_s"] > 0
    (alive,) = bench("status", "--json").document["instances"]
    assert alive["orphan"] is False
    assert alive["keep_or_stop"]["rests_on_runs"] == 1
    said = bench("status", "last").out.replace("\n", " ")
    assert "keeping it costs $" in said
    assert "(median of 1 run)" in said
    assert bench("fetch", first["run_id"], "--into", "early", "--json").document["complete"] is True

    second = bench("launch", "--gpu", "l4", *SMALL, *paced())
    assert "using kept machine" in second.out
    assert f"on a kept machine that {first['run_id']} pays for" in second.out
    run = bench("status", "last", "--json").document
    assert run["run_id"] != first["run_id"]
    assert (run["state"], run["cost_usd"], run["vms"]) == ("succeeded", "0", [])
    rows = rows_of(bench, run["run_id"])
    assert {row["case_id"] for row in rows} == set(CASES)
    assert {row["vm"] for row in rows} == {alive["name"]}

    assert bench.control("/control/status")["instances"] == []
    (billed,) = bench.bill(first["run_id"])
    entries = {entry["run_id"]: entry for entry in bench("costs", "--json").document["runs"]}
    assert abs(Decimal(billed["usd"]) - Decimal(entries[first["run_id"]]["settled_usd"])) < Decimal("0.005")
    assert entries[run["run_id"]]["settled_usd"] == "0"


def test_a_launch_without_budget_still_takes_over_what_is_paid_for(bench: Bench, paced: Paced) -> None:
    tight = ("--set", "run.attempts=1", "--set", "run.max_minutes=10", "--set", "budget.per_day_usd=0.05")
    first = bench("launch", "--gpu", "l4", "--json", "--keep", *SMALL, *paced(), *tight).document
    assert first["state"] == "kept"
    bench("launch", "--gpu", "l4", "--cold", *SMALL, *paced(), *tight, code=3)
    second = bench("launch", "--gpu", "l4", "--json", *SMALL, *paced(), *tight).document
    assert second["state"] == "succeeded"
    assert bench.control("/control/status")["instances"] == []


def test_of_two_commands_that_want_one_kept_machine_one_gets_it_the_other_says_why(
    bench: Bench, tmp_path: Path, paced: Paced
) -> None:
    tight = ("--set", "run.attempts=1", "--set", "run.max_minutes=10", "--set", "budget.per_day_usd=0.05")
    first = bench("launch", "--gpu", "l4", "--json", "--keep", *SMALL, *paced(), *tight).document
    assert first["state"] == "kept"
    held = paced("case 1")  # the faster one has the machine until the other one has tried
    command = ("launch", "--gpu", "l4", "--json", *SMALL, *held, *tight)
    program = [sys.executable, "-m", "orchestrator.cli", *command]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        over: list[Ran] = []

        def go_on() -> None:
            await_truth(lambda: over or process.poll() is not None, "the end of the slower one")
            (tmp_path / "paced-case-1-goes-on").touch()

        with beside(go_on):
            over.append(run_here(*command))
        other = process.communicate()
    both = [over[0], Ran(process.returncode, *other)]
    assert sorted(ran.code for ran in both) == [0, 3], both
    winner, loser = sorted(both, key=lambda ran: ran.code)
    assert winner.document["state"] == "succeeded"
    assert "Traceback" not in loser.err
    assert "is left today (cap $0.05, $0 spent," in " ".join(loser.err.split())
    assert bench.control("/control/status")["instances"] == []
    assert len(bench.control("/control/bill")["rows"]) == 1
    entries = {entry["run_id"]: entry for entry in bench("costs", "--json").document["runs"]}
    assert [Decimal(entry["settled_usd"]) for run_id, entry in entries.items() if run_id != first["run_id"]] == [0]


def test_stopping_a_kept_run_lets_its_machine_go_and_keeps_its_outcome(bench: Bench, paced: Paced) -> None:
    bench("launch", "--gpu", "l4", "--keep", *SMALL, *paced())
    assert "succeeded" in bench("stop", "last").out
    assert bench.control("/control/status")["instances"] == []
