"""Whole runs on a host, through the commands, over a real sshd."""

from __future__ import annotations

import contextlib
import csv
import getpass
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_real_machines import QUICK
from tests.integration.hosts.conftest import CASES, Client, Start
from tests.integration.hosts.looking import files, in_phase, outside_the_cache, processes, spooled
from tests.support.paced import held_at
from tests.support.patience import await_truth
from tests.support.sshd import Sshd, Wire

pytestmark = [pytest.mark.usefixtures("cloud")]

PHASES = ("preflight", "environment", "build", "correctness", "measure", "finish")


def launch(bench: Bench, paced: tuple[str, ...], *more: str, code: int = 0) -> Any:
    return bench("launch", "--host", "box", "--json", *paced, *more, code=code).document


def rows_of(bench: Bench, run_id: str) -> list[dict[str, str]]:
    fetched = bench("fetch", run_id, "--into", "out", "--json").document
    assert fetched["complete"] is True
    with (Path(fetched["folder"]) / "measurements.csv").open() as file:
        return list(csv.DictReader(file))


def root_of(paced: tuple[str, ...]) -> Path:
    return Path(paced[1].partition("=")[2])


def assert_nothing_is_left(host: Sshd, before: set[str]) -> None:
    """No process, no file outside the cache folder, and in it nothing of any run."""
    assert outside_the_cache(host) == before
    assert processes(host) == []
    assert list((host.cache / "runs").iterdir()) == []
    assert list((host.cache / "incoming").iterdir()) == []


def test_a_run_on_a_host_is_a_run_like_any_other_and_leaves_nothing(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    before = outside_the_cache(host)
    run = launch(bench, paced, "--set", "host.hourly_usd=0.90")
    assert (run["state"], run["cases_done"], run["attempts"], run["mode"]) == ("succeeded", 2, 1, "host")
    (vm,) = run["vms"]
    assert (vm["machine_type"], vm["provisioning"], vm["how"]) == ("host", "OWN", "deleted")
    assert vm["zone"].startswith("host-box-")
    assert [phase["phase"] for phase in run["phases"]] == list(PHASES)
    assert {row["case_id"] for row in rows_of(bench, run["run_id"])} == set(CASES)
    (entry,) = bench("costs", "--json").document["runs"]
    # A minute of it at least is counted, as of a rented machine.
    assert Decimal("0.015") <= Decimal(entry["settled_usd"]) <= Decimal(entry["hold_usd"])
    assert entry["settled_usd"] == run["cost_usd"]
    assert "succeeded" in bench("status").out
    assert "finish: succeeded" in bench("logs", "last").out
    assert bench("reap", "--json").document["machines"] == []
    assert_nothing_is_left(host, before)


def test_a_second_run_sends_no_payload_and_validates_nothing(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    first = bench("launch", "--host", "box", *paced).out
    payload = next((host.cache / "payloads").iterdir())
    stored = payload.stat().st_ino
    second = bench("launch", "--host", "box", *paced).out
    assert "validating box: it was never validated" in first
    assert "validating" not in second
    assert payload.stat().st_ino == stored


@contextmanager
def cut_in_each_phase(host: Sshd, wire: Wire, go_on: dict[str, Path]) -> Iterator[list[str]]:
    """Cuts the wire once in every phase of the next run, which goes on after it; gives the phases it did."""
    done: list[str] = []
    over = threading.Event()

    def watch() -> None:
        for phase in PHASES:
            cut = wire.cut_when(lambda phase=phase: in_phase(host, phase), 0.3)  # type: ignore[misc]
            while not cut.wait(0.1):
                if over.is_set():
                    return
            done.append(phase)
            for place in {"measure": ("case 1",)}.get(phase, (phase,)):
                if place in go_on:
                    go_on[place].touch()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def test_a_connection_that_is_cut_in_each_phase_loses_no_measurement(
    bench: Bench, host: Sshd, wire: Wire, paced: tuple[str, ...]
) -> None:
    before = outside_the_cache(host)
    whole = launch(bench, paced)
    go_on = held_at(root_of(paced), "environment", "build", "correctness", "case 1")
    with cut_in_each_phase(host, wire, go_on) as cut:
        run = launch(bench, paced)
    assert tuple(cut) == PHASES
    assert wire.cuts == len(PHASES)
    assert (run["state"], run["cases_done"], run["attempts"]) == ("succeeded", 2, 1)
    told = ("case_id", "implementation", "repeat", "latency_us")
    same = [[[row[name] for name in told] for row in rows_of(bench, one["run_id"])] for one in (whole, run)]
    assert same[0] == same[1]
    assert_nothing_is_left(host, before)


@pytest.mark.parametrize("moment", ["incoming", "run.json", "state.json"])
def test_a_connection_that_is_cut_while_a_run_is_sent_or_started_starts_it_once(
    bench: Bench, host: Sshd, wire: Wire, paced: tuple[str, ...], moment: str
) -> None:
    before = outside_the_cache(host)
    wire.cut_when(lambda: has_come_to(host, moment), 0.3)
    run = launch(bench, paced)
    assert wire.cuts == 1
    assert (run["state"], run["cases_done"]) == ("succeeded", 2)
    assert len(rows_of(bench, run["run_id"])) == 2 * 20 * len(run["implementations"])
    assert_nothing_is_left(host, before)


def has_come_to(host: Sshd, moment: str) -> bool:
    if moment != "incoming":
        return any(host.cache.glob(f"runs/*/{moment}"))
    for path in host.cache.glob("incoming/*.part"):  # zeros until the first of it has arrived
        with contextlib.suppress(OSError), path.open("rb") as file:
            return any(file.read(2))
    return False


def start_client(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "orchestrator.cli", "launch", "--host", "box", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def test_a_client_that_is_killed_loses_nothing_and_the_next_one_brings_it_home(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    before = outside_the_cache(host)
    go_on = held_at(root_of(paced), "case 1")["case 1"]
    with start_client(*paced) as killed:
        await_truth(lambda: spooled(host, "-case_started"), "the first case")
        killed.send_signal(signal.SIGKILL)
    go_on.touch()
    await_truth(lambda: processes(host) == [], "the end of the run on the host")
    assert outside_the_cache(host) == before
    (left,) = (host.cache / "runs").iterdir()
    assert {name.partition("/")[0] for name in files(left)} == {
        "run.json", "state.json", "alive", "serial.log", "steward.log", "spool"
    }  # fmt: skip
    assert len(spooled(host, ".csv")) == 3
    run = bench("status", "last", "--json").document
    assert (run["state"], run["cases_done"]) == ("succeeded", 2)
    assert {row["case_id"] for row in rows_of(bench, run["run_id"])} == set(CASES)
    assert_nothing_is_left(host, before)


def test_a_stop_reaches_every_process_on_the_host(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    before = outside_the_cache(host)
    held_at(root_of(paced), "case 1")
    run = launch(bench, paced, "--detach")
    await_truth(lambda: any("kernels.harness" in one for one in processes(host)), "the harness")
    assert "VMs alive now: 1" in bench("status").out
    assert bench("logs", "last", "--json").document["source"] == "host, over SSH"
    assert "is stopped" in bench("stop", run["run_id"]).out
    assert_nothing_is_left(host, before)


def test_a_run_that_fails_leaves_nothing_and_says_why(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    before = outside_the_cache(host)
    held_at(root_of(paced), "build")
    run = launch(bench, paced, "--set", "run.phase_limits_s={build: 1}", code=5)
    assert run["state"] == "failed"
    assert run["diagnoses"][-1]["cause"] == "phase_timeout"
    assert_nothing_is_left(host, before)


def test_a_host_that_cannot_be_reached_keeps_nobody_from_seeing_the_rest(
    bench: Bench, host: Sshd, wire: Wire, paced: tuple[str, ...]
) -> None:
    run = launch(bench, paced, "--detach", "--set", "measure.repeats=500")
    wire.cut(down_s=3600)
    shown = bench("status")
    assert run["run_id"] in shown.out.replace("\n", "") or run["run_id"][:20] in shown.out
    assert "UNREACHABLE" in shown.out
    known = bench("status", run["run_id"])
    assert run["run_id"] in known.out
    assert "note: box cannot be reached" in known.err
    assert bench("costs", "--json").document["runs"][0]["run_id"] == run["run_id"]
    assert "what is in the bucket so far" in bench("fetch", run["run_id"], "--into", "out").err
    wire.down_until = 0
    await_truth(lambda: processes(host) == [], "the end of the run on the host")
    assert bench("fetch", run["run_id"], "--into", "out", "--json").document["cases"] == 2
    assert bench("status", run["run_id"], "--json").document["state"] == "succeeded"


def test_a_run_whose_steward_is_killed_is_buried_and_goes_on_without_measuring_twice(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    before = outside_the_cache(host)
    held_at(root_of(paced), "case 2")
    run = launch(bench, paced, "--detach")
    await_truth(lambda: len(spooled(host, "-case_measured")) == 1, "the first case")
    (steward,) = [json.loads(path.read_text())["pid"] for path in host.cache.glob("runs/*/state.json")]
    os.kill(steward, signal.SIGKILL)
    whole = bench("launch", "--resume", run["run_id"], *paced[:2], "--json").document
    assert (whole["state"], whole["cases_done"], whole["attempts"]) == ("succeeded", 2, 2)
    rows = rows_of(bench, run["run_id"])
    machines = {case: {row["vm"] for row in rows if row["case_id"] == case} for case in CASES}
    assert machines == {CASES[0]: {whole["vms"][0]["name"]}, CASES[1]: {whole["vms"][1]["name"]}}
    assert_nothing_is_left(host, before)


def test_two_clients_cannot_measure_on_one_host_at_once(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    go_on = held_at(root_of(paced), "case 1")["case 1"]
    first = launch(bench, paced, "--detach")
    refused = bench("launch", "--host", "box", *paced, code=4)
    assert f"box is busy with bench-{first['run_id']}-1" in refused.err
    bench("stop", first["run_id"])
    go_on.touch()
    assert launch(bench, paced)["state"] == "succeeded"


def test_secrets_of_the_user_and_of_the_host_are_in_nothing_that_is_written(
    bench: Bench, host: Sshd, client: Any, paced: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "planted-" + "f3a9c1e7d5b2" * 2
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "BENCH_SECRET", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, token)
    (host.home / ".netrc").write_text(f"password {token}\n")
    (host.home / ".bashrc").write_text(f"export HF_TOKEN={token} CUDA_TOKEN_OF_MINE={token}\n")
    key = host.user_key.read_text().splitlines()[1]
    shown = bench("launch", "--host", "box", *paced)
    run_id = bench("status", "--json").document["runs"][-1]["run_id"]
    said = [
        shown.out,
        shown.err,
        *(bench(*one).out for one in (("logs", "last"), ("status", run_id), ("fetch", run_id, "--into", "out"))),
    ]
    written = [path for path in (*bench.home.rglob("*"), *host.cache.rglob("*")) if path.is_file()]
    assert len(written) > 20
    payloads = [path for path in written if path.name.endswith(".tar.gz")]
    assert payloads
    for secret in (token, key):
        assert not any(secret in text for text in said)
        assert [path for path in written if secret.encode() in contents(path)] == []


def contents(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


REAL = (
    "--gpu", "cpu",
    "--set", "measure.grid={shapes: [{batch: 1, heads: 2, seq: 16, head_dim: 64}, {batch: 1, heads: 2, seq: 47, head_dim: 64}], dtypes: [float32]}",
    "--set", "correctness.grid={shapes: [{batch: 1, heads: 2, seq: 33, head_dim: 64}], dtypes: [float32]}",
    "--set", "measure.implementations=[bench, 'sdpa:math', 'sdpa:cudnn']",
    "--set", "measure.repeats=5",
    *QUICK,
    "--set", "environment.min_free_gb=0",
)  # fmt: skip


def test_the_harness_that_ships_measures_on_a_host(bench: Bench, client: Client, start: Start) -> None:
    """With the torch and the compiler of this machine; tests/integration/cli/test_real_machines.py does it in the cloud."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    with start(environment={"PATH": path}) as server:
        client.reaches(server)
        user, port = getpass.getuser(), server.port
        client.configure(f"Host localhost\n  HostName 127.0.0.1\n  IdentityFile {server.user_key}")
        run = bench("launch", "--host", f"{user}@localhost:{port}", "--json", *REAL).document
        assert_nothing_is_left(server, set())
    assert run["state"] == "succeeded"
    rows = rows_of(bench, run["run_id"])
    counted = Counter((row["case_id"], row["implementation"], bool(row["skipped"])) for row in rows)
    timed = {(case, name, False): 5 for case in CASES for name in ("bench", "bench:aa", "sdpa:math")}
    assert counted == timed | {(case, "sdpa:cudnn", True): 1 for case in CASES}
    assert {row["device"] for row in rows} == {run["device"]}


def test_a_host_and_the_embedded_cloud_return_the_same_files_and_rows(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    options = (*paced, "--set", "measure.implementations=[bench, 'sdpa:math']")
    own = launch(bench, options)
    rented = bench("launch", "--gpu", "l4", "--json", *options).document
    assert (own["state"], rented["state"]) == ("succeeded", "succeeded")
    folders = [
        Path(bench("fetch", run["run_id"], "--into", "out", "--json").document["folder"]) for run in (own, rented)
    ]
    assert files(folders[0]) - {"serial-1.txt"} == files(folders[1]) - {"serial-1.txt"}
    for name in ("measurements.csv", "correctness.csv", "summary.csv"):
        mine, theirs = ((folder / name).read_text().splitlines() for folder in folders)
        assert mine[0] == theirs[0], name
        assert len(mine) == len(theirs), name
    counted = [
        Counter((row["case_id"], row["implementation"], bool(row["skipped"])) for row in rows_of(bench, run["run_id"]))
        for run in (own, rented)
    ]
    assert counted[0] == counted[1]
    assert {case for case, _, _ in counted[0]} == set(CASES)
