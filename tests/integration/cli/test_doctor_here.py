"""What `bench doctor` says of this machine and of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.doctor.verdicts import CheckLevel, CheckVerdict, DoctorCheck, pass_verdict
from orchestrator.core.errors import LocalError
from orchestrator.core.hosts import HostTarget
from orchestrator.embedded.client import running_cloud
from orchestrator.runs.doctor import TaskRun, host_tasks, run_checks
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import load_chosen_config
from tests.integration.cli.conftest import Bench


def test_a_configuration_that_cannot_be_read_is_named(bench: Bench) -> None:
    (bench.home / "settings.yaml").write_text("projekt: x\n")
    assert "valid keys are" in bench("doctor", code=2).err
    (bench.home / "settings.yaml").unlink()
    mine = bench.home / "mine.yaml"
    mine.write_text("gpu: l4\ncolour: blue\n")
    assert "colour" in bench("doctor", str(mine), code=2).err


def test_an_embedded_cloud_that_died_and_left_its_address_is_named(bench: Bench) -> None:
    bench("cloud", "start")
    address = running_cloud(bench.home / "cloud")
    assert address is not None
    assert "up since" in embedded_of(bench)
    published = bench.home / "cloud" / "cloud.json"
    text = published.read_text()
    published.write_text("{")
    assert f"{published} is damaged" in embedded_of(bench)
    for command in (["status"], ["cloud", "status"], ["cloud", "bill"], ["cloud", "preempt", "bench-x"]):
        refused = bench(*command, code=6)
        assert f"{published} is damaged" in refused.err
        assert "bench cloud stop" in refused.err
    bench("cloud", "stop")
    assert "not running" in bench("cloud", "status").out
    published.write_text(text)
    assert "does not answer" in embedded_of(bench)


def embedded_of(bench: Bench) -> str:
    checks = bench("doctor", "--json", code=None).document["checks"]
    return next(str(check["why"]) for check in checks if check["name"] == "embedded")


def test_a_check_that_breaks_is_a_warning_and_the_others_go_on() -> None:
    def broken() -> CheckVerdict:
        raise ZeroDivisionError("odd")

    def refused() -> CheckVerdict:
        raise LocalError("no room")

    first, second, third = (DoctorCheck(name, name, "here") for name in ("a", "b", "c"))
    seen: list[str] = []
    results = run_checks(
        [TaskRun(first, broken), TaskRun(second, refused), TaskRun(third, lambda: pass_verdict("good"))],
        lambda result: seen.append(result.check.name),
    )
    assert [result.verdict.level for result in results] == [CheckLevel.WARN, CheckLevel.WARN, CheckLevel.OK]
    assert "ZeroDivisionError: odd" in results[0].verdict.why
    assert "no room" in results[1].verdict.why
    assert sorted(seen) == ["a", "b", "c"]


def test_a_host_is_examined_by_plain_commands_and_a_silent_one_only_once() -> None:
    shell = SilentHost()
    tasks = host_tasks(HostTarget("ada", "box", 2222), lambda: shell, LaunchOptions("", None, ()), load_chosen_config)
    results = run_checks(tasks)
    assert [result.verdict.level for result in results] == [CheckLevel.FAIL, *[CheckLevel.SKIPPED] * (len(tasks) - 1)]
    assert "Connection refused" in results[0].verdict.why
    assert len(shell.commands) == 1


class SilentHost:
    """A shell to a host that refuses the connection."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def run(self, command: str) -> tuple[int, str, str]:
        self.commands.append(command)
        return 255, "", "Connection refused"

    def ask(self, operation: str, arguments: Any, *, python: str = "", timeout_s: float = 60) -> Any:
        raise AssertionError(f"asked to {operation}")

    def put(self, data: bytes, path: str) -> None:
        raise AssertionError("sent a file")

    def get(self, path: str, *, limit: int | None = None) -> bytes | None:
        raise AssertionError("fetched a file")

    def close(self) -> None:
        return None


def test_the_remedy_for_a_home_that_is_read_only_works_when_it_is_pasted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/proc")  # nobody can write there, root neither
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("BENCH_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    refused = bench("plan", "--gpu", "cpu", code=11).err
    remedies = {
        one["remedy"] for one in bench("doctor", "--json", code=11).document["checks"] if one["level"] == "fail"
    }
    (remedy,) = remedies
    assert remedy.startswith(f"export BENCH_HOME={tmp_path}/bench-")
    assert f"hint:  {remedy}" in refused
    name, _, value = remedy.removeprefix("export ").partition("=")
    monkeypatch.setenv(name, value)
    assert "practice" in bench("plan", "--gpu", "cpu").out
    bench("cloud", "stop")
