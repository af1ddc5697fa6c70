"""`bench demo`: a launch of the bundled example on this machine, in about a minute."""

from __future__ import annotations

from typing import Final

import typer

from orchestrator.cli.launch import launch_and_follow
from orchestrator.cli.options import Json
from orchestrator.core.errors import KernelIncorrect, LocalError
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import configs_folder, practice_lacks, wire_embedded

SETTINGS: Final = ("measure.repeats=10", "measure.threads=1", "measure.warmup=3", "measure.regime=burst")
"""Few repeats, because the difference is large; one thread, because others may be at work on this machine."""


def demo(json: Json = False) -> None:
    """Measure an example on this machine's CPU, in about a minute; nothing is rented.

    Softmax in one step and in four, on four sizes, and a third version that is wrong on purpose.
    """
    wiring = wire_embedded()
    if lacks := practice_lacks(compiler_needed=False):
        raise LocalError(lacks[0][0], hint=lacks[0][1])
    path = configs_folder() / "demo" / "softmax.py"
    try:
        launch_and_follow(wiring, LaunchOptions("cpu", path, SETTINGS), cold=True, detach=False, json=json)
    except KernelIncorrect:
        if not json:
            typer.echo(f"`careless` is wrong on purpose. One of your own: bench new NAME\nexample {path}")
