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
from orchestrator.core.text import count
from orchestrator.report.answer import HERE, failures, largest, microseconds, rows_of, wrong_first
from orchestrator.report.report import Report
from orchestrator.report.text import (
    UNKNOWN,
    backend,
    common_parts,
    digits,
    elsewhere,
    estimate,
    labels,
    of_cases,
    percent,
    rate,
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
    if wrong := wrong_first(study):
        lines += [*(f"> **{cell(words)}**  " for words in wrong), ""]
    lines += [f"> {cell(words)}  " for words in report.warnings()] + ([""] if report.warnings() else [])
    said = (*report.headlines(), *report.sentences())
    lines += [cell(words) + "  " for words in said] + ([""] if said else [])
    names = labels(study.case_ids)
    for part in study.parts():
        if not part.settings or part.settings[0] in chosen:
            lines += [*_table(part, names), ""]
    lines += [f"Not timed: {cell(one.text)}  " for one in failures(study, [HERE])]
    left = [one.name for one in study.settings if one not in chosen]
    if left:
        lines.append(f"Also measured, and in the whole report: {cell(' and '.join(left))}.")
    return "\n".join(lines).rstrip() + "\n"


HEADS: Final = ("fastest baseline, µs", "ratio", "95 % interval", "noise", "verdict", "rate")


def _table(part: Study, names: Mapping[str, str]) -> list[str]:
    setting = part.settings[0] if part.settings else Setting("")
    lines = [f"**{cell(setting.name)}**: {cell(setting.meaning)}", ""] if setting.meaning else []
    if not part.contrasts:
        return [*lines, *_times(part, names)]
    shared, several = "-".join(common_parts(list(names))), len(part.kernels) > 1
    rows = rows_of(part)
    rated = any(row.rate.text for row in rows)
    heads = HEADS if rated else HEADS[:-1]
    first = ["kernel", "µs"] if several else [f"{part.subject}, µs"]
    lines += [
        line(map(cell, (shared or "case", *first, *heads))),
        f"|---|{'---|' if several else ''}{'--:|' * 5}---|{'--:|' if rated else ''}",
    ]
    for row in rows:
        kernel = [row.kernel] if several else []
        named, us = names[row.case.case_id], UNKNOWN if math.isnan(row.us) else digits(row.us)
        speed = [f"{row.rate.text} {f'({row.rate.share} of the roof)' if row.rate.share else ''}".strip()] * rated
        one = row.contrast
        if one is None:
            why = f"{row.verdict}: {row.why}" if row.style else f"not compared: {row.why}"
            cells = [named, *kernel, us, "", "", "", "", why, *speed]
        else:
            noise = percent(one.noise.floor) if one.noise is not None else ""
            theirs = f"{backend(row.baseline)} {digits(row.baseline_us)}"
            said = one.said + elsewhere(one) + (f", two modes: {row.modes}" if row.modes else "")
            cells = [named, *kernel, us, theirs, ratio(one.ratio.mid), within(one.ratio), noise, said, *speed]
        lines.append(line(map(cell, cells)))
    return [*lines, "", f"A ratio over 1: {cell('the kernel' if several else part.subject)} is faster."]


MOST_LINES: Final = 6
"""The most rows of the table for a pull request, so that with its heads and sums it has about ten lines."""


def pull_request(report: Report) -> str:
    """The answer as a table of about ten lines for a pull request: wrong ones and the largest differences."""
    study = report.study
    names, rows = labels(study.case_ids), rows_of(study)
    shown, hidden = largest(rows, MOST_LINES)
    regime = f", {shown[0].case.setting.name}" if shown and shown[0].case.setting.name else ""
    lines = [f"**{cell(report.title)}**{cell(regime)}"]
    lines += [f"**{cell(words)}**" for words in wrong_first(study)[:2]]
    lines += ["", "| case | kernel | time | fastest baseline | ratio | verdict |", "|---|---|--:|--:|--:|---|"]
    for row in shown:
        theirs = f"{backend(row.baseline)} {microseconds(row.baseline_us)}" if row.baseline else ""
        gain = estimate(row.contrast.ratio) if row.contrast is not None else ""
        lines.append(
            line(map(cell, (names[row.case.case_id], row.kernel, microseconds(row.us), theirs, gain, row.verdict)))
        )
    if hidden:
        lines += ["", f"{count(hidden, 'more row')} with smaller differences: {cell(study.run_id)}"]
    return "\n".join(lines) + "\n"


def paper(report: Report) -> str:
    """The answer as a LaTeX table with booktabs' rules."""
    study = report.study
    names, several = labels(study.case_ids), len(study.kernels) > 1
    heads = ["Case", *(["Kernel"] if several else []), "Time (\\si{\\micro\\second})", "Baseline",
             "(\\si{\\micro\\second})", "Speed-up", "95\\,\\% interval", "Verdict"]  # fmt: skip
    lines = [
        f"% {latex(report.title)}, run {latex(study.run_id)}; needs booktabs and siunitx",
        f"\\begin{{tabular}}{{l{'l' if several else ''}rlrrrl}}", "\\toprule", " & ".join(heads) + " \\\\", "\\midrule",
    ]  # fmt: skip
    for row in rows_of(study):
        known = row.contrast is not None
        cells = [names[row.case.case_id], *([row.kernel] if several else []),
                 digits(row.us), backend(row.baseline) or UNKNOWN, digits(row.baseline_us),
                 f"{row.contrast.ratio.mid:.2f}" if row.contrast is not None else UNKNOWN,
                 within(row.contrast.ratio) if row.contrast is not None else "",
                 row.verdict if known or row.style else "not compared"]  # fmt: skip
        lines.append(" & ".join(map(latex, cells)) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


LATEX: Final = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "–": "--",
                "µ": "\\textmu{}", "×": "$\\times$"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}  # fmt: skip


def latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def _times(part: Study, names: Mapping[str, str]) -> list[str]:
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    if not timed:
        return []
    rated = any(rate(case, t).text for case, t in timed)
    heads = ("case", "implementation", "median, µs", "95 % interval", *(["rate"] if rated else []))
    lines = [line(heads), f"|---|---|{'--:|' * (len(heads) - 2)}"]
    for case, t in timed:
        cells = (
            names[case.case_id],
            t.implementation,
            digits(t.median_us.mid),
            within(t.median_us),
            rate(case, t).text,
        )
        lines.append(line(map(cell, cells[: 5 if rated else 4])))
    counted = any("FLOP" in rate(case, t).text for case, t in timed)
    return [*lines, "", f"FLOP by {convention(case.axes for case, _ in timed)}."] if counted else lines


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
    """A table for each kernel with a row for each baseline: how many times faster the kernel is over all cases, in
    each of `settings`. The default is all settings."""
    tables = [_by_baseline(report, one, settings) for one in report.study.of_kernels()]
    return "\n".join(one for one in tables if one) or "Nothing was compared.\n"


def _by_baseline(report: Report, study: Study, settings: Sequence[Setting]) -> str:
    """The table of one kernel; empty where nothing was compared with it."""
    parts = [part for part in study.parts() if part.contrasts and (not settings or part.settings[0] in settings)]
    if not parts:
        return ""
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
