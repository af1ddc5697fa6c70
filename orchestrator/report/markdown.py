"""The report as Markdown, for a pull request or between two marks in a README."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import CONVENTION
from orchestrator.analysis.study import Study
from orchestrator.report.report import Report
from orchestrator.report.text import backend, common_parts, digits, labels, percent, ratio, within

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"


class NoMarks(Exception):
    """A document has not exactly one pair of marks, in order."""


def markdown(report: Report, settings: Sequence[Setting] = ()) -> str:
    """A heading-less fragment: warnings, the result of every setting in words, and a table of each of `settings`, which
    are by default the first that the run has."""
    study = report.study
    chosen = settings or study.settings[:1]
    facts = (f"**{cell(report.title)}**", study.run_id, study.regime, f"{study.measurements:,} measurements")
    lines = [" · ".join(fact for fact in facts if fact), ""]
    lines += [f"> {cell(words)}" for words in report.warnings()] + ([""] if report.warnings() else [])
    lines += [words + "  " for words in (*report.headlines(), *report.sentences())] + [""]
    names = labels(study.case_ids)
    for part in study.parts():
        if not part.settings or part.settings[0] in chosen:
            lines += [*_table(part, names), ""]
    left = [one.name for one in study.settings if one not in chosen]
    if left:
        lines.append(f"Also measured, and in the whole report: {' and '.join(left)}.")
    return "\n".join(lines).rstrip() + "\n"


def _table(part: Study, names: Mapping[str, str]) -> list[str]:
    setting = part.settings[0] if part.settings else Setting("")
    lines = [f"**{setting.name}**: {setting.meaning}", ""] if setting.meaning else []
    if not part.contrasts:
        return [*lines, *_times(part, names)]
    shared = "-".join(common_parts(list(names)))
    lines += [
        f"| {shared or 'case'} | {part.subject}, µs | fastest rival, µs | ratio | 95 % interval | noise | verdict |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for case in part.cases:
        best, own = case.best, case.timing(part.subject)
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
    return [*lines, "", f"A ratio over 1: {part.subject} is faster."]


def _times(part: Study, names: Mapping[str, str]) -> list[str]:
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    if not timed:
        return []
    lines = ["| case | implementation | median, µs | 95 % interval | TFLOP/s |", "|---|---|--:|--:|--:|"]
    for case, t in timed:
        rate = "" if math.isnan(t.tflops) else digits(t.tflops)
        cells = (names[case.case_id], t.implementation, digits(t.median_us.mid), within(t.median_us), rate)
        lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
    return [*lines, "", f"TFLOP/s by {CONVENTION}."]


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
