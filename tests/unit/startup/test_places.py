"""Where things are on a host: below folders in which nobody else can put what would run there."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from startup.host import child, machine, runs
from startup.host.paths import Trouble, own_folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def prepared(cache: Path) -> None:
    runs.prepare_payload({"cache": str(cache), "vm": "bench-x-1", "sha256": "0" * 64, "size": 0})


def validated(cache: Path) -> None:
    machine.writable_cache(cache)


LOOKS = pytest.mark.parametrize("look", [prepared, validated])


@LOOKS
def test_a_cache_folder_of_the_users_own_is_closed_to_all_others(look: Callable[[Path], None], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "incoming").mkdir(parents=True)
    cache.chmod(0o777)
    (cache / "incoming").chmod(0o775)
    look(cache)
    assert not any(mode_of(path) & 0o022 for path in (cache, *cache.iterdir()))


@LOOKS
def test_nothing_runs_below_a_folder_of_another_user(
    look: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    whoever(theirs, monkeypatch)
    with pytest.raises(Trouble, match="another user") as told:
        look(theirs)
    assert (told.value.kind, told.value.path) == ("not_writable", str(theirs))
    assert list(theirs.iterdir()) == []


def test_a_link_of_another_users_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours", target_is_directory=True)
    (tmp_path / "ours").mkdir()
    own_folder(link)
    if os.geteuid() == 0:
        os.lchown(link, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Trouble, match="another user"):
        own_folder(link)


def test_a_fleets_child_takes_a_new_scratch_folder_where_another_user_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    usual = child.scratch_folder()
    assert usual == child.usual_scratch() == child.scratch_folder()
    assert mode_of(usual) == 0o700
    whoever(usual, monkeypatch)
    fresh = child.scratch_folder()
    assert fresh != usual
    assert fresh.parent == tmp_path
    assert mode_of(fresh) == 0o700


@pytest.mark.parametrize("planted", ["file", "dangling link", "loop", "link to a file"])
def test_a_child_of_a_fleet_takes_a_new_scratch_folder_where_its_name_is_no_folders(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    usual, target = child.usual_scratch(), tmp_path / "target"
    if planted == "file":
        usual.write_text("theirs")
    else:
        usual.symlink_to(usual if planted == "loop" else target)
    if planted == "link to a file":
        target.write_text("theirs")
    before = sorted(tmp_path.iterdir())
    fresh = child.scratch_folder()
    assert fresh.is_dir()
    assert not fresh.is_symlink()
    assert sorted(tmp_path.iterdir()) == sorted([*before, fresh]), "nothing was made where a link points"


def whoever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a folder to another user; who cannot is another user from now on."""
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_no_umask_opens_a_folder_that_is_made_on_the_way_to_the_cache(tmp_path: Path) -> None:
    # Whoever may write the folder above can put another in the place of what runs.
    before = os.umask(0)
    try:
        own_folder(tmp_path / ".cache" / "spotbench")
    finally:
        os.umask(before)
    assert {mode_of(tmp_path / ".cache"), mode_of(tmp_path / ".cache" / "spotbench")} == {0o700}


def test_an_answer_waits_for_an_object_only_while_its_run_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    stored = tmp_path / "spool" / "verdict.json"
    stored.parent.mkdir()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            stored.write_text("{}")

    monkeypatch.setattr(runs.time, "sleep", sleep)
    monkeypatch.setattr(runs, "AWAIT_S", 3600.0)
    runs.wait_for_object(tmp_path, "verdict.json")
    assert slept == [], "nobody holds the run's lock"
    with (tmp_path / "alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        runs.wait_for_object(tmp_path, "")
        runs.wait_for_object(tmp_path, "verdict.json")
    assert len(slept) == 3
