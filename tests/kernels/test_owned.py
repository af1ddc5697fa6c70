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
from kernels.attention.cpu import compile as cpu
from kernels.attention.cuda import native
from kernels.attention.cuda.build import Cache


def library(folder: Path) -> Callable[[], bool]:
    path = folder / "attention-cpu.so"
    path.write_bytes(b"code")
    path.with_suffix(".sha256").write_text(hashlib.sha256(b"code").hexdigest())
    return lambda: cpu.intact(path, path.with_suffix(".sha256"))


def gradients(folder: Path) -> Callable[[], bool]:
    path = folder / "gradients.so"
    path.write_bytes(b"code")
    path.with_suffix(".sha256").write_text(hashlib.sha256(b"code").hexdigest())
    return lambda: native.sealed(path)


def cubin(folder: Path) -> Callable[[], bool]:
    path = folder / "kernel.cubin"
    path.write_bytes(b"code")
    path.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(b"code").hexdigest()}))
    return lambda: Cache(folder).load(path) is not None


KEPT = pytest.mark.parametrize("keep", [library, gradients, cubin])


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
    monkeypatch.setattr(owned, "trusted", lambda: (os.geteuid() + 1,))
    assert not is_taken()


def test_a_folder_of_ours_that_others_may_write_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert owned.ready(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert not owned.ready(folder, users=(os.geteuid() + 1,))


def test_what_is_kept_is_closed_to_others_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "kernels")
        cache.store(cache.folder / "one.cubin", b"image", "")
    finally:
        os.umask(before)
    assert cache.load(cache.folder / "one.cubin") == (b"image", "")
    assert not any(path.stat().st_mode & 0o022 for path in (cache.folder, *cache.folder.iterdir()))
