"""What `bench fetch` shows: the same estimates, intervals and verdicts as the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from orchestrator.analysis.study import Case
from orchestrator.analysis.verdicts import Verdict
from orchestrator.cli.screen import Columns
from orchestrator.core.text import count
from orchestrator.report.markdown import skips
from orchestrator.report.report import Report
from orchestrator.report.text import backend, common_parts, digits, estimate, labels

if TYPE_CHECKING:
    from orchestrator.wiring import Fetched

STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.INCONCLUSIVE: "yellow"}


def results_view(fetched: Fetched, report: Report) -> RenderableType:
    study = report.study
    where = Text.assemble(("in ", "dim"), str(fetched.folder))
    head = Text.assemble((fetched.run_id, "bold"), "  ")
    if not study.cases:
        state = fetched.state.replace("_", " ")
        return Group(head.append(f"no case was measured; the run is {state}"), where)
    head.append(f"{count(study.measurements, 'measurement')} on ").append(study.device or "an unknown device", "bold")
    head.append(f": {report.cases}")
    parts: list[RenderableType] = [head, *(Text(words, "yellow") for words in report.warnings())]
    parts += [_tables(report), *(Text(words) for words in (*report.headlines(), *report.sentences()))]
    parts += [Text(f"not timed: {words}", "dim") for words in skips(study)[:8]]
    parts.append(where.append("/  report.html  measurements.csv  summary.csv", "dim"))
    if not fetched.complete:
        state = fetched.state.replace("_", " ")
        parts.append(
            Text(f"partial: {fetched.cases} of {count(fetched.cases_total, 'case')}; the run is {state}", "yellow")
        )
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class Widest:
    """The first of several tables that fits; the last one if none does. No digit is cut."""

    tables: tuple[Table, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(max_width=10_000)
        fitting = (one for one in self.tables if Measurement.get(console, free, one).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])


def _tables(report: Report) -> RenderableType:
    """Medians in µs, of every implementation where there is room, else of the subject's alone; then the subject against
    the fastest baseline of the case, as the report has it."""
    study = report.study
    timed = [t.implementation for case in study.cases for t in case.timings if t.timed]
    names = [one for one in (study.subject, *study.baselines) if one in timed]
    legend = "median µs"
    if study.contrasts:
        legend += f"; over 1: {study.subject} is faster than the fastest of the others"
    tables = Widest((_table(report, names), _table(report, names[:1])))
    return Group(tables, Text(legend, "dim"))


def _table(report: Report, names: Sequence[str]) -> Table:
    study = report.study
    compared, names_of = bool(study.contrasts), labels(study.case_ids)
    table = Columns()
    table.add_column(Text("-".join(common_parts(study.case_ids)) or "case"), no_wrap=True)
    several = len(study.settings) > 1
    if several:
        table.add_column("regime", no_wrap=True)
    for name in names:
        table.add_column(Text(backend(name)), justify="right", no_wrap=True)
    if compared:
        table.add_column("against the fastest", no_wrap=True)
    for case in study.cases:
        cells = [_median(case, name) for name in names]
        if compared:
            cells.append(_verdict(case))
        table.add_row(Text(names_of[case.case_id]), *([Text(case.setting.name)] if several else []), *cells)
    return table


def _median(case: Case, name: str) -> Text:
    timing = case.timing(name)
    return Text("–", "dim") if timing is None or not timing.timed else Text(digits(timing.median_us.mid, 4))


def _verdict(case: Case) -> Text:
    best = case.best
    return (
        Text("–", "dim") if best is None else Text(f"{estimate(best.ratio)} {best.said}", STYLES.get(best.verdict, ""))
    )
