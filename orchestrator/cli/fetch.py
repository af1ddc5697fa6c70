"""`bench fetch RUN`: bring a run's results here, verified; idempotent and resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator.analysis.regimes import SHORT
from orchestrator.api.finding import LOCAL, find_run
from orchestrator.api.outcome import error_of
from orchestrator.api.results import read_report, write_files
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import emit_json, note, raise_unread
from orchestrator.core.errors import BenchError, ProviderError
from orchestrator.core.hosts import is_host
from orchestrator.core.run.fold import Run
from orchestrator.core.text import count
from orchestrator.report.answer import FAULTS, HERE, AnswerRow, failures, largest, microseconds, rows_of, wrong_first
from orchestrator.report.report import Report, ranks_in_words
from orchestrator.report.text import UNKNOWN, case_labels, display_name, format_estimate, format_ratio, shorten_name
from orchestrator.runs.engine import Engine
from orchestrator.wiring import Wiring, fetch_run

if TYPE_CHECKING:
    from orchestrator.wiring import Fetched


def fetch(
    ctx: typer.Context,
    run: RunName = "last",
    into: Annotated[Path, typer.Option("--into", help="The folder in which the run's folder is made.")] = LOCAL,
    check: Annotated[
        bool, typer.Option("--check", help="Exit as the run did: 7 if an implementation was wrong.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also statistics, cost, energy, every reason and note.")
    ] = False,
    json: Json = False,
) -> None:
    """Download what a run measured, and show it.

    Checks every file, assembles the CSVs, and compares. Files that are here and correct are not downloaded again. For a
    run that failed before its first case, the exit code is that of the failure; with --check it always is.
    """

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    engine = Engine(wiring.world(), run_id)
    state = engine.look()
    try:
        if state.closed is None and state.kept is None:
            state = engine.catch_up()
        elif any(is_host(vm.zone) for vm in state.vms):
            wiring.hosts.bring_home(state.run_id)  # a host that was given up may have come back with what it stored
    except ProviderError as exc:
        if not any(is_host(vm.zone) for vm in state.vms):
            raise
        note(f"{exc}; showing what is in the bucket so far")
    fetched = fetch_run(wiring.bucket, state, into)
    report = read_report(fetched.folder)
    if fetched.cases:
        write_files(report, fetched.folder)
    if json:
        headlines = list(report.headlines())
        wrong = list(wrong_first(report.study))
        answer_fields = {"measurements": report.study.measurements, "headlines": headlines, "wrong": wrong}
        emit_json({**fetched.document(), **answer_fields})
    else:
        screen().print(results_view(fetched, report, verbose=verbose))
    error = error_of(state) if check or not fetched.cases else None
    raise_unread({**fetched.left_out, **wiring.hosts.odd}, error)


STYLES: Final = {
    "faster": "bold green", "slower": "red", "same": "cyan", "inconclusive": "yellow", "wrong": "bold red",
    "unavailable": "dim",
}  # fmt: skip
MOST_ROWS: Final = 12
MOST_WRONG: Final = 3
"""The most rows, and the most sentences about what is wrong, of an answer without `-v`."""


def answer_view(fetched: Fetched, report: Report) -> RenderableType:
    """What a launch ends with and a fetch begins with: at most 20 lines for four cases and three kernels."""
    where = str(fetched.folder.resolve() / "report.html") if report.study.cases else str(fetched.folder)
    place = Text.assemble(("report  " if report.study.cases else "in ", "dim"), where)
    return Group(*answer_parts(fetched.run_id, fetched.state, report), place)


def answer_parts(run_id: str, state: str, report: Report) -> list[RenderableType]:
    """The answer without the place of its files."""
    study = report.study
    head = Text.assemble((run_id, "bold"), "  ")
    if not study.cases:
        return [head.append(f"no case was measured; the run is {state.replace('_', ' ')}")]
    head.append(f"{report.workload} on ").append(report.device, "bold").append(f": {report.cases}")
    parts: list[RenderableType] = [head]
    wrong = failures(study, FAULTS)
    parts += [Text(one.text, STYLES["wrong" if one.is_wrong else "inconclusive"]) for one in wrong[:MOST_WRONG]]
    if len(wrong) > MOST_WRONG:
        parts.append(Text(f"and {len(wrong) - MOST_WRONG} more that failed: bench fetch -v", STYLES["wrong"]))
    parts += [Text(words, "yellow") for words in report.incomplete()]
    shown, hidden = largest(rows_of(study), MOST_ROWS)
    if shown:
        parts += [_tables(shown, case_labels(study.case_ids), several=len(study.kernels) > 1)]
        parts.append(Text(_legend(shown), "dim"))
        modes = [f"{row.kernel} has two modes: {row.modes}" for row in shown if row.modes]
        parts += [Text(words, "yellow") for words in modes[:1]]
    parts += [Text(words) for words in [ranks_in_words(study.parts()[0])] if words]
    here = failures(study, [HERE])
    parts += [Text(one.text, "dim") for one in here[:1]]
    parts += [Text(words, "dim") for words in [_not_shown(report, hidden, max(0, len(here) - 1))] if words]
    return parts


def print_answer(wiring: Wiring, run: Run) -> bool:
    """Download the results of a run that is over to the usual folder and print the answer. Return whether it was
    printed; a bucket or a folder that refuses is a note, because the run itself went well."""
    if not run.measured or (run.closed is None and run.kept is None):
        return False
    try:
        fetched = fetch_run(wiring.bucket, run, LOCAL)
        report = read_report(fetched.folder)
        write_files(report, fetched.folder)
    except BenchError as exc:
        note(f"the results could not be shown here: {exc}")
        return False
    screen().print(answer_view(fetched, report))
    return True


def results_view(fetched: Fetched, report: Report, *, verbose: bool = False) -> RenderableType:
    """The answer; with `verbose` also every reason, and the statistics, cost and energy of the run."""
    parts: list[RenderableType] = [answer_view(fetched, report)]
    if report.study.cases and verbose:
        parts += [Text(words) for words in (*report.headlines(), *report.sentences())]
        parts += [
            Text(f"{one.implementation}, {count(len(cases), 'case')}: {reason}", "dim")
            for one in failures(report.study)
            for reason, cases in one.reasons.items()
        ]
        parts += [Text(f"note: {words}", "yellow") for words in report.notes_after()]
    if not fetched.complete and report.study.cases:
        state = fetched.state.replace("_", " ")
        partial_text = f"partial: {fetched.cases} of {count(fetched.cases_total, 'case')}; the run is {state}"
        parts.append(Text(partial_text, "yellow"))
    return Group(*parts)


def _legend(shown: Sequence[AnswerRow]) -> str:
    """One line: the regime of the table and its caches, what the ratio is, and why something is not compared."""
    settings = [row.case.setting for row in shown]
    regimes = dict.fromkeys(f"{one.regime}: {SHORT.get(one.regime, one.regime)}" for one in settings if one.regime)
    caches = dict.fromkeys(one.cache for one in settings if one.cache)
    how = [*regimes, *([f"caches {' or '.join(caches)}"] if caches else [])]
    why = dict.fromkeys(f"not compared: {row.why}" for row in shown if row.verdict == UNKNOWN and row.why)
    over = "ratio over 1: the kernel is faster" if any(row.contrast is not None for row in shown) else ""
    return "; ".join(part for part in (*how, over, *why) if part)


def _not_shown(report: Report, hidden: int, failed: int) -> str:
    """What is in the report and not on the screen, in one line; empty if that is nothing."""
    study = report.study
    shown = {row.case.setting for row in rows_of(study)}
    hidden_settings = [one.name for one in study.settings if one not in shown]
    notes = len(report.notes_after())
    parts = [
        f"{count(hidden, 'row')} with smaller differences" if hidden else "",
        f"{count(failed, 'implementation')} that cannot run here" if failed else "",
        " and ".join(hidden_settings),
        count(notes, "note") if notes else "",
    ]
    listed = [part for part in parts if part]
    return f"not shown: {', '.join(listed)} (bench fetch -v, or the report)" if listed else ""


@dataclass(frozen=True, slots=True)
class Widest:
    """The first of several tables that fits; the last one if none does. No digit is cut."""

    tables: tuple[Table, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        fitting = (one for one in self.tables if Measurement.get(console, free, one).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])


@dataclass(frozen=True, slots=True)
class Width:
    """How much of a row is shown: the interval, the rate's share of the roof, the rate, and the longest name."""

    interval: bool = True
    share: bool = True
    rate: bool = True
    longest: int = 40


def _tables(rows: Sequence[AnswerRow], names: dict[str, str], *, several: bool) -> RenderableType:
    """Tables from wide to narrow. None but the narrowest cuts names so that two cases have the same."""
    shown = {names[row.case.case_id] for row in rows}
    widths = [Width(), Width(interval=False), Width(interval=False, share=False)]
    widths += [Width(False, False, rate, longest) for longest, rate in ((28, True), (40, False), (16, True))]
    clear = [one for one in widths if len({shorten_name(name, one.longest) for name in shown}) == len(shown)]
    narrowest = Width(False, False, False, longest=12)
    return Widest(tuple(_table(rows, names, width, several=several) for width in (*clear, narrowest)))


def _table(rows: Sequence[AnswerRow], names: dict[str, str], width: Width, *, several: bool) -> Table:
    table = Columns()
    rated = width.rate and any(row.rate.text for row in rows)
    shares = rated and width.share and any(row.rate.share for row in rows)
    heads = ["case", *(["kernel"] if several else []), "time", "fastest baseline", "ratio", "verdict",
             *(["rate"] if rated else []), *(["of roof"] if shares else [])]  # fmt: skip
    right = {"time", "ratio", "rate", "of roof"}
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=True)
    for row in rows:
        theirs = f"{shorten_name(display_name(row.baseline), width.longest)} {microseconds(row.baseline_us)}"
        gain = UNKNOWN
        if row.contrast is not None:
            gain = format_estimate(row.contrast.ratio) if width.interval else format_ratio(row.contrast.ratio.mid)
        verdict_text = row.verdict if row.verdict != UNKNOWN else "not compared"
        cells = [
            Text(shorten_name(names[row.case.case_id], width.longest)),
            *([Text(shorten_name(row.kernel, width.longest))] if several else []),
            Text(microseconds(row.us)), Text(theirs if row.baseline else UNKNOWN), Text(gain),
            Text(verdict_text, STYLES.get(row.style, "dim")),
            *([Text(row.rate.text)] if rated else []), *([Text(row.rate.share)] if shares else []),
        ]  # fmt: skip
        table.add_row(*cells)
    return table
