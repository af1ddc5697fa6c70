"""`bench`: the commands, and the one place that turns an error into words and an exit code."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from orchestrator import __version__
from orchestrator.cli.lazy import LazyGroup
from orchestrator.core.errors import BenchError
from orchestrator.core.foreign import log_text

COMMANDS = {
    "init": "Set a project up, once, with the least rights.",
    "doctor": "Look at all that a launch needs; costs nothing.",
    "new": "Write a workload of your own that runs as it is.",
    "launch": "Rent a machine, measure, delete the machine.",
    "plan": "Show what a launch would do, and cost at most.",
    "prices": "Show the prices that runs are held at.",
    "status": "Show runs, and the machines alive now.",
    "logs": "Show a run's log.",
    "ssh": "Open a terminal on the machine of a live run.",
    "fetch": "Download what a run measured, and show it.",
    "report": "Write a run's report: HTML, Markdown, JSON and CSV.",
    "compare": "Hold runs against the first, or against a baseline.",
    "history": "Follow a case over the runs in the bucket.",
    "site": "Make pages of all runs in the bucket.",
    "stop": "End a run and delete its machine.",
    "reap": "Find machines that no live run owns, and delete them.",
    "diagnose": "Say why a run failed and what to do about it.",
    "budget": "Show the caps, what is spent, and what is left.",
    "baseline": "Named runs that others are compared with; one for each device.",
    "costs": "What was spent and what is held; `add` adds.",
    "cloud": "The embedded cloud: its VMs, bill and weather.",
}
"""Each command and the first line of its help: what `bench --help` shows, with none of their modules loaded."""


class Boundary(LazyGroup):
    """Turns a `BenchError` into words on standard error and an exit code. The rest is bugs, which keep their trace."""

    table = COMMANDS

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BenchError as exc:
            complain(exc)
            raise typer.Exit(exc.exit_code) from exc
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


def complain(exc: BenchError) -> None:
    """The error and its remedy on standard error, in colour where that is a terminal that wants it."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    typer.echo(f"{'error' if plain else typer.style('error', fg='red', bold=True)}: {log_text(str(exc))}", err=True)
    if exc.hint:
        typer.echo(f"{'hint' if plain else typer.style('hint', bold=True)}:  {log_text(exc.hint)}", err=True)


app = typer.Typer(
    cls=Boundary,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run GPU kernel benchmarks on preemptible cloud machines, within a budget,\n"
    "and bring back numbers to publish.\n\n"
    "With no project configured, everything runs against an embedded cloud on this machine.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    project: Annotated[
        str, typer.Option(help="Google Cloud project; without one, the embedded cloud.", envvar="BENCH_PROJECT")
    ] = "",
    bucket: Annotated[str, typer.Option(help="Bucket for runs, results and the ledger.", envvar="BENCH_BUCKET")] = "",
    version: Annotated[  # noqa: ARG001 - the callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    ctx.obj = {"project": project, "bucket": bucket}


def main() -> None:
    app(prog_name="bench")
