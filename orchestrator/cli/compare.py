"""`bench compare A B [...]` and `bench compare RUN --against main`: what changed, with an exit code for CI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from orchestrator.analysis.between import SAME_CODE
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.verdicts import Verdict
from orchestrator.api.results import report_of
from orchestrator.cli.options import Json, group_options, known_runs, options
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import emit_json
from orchestrator.core.baselines import device_key
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.errors import ConfigError, NotComparable, NotFound, Regression, Undecided
from orchestrator.core.text import capitalize_first, count
from orchestrator.report import comparing
from orchestrator.report.comparing import Comparison, compare_reports
from orchestrator.report.document import changes_document
from orchestrator.report.report import Report
from orchestrator.report.text import case_labels, format_percent
from orchestrator.wiring import write_atomically

# Shows a comparison in a terminal.


STYLES = {"faster": "green", "slower": "red"}


def show(one: Comparison) -> None:
    """Prints whether the runs may be compared, and a table for each regime."""
    console = screen()
    before, after = ((report.study.run_id, "bold") for report in (one.before, one.after))
    console.print(Text.assemble(before, " → ", after, f": {one.comparable.level.value}"))
    for reason in one.comparable.reasons:
        console.print(f"  {reason}", style="dim")
    for words in one.code:
        console.print(f"  {words}")
    if not one.changes:
        console.print(one.headline())
        return
    for setting in one.settings:
        if len(one.settings) > 1:
            console.print(setting.name, style="bold")
        console.print(_table(one, setting))
    who = "" if len(one.implementations) > 1 else f"{one.implementations[0]}, "
    spread = f"; runs of the same code differ by {format_percent(max(change.spread for change in one.changes))} or less"
    console.print(f"{who}{one.unit()}{spread}; a ratio over 1 is faster in the second run", style="dim")
    if one.energy:
        console.print(one.joules())
    console.print(one.headline())


def _table(one: Comparison, setting: Setting) -> Table:
    several = len(one.implementations) > 1
    names = case_labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    numbers = ("before", "after", "ratio", "95 % interval")
    table = Columns("case", *(["implementation"] if several else []), *numbers, "verdict", right=numbers)
    for change in one.changes:
        if change.setting != setting:
            continue
        ratio, word = change.ratio, change.verdict.value
        values = [f"{at.mid:.3f}" if one.relative_to else f"{at.mid:.1f}" for at in (change.before, change.after)]
        table.add_row(
            names[change.case_id], *([change.implementation] if several else []), *values,
            f"{ratio.mid:.3f}", f"{ratio.low:.3f}, {ratio.high:.3f}" if ratio.known else "",
            Text(word, STYLES[word]) if word in STYLES else change.said,
        )  # fmt: skip
    return table


class FailOn(StrEnum):
    """What `--fail-on` takes."""

    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class NamedBaseline:
    """The baseline that the runs are compared with, if it is not the first of them."""

    against: Annotated[
        str, typer.Option("--against", metavar="NAME", help="Compare every run with this baseline instead of A.")
    ] = ""
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="If that baseline does not exist, say so and exit 0.")
    ] = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is compared, and what counts as a change."""

    implementation: Annotated[
        list[str] | None,
        typer.Option("--implementation", help="Compare only these; by default the kernel, or else all."),
    ] = None
    relative_to: Annotated[
        str,
        typer.Option(
            "--relative-to", help=f"Compare speed-ups over this implementation; by default {DEFAULT} if measured."
        ),
    ] = ""
    absolute: Annotated[bool, typer.Option("--absolute", help="Compare times, not speed-ups within each run.")] = False
    tolerance: Annotated[float, typer.Option(min=0, max=100, help="Changes up to this many per cent do not count.")] = (
        2.0
    )
    fail_on: Annotated[
        FailOn,
        typer.Option(
            "--fail-on", help="What fails: regression (exit 12), inconclusive (also 14 for no conclusion), or never."
        ),
    ] = FailOn.REGRESSION
    across_devices: Annotated[bool, typer.Option("--across-devices", help="Compare runs of different devices.")] = False

    def compared(self, before: Report, after: Report) -> Comparison:
        return compare_reports(
            before,
            after,
            relative_to=self.relative_to,
            absolute=self.absolute,
            implementations=self.implementation or (),
            tolerance=self.tolerance / 100,
            across_devices=self.across_devices,
        )


@dataclass(frozen=True, slots=True)
class ComparisonPages:
    """What is written."""

    html: Annotated[Path | None, typer.Option("--html", help="Write one self-contained HTML file.")] = None
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write Markdown for a pull request; - writes to standard output.")
    ] = None

    @property
    def to_stdout(self) -> bool:
        return self.markdown is not None and str(self.markdown) == "-"


@group_options
def compare(
    ctx: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [...]", help="Runs or folders; each is compared with A.", autocompletion=known_runs
        ),
    ],
    baseline: NamedBaseline,
    judgement: Judgement,
    pages: ComparisonPages,
    json: Json = False,
) -> None:
    """Compare runs with the first one, or with a baseline. Exits with 12 when something became slower.

    A change counts if it exceeds the noise, the tolerance, and the usual difference between runs of the same code.
    Speed-ups over a baseline of the same run are compared; --absolute compares times. Runs on a busy or throttled
    machine give no conclusion: exit 14.
    """
    if not baseline.against and len(runs) < 2:
        raise ConfigError(
            "compare needs at least two runs", hint="`bench compare A B`, or `bench compare A --against main`"
        )
    _check(judgement, twice=json and pages.to_stdout)
    pairs, missing = _pairs(ctx, runs, baseline)
    comparisons = [judgement.compared(before, after) for before, after in pairs]
    written = _write(comparisons, missing, pages)
    if json:
        made = [changes_document(one) for one in comparisons]
        percent = judgement.tolerance
        emit_json({"schema": 2, "tolerance_percent": percent, "comparisons": made, "without_baseline": missing})
    elif not pages.to_stdout:
        for one in comparisons:
            show(one)
        for words in (*missing, *(f"wrote {path}" for path in written)):
            typer.echo(words)
    _judge(comparisons, judgement.fail_on)


def _check(judgement: Judgement, *, twice: bool) -> None:
    """Raises `ConfigError` for options that contradict each other."""
    if judgement.absolute and judgement.relative_to:
        raise ConfigError("--absolute and --relative-to exclude each other: give only one")
    if twice:
        raise ConfigError("--json and --markdown - both write to standard output", hint="give --markdown a file name")


def _called(report: Report, named: str) -> Report:
    """With a name for each: a folder without rows knows no run id, so it is named as the user named it."""
    study = report.study
    return report if study.run_id else replace(report, study=replace(study, run_id=named))


def _pairs(
    ctx: typer.Context, runs: Sequence[str], baseline: NamedBaseline
) -> tuple[list[tuple[Report, Report]], list[str]]:
    """The pairs to compare, and the runs that have no baseline to be compared with."""
    reports = [_called(report_of(options(ctx).wiring, named)[0], named) for named in runs]
    if not baseline.against:
        return [(reports[0], other) for other in reports[1:]], []
    name = baseline.against
    there = options(ctx).wiring().baselines.read(name)
    pairs, missing = [], []
    for report in reports:
        known_baseline = there.get(device_key(report.study.device))
        if known_baseline is not None:
            pairs.append((report_of(options(ctx).wiring, known_baseline.run_id)[0], report))
            continue
        reason = f"there is no baseline called {name} for {report.study.device or 'an unknown device'}"
        if not baseline.missing_ok:
            raise NotFound(
                reason, hint=f"`bench baseline set {name} RUN` creates it; --missing-ok continues without it"
            )
        missing.append(reason)
    return pairs, missing


def _write(found: Sequence[Comparison], missing: Sequence[str], pages: ComparisonPages) -> list[Path]:
    written = []
    if pages.html is not None and found:
        write_atomically(pages.html, comparing.comparison_page(found).encode())
        written.append(pages.html)
    if pages.markdown is not None:
        text = comparing.comparison_markdown(found) if found else ""
        text += "".join(f"{capitalize_first(words)}.\n" for words in missing)
        if pages.to_stdout:
            typer.echo(text, nl=False)
        else:
            write_atomically(pages.markdown, text.encode())
            written.append(pages.markdown)
    return written


def _judge(found: Sequence[Comparison], fail_on: str) -> None:
    """Raises the error that the comparisons amount to: the most serious one."""
    slower = [one for comparison in found for one in comparison.of(Verdict.SLOWER)]
    if slower and fail_on != "never":
        worst = min(slower, key=lambda one: one.ratio.mid)
        where = f"{worst.case_id}{f' ({worst.setting.name})' if worst.setting.name else ''}"
        raise Regression(
            f"{len(slower)} slower; worst {worst.implementation} on {where}, {worst.ratio.mid:.3f} times as fast"
        )
    gone = [one for comparison in found for one in comparison.lost]
    if gone and fail_on != "never":
        first = gone[0]
        raise Regression(f"{len(gone)} no longer timed; {first.implementation} on {first.case_id}: {first.reason}")
    for one in found:
        if one.refused:
            empty = next((run.study.run_id for run in (one.before, one.after) if not run.study.cases), None)
            raise NotComparable(
                f"{one.before.study.run_id} and {one.after.study.run_id}: {one.comparable.reasons[0]}",
                hint="--across-devices allows different devices; different regimes cannot be compared"
                if empty is None
                else f"`bench report {quote(empty)}` shows what the run contains",
            )
    if found and not any(one.changes or one.lost for one in found):
        raise NotComparable(
            "the runs share no case measured in the same regime with the same implementation",
            hint="`bench report RUN` shows what each contains",
        )
    unfit = [one for comparison in found for one in comparison.changes if one.doubt not in ("", SAME_CODE)]
    if unfit and fail_on != "never":
        raise Undecided(
            f"{count(len(unfit), 'comparison is', 'comparisons are')} not usable: {unfit[0].doubt}",
            hint="measure again with `bench launch` while the machine is idle; --fail-on never ignores this",
        )
    doubtful = [one for comparison in found for one in comparison.of(Verdict.INCONCLUSIVE)]
    if doubtful and fail_on == "inconclusive":
        raise Undecided(
            f"{count(len(doubtful), 'comparison')} came to no conclusion",
            hint="measure again with more repeats (--set measure.repeats=100), while the host is not busy",
        )
