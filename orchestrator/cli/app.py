"""`bench`: the commands, and the only place that turns an error into a message and an exit code."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any, Final

import typer
from typer.exceptions import TyperException

from orchestrator import __version__
from orchestrator.cli.examples import example_lines
from orchestrator.cli.lazy import UNSET, LazyGroup
from orchestrator.cli.terminal import (
    ANSWERED,
    READER_LEFT,
    answer_with,
    columns,
    endure,
    hanging,
    in_any_locale,
    output_error,
)
from orchestrator.core.errors import BenchError, ConfigError, LocalError
from orchestrator.core.text import fold_commands, log_text

COMMANDS = {
    "init": "Set up a Google Cloud project: APIs, bucket, accounts, caps.",
    "demo": "Measure an example on this machine's CPU, in about a minute; nothing is rented.",
    "doctor": "Check everything that a launch needs; costs nothing.",
    "new": "Write an example kernel that runs, to start your own from.",
    "launch": "Rent a machine, measure, delete the machine.",
    "watch": "Measure your own kernel each time it is saved.",
    "tune": "Find the best values of a kernel's parameters.",
    "mcp": "Let an agent measure versions of your kernel, within a sum.",
    "plan": "Show what a launch would do and the most it can cost.",
    "prices": "Show the prices that plans and holds are made with.",
    "fleet": "Run one sweep on many machines.",
    "status": "List runs, other holds, and the machines that exist now.",
    "logs": "Show a run's log.",
    "ssh": "Open a terminal on the machine of a live run.",
    "fetch": "Download what a run measured, and show it.",
    "report": "Write a run's report: HTML, Markdown, JSON and CSV.",
    "compare": "Compare runs with the first one, or with a baseline.",
    "profile": "Show why kernels take their time: peaks, roofline, stalls.",
    "history": "Show how one case changed over the runs in the bucket.",
    "site": "Write web pages about all runs in the bucket.",
    "cases": "List the ids of the cases that a run measured.",
    "stop": "Stop a run and delete its machine.",
    "reap": "Find machines that no live run owns, and delete them.",
    "diagnose": "Say why a run failed and what to do about it.",
    "budget": "Show the caps, what is spent, and what is left.",
    "baseline": "Name runs to compare others with, one for each device.",
    "image": "Build prepared images, so that machines start sooner.",
    "costs": "Show what was spent and held; add or remove other costs.",
    "config": "Show the bundled configurations and every key.",
    "schema": "Print the JSON Schema of what a command prints with --json.",
    "docs": "Show a page of the documentation; without a name, list the pages.",
    "man": "Print the manual page; to read it: bench man | man -l -",
    "cloud": "Control the embedded cloud: its VMs, bill and faults.",
}
"""Each command and the first line of its help, so that `bench --help` loads none of their modules."""


GROUPS = {
    "Begin": ("demo", "init", "doctor", "new", "plan", "launch", "watch", "tune", "mcp"),
    "Follow": ("status", "logs", "ssh", "stop", "diagnose"),
    "Results": ("fetch", "report", "cases", "compare", "history", "baseline", "profile", "site"),
    "Many machines": ("fleet", "image"),
    "Money": ("costs", "budget", "prices", "reap"),
    "The tool": ("docs", "config", "cloud", "schema", "man"),
}
"""The groups of commands in `bench --help` and in the greeting; a command that is in no group comes last."""


def commands_by_group() -> dict[str, list[str]]:
    """All commands, by group."""
    present_commands = {title: [name for name in names if name in COMMANDS] for title, names in GROUPS.items()}
    grouped_names = {name for names in present_commands.values() for name in names}
    present_commands["More"] = [name for name in COMMANDS if name not in grouped_names]
    return {title: names for title, names in present_commands.items() if names}


ASKS_JSON: Final = "orchestrator.asks_json"


class Boundary(LazyGroup):
    """Turns a `BenchError` into a message on standard error and an exit code. Any other exception is a bug."""

    table = COMMANDS

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for title, names in commands_by_group().items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", COMMANDS[name]) for name in names])

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[ASKS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        asks_json = "--json" in args
        try:
            return super().make_context(info_name, args, parent, **extra)
        except TyperException as exc:
            if extra.get("resilient_parsing"):
                raise
            raise _refuse_usage(exc, json=asks_json) from exc

    def invoke(self, ctx: Any) -> Any:
        asks_json = ctx.meta[ASKS_JSON]
        ANSWERED.set(False)
        try:
            return super().invoke(ctx)
        except BenchError as exc:
            if asks_json:
                answer_with(type(exc).__name__, log_text(str(exc)), log_text(exc.hint or ""), exc.exit_code)
            complain(exc)
            raise typer.Exit(exc.exit_code) from exc
        except TyperException as exc:
            raise _refuse_usage(exc, json=asks_json) from exc
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


def _refuse_usage(error: TyperException, *, json: bool) -> typer.Exit:
    """Report a mistake of the command line in the style of every other error; the exit to raise."""
    text = re.sub(r"Value error, |\.$", "", error.format_message())
    text = re.sub(r"Input should be a valid (\w+), unable to parse.*", r"expected a valid \1", text)
    text = re.sub(r"^No such command '(.*?)'\. Did you mean (.*)\?$", r"no such command: \1; did you mean \2?", text)
    text = re.sub(r"^No such option: (\S+) \(Possible options: (.*)\)$", r"no such option: \1; did you mean \2?", text)
    text = re.sub(r"^No such command '(.*?)'$", lambda found: no_such_command(found[1]), text)
    context: Any = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "bench")
    if type(error).__name__ == "NoArgsIsHelpError":
        text = f"{path} needs a command: {', '.join(context.command.list_commands(context))}"
    refused = ConfigError(f"{text[:1].lower()}{text[1:]}", hint=f"`{path} --help` lists what it takes")
    refused.exit_code = error.exit_code
    if json:
        answer_with("UsageError", str(refused), refused.hint, refused.exit_code)
    complain(refused)
    return typer.Exit(refused.exit_code)


MEANT: Final = {
    "run": "launch", "start": "launch", "measure": "launch", "benchmark": "launch", "ls": "status", "list": "status",
    "ps": "status", "kill": "stop", "cancel": "stop", "delete": "stop", "download": "fetch", "results": "fetch",
    "login": "init", "setup": "init", "usage": "costs", "help": "--help", "version": "--version",
}  # fmt: skip
"""What is meant by the names of commands that other tools have."""


def no_such_command(name: str) -> str:
    """The message for a command that does not exist, with what may be meant: `good.py` is launched."""
    meant = f"launch {name}" if name.endswith((".py", ".yaml", ".yml")) else MEANT.get(name, "")
    return f"no such command: {name}" + (f"; did you mean 'bench {meant}'?" if meant else "")


UNHEARD: Final = (
    "free some space there; nothing is lost: a run continues without this command, and `bench status` shows it"
)


def complain(exc: BenchError) -> None:
    """Prints the error and its hint to standard error, in colour if that is a terminal that shows colours."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    message = hanging(f"error: {log_text(str(exc))}", err=True, indent=7).removeprefix("error")
    typer.echo(f"{'error' if plain else typer.style('error', fg='red', bold=True)}{message}", err=True)
    if exc.hint:
        hint = fold_commands(log_text(exc.hint), columns(sys.stderr), 7)
        typer.echo(f"{'hint' if plain else typer.style('hint', bold=True)}:  {hint}", err=True)


app = typer.Typer(
    cls=Boundary,
    invoke_without_command=True,
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
    for name, value in (("project", project), ("bucket", bucket)):
        source = ctx.get_parameter_source(name)
        if not value.strip() and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"--{name} is empty", hint=UNSET)
    ctx.obj = {"project": project, "bucket": bucket}
    if ctx.invoked_subcommand is None:
        typer.echo(greeting())


def greeting() -> str:
    """What `bench` without a command prints: what it is for, its commands, and how to begin."""
    groups = commands_by_group()
    width = max(map(len, groups))
    listed = [f"  {title:<{width}}  {'  '.join(names)}" for title, names in groups.items()]
    return "\n".join(
        [
            f"bench {__version__}: GPU kernels on rented machines, within a budget in dollars",
            "",
            *listed,
            "",
            "Begin with one of these:",
            *(f"  {line}" for line in example_lines("")),
            "",
            "bench COMMAND --help explains a command; `bench doctor` says what is missing",
        ]
    )


def main() -> None:
    endure()
    in_any_locale(sys.stdout, sys.stderr)
    try:
        app(prog_name="bench")
    except SystemExit as exc:
        sys.stdout.flush()
        trouble = output_error(sys.stdout)
        if trouble is None:
            raise
        sys.exit(exc.code or _untold(trouble))


def _untold(trouble: OSError) -> int:
    """The exit code of a command that did its work but could not print its output."""
    if isinstance(trouble, BrokenPipeError):
        return READER_LEFT
    complain(LocalError(f"cannot write the output: {trouble.strerror}", hint=UNHEARD))
    return LocalError.exit_code
