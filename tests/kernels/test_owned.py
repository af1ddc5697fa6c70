"""What is kept as code is loaded only where nobody else can have written it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels import owned
from kernels.attention.cuda.compile.build import Cache


def library(folder: Path) -> Callable[[], bool]:
    path, seal = folder / "library.so", folder / "library.sha256"
    path.write_bytes(b"code")
    seal.write_text(hashlib.sha256(b"code").hexdigest())
    return lambda: owned.is_sealed(path, seal)


def cubin(folder: Path) -> Callable[[], bool]:
    path = folder / "kernel.cubin"
    path.write_bytes(b"code")
    path.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(b"code").hexdigest()}))
    return lambda: Cache(folder).load(path) is not None


KEPT = pytest.mark.parametrize("keep", [library, cubin])


@KEPT
def test_code_that_others_may_have_written_is_not_loaded(
    keep: Callable[[Path], Callable[[], bool]], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    is_taken = keep(folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    assert is_taken()
    for path in (folder, *folder.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        for more in (stat.S_IWOTH, stat.S_IWGRP):
            path.chmod(mode | more)
            assert not is_taken(), f"{path} with {more:o}"
        path.chmod(mode)
    assert is_taken()


@KEPT
def test_code_of_another_user_is_not_loaded(
    keep: Callable[[Path], Callable[[], bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_taken = keep(tmp_path)
    monkeypatch.setattr(owned, "trusted_ids", lambda: (os.geteuid() + 1,))
    assert not is_taken()


@KEPT
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
def test_code_behind_a_link_of_another_user_is_not_loaded(
    keep: Callable[[Path], Callable[[], bool]], tmp_path: Path
) -> None:
    """Whoever made it may turn it elsewhere between the look and the load."""
    folder, link = tmp_path / "kept", tmp_path / "link"
    folder.mkdir(mode=0o700)
    keep(folder)
    link.symlink_to(folder)
    is_taken = keep(link)
    assert is_taken()
    os.lchown(link, 65534, 65534)
    assert not is_taken()
    assert not owned.make_private_folder(link)


def test_a_folder_of_ours_that_others_may_write_is_closed_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert owned.make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    monkeypatch.setattr(owned, "trusted_ids", lambda: (os.geteuid() + 1,))
    assert not owned.make_private_folder(folder)


def test_what_is_kept_is_closed_to_others_whatever_the_umask_is(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kernels")
    before = os.umask(0)
    try:
        cache.store(cache.folder / "one.cubin", b"image", "")
        fresh, kept, seal = tmp_path / "fresh", cache.folder / "one.so", cache.folder / "one.sha256"
        fresh.write_bytes(b"code")
        owned.seal_file(fresh, kept, seal)
    finally:
        os.umask(before)
    assert cache.load(cache.folder / "one.cubin") == (b"image", "")
    assert owned.is_sealed(kept, seal)
    assert not fresh.exists()
    assert not any(path.stat().st_mode & 0o022 for path in (cache.folder, *cache.folder.iterdir()))


def test_a_library_that_is_not_what_was_kept_is_not_loaded(tmp_path: Path) -> None:
    is_taken = library(tmp_path)
    assert is_taken()
    for name, wrong in (("library.so", b"other"), ("library.sha256", b"\xff"), ("library.sha256", b"")):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(wrong)
        assert not is_taken()
        (tmp_path / name).write_bytes(before)
    (tmp_path / "library.sha256").unlink()
    assert not is_taken()


def test_what_a_killed_build_left_goes_after_a_day_and_nothing_else_does(tmp_path: Path) -> None:
    killed, under_way, theirs = (tmp_path / name for name in (".bench-build-1", ".bench-build-2", "build-release"))
    for folder in (killed, under_way, theirs):
        folder.mkdir()
        (folder / "library.so").write_bytes(b"half")
    for folder in (killed, theirs):
        os.utime(folder, (0, 0))
    with owned.open_build_folder(tmp_path) as scratch:
        assert {*tmp_path.iterdir()} == {scratch, under_way, theirs}
    assert {*tmp_path.iterdir()} == {under_way, theirs}
