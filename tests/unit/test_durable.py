"""What a power failure must not take is on the disk, contents before the name and name before anything else is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters import setup
from orchestrator.adapters.files import write_atomically
from orchestrator.adapters.hosts.named import Named
from startup.host.paths import write_json
from startup.host.spool import Spool


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Of each sync: the inode, and the names in the folder, where it was one."""
    seen: list[tuple[int, list[str]]] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        sync(handle)
        path = Path(f"/proc/self/fd/{handle}").resolve()
        seen.append((os.fstat(handle).st_ino, sorted(one.name for one in path.iterdir()) if path.is_dir() else []))

    monkeypatch.setattr(os, "fsync", noted)
    return seen


WRITES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "settings": ("settings.yaml", lambda folder: setup.change_settings(folder / "settings.yaml", {"project": "p"})),
    "a record of a host": ("run.json", lambda folder: write_json(folder / "run.json", {"vm": "x"})),
    "an object of a run": ("a", lambda folder: Spool(folder, fresh=folder.parent / "new").put("a", b"x")),
    "an object once": ("a", lambda folder: Spool(folder, fresh=folder.parent / "new").put("a", b"x", over=0)),
}


@pytest.mark.parametrize("what", WRITES)
def test_contents_are_on_the_disk_before_the_name_and_then_the_name(
    what: str, tmp_path: Path, synced: list[tuple[int, list[str]]]
) -> None:
    name, write = WRITES[what]
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder)
    (file, _), (place, names) = synced
    assert file == (folder / name).stat().st_ino
    assert place == folder.stat().st_ino
    assert name in names


def test_a_host_that_was_named_is_kept(tmp_path: Path, synced: list[tuple[int, list[str]]]) -> None:
    Named(tmp_path).add("host me@box")
    assert len(synced) == 2


def test_what_can_be_fetched_again_waits_for_no_disk(tmp_path: Path, synced: list[tuple[int, list[str]]]) -> None:
    write_atomically(tmp_path / "rows.csv", b"x")
    assert synced == []


def test_settings_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    """They may hold an API key, or the secret address of a webhook."""
    path = tmp_path / "settings.yaml"
    setup.change_settings(path, {"project": "p"})
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomically(tmp_path / "rows.csv", b"x")
    assert (tmp_path / "rows.csv").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
