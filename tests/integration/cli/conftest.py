"""A BENCH_HOME with an embedded cloud in it for each test, and nothing left of either."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.embedded.client import ask_control, running_cloud, stop_cloud
from orchestrator.embedded.server import EmbeddedCloud
from tests.integration.cli.measured_runs import runs  # noqa: F401
from tests.support.foreground import Ran
from tests.support.local_cloud import local_cloud, start_cloud
from tests.support.paced import held_at, paced_payload

EMAIL = "bench-vm@bench-embedded.iam.gserviceaccount.com"
"""The account of the machines in the project of the embedded cloud."""


@contextmanager
def at_home(home: Path, **environment: str) -> Iterator[EmbeddedCloud]:
    """Within it this process is in a home of its own, where an embedded cloud is up, for several tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BENCH_HOME": str(home), "BENCH_USER": "ada", **environment}.items():
            patch.setenv(name, value)
        patch.chdir(home)
        with local_cloud(home / "cloud") as cloud:
            yield cloud


@dataclass
class Bench:
    """`bench`, in this process, with a home of its own."""

    home: Path

    def __call__(self, *arguments: str, code: int | None = 0, width: int = 100) -> Ran:
        result = CliRunner().invoke(app, arguments, prog_name="bench", env={"COLUMNS": str(width)})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        ran = Ran(result.exit_code, result.stdout, result.stderr)
        assert code is None or ran.code == code, f"exit {ran.code}\n{ran.out}\n{ran.err}"
        return ran

    def control(self, path: str, body: Any = None) -> Any:
        address = running_cloud(self.home / "cloud")
        assert address is not None
        return ask_control(address, path, body)

    def bill(self, run_id: str) -> list[Any]:
        return [row for row in self.control("/control/bill")["rows"] if row["run_id"] == run_id]

    def alive(self) -> list[Any]:
        """The machines that exist now, as the command tells."""
        found: list[Any] = self("cloud", "status", "--json").document["instances"]
        return found

    def machines(self) -> list[Any]:
        """The same without a command, for waiting."""
        rows: list[Any] = self.control("/control/status")["instances"]
        return rows

    def fired(self) -> list[int]:
        return [fault["fired"] for fault in self.control("/control/weather")["faults"]]


@pytest.fixture
def bench(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("BENCH_HOME", str(home))
    monkeypatch.setenv("BENCH_USER", "ada")
    monkeypatch.chdir(home)
    made = Bench(home)
    yield made
    address = running_cloud(home / "cloud")
    if address is not None:
        alive = ask_control(address, "/control/status")["instances"]
        stop_cloud(home / "cloud")
        assert alive == [], "a machine was left in the embedded cloud"


@pytest.fixture
def cloud(bench: Bench) -> None:
    """An embedded cloud is up in the home, as if a command had started it, for tests that are not of its start. It
    lives in this process, and `bench` stops it."""
    start_cloud(bench.home / "cloud")


@pytest.fixture
def weather(bench: Bench, tmp_path: Path) -> Callable[..., None]:
    """Puts faults into the cloud's weather, through the command."""

    def load(*faults: dict[str, Any]) -> None:
        file = tmp_path / "weather.yaml"
        file.write_text(json.dumps({"faults": list(faults)}))
        bench("cloud", "weather", str(file))

    return load


@pytest.fixture
def paced(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """What makes a machine pass no time at a case where it would measure, but stand still where it is `held`, a step or
    `case 2`, until something befalls it: for tests of the run, not of what it measures."""
    root = paced_payload(tmp_path / "paced")

    def options(held: str = "") -> tuple[str, ...]:
        held_at(root, *filter(None, [held]))
        return ("--set", f"payload.root={root}", "--set", "measure.repeats=5", "--set", "measure.warmup=5")

    return options
