"""What this machine has, and its settings file, changed line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.adapters import setup
from orchestrator.adapters.hosts import local_shell
from orchestrator.core.errors import ConfigError, LocalError


def test_a_folder_is_writable_or_says_why_not(tmp_path: Path) -> None:
    trouble, free = local_shell.writable(tmp_path / "not" / "yet")
    assert (trouble, free > 0) == ("", True)
    assert not (tmp_path / "not").exists()
    (tmp_path / "file").write_text("")
    assert local_shell.writable(tmp_path / "file") == ("a file is in the way", 0)
    assert local_shell.writable(Path("/proc/nowhere"))[0]


def test_versions_are_those_of_what_is_installed() -> None:
    assert set(local_shell.installed_versions(("typer>=0.1", "no-such-thing>=1"))) == {"typer"}
    assert local_shell.newest_source(Path(local_shell.__file__).parent) > 0


def test_a_compiler_is_the_one_that_was_wished_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh")
    assert local_shell.compiler().endswith("/sh")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    assert local_shell.compiler() == ""


def test_a_setting_is_changed_where_it_stands_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.yaml"
    setup.change_settings(path, {"project": "one", "per_run_usd": "1.00"})
    path.write_text("# mine\n" + path.read_text() + "weather: null\n")
    setup.change_settings(path, {"project": "two: 2", "bucket": "b"})
    assert path.read_text() == '# mine\nproject: "two: 2"\nper_run_usd: "1.00"\nweather: null\nbucket: "b"\n'
    assert setup.read_settings(path) == {"project": "two: 2", "per_run_usd": "1.00", "weather": "", "bucket": "b"}


def test_a_settings_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    assert setup.read_settings(path) == {}
    for text in ("a: [", "- a\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="settings"):
            setup.read_settings(path)
    with pytest.raises(LocalError):
        setup.change_settings(Path("/proc/nowhere/settings.yaml"), {"a": "b"})
