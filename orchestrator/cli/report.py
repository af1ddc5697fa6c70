"""`bench report RUN|FOLDER`: writes a run's report as one HTML file, as Markdown and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.analysis.regimes import MEANINGS, Setting
from orchestrator.api.results import report_of, select_settings, write_files
from orchestrator.cli.options import Json, RunOrFolder, group_options, options
from orchestrator.cli.terminal import emit_json
from orchestrator.core import text
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.workload import case_id
from orchestrator.report import flashinfer
from orchestrator.report.answer import HERE, failures, wrong_first
from orchestrator.report.boards import KINDS, draw_boards, figure_svg
from orchestrator.report.document import report_document
from orchestrator.report.markdown import (
    NoMarks,
    between_marks,
    by_baseline,
    mark_comments,
    paper,
    pull_request,
    report_markdown,
)
from orchestrator.report.report import Report
from orchestrator.wiring import print_figure, trace_set, write_atomically


class TableKind(StrEnum):
    """The tables of `--table`."""

    CASES = "cases"
    BASELINES = "baselines"
    PR = "pr"
    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class Insertion:
    """A table in a Markdown file, and between which marks."""

    into: Annotated[
        Path | None, typer.Option("--into", help="A Markdown file; the part between its two marks is replaced.")
    ] = None
    mark: Annotated[str, typer.Option("--mark", help="Name of the marks, if the file has several pairs.")] = ""
    table: Annotated[
        TableKind | None,
        typer.Option(
            "--table",
            help="cases; a row for each baseline; ten lines for a pull request (pr); LaTeX with booktabs (paper). "
            "Without --into it is written to standard output.",
        ),
    ] = None
    markdown: Annotated[
        str, typer.Option("--markdown", metavar="FILE", help="Write the Markdown to FILE; - is standard output.")
    ] = ""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is drawn and shown."""

    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write the figures as files into this folder.")
    ] = None
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join((*KINDS, flashinfer.FORMAT)),
            help="Format of the figures; or several: svg,png.",
        ),
    ] = "svg"
    trace_set: Annotated[
        Path, typer.Option("--trace-set", help="For flashinfer-trace: the trace set or definition that was launched.")
    ] = Path()
    regime: Annotated[
        list[str] | None,
        typer.Option(
            "--regime",
            metavar="|".join((*MEANINGS, "all")),
            help="Which regime Markdown shows, or with its caches: graph-warm; in baselines one or all.",
        ),
    ] = None
    all_baselines: Annotated[
        bool, typer.Option("--all-baselines", help="Also draw PyTorch's plain implementation, which is far slower.")
    ] = False


@group_options
def report(
    ctx: typer.Context,
    run: RunOrFolder = "last",
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; by default the run's folder.")] = None,
    insertion: Insertion,
    drawing: ReportOptions,
    json: Json = False,
) -> None:
    """Write a run's report: HTML, Markdown, JSON and CSV.

    `--into README.md` replaces what stands between <!-- bench:begin --> and <!-- bench:end -->; with `--mark NAME`,
    between <!-- bench:begin NAME --> and <!-- bench:end NAME -->.
    """
    formats = _formats(drawing.formats)
    run_report, folder = report_of(options(ctx).wiring, run)
    settings = select_settings(run_report, drawing.regime or ())
    kind = insertion.table or TableKind.CASES
    shown = settings if kind is TableKind.CASES or drawing.regime else ()
    fragment = _fragment(run_report, kind, shown)
    if insertion.markdown == "-" or (insertion.table is not None and insertion.into is None and not insertion.markdown):
        typer.echo(fragment, nl=False)
        return
    written = list(write_files(run_report, out or folder, settings, everything=drawing.all_baselines))
    if insertion.into is not None:
        _replace_between_marks(insertion.into, insertion.mark, fragment)
        written.append(insertion.into)
    if insertion.markdown:
        write_atomically(Path(insertion.markdown), fragment.encode())
        written.append(Path(insertion.markdown))
    if flashinfer.FORMAT in formats:
        written.append(_trace(run_report, out or folder, drawing.trace_set))
    if drawing.figures is not None:
        written += _draw(run_report, drawing.figures, formats, everything=drawing.all_baselines)
    if json:
        emit_json({**report_document(run_report), "files": [str(path) for path in written]})
        return
    untimed = [one.text for one in failures(run_report.study, [HERE])]
    notes = [f"note: {words}" for words in run_report.warnings()]
    report_lines = (
        run_report.title,
        *wrong_first(run_report.study),
        *run_report.headlines(),
        *run_report.sentences(),
        *untimed,
        *notes,
    )
    for words in (*report_lines, *(f"wrote {path.resolve()}" for path in written)):
        typer.echo(words)


def _formats(text: str) -> list[str]:
    """The formats of `--format`. Raise `ConfigError` for one that there is not."""
    formats = [kind.strip() for kind in text.split(",") if kind.strip()]
    if unknown := [kind for kind in formats if kind not in (*KINDS, flashinfer.FORMAT)]:
        raise ConfigError(f"--format {unknown[0]}: expected svg, png or pdf, or several with commas between")
    return formats


def _fragment(found: Report, table: TableKind, settings: Sequence[Setting]) -> str:
    if table is TableKind.PR:
        return pull_request(found)
    if table is TableKind.PAPER:
        return paper(found)
    return report_markdown(found, settings) if table is TableKind.CASES else by_baseline(found, settings)


def _replace_between_marks(path: Path, mark: str, fragment: str) -> None:

    try:
        begin, end = mark_comments(mark)
    except ValueError as exc:
        raise ConfigError(f"--mark {exc}") from exc
    try:
        with path.open("rb") as file:
            changed = between_marks(text.read_text(file, text.MOST_SOURCE), fragment, mark)
    except NoMarks as exc:
        raise LocalError(f"{path}: {exc}", hint=f"put {begin} and {end} where the table should be") from exc
    except (OSError, ValueError) as exc:
        raise LocalError(f"cannot read {path}: {text.os_error_text(exc)}", hint="--into takes a Markdown file") from exc
    write_atomically(path, changed.encode())


def _trace(found: Report, folder: Path, path: Path) -> Path:
    """Write the traces of a run's solutions. Raises `ConfigError` if the run measured nothing of the trace set."""
    described = trace_set(path)
    entries = {case_id(case["values"]): case for case in described["cases"]}
    lines = list(flashinfer.traces(found, entries, described["solves"]))
    if not lines:
        hint = "--trace-set takes what was launched: the trace set's folder, or the file of a definition in it"
        raise ConfigError(f"the run measured no solution of {path} on its workloads", hint=hint)
    write_atomically(folder / flashinfer.FILE, "".join(f"{line}\n" for line in lines).encode())
    return folder / flashinfer.FILE


def _draw(found: Report, folder: Path, formats: Sequence[str], *, everything: bool) -> list[Path]:
    kinds = [kind for kind in formats if kind != flashinfer.FORMAT]
    written = []
    for name, board in draw_boards(found.study, everything=everything).items():
        for kind in kinds:
            path = folder / f"{name}.{kind}"
            write_atomically(path, print_figure(figure_svg(board), kind, board.title))
            written.append(path)
    return written
