"""`bench`: the commands, and the one place that turns an error into words and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator import __version__
from orchestrator.cli import (
    baseline,
    budget,
    cloud,
    compare,
    costs,
    diagnose,
    doctor,
    fetch,
    history,
    init,
    launch,
    logs,
    plan,
    prices,
    reap,
    report,
    ssh,
    status,
    stop,
)
from orchestrator.cli.options import Options
from orchestrator.core.errors import BenchError


class Boundary(TyperGroup):
    """Turns a `BenchError` into words on standard error and an exit code. The rest is bugs, which keep their trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BenchError as exc:
            complain(exc)
            raise typer.Exit(exc.exit_code) from exc
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201 - rich may not be loaded, and need not be
            raise typer.Exit(130) from None


def complain(exc: BenchError) -> None:
    from rich.console import Console
    from rich.markup import escape

    err = Console(stderr=True, highlight=False, soft_wrap=True)
    err.print(f"[bold red]error[/]: {escape(str(exc))}")
    if exc.hint:
        err.print(f"[bold]hint[/]:  {escape(exc.hint)}")


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
    ctx.obj = Options(project=project, bucket=bucket)


app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("launch")(launch.launch)
app.command("plan")(plan.plan)
app.command("prices")(prices.prices)
app.command("status")(status.status)
app.command("logs")(logs.logs)
app.command("ssh")(ssh.ssh)
app.command("fetch")(fetch.fetch)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.add_typer(baseline.app, name="baseline")
app.command("history")(history.history)
app.command("stop")(stop.stop)
app.command("reap")(reap.reap)
app.command("diagnose")(diagnose.diagnose)
app.add_typer(costs.app, name="costs")
app.command("budget")(budget.budget)
app.add_typer(cloud.app, name="cloud")


def main() -> None:
    app(prog_name="bench")
