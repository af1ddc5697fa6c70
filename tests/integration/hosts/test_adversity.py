"""What may befall a machine while a run is on it: a disk that is full, a clock that is set, sleep, processes that hide,
a file that is damaged, and a second client at the same moment."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import NoCapacity
from orchestrator.core.host_answers import answer_error
from orchestrator.core.hosts import parse_target
from startup.host import machine, runs
from startup.host.paths import Trouble, boot_seconds
from startup.host.processes import is_alive, kill_run, run_processes
from startup.host.supervisor import Steward
from tests.integration.hosts.test_steward import ROOT, VM, Here, here  # noqa: F401
from tests.support.patience import PATIENCE_S, await_truth

HANG: dict[str, Any] = {"script": {"environment": [{"hang": 1}]}}
FULL = ("prlimit", "--fsize=0")
"""Nothing can be written into any file, as on a disk that is full; files can be made and removed."""


def folder_of(here: Here) -> Path:  # noqa: F811
    return here.cache / "runs" / VM


def widowed(here: Here) -> None:  # noqa: F811
    """A run whose steward was killed, and nobody has looked since."""
    here.start(**HANG)
    await_truth(lambda: any(event["data"].get("phase") == "environment" for event in here.events()), "the harness")
    pid = json.loads((folder_of(here) / "state.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    await_truth(lambda: not is_alive(pid), "the end of the steward")


# --- a disk that is full ---


def test_what_a_lost_run_stored_comes_home_from_a_full_disk_with_its_end(
    here: Here,  # noqa: F811
) -> None:
    widowed(here)
    here.limits = FULL
    for _ in range(2):
        said = here.ask("state", vm=VM)
        assert (said["status"], said["ended_by"]) == ("gone", "lost")
        assert any("/events/" in name for name, _, _ in said["files"])
    assert here.ask("stop", vm=VM)["status"] == "gone"
    assert not list(folder_of(here).glob("*.new"))
    assert here.ask("forget", vm=VM) == {"exists": False}


def test_a_start_for_which_there_is_no_room_leaves_nothing(here: Here) -> None:  # noqa: F811
    here.start(**HANG)
    here.ask("stop", vm=VM)
    here.until_gone()
    here.ask("forget", vm=VM)
    here.limits = ("prlimit", "--fsize=2000")
    assert here.start(**HANG)["trouble"] == "disk_full"
    assert list((here.cache / "runs").iterdir()) == []


def test_a_stop_reaches_a_steward_that_could_not_write_down_that_it_is_there(here: Here) -> None:  # noqa: F811
    here.start(**HANG)
    (folder_of(here) / "state.json").unlink()
    here.limits = FULL
    here.ask("stop", vm=VM)
    here.limits = ()
    assert here.until_gone()["ended_by"] in ("itself", "stop")


def test_a_run_whose_record_is_damaged_is_over_and_what_it_stored_is_not(here: Here) -> None:  # noqa: F811
    widowed(here)
    record = folder_of(here) / "run.json"
    whole = record.read_bytes()
    for left in (b"", whole[: len(whole) // 2]):
        record.write_bytes(left)
        (folder_of(here) / "state.json").unlink(missing_ok=True)
        said = here.ask("state", vm=VM)
        assert (said["exists"], said["status"], said["ended_by"]) == (True, "gone", "lost")
        assert any("/events/" in name for name, _, _ in said["files"])


# --- clocks ---


def test_when_a_run_began_and_ended_does_not_change_with_the_hosts_clock(here: Here) -> None:  # noqa: F811
    here.start(**HANG)
    path = folder_of(here) / "state.json"

    def set_by(day_s: float) -> dict[str, Any]:
        """The host's clock as if it had been set since by so much."""
        known = json.loads(path.read_text())
        path.write_text(json.dumps({**known, **{key: known[key] - day_s for key in known if key.endswith("_at")}}))
        return here.ask("state", vm=VM)

    for day_s in (86400.0, -3 * 86400.0):
        said = set_by(day_s)
        assert 0 <= said["now"] - said["started_at"] < PATIENCE_S
    here.ask("stop", vm=VM)
    here.until_gone()
    for day_s in (86400.0, -3 * 86400.0):
        said = set_by(day_s)
        assert 0 <= said["now"] - said["ended_at"] <= said["now"] - said["started_at"] < 2 * PATIENCE_S


def test_after_a_new_start_of_the_machine_its_clock_is_believed(tmp_path: Path) -> None:
    known = {"boot": "another", "started_steady": boot_seconds(), "started_at": 5.0}
    assert runs.on_this_clock(known, 1e9) == {}
    assert runs.on_this_clock({}, 1e9) == {}


def test_the_clock_that_deadlines_go_by_counts_what_the_machine_sleeps() -> None:
    def uptime() -> float:
        return float(Path("/proc/uptime").read_text().split()[0])

    before = uptime()
    assert before <= boot_seconds() + 0.01
    assert boot_seconds() <= uptime() + 0.01


@contextmanager
def steward(folder: Path, script: str, **how: Any) -> Iterator[Steward]:
    """A steward in this process, of a run that is no more than a script. Nothing of it is left at the end."""
    (folder / "scratch").mkdir(parents=True)
    (folder / "alive").touch()
    vm = f"bench-{folder.name}-{os.getpid()}"
    told = {
        "vm": vm,
        "client_time": 0,
        "host_time": 0,
        "deadline_s": PATIENCE_S,
        "executable": sys.executable,
        "id": "1",
    }
    (folder / "run.json").write_text(json.dumps({**told, "metadata": {"startup-script": script}}))
    made = Steward(folder, **how)
    try:
        yield made
    finally:
        made.server.server_close()
        kill_run(vm, made.scratch)


HIDDEN = "env -i setsid sleep 600 & echo $! >hidden; (cd /; exec env -i setsid sleep 600) & echo $! >>hidden; "


def pids(file: Path) -> list[int]:
    await_truth(lambda: file.exists() and file.read_text().count("\n") == 2, "the processes that hide")
    return [int(line) for line in file.read_text().split()]


def test_a_machine_that_sleeps_past_the_deadline_ends_the_run_as_it_wakes(tmp_path: Path) -> None:
    began = tmp_path / "run" / "scratch" / "began"
    with steward(tmp_path / "run", ": > began; exec sleep 600", clock=lambda: 10.0 + 10_000 * began.exists()) as awake:
        awake.run_to_its_end()
        assert awake.ended_by == "deadline"


TIMED = """
import sys
from pathlib import Path
from startup.host.supervisor import Steward
folder = Path(sys.argv[1])
Steward(folder, clock=lambda: 10.0 + 10_000 * (folder / "time-is-up").exists()).work()
"""


def test_a_bootstrap_that_does_not_end_is_killed_at_the_deadline_with_all_it_started(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with steward(folder, HIDDEN + "trap '' TERM; kill -STOP $$") as made:
        process = subprocess.Popen([sys.executable, "-c", TIMED, str(folder)], cwd=ROOT)
        hidden = pids(made.scratch / "hidden")
        assert all(is_alive(pid) for pid in hidden)
        (folder / "time-is-up").touch()
        assert process.wait(PATIENCE_S) == 0
        assert json.loads((folder / "state.json").read_text())["ended_by"] == "deadline"
        assert not any(is_alive(pid) for pid in hidden)


def test_a_wish_that_came_before_anybody_listened_ends_the_run(tmp_path: Path) -> None:
    with steward(tmp_path / "run", "exec sleep 600") as one:
        (one.folder / "stop").touch()
        one.run_to_its_end()
        assert one.ended_by == "exit"
        assert not one.machine.preempted.is_set()


# --- processes that hide ---


def test_what_hides_from_its_run_by_another_environment_ends_with_it(here: Here, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "run"
    with steward(folder, HIDDEN + "until test -e enough; do sleep 0.05; done") as made:
        process = subprocess.Popen([sys.executable, "-m", "startup.host.supervisor", str(folder)], cwd=ROOT)
        hidden = pids(made.scratch / "hidden")
        assert all(is_alive(pid) for pid in hidden)
        (made.scratch / "enough").touch()
        assert process.wait(PATIENCE_S) == 0
        assert not any(is_alive(pid) for pid in hidden)


def test_what_a_dead_steward_left_at_work_is_found_and_a_mere_visitor_is_not(
    tmp_path: Path,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    link = tmp_path / "link"
    link.symlink_to(scratch)
    left = subprocess.Popen(["sleep", "600"], cwd=scratch, env={}, start_new_session=True)
    person, terminal = pty.fork()
    if not person:
        os.chdir(scratch)
        os.execvp("sleep", ["sleep", "600"])
    try:
        await_truth(lambda: Path(f"/proc/{person}/comm").read_text() == "sleep\n", "somebody at a terminal")
        assert run_processes("bench-nobody-1", link) == {left.pid}
        kill_run("bench-nobody-1", link)
        assert left.wait(PATIENCE_S) == -signal.SIGKILL
        assert is_alive(person)
    finally:
        os.kill(person, signal.SIGKILL)
        os.waitpid(person, 0)
        os.close(terminal)


# --- two clients at once ---


@contextmanager
def held(lock: Path, by: str) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(by)
        file.flush()
        yield


def test_a_validation_does_not_disturb_the_run_of_a_client_that_was_faster(tmp_path: Path) -> None:
    built = tmp_path / "build" / "kernels" / "one"
    built.parent.mkdir(parents=True)
    built.touch()
    with held(tmp_path / "lock", VM), pytest.raises(Trouble, match=VM) as told:
        machine.validate_host({"cache": str(tmp_path)})
    assert built.exists()
    error = answer_error({"trouble": told.value.kind, "message": str(told.value)}, parse_target("box"))
    assert isinstance(error, NoCapacity)


def test_a_run_whose_first_start_is_slow_to_answer_is_not_refused_by_itself(here: Here) -> None:  # noqa: F811
    aside = here.cache / "runs" / ".aside"
    aside.mkdir(parents=True)
    (aside / "run.json").write_text(json.dumps({"vm": VM}))
    with held(here.cache / "lock", VM), held(aside / "alive", ""):  # the folder does not have its name yet
        threading.Timer(0.7, aside.rename, [folder_of(here)]).start()
        assert here.start(**HANG)["status"] == "running"


def test_a_start_that_is_at_it_for_too_long_is_trouble_and_not_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "START_S", 0.0)
    with held(tmp_path / "lock", VM), pytest.raises(Trouble, match="an earlier attempt") as told:
        runs.existing_run(tmp_path, tmp_path / "runs" / VM, VM)
    assert told.value.kind == "failed"
    with held(tmp_path / "lock", "bench-other-1"), pytest.raises(Trouble, match="bench-other-1") as told:
        runs.existing_run(tmp_path, tmp_path / "runs" / VM, VM)
    assert told.value.kind == "busy"
