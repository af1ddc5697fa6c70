"""The steward of a run, started as a client starts it, on this machine and without a connection in between."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.hosts.host_operations import build_command
from startup.host.spool import BadName, Spool
from tests.integration.hosts.conftest import base_python, with_stand_ins
from tests.support.patience import PATIENCE_S, await_truth, living
from tests.unit.startup.machine import CASES, ROOT, held_sleep, payload, run_spec, time_is_up

RUN = f"20261121-040000-host-{os.getpid() & 0xFFFF:04x}"
"""Its own in every process of the tests: a host finds what a run started by the machine's name."""
VM = f"bench-{RUN}-1"


@dataclass
class Here:
    """A host's home on this machine, with something called torch in it."""

    home: Path
    python: str
    path: str = "/usr/local/bin:/usr/bin:/bin"
    limits: tuple[str, ...] = ()
    """For prlimit(1), by which whatever is asked there runs."""

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "spotbench"

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        environment = {"HOME": str(self.home), "PATH": self.path}
        ran = subprocess.run(
            [*self.limits, *build_command(operation, arguments, self.python)],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
            env=environment,
        )
        answer: dict[str, Any] = json.loads(ran.stdout.rpartition("@@spotbench@@")[2])
        return answer

    def start(self, vm: str = VM, deadline_s: float = 600, known: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
        data = payload()
        digest = hashlib.sha256(data).hexdigest()
        where = self.ask("prepare", vm=vm, sha256=digest, size=len(data))
        if not where["present"]:
            Path(where["incoming"]).write_bytes(data)
            assert self.ask("accept", sha256=digest, incoming=where["incoming"]) == {}
        told = run_spec(run_id=RUN, vm=vm, deadline_s=deadline_s, **spec)
        metadata = {
            "startup-script": (ROOT / "startup" / "startup.sh").read_text(),
            "bench-run": json.dumps(told),
            "bench-payload": json.dumps({"bucket": "b", "object": f"payloads/{digest}.tar.gz", "sha256": digest}),
        }
        run = {"vm": vm, "zone": "host-here-000000", "id": "7", "labels": {}, "sha256": digest}
        run |= {"deadline_s": deadline_s, "metadata": metadata, "known": known, "client_time": time.time()}
        return self.ask("start", run=run)

    def until_gone(self, vm: str = VM) -> dict[str, Any]:
        """What the host says once it has ended. Each question is an interpreter that compiles all operations, so the
        steward's process is watched in between."""
        state = self.ask("state", vm=vm)
        until = time.monotonic() + PATIENCE_S
        while state["status"] != "gone":
            assert time.monotonic() < until, "the run did not end"
            pid = state.get("pid")
            await_truth(lambda pid=pid: not pid or not living(pid), "the end of the steward")  # type: ignore[misc]
            state = self.ask("state", vm=vm)
            time.sleep(0 if state["status"] == "gone" else 0.5)
        return state

    def events(self, vm: str = VM) -> list[dict[str, Any]]:
        folder = self.cache / "runs" / vm / "spool" / "runs" / RUN / "events"
        return [json.loads(path.read_text()) for path in sorted(folder.iterdir())] if folder.exists() else []


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with_stand_ins(tmp_path / "home")
    base_python(tmp_path / "python")
    made = Here(tmp_path / "home", str(tmp_path / "python" / "python3"))
    yield made
    for run in made.ask("runs")["runs"]:
        made.ask("stop", vm=run["vm"])
        made.until_gone(run["vm"])
        made.ask("forget", vm=run["vm"])


def last_word(here: Here) -> dict[str, Any]:
    (word,) = [event["data"] for event in here.events() if event["kind"] in ("finished", "vm_exiting")]
    return dict(word)


def test_a_run_stores_everything_in_the_spool_and_ends_itself(here: Here) -> None:
    assert here.start()["status"] == "running"
    state = here.until_gone()
    assert state["ended_by"] == "itself"
    assert last_word(here)["outcome"] == "succeeded"
    assert {name for name, _, _ in state["files"] if "/cases/" in name} == {
        f"runs/{RUN}/cases/{one}.csv" for one in CASES
    }
    assert {path.name for path in (here.cache / "runs" / VM).iterdir()} == {
        "run.json", "state.json", "alive", "serial.log", "steward.log", "spool"
    }  # fmt: skip
    assert (here.cache / "runs" / VM / "steward.log").read_text() == ""
    assert here.ask("forget", vm=VM) == {"exists": False}
    assert here.ask("state", vm=VM) == {"exists": False}


def test_what_the_bucket_has_is_not_measured_again(here: Here) -> None:
    here.start(known=(f"runs/{RUN}/cases/{CASES[0]}.csv",))
    here.until_gone()
    assert [event["data"]["case_id"] for event in here.events() if event["kind"] == "case_measured"] == CASES[1:]


def test_a_run_that_is_started_twice_is_one_run(here: Here) -> None:
    slow = {"script": {"environment": [{"hang": 1}]}}
    first = here.start(**slow)
    assert here.start(**slow)["pid"] == first["pid"]


def test_a_host_measures_for_one_run_at_a_time_and_says_for_which(here: Here) -> None:
    here.start(script={"environment": [{"hang": 1}]})
    refused = here.start(vm=VM.replace("-040000-", "-050000-"))
    assert (refused["trouble"], refused["message"]) == ("busy", VM)
    assert here.ask("probe")["busy"] == VM


def test_a_stop_is_an_end_in_good_order(here: Here) -> None:
    here.start(script={"environment": [{"hang": 1}]})
    await_truth(lambda: any(event["data"].get("phase") == "environment" for event in here.events()), "the harness")
    here.ask("stop", vm=VM)
    here.until_gone()
    assert last_word(here)["outcome"] == "terminated"
    assert here.ask("stop", vm=VM)["status"] == "gone"


def test_a_steward_ended_by_the_system_counts_as_a_machine_taken_back(here: Here) -> None:
    steward = here.start(script={"environment": [{"hang": 1}]})["pid"]
    await_truth(lambda: any(event["data"].get("phase") == "environment" for event in here.events()), "the harness")
    os.kill(steward, signal.SIGTERM)
    here.until_gone()
    assert last_word(here)["outcome"] == "preempted"


def test_a_signal_is_heard_whatever_line_the_steward_is_at(tmp_path: Path) -> None:
    # Python calls a handler between two lines of the main thread, which may hold a lock there.
    command = [sys.executable, "-m", "tests.integration.hosts.signalled_steward", str(tmp_path), str(PATIENCE_S / 2)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_host_enforces_the_deadline_alone(here: Here) -> None:
    stubs = here.home.parent / "stubs"
    stubs.mkdir()
    held_sleep(stubs, stubs)
    here.path = f"{stubs}:{here.path}"
    here.start(script={"environment": [{"hang": 1}]})
    await_truth(lambda: any(event["data"].get("phase") == "environment" for event in here.events()), "the harness")
    time_is_up(stubs)
    here.until_gone()
    assert last_word(here)["outcome"] == "timed_out"


def stop_everything_but_the_steward(here: Here) -> int:
    """SIGSTOP to the bootstrap and all below it: nothing of the run can end itself any more."""
    mark, stopped = f"BENCH_HOST_VM={VM}".encode(), 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGSTOP)
                stopped += 1
        except OSError:
            continue
    return stopped


def test_a_dead_steward_is_buried_by_whoever_looks_next(here: Here) -> None:
    steward = here.start(script={"environment": [{"hang": 1}]})["pid"]
    os.kill(steward, signal.SIGKILL)
    await_truth(lambda: here.ask("state", vm=VM)["status"] == "gone", "the burial", 0.2)
    assert here.ask("state", vm=VM)["ended_by"] == "lost"
    assert stop_everything_but_the_steward(here) == 0
    assert not (here.cache / "runs" / VM / "scratch").exists()
    assert here.ask("probe")["busy"] == ""


def test_what_is_asked_of_a_host_writes_nothing_beside_its_python(here: Here, tmp_path: Path) -> None:
    """Where nothing was compiled yet. On a disk that fills up half a file stays there, and that python starts no more."""
    compiled = tmp_path / "compiled"
    environment = {"HOME": str(here.home), "PATH": here.path, "PYTHONPYCACHEPREFIX": str(compiled)}
    for operation in ("probe", "runs"):
        subprocess.run(build_command(operation, {}, here.python), env=environment, check=True, capture_output=True)
    assert not compiled.exists()


def test_a_payload_that_is_not_what_it_should_be_is_not_kept(here: Here) -> None:
    where = here.ask("prepare", vm=VM, sha256="ab" * 32, size=10)
    Path(where["incoming"]).write_bytes(b"other")
    assert here.ask("accept", sha256="ab" * 32, incoming=where["incoming"])["trouble"] == "checksum"
    assert list((here.cache / "incoming").iterdir()) == []
    assert here.ask("accept", sha256="ab" * 32, incoming="/etc/passwd")["trouble"] == "unknown"
    assert Path("/etc/passwd").exists()


def test_a_name_cannot_lead_out_of_the_cache_folder(here: Here) -> None:
    for name in ("", "../..", ".", "/etc", "a/b"):
        assert here.ask("forget", vm=name)["trouble"] == "unknown"
    spool = Spool(here.cache / "spool")
    for name in ("../x", "/x", "a/../b", "a//b", ".hidden", "a/.b", "a b", ""):
        with pytest.raises(BadName):
            spool.put(name, b"")


def test_an_object_is_stored_once_and_what_the_bucket_has_counts(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", frozenset({"runs/r/cases/old.csv"}))
    assert spool.put("runs/r/cases/new.csv", b"1", over=0)
    assert not spool.put("runs/r/cases/new.csv", b"2", over=0)
    assert not spool.put("runs/r/cases/old.csv", b"2", over=0)
    assert spool.put("runs/r/artifacts/log.txt", b"1")
    assert spool.put("runs/r/artifacts/log.txt", b"22")
    assert spool.read("runs/r/cases/new.csv") == (b"1", 1)
    assert spool.read("runs/r/cases/old.csv") is None
    assert spool.names("runs/r/cases/") == ["runs/r/cases/new.csv", "runs/r/cases/old.csv"]


def test_a_spool_object_is_replaced_only_in_the_generation_its_writer_knows(tmp_path: Path) -> None:
    name = "runs/r/artifacts/log.txt"
    spool = Spool(tmp_path / "spool")
    assert spool.put(name, b"old", 1) == 0, "there is none yet"
    first = spool.put(name, b"old", 0)
    second = spool.put(name, b"newer", first)
    assert second > first > 0
    assert spool.put(name, b"old", first) == 0
    assert spool.put(name, b"old", 0) == 0
    assert spool.read(name) == (b"newer", second)
    assert spool.put(name, b"the bootstrap's") > second
    of_the_next_attempt = Spool(tmp_path / "spool")
    assert of_the_next_attempt.put(name, b"next", 0) == 0
    _, there = of_the_next_attempt.read(name) or (b"", 0)
    assert of_the_next_attempt.put(name, b"next", there) > there
