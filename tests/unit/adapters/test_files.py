from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.files import safe_path, write_atomically
from orchestrator.core.errors import LocalError


def test_an_object_name_becomes_a_path_below_the_folder(tmp_path: Path) -> None:
    assert safe_path(tmp_path, "cases/a b.csv") == tmp_path / "cases" / "a b.csv"
    assert safe_path(tmp_path, "hidden../a..b") == tmp_path / "hidden.." / "a..b"


@pytest.mark.parametrize(
    "name",
    [
        "../x", "a/../../x", "/etc/passwd", "", ".", "..", "a/..", "a\\..\\x", "a\0b", "a\nb", "//x", "a/./../../b",
        ".git/config", "a/.envrc", "..a", "a\x1b[2J", "a\u202eb", "x" * 201, "\ud800",
    ],
)  # fmt: skip
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LocalError, match="does not name a file"):
        safe_path(tmp_path, name)


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cases").symlink_to(tmp_path)
    with pytest.raises(LocalError, match="because of a link"):
        safe_path(tmp_path / "in", "cases/x.csv")


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b c", "...", "/", "\\", "~", "C:"]), max_size=6))
def test_no_name_whatever_leads_out_of_the_folder(parts: list[str]) -> None:
    root = Path("/nonexistent/results/run")
    try:
        path = safe_path(root, "/".join(parts))
    except LocalError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(root)
    assert Path(os.path.normpath(path)) != root


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_a_file_has_the_rights_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(LocalError, match="cannot write"):
        write_atomically(tmp_path / "file", b"data")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="cannot write") as raised:
        write_atomically(tmp_path / "file" / "below", b"data")
    assert raised.value.hint


@pytest.mark.parametrize("end", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_write_leaves_the_file_as_it_was_and_no_part_of_a_new_one(
    tmp_path: Path, end: type[BaseException]
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise end

    (tmp_path / "rows.csv").write_bytes(b"whole")
    with pytest.raises(end):
        write_atomically(tmp_path / "rows.csv", pieces())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("rows.csv", b"whole")]
