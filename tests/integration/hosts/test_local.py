"""`--host local`: the machine in front of you, without SSH; and a machine that is not the one the run is on."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.hosts.cloud import HostCloud
from orchestrator.adapters.hosts.local_shell import LocalShell, this_machine
from orchestrator.core.errors import HostUnfit, Unavailable
from orchestrator.core.hosts import HostRecord, HostRun, HostTarget, parse_target, record_object
from tests.integration.cli.conftest import Bench
from tests.integration.hosts.conftest import CASES, Client, base_python, with_stand_ins
from tests.support.memory_bucket import MemoryBucket
from tests.support.patience import PATIENCE_S, await_truth


@pytest.fixture
def here(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """This machine with a home of its own and a python3 that has the stand-ins for torch and numpy."""
    with_stand_ins(client.home)
    monkeypatch.setenv("PATH", base_python(tmp_path / "python"))
    return client


def left(home: Path) -> set[str]:
    cache = home / ".cache" / "spotbench"
    return {path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file()}


def test_this_machine_measures_for_itself_without_ssh_and_nothing_is_left_running(
    bench: Bench, here: Client, paced: tuple[str, ...]
) -> None:
    ran = bench("launch", "--host", "local", "--gpu", "cpu", *paced, code=0)
    assert "ssh" not in (ran.out + ran.err).lower()
    assert "$" not in ran.out + ran.err
    fetched = bench("fetch", "last", "--json", code=0).document
    assert fetched["cases"] == len(CASES)
    assert left(here.home) <= {"payloads", "build", "lock"}
    marked = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(here.home / ".cache").encode() in _read(entry / "cmdline")
    ]
    assert marked == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_doctor_is_green_for_this_machine_where_the_plan_is(bench: Bench, here: Client) -> None:
    checks = bench("doctor", "--host", "local", "--gpu", "cpu", "--json").document["checks"]
    found = {check["name"]: check for check in checks}
    assert found["host.torch"]["level"] == "ok", found["host.torch"]
    assert found["host.python"]["level"] == "ok"
    bench("plan", "--host", "local", "--gpu", "cpu", code=0)


def test_the_doctor_fails_where_the_plan_does_and_both_name_a_python_that_has_torch(
    bench: Bench, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", base_python(tmp_path / "python"))
    environment = client.home / "bench-venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    donor = client.home / "donor"
    with_stand_ins(donor)
    for package in next(donor.glob(".local/lib/python3*/site-packages")).iterdir():
        package.rename(site / package.name)
    checks = bench("doctor", "--host", "local", "--gpu", "cpu", "--json", code=15).document["checks"]
    torch = next(check for check in checks if check["name"] == "host.torch")
    assert torch["level"] == "fail"
    named = f"--set host.python={environment}/bin/python3"
    assert named in torch["remedy"]
    refused = bench("plan", "--host", "local", "--gpu", "cpu", code=15)
    assert named in refused.err
    green = bench("doctor", "--host", "local", "--gpu", "cpu", *named.split(), "--json").document["checks"]
    assert next(check for check in green if check["name"] == "host.torch")["level"] == "ok"
    bench("plan", "--host", "local", "--gpu", "cpu", *named.split(), code=0)


def test_the_python_that_runs_bench_is_named_where_only_it_has_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", base_python(tmp_path / "python"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    own = tmp_path / "wherever" / "tools"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
    target = parse_target("local", this_machine())
    asked = LocalShell(target, python=str(own / "bin" / "python")).ask("packages", {}, timeout_s=PATIENCE_S)
    assert asked["torch"] == ""
    assert asked["pythons"] == []
    (site,) = own.glob("lib/python3*/site-packages")
    with_stand_ins(tmp_path / "donor")
    for package in next((tmp_path / "donor").glob(".local/lib/python3*/site-packages")).iterdir():
        package.rename(site / package.name)
    asked = LocalShell(target, python=str(own / "bin" / "python")).ask("packages", {}, timeout_s=PATIENCE_S)
    assert asked["pythons"] == [str(own / "bin" / "python3")]


def test_local_names_this_machine_and_no_other_does() -> None:
    target = parse_target("local", this_machine())
    assert target.machine == this_machine()
    assert parse_target(str(target)) == target
    assert target.zone != parse_target("local:other-box-012345").zone
    assert parse_target("me@local").machine == ""
    assert parse_target("local:22").port == 22


def test_a_run_of_another_machine_is_out_of_reach_here_and_says_where_it_is() -> None:
    shell = LocalShell(HostTarget("", "local", None, "other-box-012345"))
    for operation in (
        lambda: shell.ask("probe", {}),
        lambda: shell.get("/etc/hostname", limit=1),
        lambda: shell.run("true"),
    ):
        with pytest.raises(Unavailable, match="other-box-012345"):
            operation()


def test_a_python_that_is_not_there_is_named_with_the_setting_that_names_another() -> None:
    shell = LocalShell(HostTarget("", "local", None, this_machine()))
    with pytest.raises(HostUnfit, match="no /nowhere/python3") as refused:
        shell.ask("probe", {}, python="/nowhere/python3")
    assert "host.python" in refused.value.hint


def test_what_the_bucket_says_of_this_machine_never_names_a_program_that_runs_on_it(tmp_path: Path) -> None:
    proof, evil = tmp_path / "PWNED", tmp_path / "python3"
    evil.write_text(f"#!/bin/sh\ntouch {proof}\n")
    evil.chmod(0o755)
    target, now = HostTarget("", "local", None, this_machine()), datetime(2026, 1, 1, tzinfo=UTC)
    run = HostRun(run_id="20260101-000000-cpu-0bad", created_at=now, deadline_at=now + timedelta(days=9999))
    record = HostRecord(target=str(target), python=str(evil), runs={"bench-20260101-000000-cpu-0bad-1": run})
    bucket = MemoryBucket()
    bucket.create(record_object(target.zone), record.model_dump_json(by_alias=True).encode())
    hosts = HostCloud(bucket, SystemClock(), LocalShell, this_machine())
    hosts.instances()
    hosts.serial_output(target.zone, "bench-20260101-000000-cpu-0bad-1", 0)
    assert not proof.exists()


def test_ctrl_c_in_the_terminal_does_not_reach_what_runs_for_the_host() -> None:
    shell = LocalShell(HostTarget("", "local", None, this_machine()))
    _, out, _ = shell.run("ps -o pgid= -p $$")
    assert int(out) != os.getpgrp()


def test_a_command_that_prints_forever_is_ended_and_so_is_one_outlived_by_a_child(tmp_path: Path) -> None:
    shell = LocalShell(HostTarget("", "local", None, machine=this_machine()))
    pids = tmp_path / "pids"
    with pytest.raises(HostUnfit, match="this machine printed more than 32 MB while it was looked at"):
        shell.run(f"echo $$ >> {pids}; exec yes", timeout_s=PATIENCE_S)
    with pytest.raises(Unavailable, match=r"took over 0\.5 s when it was looked at"):
        shell.run(f"sleep {PATIENCE_S} & echo $! >> {pids}; exit", timeout_s=0.5)
    ended = [Path(f"/proc/{pid}/cmdline") for pid in pids.read_text().split()]
    await_truth(lambda: all(word not in _read(path) for path in ended for word in (b"sleep", b"yes")))
