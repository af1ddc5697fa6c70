"""A BENCH_HOME in which another user can have put something is not obeyed: it says which commands run and what is paid."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator.adapters.settings import load_settings, others_may_write
from orchestrator.core.errors import ConfigError
from tests.integration.cli.conftest import Bench

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    (made / "settings.yaml").write_text("alert_command: touch evil\n")
    (made / "settings.yaml").chmod(0o600)
    monkeypatch.setenv("BENCH_HOME", str(made))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return made


def test_a_home_of_ones_own_is_obeyed(home: Path) -> None:
    assert load_settings().alert_command == "touch evil"


@AS_ROOT
@pytest.mark.parametrize("theirs", ["", "settings.yaml", "prices.gce.yaml", "named"])
def test_what_another_user_made_is_refused_by_name(home: Path, theirs: str) -> None:
    path = home / theirs if theirs else home
    if not path.exists():
        path.write_text("{}")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=f"{path} belongs to another user") as refused:
        load_settings()
    assert refused.value.hint


@AS_ROOT
def test_a_link_that_another_user_made_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = home.with_name("link")
    link.symlink_to(home)
    monkeypatch.setenv("BENCH_HOME", str(link))
    assert load_settings().alert_command
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load_settings()


@AS_ROOT
def test_under_sudo_the_home_of_who_called_it_is_obeyed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(home, NOBODY, NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert load_settings().alert_command == "touch evil"


def test_a_home_that_everybody_may_write_as_tmp_is_refused_and_stays_as_it_is(home: Path) -> None:
    home.chmod(0o1777)
    with pytest.raises(ConfigError, match="can be written by everybody"):
        load_settings()
    assert stat.S_IMODE(home.stat().st_mode) == 0o1777


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_from_a_home_of_ones_own_others_lose_the_right_to_write(home: Path, mode: int) -> None:
    home.chmod(mode)
    assert load_settings().alert_command == "touch evil"
    assert stat.S_IMODE(home.stat().st_mode) == mode & ~0o022


def test_settings_that_others_may_write_are_refused(home: Path) -> None:
    (home / "settings.yaml").chmod(0o666)
    with pytest.raises(ConfigError, match=r"settings.yaml can be written by other users") as refused:
        load_settings()
    assert "chmod go-w" in refused.value.hint


@AS_ROOT
def test_a_group_of_others_counts_as_others_and_ones_own_does_not(home: Path) -> None:
    path = home / "settings.yaml"
    path.chmod(0o660)
    assert not others_may_write(path.stat())
    os.chown(path, 0, NOBODY)
    assert others_may_write(path.stat())


def test_a_home_that_is_not_there_yet_is_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_HOME", str(home / "new"))
    assert load_settings().alert_command is None


def test_a_command_says_what_is_wrong_and_ends_with_the_code_of_a_bad_configuration(bench: Bench) -> None:
    bench.home.chmod(0o1777)
    ran = bench("budget", code=2)
    assert "can be written by everybody" in ran.err
    assert "BENCH_HOME=DIR names a folder of your own" in ran.err
    bench.home.chmod(0o700)
