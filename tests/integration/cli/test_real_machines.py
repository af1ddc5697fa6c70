"""Whole runs through the commands, on VMs that are real processes running the real startup script, agent and kernel."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.payload import bundle_root, pack_payload
from orchestrator.core.naming import payload_object
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench, Ran
from tests.support.patience import await_truth

pytestmark = [pytest.mark.usefixtures("cloud")]

SMALL = (
    "--set", "measure.grid={shapes: [{batch: 1, heads: 2, seq: 16, head_dim: 64}, {batch: 1, heads: 2, seq: 47, head_dim: 64}], dtypes: [float32]}",
    "--set", "correctness.grid={shapes: [{batch: 1, heads: 2, seq: 33, head_dim: 64}], dtypes: [float32]}",
    "--set", "measure.implementations=[bench, 'sdpa:flash', 'sdpa:cudnn']",
    "--set", "measure.repeats=5",
)  # fmt: skip
QUICK = ("--set", "measure.warmup=3", "--set", "measure.cache=warm")
"""What makes measuring short where a test is about something else."""
Paced = Callable[..., tuple[str, ...]]
CASES = ("b1-h2-kv2-q16-k16-d64-full-float32", "b1-h2-kv2-q47-k47-d64-full-float32")


def launch(bench: Bench, *more: str, quick: tuple[str, ...] = QUICK, code: int = 0) -> Any:
    return bench("launch", "--gpu", "l4", "--json", *SMALL, *quick, *more, code=code).document


def rows_of(bench: Bench, run_id: str) -> list[dict[str, str]]:
    folder = Path(bench("fetch", run_id, "--into", "out", "--json").document["folder"])
    with (folder / "measurements.csv").open() as file:
        return list(csv.DictReader(file))


def assert_our_account_is_the_bill(bench: Bench, run: Any) -> None:
    billed = sum((Decimal(row["usd"]) for row in bench.bill(run["run_id"])), Decimal(0))
    (entry,) = [entry for entry in bench("costs", "--json").document["runs"] if entry["run_id"] == run["run_id"]]
    assert abs(billed - Decimal(entry["settled_usd"])) < Decimal("0.005")
    assert Decimal(entry["settled_usd"]) <= Decimal(entry["hold_usd"])
    assert run["cost_usd"] == entry["settled_usd"]


def test_a_launch_measures_fetches_and_leaves_nothing(bench: Bench) -> None:
    run = launch(bench, quick=())
    assert {"run_id", "state", "cost_usd", "ceiling_usd", "attempts"} <= set(run)
    assert (run["state"], run["cases_done"], run["attempts"]) == ("succeeded", 2, 1)
    assert bench("cloud", "status", "--json").document["instances"] == []
    assert_our_account_is_the_bill(bench, run)

    rows = rows_of(bench, run["run_id"])
    timed = [row for row in rows if row["latency_us"]]
    assert {(row["implementation"], row["case_id"]) for row in timed} == {
        (i, c) for i in ("bench", "sdpa:flash", "bench:aa") for c in CASES
    }
    assert len(timed) == 3 * 2 * 5
    assert all(float(row["latency_us"]) > 0 and not row["skipped"] for row in timed)
    skipped = [row for row in rows if row["skipped"]]
    assert {(row["implementation"], row["latency_us"]) for row in skipped} == {("sdpa:cudnn", "")}
    assert {row["device"] for row in rows} == {run["device"]}
    assert "L4" not in run["device"]
    assert {(row["regime"], row["stopped"]) for row in timed} == {("burst", "repeats")}
    assert all(row["cache"] in ("cold", "mixed") and int(row["input_sets"]) > 1 for row in timed)
    assert {row["warmed"] for row in timed} <= {"steady", "limit"}

    again = bench("fetch", run["run_id"], "--into", "out", "--json").document
    assert (again["downloaded"], again["complete"]) == (0, True)
    folder = Path(again["folder"])
    manifest = json.loads((folder / "manifest.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["zone"] == manifest["vms"][0]["zone"]
    assert environment["machine_type"] == manifest["vms"][0]["machine_type"] == "embedded"
    assert (environment["image"], manifest["image"]) == (None, "")
    assert environment["protocol"]["warmup"] == "steady"
    assert {"environment.json", "build.json", "correctness.csv", "log.txt"} <= {
        file["path"] for file in manifest["files"]
    }
    assert "against the fastest baseline" in (folder / "report.html").read_text()
    point = bench("history", "--case", CASES[0], "--json").document["points"][0]
    assert point["run_id"] == run["run_id"]
    shown = bench("fetch", "last", "--into", "out", width=120).out
    assert "S 16" in shown
    assert "S 47" in shown
    assert "sdpa:cudnn cannot run here in 2 of 2 cases" in shown

    assert "succeeded" in bench("status").out
    assert "VMs alive now: 0, $0.00/h" in bench("status").out
    assert bench("status", "--json").document["instances"] == []
    assert "measure" in bench("status", run["run_id"]).out
    assert bench("status", run["run_id"][-4:], "--json").document["state"] == "succeeded"
    assert "finish: succeeded" in bench("logs", "last").out
    assert bench("logs", "last", "--json").document["source"] == "bucket"
    assert "was already over" in bench("stop", "last").out
    assert bench("stop", "last", "--json").document["state"] == "succeeded"
    assert run["run_id"] in bench("costs").out
    assert "alerts at 50, 80, 100 %" in bench("budget").out
    assert run["run_id"] in bench("cloud", "bill").out


def tampered(tmp_path: Path, change: Callable[[str], str]) -> Path:
    """A copy of what a VM is given, with another CPU kernel in it."""
    root = tmp_path / "tampered"
    for tree in ("kernels", "startup"):
        shutil.copytree(bundle_root() / tree, root / tree, ignore=shutil.ignore_patterns("__pycache__"))
    source = root / "kernels" / "attention" / "cpu" / "attention.cpp"
    text = source.read_text()
    changed = change(text)
    assert changed != text
    source.write_text(changed)
    return root


def test_a_kernel_that_does_not_compile_is_skipped_with_the_reason(bench: Bench, tmp_path: Path, paced: Paced) -> None:
    options = paced()
    (tmp_path / "paced" / "kernels" / "harness" / "does_not_compile").touch()
    run = launch(bench, *options, code=7)
    assert run["state"] == "incorrect"
    assert [diagnosis["cause"] for diagnosis in run["diagnoses"]] == ["build_failed"]
    rows = rows_of(bench, run["run_id"])
    skipped = [row for row in rows if row["implementation"] == "bench"]
    assert {(row["case_id"], row["skipped"]) for row in skipped} == {(case, "build_failed: nonsense") for case in CASES}
    assert {row["case_id"] for row in rows if row["implementation"] == "sdpa:flash" and row["latency_us"]} == {*CASES}


def test_a_kernel_that_is_wrong_on_one_shape_is_not_timed_there(bench: Bench, tmp_path: Path) -> None:
    root = tampered(tmp_path, wrong_for_47_keys)
    run = launch(bench, "--set", f"payload.root={root}", code=7)
    assert run["state"] == "incorrect"
    assert {fact["case_id"] for fact in run["wrong"]} == {CASES[1]}
    rows = [row for row in rows_of(bench, run["run_id"]) if row["implementation"] == "bench"]
    assert sum(1 for row in rows if row["case_id"] == CASES[0] and row["latency_us"]) == 5
    (skipped,) = [row for row in rows if row["case_id"] == CASES[1]]
    assert skipped["skipped"]
    assert not skipped["latency_us"]


def wrong_for_47_keys(text: str) -> str:
    """The kind of bug that tile arithmetic has: right everywhere but at one size."""
    return text.replace("a.scale * kLog2E", "a.scale * kLog2E * (a.seq_k == 47 ? 0.5f : 1.0f)")


@pytest.mark.parametrize("target", ["harness", "agent"])
def test_a_killed_process_on_the_machine_ends_the_run_with_a_diagnosis(
    bench: Bench, weather: Callable[..., None], target: str, paced: Paced
) -> None:
    weather({"fault": "kill", "target": target, "at": {"case": 2}})
    run = launch(bench, *paced("case 2"), code=5)
    assert run["state"] == "failed"
    assert run["diagnoses"][-1]["cause"] == f"{target}_crashed"
    assert run["cases_done"] == 1
    assert bench.fired() == [1]
    assert {row["case_id"] for row in rows_of(bench, run["run_id"])} == {CASES[0]}
    assert_our_account_is_the_bill(bench, run)


def test_a_hang_past_the_phases_limit_is_ended_by_the_agent(
    bench: Bench, weather: Callable[..., None], paced: Paced
) -> None:
    weather({"fault": "hang", "at": {"case": 2}})
    run = launch(bench, *paced("case 2"), "--set", "run.phase_limits_s={measure: 20}", code=5)
    assert run["diagnoses"][-1]["cause"] == "phase_timeout"
    assert run["cases_done"] == 1
    assert bench.fired() == [1]


def test_a_preempted_run_goes_on_on_another_machine_and_measures_nothing_twice(
    bench: Bench, weather: Callable[..., None], paced: Paced
) -> None:
    weather({"fault": "preempt", "at": {"case": 2}, "notice_s": 10})
    run = launch(bench, *paced("case 2"))
    assert (run["state"], run["cases_done"], run["attempts"]) == ("succeeded", 2, 2)
    fetched = bench("fetch", run["run_id"], "--into", "out", "--json").document
    assert fetched["complete"] is True
    assert_our_account_is_the_bill(bench, run)


def test_a_preempted_run_without_a_spare_is_fetched_and_resumed_by_another_process(
    bench: Bench, weather: Callable[..., None], paced: Paced
) -> None:
    weather({"fault": "preempt", "at": {"case": 2}, "notice_s": 10})
    cut = launch(bench, *paced("case 2"), "--set", "run.attempts=1", code=8)
    assert (cut["state"], cut["cases_done"]) == ("preempted", 1)
    fetched = bench("fetch", cut["run_id"], "--into", "out", "--json").document
    assert (fetched["complete"], fetched["cases"]) == (False, 1)
    assert "partial" in bench("fetch", cut["run_id"], "--into", "out").out
    assert_our_account_is_the_bill(bench, cut)
    (payload,) = wire().bucket.list("payloads/")  # not this installation's own
    sha256 = payload.name.removeprefix("payloads/").partition(".")[0]
    whole = bench("launch", "--resume", cut["run_id"], "--accept-payload", sha256, "--json").document
    assert (whole["run_id"], whole["state"], whole["cases_done"]) == (cut["run_id"], "succeeded", 2)
    fetched = bench("fetch", cut["run_id"], "--into", "out", "--json").document
    assert fetched["complete"] is True
    again = bench("launch", "--resume", cut["run_id"], code=2)
    assert "has measured all its cases" in again.err
    assert (
        "options that change what is measured are not allowed"
        in bench("launch", "--resume", "last", "--gpu", "l4", code=2).err
    )


def test_a_plan_says_why_and_how_far_it_would_go(bench: Bench) -> None:
    wide = bench("plan", "--gpu", "l4", "--fallback-gpu", "t4", "--on-demand-after", "1", "--json").document
    assert {offer["gpu"] for offer in wide["offers"]} == {"l4", "t4"}
    assert {offer["provisioning"] for offer in wide["offers"]} == {"SPOT", "STANDARD"}
    assert all(offer["why"] for offer in wide["offers"])
    assert "expected" in bench("plan", "--gpu", "l4").out
    none = bench("plan", "--gpu", "l4", "--max-price", "0.01", code=4)
    assert "cost more than $0.01/h" in none.err


def test_a_payload_that_is_not_what_it_should_be_stops_the_machine(bench: Bench) -> None:
    name = payload_object(pack_payload(bundle_root()).sha256)
    wire().bucket.create(name, b"something else")
    run = launch(bench, code=5)
    assert [entry.name for entry in wire().bucket.list("payloads/")] == [name], "the launch found it there"
    assert run["state"] == "failed"
    assert run["diagnoses"][-1]["cause"] == "payload_checksum"


def test_a_client_that_is_killed_loses_nothing_and_another_process_sees_the_truth(bench: Bench, paced: Paced) -> None:
    command = [
        sys.executable, "-m", "orchestrator.cli", "launch", "--gpu", "l4", *SMALL, *paced("environment"),
    ]  # fmt: skip
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert client.stdout is not None
    for line in client.stdout:
        if "phase environment" in line:
            break
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    listed = bench("status", "--json").document["runs"]
    assert [run["phase"] for run in listed] == ["running"]
    assert "VMs alive now: 1" in bench("status").out
    partial = bench("fetch", listed[0]["run_id"], "--into", "out", "--json").document
    assert partial["complete"] is False
    assert bench("logs", listed[0]["run_id"], "--json").document["source"] == "serial port"
    stopped: Ran = bench("stop", listed[0]["run_id"])
    assert "is stopped" in stopped.out
    assert bench("cloud", "status", "--json").document["instances"] == []
    assert "VMs alive now: 0" in bench("status").out


def test_ctrl_c_detaches_and_the_run_goes_on(bench: Bench, paced: Paced) -> None:
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    command = [
        "env", "--default-signal=INT", sys.executable, "-m", "orchestrator.cli", "launch", "--gpu", "l4", *SMALL,
        *paced("environment"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert client.stdout is not None
    said = []
    for line in client.stdout:
        said.append(line)
        if "phase environment" in line:
            client.send_signal(signal.SIGINT)
    client.stdout.close()
    assert (client.wait(), "detached; the run continues" in "".join(said)) == (0, True), "".join(said)
    assert "VMs alive now: 1" in bench("status").out
    bench("stop", "last")


def test_a_detached_run_goes_on_and_can_be_followed(bench: Bench, paced: Paced) -> None:
    shown = bench("launch", "--gpu", "l4", "--detach", *SMALL, *paced()).out
    assert "goes on without this terminal" in shown
    assert "finish: succeeded" in bench("logs", "last", "--follow").out
    assert bench("status", "last", "--json").document["state"] == "succeeded"


def test_a_fetch_of_a_run_that_nobody_followed_ends_it_in_the_books_too(bench: Bench, paced: Paced) -> None:
    run_id = bench("launch", "--gpu", "l4", "--detach", "--json", *SMALL, *paced()).document["run_id"]
    await_truth(lambda: not bench.alive())
    assert bench("fetch", run_id, "--into", "out", "--json").document["complete"] is True
    assert "is not complete" not in (bench.home / "out" / run_id / "report.html").read_text()


def test_a_baseline_alone_asks_for_no_kernel(bench: Bench, paced: Paced) -> None:
    """That none is built then, nor needs a compiler, is shown of the harness."""
    run = launch(bench, *paced(), "--baseline-only")
    assert run["state"] == "succeeded"
    assert {row["implementation"] for row in rows_of(bench, run["run_id"])} == {
        "sdpa:flash",
        "sdpa:cudnn",
        "sdpa:flash:aa",
    }
