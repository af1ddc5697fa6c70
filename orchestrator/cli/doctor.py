"""`bench doctor`: finds what would go wrong before it costs anything, and prints the command that repairs it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.choices import ChoiceParam, Overrides
from orchestrator.cli.options import Json, group_options, options
from orchestrator.cli.screen import screen
from orchestrator.cli.terminal import documents, emit_json
from orchestrator.core.doctor.verdicts import CheckLevel, CheckResult, count_levels, exit_code, proposed_fixes
from orchestrator.core.errors import BenchError
from orchestrator.core.hosts import parse_target
from orchestrator.core.setup.steps import Step, describe_step
from orchestrator.core.text import count, log_text
from orchestrator.runs.doctor import CloudExamination, TaskRun, here_tasks, host_tasks, run_checks
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring, load_chosen_config

# Shows a page of checks, as lines and as JSON.


MARKS = {
    CheckLevel.OK: ("ok", "green"),
    CheckLevel.WARN: ("warn", "yellow"),
    CheckLevel.FAIL: ("FAIL", "bold red"),
    CheckLevel.SKIPPED: ("skip", "dim"),
}
AREAS = {"here": "this machine", "gce": "the project", "host": "the host"}


def page(results: Sequence[CheckResult], where: str) -> RenderableType:
    """A line for each check; neighbours that were skipped for the same reason share a line."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for lines in _lines(results):
        first = lines[0]
        if first.check.area != area:
            area = first.check.area
            table.add_row("", Text(AREAS[area], "bold"), Text(where if area != "here" else "", "dim"))
        mark, style = MARKS[first.verdict.level]
        quiet = "dim" if first.verdict.level in (CheckLevel.OK, CheckLevel.SKIPPED) else ""
        title = first.check.title if len(lines) == 1 else count(len(lines), "check")
        also = "" if len(lines) == 1 else f" ({', '.join(dict.fromkeys(line.check.title for line in lines))})"
        table.add_row(Text(mark, style), Text(title), Text(first.verdict.why + also, quiet))
    return table


def _lines(results: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """The results grouped by line: neighbours that were skipped for the same reason share one."""
    lines: list[list[CheckResult]] = []
    for result in results:
        last = lines[-1][-1] if lines else None
        if last is not None and CheckLevel.SKIPPED is last.verdict.level and last.verdict == result.verdict:
            lines[-1].append(result)
        else:
            lines.append([result])
    return lines


def remedies(results: Sequence[CheckResult]) -> list[Text]:
    """The remedies, one on each line, so that each can be copied whole."""
    results_by_remedy: dict[str, list[CheckResult]] = {}
    for result in sorted(results, key=lambda one: one.verdict.level is not CheckLevel.FAIL):
        if result.verdict.remedy:
            results_by_remedy.setdefault(result.verdict.remedy, []).append(result)
    lines = [Text(), Text("how to fix it", "bold")] if results_by_remedy else []
    for remedy, wrong in results_by_remedy.items():
        _, style = MARKS[max((one.verdict.level for one in wrong), key=[*MARKS].index)]
        lines.append(Text(", ".join(one.check.title for one in wrong), style))
        lines.append(Text(f"    {remedy}", "cyan"))
    return lines


def total(results: Sequence[CheckResult], seconds: float) -> Text:
    """How many checks had which result, and how long they took."""
    count = count_levels(results)
    level_words = (
        (CheckLevel.OK, "ok"),
        (CheckLevel.WARN, "warn"),
        (CheckLevel.FAIL, "fail"),
        (CheckLevel.SKIPPED, "skipped"),
    )
    parts = ", ".join(f"{count[level]} {word}" for level, word in level_words)
    return Text(f"\n{parts}; {seconds:.1f} s, nothing spent", "bold" if count[CheckLevel.FAIL] else "")


def show(results: Sequence[CheckResult], where: str, seconds: float) -> None:
    """The page, on standard output. Commands are not wrapped, so that they can be copied."""
    console = screen()
    console.print(page(results, where))
    for line in (*remedies(results), total(results, seconds)):
        console.print(line, soft_wrap=True)


def document(results: Sequence[CheckResult], mode: str, project: str, bucket: str) -> documents.DoctorDocument:
    """The page as a document."""
    return documents.DoctorDocument(
        schema=1,
        mode=mode,
        project=project,
        bucket=bucket,
        exit_code=exit_code(results),
        counts={str(level): count for level, count in count_levels(results).items()},
        checks=[documents.CheckDocument.of(result) for result in results],
    )


@group_options
def doctor(
    ctx: typer.Context,
    choice: ChoiceParam,
    set_: Overrides = None,
    host: Annotated[
        str, typer.Option("--host", metavar="USER@BOX[:PORT]", help="Check your own machine instead, over SSH.")
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe and free to fix, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    json: Json = False,
) -> None:
    """Check everything that a launch needs; costs nothing.

    Changes nothing without --fix. With a GPU or a configuration, checks what that run would need.
    """
    if host:
        _host(ctx, host, LaunchOptions(choice.gpu, choice.config, tuple(set_ or ()), hosts=(host,)), json=json)
    wiring = options(ctx).wiring(needs_bucket=False)
    cloud = _examination(wiring, choice, tuple(set_ or ()))
    begun = time.monotonic()
    results = _examine((*here_tasks(wiring.surroundings(), choice.config), *cloud.tasks()), quiet=json)
    subject = cloud.subject() if wiring.reached else None
    wished = proposed_fixes(results) if fix else ()
    if wished and _agreed(wished, yes=yes, json=json):
        _mend(wiring, wished, say=(lambda _text: None) if json else typer.echo)
        cloud.session.close()
        cloud = _examination(wiring, choice, tuple(set_ or ()))
        results = _examine((*here_tasks(wiring.surroundings(), choice.config), *cloud.tasks()), quiet=json)
    cloud.session.close()
    project, bucket = (subject.project, subject.bucket) if subject else ("", "")
    if json:
        emit_json(document(results, wiring.mode, project, bucket))
    else:
        where = f"{project}, {f'gs://{bucket}' if bucket else 'no bucket'}" if subject else wiring.settings.project
        kind = "the embedded cloud: " if wiring.mode.simulated else ""
        show(results, kind + where, time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _host(ctx: typer.Context, name: str, asked: LaunchOptions, *, json: bool) -> None:
    """Checks a host and this machine, prints the page and exits."""
    wiring, begun = options(ctx).wiring(), time.monotonic()
    target = parse_target(name, wiring.machine)
    wiring.name_hosts((name,))
    here = here_tasks(wiring.surroundings(), None)
    results = _examine(
        (*here, *host_tasks(target, lambda: wiring.shell(target), asked, load_chosen_config)), quiet=json
    )
    if json:
        emit_json(document(results, "host", "", "").model_copy(update={"host": str(target)}))
    else:
        show(results, str(target), time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _examination(wiring: Wiring, choice: ChoiceParam, overrides: tuple[str, ...]) -> CloudExamination:
    session = wiring.checking_session()
    if choice == ChoiceParam():
        if not overrides:
            return CloudExamination(session, wiring.subject)
        choice = ChoiceParam(gpu="l4")
    loaded, _name = load_chosen_config(LaunchOptions(choice.gpu, choice.config, overrides))
    return CloudExamination(session, wiring.subject, loaded, (loaded.gpu, *loaded.placement.fallback_gpus))


def _examine(tasks: Sequence[TaskRun], *, quiet: bool) -> tuple[CheckResult, ...]:
    """Makes all checks; on a terminal, a line counts them."""
    err = screen(sys.stderr)
    if quiet or not err.is_terminal:
        return run_checks(tasks)
    with err.status(f"checking: 0 of {len(tasks)}") as status:
        seen = 0

        def report(result: CheckResult) -> None:
            nonlocal seen
            seen += 1
            status.update(f"checking: {seen} of {len(tasks)}, {result.check.title}")

        return run_checks(tasks, report)


def _agreed(steps: Sequence[Step], *, yes: bool, json: bool) -> bool:
    if yes:
        return True
    if json:
        return False
    typer.echo("these fixes cost nothing:")
    for step in steps:
        typer.echo(f"  {describe_step(step)}")
    return ask_confirmation()


def ask_confirmation() -> bool:
    """Whether the user says yes. Without a terminal, or after Ctrl-C, the answer is no."""
    try:
        return typer.confirm("do it?")
    except typer.Abort:
        typer.echo("\nnothing was done; --yes does it without asking")
        return False


def _mend(wiring: Wiring, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    setup = wiring.setup()
    for step in steps:
        try:
            setup.take(step)
        except BenchError as exc:
            say(log_text(f"not done: {exc}"))
        else:
            say(f"done: {describe_step(step)}")
