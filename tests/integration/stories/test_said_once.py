"""Whoever follows a launch to its end is told once why it failed: by the error that ends the command."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.api.outcome import error_of
from orchestrator.cli.render import diagnoses
from orchestrator.cli.watch import PlainWatch
from orchestrator.core.run.fold import Phase
from tests.integration.stories.stage import Stage, good_vm, silent_vm, staged, weather

ENDS: dict[str, tuple[dict[str, Any], Phase]] = {
    "it is preempted": ({"fault": "preempt", "at": {"case": 2}, "notice_s": 0}, Phase.PREEMPTED),
    "it is preempted before its first word": (
        {"fault": "preempt", "at": {"seconds": 1}, "notice_s": 0},
        Phase.PREEMPTED,
    ),
    "it vanishes": ({"fault": "lost", "at": {"phase": "build"}}, Phase.FAILED),
    "there is none anywhere": ({"fault": "stockout", "times": 9}, Phase.NO_CAPACITY),
    "there is no quota": ({"fault": "quota", "metric": "GPUS_ALL_REGIONS", "global": True}, Phase.FAILED),
    "this account may not": (
        {"fault": "http", "service": "compute", "method": "POST", "path": r"/instances\?", "status": 403},
        Phase.FAILED,
    ),
}


def followed(stage: Stage) -> tuple[list[str], str]:
    """The lines that following it printed after it began, and the error that ends the command."""
    out = io.StringIO()
    console = Console(file=out, width=400, force_terminal=False)
    run = stage.begin(stage.world()).follow(watch=PlainWatch(console, stage.timeline.now).show)
    error = error_of(run)
    assert error is not None
    stage.timeline.advance(0)
    lines = [line[8:] for line in out.getvalue().splitlines()]
    told = [line for line in lines if line in diagnoses(run)]
    return told, str(error)


@pytest.mark.parametrize(("fault", "phase"), ENDS.values(), ids=ENDS)
def test_the_reason_of_a_failure_is_not_printed_before_the_error_that_says_it(
    home: Path, fault: dict[str, Any], phase: Phase
) -> None:
    with staged(home, good_vm()) as stage:
        weather(stage, fault)
        told, error = followed(stage)
        assert stage.fired()[0] > 0
        assert phase.value.replace("_", " ") in error
        assert told == []


def test_a_machine_that_never_speaks_is_told_of_once(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        told, error = followed(stage)
        assert told == []
        assert "without a message" in error
