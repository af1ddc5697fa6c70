"""`bench fetch RUN`: bring a run's results here, verified; idempotent and resumable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from orchestrator.report.answer import (
    FAULTS,
    HERE,
    AnswerRow,
    Failure,
    doubts_in_words,
    failures,
    largest,
    microseconds,
    rows_of,
    wrong_first,
)
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
MOST_LINES: Final = 20
"""The most lines of a terminal that a launch prints after its live view."""
FEWEST_ROWS: Final = 6
"""If there is room for fewer rows, sentences that `-v` shows are left out first."""


def answer_view(fetched: Fetched, report: Report, *, verbose: bool = False) -> RenderableType:
    """What a launch ends with and a fetch begins with. Leaves room for the last line of a launch, and for the two lines
    of its error if the run did not succeed; `verbose` shows every row and sentence."""
    where = str(fetched.folder.resolve() / "report.html") if report.study.cases else str(fetched.folder)
    place = Text.assemble(("report  " if report.study.cases else "in ", "dim"), where)
    most = MOST_LINES - (1 if fetched.state == "succeeded" else 3)
    return Answer(fetched.run_id, fetched.state, report, place, None if verbose else most)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer in at most `most` lines of a terminal, with as many rows as there is room for; None for every row."""

    run_id: str
    state: str
    report: Report
    place: Text | None = None
    """Where its files are."""
    most: int | None = MOST_LINES - 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.most is None:
            rows = rows_of(self.report.study)
            yield Group(*self.parts(rows, len(rows), brief=False))
            return
        for rows, limit, brief in self.layouts():
            parts = [_cut(part, console, options) for part in self.parts(rows, limit, brief=brief)]
            if sum(len(console.render_lines(part, options, pad=False)) for part in parts) <= self.most:
                break
        yield Group(*parts)

    def layouts(self) -> Iterator[tuple[tuple[AnswerRow, ...], int, bool]]:
        """Rows, the most of them, and whether sentences that only `-v` needs are left out: from everything to little.
        If there is no room, what failed has a sentence and no rows."""
        rows = self.rows()
        named = {one.implementation for one in self.sentences()}
        timed = tuple(row for row in rows if row.contrast is not None or row.kernel not in named)
        yield rows, MOST_ROWS, False
        yield from ((timed, limit, False) for limit in range(MOST_ROWS, FEWEST_ROWS - 1, -1) if limit <= len(timed))
        yield from ((timed, limit, True) for limit in range(MOST_ROWS, 0, -1) if limit <= len(timed))

    def sentences(self) -> list[Failure]:
        """The failures that have a sentence."""
        return [*self.failures(FAULTS)[:MOST_WRONG], *self.failures([HERE])[:1]]

    def rows(self) -> tuple[AnswerRow, ...]:
        """The rows, without those of an implementation of which a sentence says that it failed in every case."""
        total = len(self.report.study.case_ids)
        failed = {one.implementation for one in self.sentences() if len(one.cases) == total}
        return tuple(row for row in rows_of(self.report.study) if row.kernel not in failed)

    def parts(self, rows: Sequence[AnswerRow], limit: int, *, brief: bool) -> list[RenderableType]:
        """The answer with at most `limit` rows; if `brief`, without the sentences that only `-v` needs."""
        study, place = self.report.study, [self.place] if self.place else []
        head = Text.assemble((self.run_id, "bold"), "  ")
        if not study.cases:
            return [head.append(f"no case was measured; the run is {self.state.replace('_', ' ')}"), *place]
        head.append(f"{self.report.workload} on ").append(self.report.device, "bold").append(f": {self.report.cases}")
        parts: list[RenderableType] = [head]
        wrong, here = self.failures(FAULTS), self.failures([HERE])
        parts += [Text(one.text, STYLES["wrong" if one.is_wrong else "inconclusive"]) for one in wrong[:MOST_WRONG]]
        if len(wrong) > MOST_WRONG:
            parts.append(Text(f"and {len(wrong) - MOST_WRONG} more that failed: bench fetch -v", STYLES["wrong"]))
        parts += [Text(words, "yellow") for words in self.report.incomplete()]
        shown, _ = largest(rows, limit)
        if shown:
            parts += [_tables(shown, case_labels(study.case_ids), several=len(study.kernels) > 1)]
            parts.append(Text(_legend(shown), "dim"))
            parts += [Text(words, "yellow") for words in doubts_in_words(shown, study)[:1]]
        if not brief:
            modes = [f"{row.kernel} has two modes: {row.modes}" for row in shown if row.modes]
            parts += [Text(words, "yellow") for words in modes[:1]]
            parts += [Text(words) for words in [ranks_in_words(study.parts()[0])] if words]
            parts += [Text(one.text, "dim") for one in here[:1]]
        unnamed = len(here) if brief else max(0, len(here) - 1)
        return [*parts, *self.not_shown(shown, unnamed), *place]

    def failures(self, kinds: Sequence[str]) -> tuple[Failure, ...]:
        return failures(self.report.study, kinds)

    def not_shown(self, shown: Sequence[AnswerRow], failed: int) -> list[Text]:
        """What is in the report and not on the screen, in one line; no line if that is nothing."""
        study, kept = self.report.study, {(row.case.case_id, row.kernel) for row in shown}
        settings = {row.case.setting for row in rows_of(study)}
        hidden = [row for row in self.rows() if (row.case.case_id, row.kernel) not in kept]
        failures_hidden = sum(row.style in ("wrong", "unavailable") for row in hidden)
        others = len(hidden) - failures_hidden
        notes = len(self.report.notes_after())
        parts = [
            f"{count(failures_hidden, 'row')} that failed" if failures_hidden else "",
            f"{count(others, 'row')} with smaller differences" if others else "",
            f"{count(failed, 'implementation')} that cannot run here" if failed and self.most is not None else "",
            " and ".join(one.name for one in study.settings if one not in settings),
            count(notes, "note") if notes and self.most is not None else "",
        ]
        listed = [part for part in parts if part]
        where = "the report has it" if self.most is None else "bench fetch -v"
        return [Text(f"not shown: {', '.join(listed)} ({where})", "dim")] if listed else []


def _cut(part: RenderableType, console: Console, options: ConsoleOptions) -> RenderableType:
    """A sentence in at most two lines of a terminal: a path and a list of what is not shown have no style, and are
    whole."""
    if not (isinstance(part, Text) and part.style and options.is_terminal):
        return part
    lines = part.wrap(console, options.max_width)
    if len(lines) <= 2:
        return part
    lines[1].truncate(options.max_width - 1)
    return Text("\n").join([lines[0], lines[1].append("…")])


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
    parts: list[RenderableType] = [answer_view(fetched, report, verbose=verbose)]
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
