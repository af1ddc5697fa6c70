"""The report as Markdown, for a pull request or between two marks in a README."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.bundled import convention
from orchestrator.core.results import is_control
from orchestrator.core.text import count
from orchestrator.report.report import Report
from orchestrator.report.text import (
    backend,
    common_parts,
    digits,
    elsewhere,
    estimate,
    labels,
    of_cases,
    percent,
    ratio,
    within,
)

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def marks(name: str = "") -> tuple[str, str]:
    """The begin mark and the end mark. If a document has several pairs, each pair has a name. Raises `ValueError` for a
    name that cannot be used."""
    if name and MARK.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name for a mark: letters, digits, dots, hyphens and underscores")
    return (f"<!-- bench:begin {name} -->", f"<!-- bench:end {name} -->") if name else (BEGIN, END)


class NoMarks(Exception):
    """The document does not have exactly one pair of the marks, in order."""


def markdown(report: Report, settings: Sequence[Setting] = ()) -> str:
    """A fragment without headings: warnings, the result of every setting in words, and a table for each of `settings`.
    The default is the first setting of the run."""
    study = report.study
    chosen = settings or study.settings[:1]
    facts = (
        f"**{cell(report.title)}**",
        cell(study.run_id),
        cell(study.regime),
        f"{count(study.measurements, 'measurement')}",
    )
    lines = [" · ".join(fact for fact in facts if fact), ""]
    lines += [f"> {cell(words)}" for words in report.warnings()] + ([""] if report.warnings() else [])
    said = (*report.headlines(), *report.sentences())
    lines += [cell(words) + "  " for words in said] + ([""] if said else [])
    names = labels(study.case_ids)
    for part in study.parts():
        if not part.settings or part.settings[0] in chosen:
            lines += [*_table(part, names), ""]
    lines += [f"Not timed: {cell(words)}  " for words in skips(study)]
    left = [one.name for one in study.settings if one not in chosen]
    if left:
        lines.append(f"Also measured, and in the whole report: {cell(' and '.join(left))}.")
    return "\n".join(lines).rstrip() + "\n"


def skips(study: Study) -> list[str]:
    """A sentence for each reason why something was not timed, with the places."""
    where: dict[tuple[str, str], dict[str, int]] = {}
    for case in study.cases:
        for one in case.timings:
            if one.skipped and not is_control(one.implementation):
                cases = where.setdefault((one.implementation, one.skipped), {})
                cases[case.setting.name] = cases.get(case.setting.name, 0) + 1
    several = len(study.settings) > 1
    said = []
    for (name, why), cases in where.items():
        counts = (f"{count(number, 'case')}{f' of {own}' if several else ''}" for own, number in cases.items())
        said.append(f"{name} in {' and '.join(counts)}: {why}")
    return said


HEADS: Final = ("fastest rival, µs", "ratio", "95 % interval", "noise", "verdict")


def _table(part: Study, names: Mapping[str, str]) -> list[str]:
    setting = part.settings[0] if part.settings else Setting("")
    lines = [f"**{cell(setting.name)}**: {cell(setting.meaning)}", ""] if setting.meaning else []
    if not part.contrasts:
        return [*lines, *_times(part, names)]
    shared = "-".join(common_parts(list(names)))
    lines += [
        f"| {cell(shared or 'case')} | {cell(part.subject)}, µs | {' | '.join(HEADS)} |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for case in part.cases:
        best, own = case.best, case.timing(part.subject)
        rival = case.timing(best.baseline) if best is not None else None
        if best is None or own is None or rival is None:
            lines.append(f"| {cell(names[case.case_id])} | not compared | | | | | |")
            continue
        noise = percent(best.noise.floor) if best.noise is not None else ""
        theirs = f"{backend(best.baseline)} {digits(rival.median_us.mid)}"
        cells: tuple[str, ...] = (
            names[case.case_id], digits(own.median_us.mid), theirs,
            ratio(best.ratio.mid), within(best.ratio), noise, best.said + elsewhere(best),
        )  # fmt: skip
        lines.append(line(map(cell, cells)))
    return [*lines, "", f"A ratio over 1: {cell(part.subject)} is faster."]


def _times(part: Study, names: Mapping[str, str]) -> list[str]:
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    if not timed:
        return []
    rated = any(not math.isnan(t.tflops) for _, t in timed)
    heads = ("case", "implementation", "median, µs", "95 % interval", *(["TFLOP/s"] if rated else []))
    lines = [line(heads), f"|---|---|{'--:|' * (len(heads) - 2)}"]
    for case, t in timed:
        rate = "" if math.isnan(t.tflops) else digits(t.tflops)
        cells = (names[case.case_id], t.implementation, digits(t.median_us.mid), within(t.median_us), rate)
        lines.append(line(map(cell, cells[: 5 if rated else 4])))
    return [*lines, "", f"TFLOP/s by {convention(case.axes for case, _ in timed)}."] if rated else lines


MEANS: Final = {"&": "&amp;", "<": "&lt;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
"""Replacements for what Markdown would take for a tag, a mention of a person or a link. Other special characters get a
backslash."""
MARKUP = re.compile(r"://|www\.|[&<@\\|`*~]|\](?=[(\[:])|\b_|_\b")


def cell(words: str) -> str:
    """Text of a machine, escaped so that it has no meaning in Markdown: no tag, link, mention, emphasis or end of a
    cell."""
    return MARKUP.sub(lambda found: MEANS.get(found[0], f"\\{found[0]}"), " ".join(words.split()))


def line(cells: Iterable[str]) -> str:
    """A row of a table. The cells are Markdown already."""
    return f"| {' | '.join(cells)} |"


def between_marks(document: str, fragment: str, name: str = "") -> str:
    """`document` with the text between its two marks of that name replaced by `fragment`. Raises `NoMarks`."""
    begin, end = marks(name)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise NoMarks(f"expected one {begin} and, after it, one {end}")
    before, _, rest = document.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{fragment.strip()}\n{end}{after}"


def by_baseline(report: Report, settings: Sequence[Setting] = ()) -> str:
    """A table with a row for each baseline: how many times faster the subject is over all cases, in each of `settings`.
    The default is all settings."""
    study = report.study
    parts = [part for part in study.parts() if part.contrasts and (not settings or part.settings[0] in settings)]
    if not parts:
        return "Nothing was compared.\n"
    heads = [part.settings[0].name or "ratio" for part in parts]
    what = f"how many times as fast {study.subject} is (geometric mean with its 95 % interval; least to greatest)"
    lines = [
        f"{cell(report.title)}, run {cell(study.run_id)}, {report.cases}: {cell(what)}.",
        "",
        "| against |" + "".join(f" {cell(head)} | faster / slower / same / inconclusive |" for head in heads),
        "|---|" + "--:|--:|" * len(heads),
    ]
    for baseline in study.baselines:
        row = "".join(_over_cases(part, baseline, len(study.case_ids)) for part in parts)
        lines.append(f"| {cell(backend(baseline))} |{row}")
    lines += [
        f"| {cell(backend(name))} itself (A/A) |" + "".join(_control(part, name) for part in parts)
        for name in dict.fromkeys(one.implementation for one in study.controls)
    ]
    return "\n".join(lines) + "\n"


def _control(part: Study, name: str) -> str:
    found = [one for one in part.controls if one.implementation == name]
    if not found:
        return " not timed | |"
    mids = [one.ratio.mid for one in found]
    return f" {min(mids):.3f} to {max(mids):.3f} | {_counts(Counter(one.verdict for one in found))} |"


def _over_cases(part: Study, baseline: str, total: int) -> str:
    """The mean with its interval, if every case has one; the range of the cases; and the numbers of their verdicts."""
    found = part.against(baseline)
    if not found:
        return " not timed | |"
    mids, mean = [one.ratio.mid for one in found], part.mean(baseline)
    words = Counter(one.verdict for one in found)
    middle = estimate(mean.ratio) if mean is not None and mean.decided else "no mean"
    fewer = f", {of_cases(len(found), total, 'compared')}" if len(found) < total else ""
    return f" {middle} ({min(mids):.2f} to {max(mids):.2f}){fewer} | {_counts(words)} |"


def _counts(words: Mapping[Verdict, int]) -> str:
    return " / ".join(str(words.get(word, 0)) for word in Verdict)
