"""Answers on their way to the judge lie in memory: what a killed harness leaves there is removed, by whoever is next."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import kernels.harness.scratch as of_harness
import startup.agent.harness as of_agent
from tests.kernels.harness_process import HarnessProcess
from tests.kernels.test_cheats import OWN, own
from tests.support.patience import await_truth


def removers(place: Path) -> list[object]:
    return [lambda: of_harness.remove_abandoned(place), lambda: of_agent.remove_abandoned((place,))]


@pytest.mark.parametrize("who", [0, 1], ids=["the next harness", "the agent"])
def test_a_folder_goes_once_its_owner_is_killed_and_not_before(tmp_path: Path, who: int) -> None:
    """Whatever else lies there stays."""
    remove = removers(tmp_path)[who]
    assert callable(remove)
    (tmp_path / "bench-other").mkdir()
    (tmp_path / "bench-answers-link").symlink_to(tmp_path / "bench-other")
    (tmp_path / "bench-answers-file").write_text("")
    holder = (
        "import sys, pathlib; from kernels.harness.scratch import Scratch; one = Scratch(pathlib.Path(sys.argv[1])); "
        "(one.path / '1.bin').write_bytes(b'x'); print(one.path, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert folder.parent == tmp_path
        remove()
        assert (folder / "1.bin").exists()
        owner.kill()
        owner.wait()
        remove()
        assert not folder.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bench-answers-file",
        "bench-answers-link",
        "bench-other",
    ]


def test_both_look_for_the_same_names_in_the_same_places() -> None:
    assert of_agent.PREFIX == of_harness.PREFIX
    assert {*of_agent.scratch_places({})} == {of_harness.MEMORY, Path("/tmp")}
    assert {*of_agent.scratch_places({"TMPDIR": "/else"})} == {of_harness.MEMORY, Path("/else"), Path("/tmp")}


@pytest.mark.parametrize("fresh", [False, True], ids=["a server forked early", "Python's own server"])
def test_a_harness_that_is_killed_as_it_hangs_leaves_nothing_to_the_next(tmp_path: Path, *, fresh: bool) -> None:
    """Its workers end with it. Nothing of theirs has a name in the temporary folder meanwhile."""
    asked = own(OWN / "faults.py", implementations=["hangs"], answer_limit_s=600)
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # sockets of other folders would be in /tmp
        Path(temporary).chmod(0o777)
        with HarnessProcess("measure", asked, tmp_path, environ={"TMPDIR": temporary}, fresh=fresh) as harness:
            harness.until("case_started")
            await_truth(lambda: held_by(harness.process.pid), "its folder", 0.2)
            folders = held_by(harness.process.pid)
            assert all(folder.exists() for folder in folders)
            harness.process.kill()
            harness.process.wait(600)
        for place in {folder.parent for folder in folders}:
            of_harness.Scratch(place).close()
        assert not [folder for folder in folders if folder.exists()]
        assert list(Path(temporary).iterdir()) == []


def held_by(pid: int) -> set[Path]:
    """The folders for answers that a process has open: on this machine others may measure at the same time."""
    found = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(handle.readlink())
    return {path for path in found if path.name.startswith(of_harness.PREFIX)}


def test_a_folder_that_another_harness_takes_for_abandoned_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment nobody holds it, and harnesses that begin at the same time look for abandoned ones then."""
    make, made = tempfile.mkdtemp, list[str]()

    def make_and_lose_the_first(**options: Any) -> str:
        made.append(make(**options))
        if len(made) == 1:
            of_harness.remove_abandoned(tmp_path)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    held = of_harness.Scratch(tmp_path)
    assert (held.path.is_dir(), str(held.path), len(made)) == (True, made[1], 2)
    held.close()
