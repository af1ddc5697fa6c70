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
from orchestrator.core.bundled import counting_convention
from orchestrator.core.text import count
from orchestrator.report.answer import HERE, failures, largest, microseconds, rows_of, wrong_first
from orchestrator.report.report import Report
from orchestrator.report.text import (
    UNKNOWN,
    case_labels,
    common_parts,
    display_name,
    format_digits,
    format_estimate,
    format_limits,
    format_percent,
    format_ratio,
    of_cases,
    other_regime_text,
    rate,
)

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def mark_comments(name: str = "") -> tuple[str, str]:
    """The begin mark and the end mark. If a document has several pairs, each pair has a name. Raises `ValueError` for a
    name that cannot be used."""
    if name and MARK.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name for a mark: letters, digits, dots, hyphens and underscores")
    return (f"<!-- bench:begin {name} -->", f"<!-- bench:end {name} -->") if name else (BEGIN, END)


class NoMarks(Exception):
    """The document does not have exactly one pair of the marks, in order."""


def report_markdown(report: Report, settings: Sequence[Setting] = ()) -> str:
    """A fragment without headings: warnings, the result of every setting in words, and a table for each of `settings`.
    The default is the first setting of the run."""
    study = report.study
    chosen = settings or study.settings[:1]
    facts = (
        f"**{markdown_cell(report.title)}**",
        markdown_cell(study.run_id),
        markdown_cell(study.regime),
        f"{count(study.measurements, 'measurement')}",
    )
    lines = [" · ".join(fact for fact in facts if fact), ""]
    if wrong := wrong_first(study):
        lines += [*(f"> **{markdown_cell(words)}**  " for words in wrong), ""]
    lines += [f"> {markdown_cell(words)}  " for words in report.warnings()] + ([""] if report.warnings() else [])
    sentences = (*report.headlines(), *report.sentences())
    lines += [markdown_cell(words) + "  " for words in sentences] + ([""] if sentences else [])
    names = case_labels(study.case_ids)
    for part in study.parts():
        if not part.settings or part.settings[0] in chosen:
            lines += [*_table(part, names), ""]
    lines += [f"Not timed: {markdown_cell(one.text)}  " for one in failures(study, [HERE])]
    other_settings = [one.name for one in study.settings if one not in chosen]
    if other_settings:
        lines.append(f"Also measured, and in the whole report: {markdown_cell(' and '.join(other_settings))}.")
    return "\n".join(lines).rstrip() + "\n"


HEADS: Final = ("fastest baseline, µs", "ratio", "95 % interval", "noise", "verdict", "rate")


def _table(part: Study, names: Mapping[str, str]) -> list[str]:
    setting = part.settings[0] if part.settings else Setting("")
    lines = [f"**{markdown_cell(setting.name)}**: {markdown_cell(setting.meaning)}", ""] if setting.meaning else []
    if not part.contrasts:
        return [*lines, *_times(part, names)]
    shared, several = "-".join(common_parts(list(names))), len(part.kernels) > 1
    rows = rows_of(part)
    rated = any(row.rate.text for row in rows)
    heads = HEADS if rated else HEADS[:-1]
    first = ["kernel", "µs"] if several else [f"{part.subject}, µs"]
    lines += [
        table_line(map(markdown_cell, (shared or "case", *first, *heads))),
        f"|---|{'---|' if several else ''}{'--:|' * 5}---|{'--:|' if rated else ''}",
    ]
    for row in rows:
        kernel = [row.kernel] if several else []
        named, us = names[row.case.case_id], UNKNOWN if math.isnan(row.us) else format_digits(row.us)
        speed = [f"{row.rate.text} {f'({row.rate.share} of the roof)' if row.rate.share else ''}".strip()] * rated
        contrast = row.contrast
        if contrast is None:
            why = f"{row.verdict}: {row.why}" if row.style else f"not compared: {row.why}"
            cells = [named, *kernel, us, "", "", "", "", why, *speed]
        else:
            noise = format_percent(contrast.noise.floor) if contrast.noise is not None else ""
            theirs = f"{display_name(row.baseline)} {format_digits(row.baseline_us)}"
            verdict_text = (
                contrast.said + other_regime_text(contrast) + (f", two modes: {row.modes}" if row.modes else "")
            )
            cells = [
                named,
                *kernel,
                us,
                theirs,
                format_ratio(contrast.ratio.mid),
                format_limits(contrast.ratio),
                noise,
                verdict_text,
                *speed,
            ]
        lines.append(table_line(map(markdown_cell, cells)))
    return [*lines, "", f"A ratio over 1: {markdown_cell('the kernel' if several else part.subject)} is faster."]


MOST_LINES: Final = 6
"""The most rows of the table for a pull request, so that with its heads and sums it has about ten lines."""


def pull_request(report: Report) -> str:
    """The answer as a table of about ten lines for a pull request: wrong ones and the largest differences."""
    study = report.study
    names, rows = case_labels(study.case_ids), rows_of(study)
    shown, hidden = largest(rows, MOST_LINES)
    regime = f", {shown[0].case.setting.name}" if shown and shown[0].case.setting.name else ""
    lines = [f"**{markdown_cell(report.title)}**{markdown_cell(regime)}"]
    lines += [f"**{markdown_cell(words)}**" for words in wrong_first(study)[:2]]
    lines += ["", "| case | kernel | time | fastest baseline | ratio | verdict |", "|---|---|--:|--:|--:|---|"]
    for row in shown:
        theirs = f"{display_name(row.baseline)} {microseconds(row.baseline_us)}" if row.baseline else ""
        gain = format_estimate(row.contrast.ratio) if row.contrast is not None else ""
        lines.append(
            table_line(
                map(
                    markdown_cell,
                    (names[row.case.case_id], row.kernel, microseconds(row.us), theirs, gain, row.verdict),
                )
            )
        )
    if hidden:
        lines += ["", f"{count(hidden, 'more row')} with smaller differences: {markdown_cell(study.run_id)}"]
    return "\n".join(lines) + "\n"


def paper(report: Report) -> str:
    """The answer as a LaTeX table with booktabs' rules."""
    study = report.study
    names, several = case_labels(study.case_ids), len(study.kernels) > 1
    heads = ["Case", *(["Kernel"] if several else []), "Time (\\si{\\micro\\second})", "Baseline",
             "(\\si{\\micro\\second})", "Speed-up", "95\\,\\% interval", "Verdict"]  # fmt: skip
    lines = [
        f"% {latex(report.title)}, run {latex(study.run_id)}; needs booktabs and siunitx",
        f"\\begin{{tabular}}{{l{'l' if several else ''}rlrrrl}}", "\\toprule", " & ".join(heads) + " \\\\", "\\midrule",
    ]  # fmt: skip
    for row in rows_of(study):
        has_contrast = row.contrast is not None
        cells = [names[row.case.case_id], *([row.kernel] if several else []),
                 format_digits(row.us), display_name(row.baseline) or UNKNOWN, format_digits(row.baseline_us),
                 f"{row.contrast.ratio.mid:.2f}" if row.contrast is not None else UNKNOWN,
                 format_limits(row.contrast.ratio) if row.contrast is not None else "",
                 row.verdict if has_contrast or row.style else "not compared"]  # fmt: skip
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
    lines = [table_line(heads), f"|---|---|{'--:|' * (len(heads) - 2)}"]
    for case, t in timed:
        cells = (
            names[case.case_id],
            t.implementation,
            format_digits(t.median_us.mid),
            format_limits(t.median_us),
            rate(case, t).text,
        )
        lines.append(table_line(map(markdown_cell, cells[: 5 if rated else 4])))
    counted = any("FLOP" in rate(case, t).text for case, t in timed)
    return [*lines, "", f"FLOP by {counting_convention(case.axes for case, _ in timed)}."] if counted else lines


MEANS: Final = {"&": "&amp;", "<": "&lt;", "@": "&#64;", "://": "&#58;//", "www.": "www&#46;"}
"""Replacements for what Markdown would take for a tag, a mention of a person or a link. Other special characters get a
backslash."""
MARKUP = re.compile(r"://|www\.|[&<@\\|`*~]|\](?=[(\[:])|\b_|_\b")


def markdown_cell(words: str) -> str:
    """Text of a machine, escaped so that it has no meaning in Markdown: no tag, link, mention, emphasis or end of a
    cell."""
    return MARKUP.sub(lambda found: MEANS.get(found[0], f"\\{found[0]}"), " ".join(words.split()))


def table_line(cells: Iterable[str]) -> str:
    """A row of a table. The cells are Markdown already."""
    return f"| {' | '.join(cells)} |"


def between_marks(document: str, fragment: str, name: str = "") -> str:
    """`document` with the text between its two marks of that name replaced by `fragment`. Raises `NoMarks`."""
    begin, end = mark_comments(name)
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise NoMarks(f"expected one {begin} and, after it, one {end}")
    before, _, after_begin = document.partition(begin)
    _, _, after = after_begin.partition(end)
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
        f"{markdown_cell(report.title)}, run {markdown_cell(study.run_id)}, {report.cases}: {markdown_cell(what)}.",
        "",
        "| against |" + "".join(f" {markdown_cell(head)} | faster / slower / same / inconclusive |" for head in heads),
        "|---|" + "--:|--:|" * len(heads),
    ]
    for baseline in study.baselines:
        row = "".join(_over_cases(part, baseline, len(study.case_ids)) for part in parts)
        lines.append(f"| {markdown_cell(display_name(baseline))} |{row}")
    lines += [
        f"| {markdown_cell(display_name(name))} itself (A/A) |" + "".join(_control(part, name) for part in parts)
        for name in dict.fromkeys(one.implementation for one in study.controls)
    ]
    return "\n".join(lines) + "\n"


def _control(part: Study, name: str) -> str:
    controls = [one for one in part.controls if one.implementation == name]
    if not controls:
        return " not timed | |"
    mids = [one.ratio.mid for one in controls]
    return f" {min(mids):.3f} to {max(mids):.3f} | {_counts(Counter(one.verdict for one in controls))} |"


def _over_cases(part: Study, baseline: str, total: int) -> str:
    """The mean with its interval, if every case has one; the range of the cases; and the numbers of their verdicts."""
    contrasts = part.against(baseline)
    if not contrasts:
        return " not timed | |"
    mids, mean = [one.ratio.mid for one in contrasts], part.mean(baseline)
    verdict_counts = Counter(one.verdict for one in contrasts)
    middle = format_estimate(mean.ratio) if mean is not None and mean.decided else "no mean"
    fewer = f", {of_cases(len(contrasts), total, 'compared')}" if len(contrasts) < total else ""
    return f" {middle} ({min(mids):.2f} to {max(mids):.2f}){fewer} | {_counts(verdict_counts)} |"


def _counts(words: Mapping[Verdict, int]) -> str:
    return " / ".join(str(words.get(word, 0)) for word in Verdict)
