"""`bench launch --wait`: what the command line adds to the wait itself."""

from __future__ import annotations

import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.launch import _wait_in_background
from orchestrator.core.run import events as ev
from orchestrator.core.text import parse_minutes
from orchestrator.runs.planning import LaunchOptions
from tests.unit.core.builders import ZONE, Log, at, planned, replayed, requested


@pytest.mark.parametrize(
    ("text", "minutes"), [("3h", 180), ("90m", 90), ("1h30m", 90), ("45", 45), ("1h5", 65), ("0", 0), (" 3h ", 180)]
)
def test_a_time_is_hours_and_minutes(text: str, minutes: int) -> None:
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "h", "3 hours", "-1h", "1.5h", "1m2h", "\x1b[2J"])
def test_any_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write 3h, 90m or 1h30m"):
        parse_minutes(text)


@pytest.mark.parametrize("queued", [False, True], ids=["between two rounds", "in the queue of a zone"])
def test_the_background_process_resumes_the_run_under_the_same_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    log = Log().add(0, planned()).add(1, requested())
    if queued:
        log.add(3, ev.InstanceQueued(attempt=1, zone=ZONE, until=at(7200), request_id=f"{ZONE}-1"))
    else:
        log.add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, code="STOCKOUT"))
        log.add(3, ev.CapacityAwaited(round=1, next_at=at(60), until=at(3 + 3600)))
    program = "import os, sys; print(sys.argv[1:], os.environ['BENCH_HOME'], os.environ['BENCH_PROJECT'])"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c {shlex.quote(program)} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    wiring: Any = SimpleNamespace(
        home=tmp_path,
        settings=SimpleNamespace(project="p-1", bucket="b-1"),
        clock=SimpleNamespace(now=lambda: at(3) + timedelta(seconds=90)),
    )
    run = replayed(log)
    chosen = LaunchOptions("l4", Path("mine.yaml"), ("budget.per_run_usd=3",), wait_minutes=60)
    text = _wait_in_background(wiring, chosen, run, until=at(3 + 3600) if queued else None)
    pid = int(text.split("process ")[1].split()[0])
    assert os.waitpid(pid, 0)[1] == 0
    config = str(Path("mine.yaml").resolve())
    arguments = ["launch", "--resume", run.run_id, "--wait", "59m", config, "--set", "budget.per_run_usd=3"]
    assert (tmp_path / "waiting" / f"{run.run_id}.log").read_text() == f"{arguments} {tmp_path} p-1\n"
