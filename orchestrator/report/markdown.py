"""The report as Markdown, for a pull request or between two marks in a README."""

from __future__ import annotations

import math

from orchestrator.analysis.roofs import CONVENTION
from orchestrator.report.report import Report
from orchestrator.report.text import backend, common_parts, digits, labels, percent, ratio, within

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"


class NoMarks(Exception):
    """A document has not exactly one pair of marks, in order."""


def markdown(report: Report) -> str:
    """A heading-less fragment: warnings, the result in words, one table."""
    study = report.study
    names = labels([case.case_id for case in study.cases])
    lines = [f"**{cell(report.title)}** · {study.run_id} · {study.regime} · {study.measurements:,} measurements", ""]
    lines += [f"> {cell(words)}" for words in report.warnings()] + ([""] if report.warnings() else [])
    lines += [words + "  " for words in (report.headline(), *report.sentences()) if words] + [""]
    if study.contrasts:
        shared = "-".join(common_parts(list(names)))
        lines += [
            f"| {shared or 'case'} | {study.subject}, µs | fastest rival | ratio | 95 % interval | noise | verdict |",
            "|---|--:|--:|--:|--:|--:|---|",
        ]
        for case in study.cases:
            best, own = case.best, case.timing(study.subject)
            rival = case.timing(best.baseline) if best is not None else None
            if best is None or own is None or rival is None:
                lines.append(f"| {names[case.case_id]} | not compared | | | | | |")
                continue
            noise = percent(best.noise.floor) if best.noise is not None else ""
            theirs = f"{backend(best.baseline)} {digits(rival.median_us.mid)}"
            cells: tuple[str, ...] = (
                names[case.case_id], digits(own.median_us.mid), theirs,
                ratio(best.paired.ratio.mid), within(best.paired.ratio), noise, best.verdict.value,
            )  # fmt: skip
            lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
        lines += ["", f"A ratio over 1: {study.subject} is faster. TFLOP/s by {CONVENTION}."]
    else:
        timed = [(case, t) for case in study.cases for t in case.timings if t.timed]
        if timed:
            lines += ["| case | implementation | median, µs | 95 % interval | TFLOP/s |", "|---|---|--:|--:|--:|"]
        for case, t in timed:
            rate = "" if math.isnan(t.tflops) else digits(t.tflops)
            cells = (names[case.case_id], t.implementation, digits(t.median_us.mid), within(t.median_us), rate)
            lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
    return "\n".join(lines).rstrip() + "\n"


def cell(words: str) -> str:
    """Words that no character of theirs can break out of a table."""
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def between_marks(document: str, fragment: str) -> str:
    """`document` with what stands between its two marks replaced. Raises `NoMarks`."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise NoMarks(f"expected one {BEGIN} and, after it, one {END}")
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{fragment.strip()}\n{END}{after}"
