"""A settings file that cannot be read is named, with what to do; nothing else is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.adapters.settings import default_home, load_settings
from tests.integration.cli.conftest import Bench

LEFT = {
    "cut off": (b"project", "not a mapping; valid keys are"),
    "NULs": (b"\0" * 64, "not YAML"),
    "no text": (b"\xff\xfe", "not UTF-8 text"),
    "nested": (b"[" * 60_000, "nested more than"),
    "of a newer version": (b"schema: 9\n", "schema; valid keys are"),
    "of 100 MB": (b"x" * 100_000_000, "it has more than 128 KB"),
}


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.parametrize("command", ["status", "costs"])
def test_a_broken_settings_file_is_named_with_what_to_do(bench: Bench, what: str, command: str) -> None:
    left, words = LEFT[what]
    (bench.home / "settings.yaml").write_bytes(left)
    said = bench(command, code=2, width=400).err
    assert f"{bench.home}/settings.yaml" in said
    assert words in said
    assert "correct the file, or move it away" in said


def test_an_empty_home_is_no_home_and_not_the_folder_one_is_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BENCH_HOME", "")
    monkeypatch.setenv("BENCH_WEATHER", "")
    found = load_settings()
    assert (found.home, found.weather) == (default_home(), None)


def test_a_home_that_is_a_file_is_told_from_settings_that_are_broken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.home / "file").write_text("")
    monkeypatch.setenv("BENCH_HOME", str(bench.home / "file"))
    said = bench("status", code=2, width=400).err
    assert "Not a directory" in said
    assert "hint:  export BENCH_HOME=/" in said
