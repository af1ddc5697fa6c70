"""Comparisons as a person reads them: one HTML file, and Markdown that is the same for the same runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from orchestrator.analysis.across import Change
from orchestrator.analysis.fingerprint import MATTERS, NAMES
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.verdicts import Verdict
from orchestrator.report.comparison import Comparison, fingerprint
from orchestrator.report.figures import LEFT, RIGHT, WIDTH, rows_frame, shown
from orchestrator.report.markdown import cell
from orchestrator.report.page import figure, framed, table, word
from orchestrator.report.palette import Look
from orchestrator.report.report import Report
from orchestrator.report.svg import Board, Scale, legend, span
from orchestrator.report.text import UNKNOWN, common_parts, digits, labels, percent, within

LOOKS: Mapping[Verdict, Look] = {
    Verdict.FASTER: Look("c2", "triangle"),
    Verdict.SLOWER: Look("c1", "square"),
    Verdict.SAME: Look("c0", "circle"),
    Verdict.INCONCLUSIVE: Look("c5", "ring"),
}
"""A verdict is told by its shape as well as by its colour."""


def page(comparisons: Sequence[Comparison]) -> str:
    """The whole file. There is one comparison at least."""
    first = comparisons[0].before
    parts = [f"<h1>Against {escape(first.study.run_id)}</h1>", f'<p class="soft">{escape(_facts(first))}</p>']
    for one in comparisons:
        parts += _section(one)
    parts.append("<h2>How this was compared</h2>")
    parts.append(f"<p>{escape(METHOD)}</p>")
    return framed(f"Comparison with {first.study.run_id}", parts)


METHOD = (
    "Two runs share no blocks, so their intervals are combined as independent ones. faster and slower need an interval "
    "without 1, a p-value below 0.05 after Holm’s correction over all rows, and a ratio beyond the noise of either run "
    "and beyond the tolerance; same is an interval within 1 % of 1 (or the tolerance, or the noise up to 3 %); the "
    "rest is inconclusive. Every regime is compared with itself only."
)


def _facts(report: Report) -> str:
    study, commit = report.study, str(report.environment.get("git_commit") or "")[:10]
    dirty = "+" if report.environment.get("git_dirty") else ""
    facts = (study.device, f"commit {commit}{dirty}" if commit else "", study.regime)
    return " · ".join(fact for fact in (*facts, f"{study.measurements:,} measurements") if fact)


def _section(one: Comparison) -> Iterable[str]:
    names = labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    yield f"<h2>{escape(one.after.study.run_id)}</h2>"
    yield f'<p class="soft">{escape(_facts(one.after))}</p>'
    yield f'<p class="lead">{escape(one.headline())}</p>'
    yield f"<p>{escape(one.comparable.level.value.capitalize())}.</p>"
    yield from (f'<p class="warn">{escape(_sentence(words))}</p>' for words in one.comparable.reasons)
    if one.changes:
        yield from _changes(one, names)
    rows = list(_environments(one))
    if rows:
        yield "<h3>Environments</h3>"
        yield table(("", one.before.study.run_id, one.after.study.run_id), rows, wrap=(1, 2))


def _changes(one: Comparison, names: Mapping[str, str]) -> Iterable[str]:
    common = "-".join(common_parts(list(names)))
    shared = f"All cases share {common}. " if common else ""
    who = f"{one.implementations[0]}: " if len(one.implementations) == 1 else ""
    yield figure(
        "Change by case",
        ratios(one, names),
        f"{who}how many times as fast as before, with the 95 % interval. The grey band is the noise and the "
        f"tolerance of {percent(one.tolerance)}: a mark within it means nothing. {shared}",
        level=3,
    )
    several = len(one.implementations) > 1
    for setting in one.settings:
        yield f"<h3>{escape(setting.name.capitalize() or 'Changes')}</h3>"
        if setting.meaning:
            told = f"{setting.meaning} {shared}Before and after: {one.unit()}."
            yield f'<p class="soft">{escape(told)}</p>'
        heads = ["case", *(["implementation"] if several else [])]
        heads += ["ratio", "95 % interval", "verdict", "before", "after", "p", "noise"]
        rows = (_row(change, names, several=several) for change in one.changes if change.setting == setting)
        yield table(heads, rows, left=(1, 4) if several else (3,))


def _row(change: Change, names: Mapping[str, str], *, several: bool) -> list[str]:
    noise = percent(change.noise.floor) if change.noise is not None else UNKNOWN
    p = "&lt; 0.0001" if change.p < 1e-4 else f"{change.p:.4f}"
    return [
        escape(names[change.case_id]), *([escape(change.implementation)] if several else []),
        f"{change.ratio.mid:.3f}×", within(change.ratio, places=3), word(change.verdict.value),
        digits(change.before.mid, 4), digits(change.after.mid, 4), p, noise,
    ]  # fmt: skip


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _environments(one: Comparison) -> Iterable[list[str]]:
    """What of the two environments matters and is known of either; what differs in bold."""
    before, after = fingerprint(one.before), fingerprint(one.after)
    for key in dict.fromkeys(("device", *MATTERS, "git_commit", "payload_sha256")):
        values = [before.get(key), after.get(key)]
        if all(value in (None, "") for value in values):
            continue
        cells = [escape(UNKNOWN if value in (None, "") else _brief(key, value)) for value in values]
        if values[0] != values[1]:
            cells = [f"<b>{text}</b>" for text in cells]
        yield [escape(NAMES.get(key, key.replace("_", " "))), *cells]


def _brief(key: str, value: object) -> str:
    return str(value)[:12] if "sha256" in key else str(value)


def ratios(one: Comparison, names: Mapping[str, str]) -> Board | None:
    """Ratios with their intervals, case by case, the settings side by side on one scale."""
    keys = shown(list(dict.fromkeys((change.case_id, change.implementation) for change in one.changes)))
    drawn = [change for change in one.changes if (change.case_id, change.implementation) in keys]
    if not drawn:
        return None
    ends = [1.0, 1 + one.tolerance, 1 / (1 + one.tolerance)]
    for change in drawn:
        ends += [change.ratio.low, change.ratio.high] if change.ratio.known else [change.ratio.mid]
    settings = one.settings
    gap, height = 22.0, 28.0
    width = (RIGHT - LEFT - gap * (len(settings) - 1)) / len(settings)
    lefts = [LEFT + place * (width + gap) for place in range(len(settings))]
    scales = {
        setting: Scale(*span(ends, log=True), left, left + width, log=True)
        for setting, left in zip(settings, lefts, strict=True)
    }
    board = Board(WIDTH, 0, "Ratio of each case to the run before, with its interval")
    top = legend(board, LEFT, 18, [(verdict.value, look) for verdict, look in LOOKS.items()], RIGHT) + 24
    if len(settings) > 1:
        for setting, left in zip(settings, lefts, strict=True):
            board.text(left + width / 2, top, setting.name or "regime unknown", "middle strong")
        top += 26
    tops = {key: top + place * height for place, key in enumerate(keys)}
    several = len(one.implementations) > 1
    titles = [f"{names[case_id]}{f', {who}' if several else ''}" for case_id, who in keys]
    unit = "times as fast as before (logarithmic; right of 1 is faster)"
    rows_frame(board, tuple(scales.values()), [(y, height) for y in tops.values()], titles, unit)
    board.height = top + height * len(keys) + 52
    for change in drawn:
        y = tops[change.case_id, change.implementation]
        _mark(board, change, one.tolerance, scales[change.setting], y, height, names[change.case_id])
    for scale in scales.values():
        board.line(scale(1), top, scale(1), top + height * len(keys), "axis")
    return board


def _mark(board: Board, change: Change, tolerance: float, scale: Scale, y: float, height: float, name: str) -> None:
    floor = max(tolerance, change.noise.floor if change.noise is not None else 0.0)
    if floor:
        left, right = scale(1 / (1 + floor)), scale(1 + floor)
        board.box(left, y + 2, right - left, height - 4, "noise")
    look, at = LOOKS[change.verdict], y + height / 2
    if change.ratio.known:
        board.line(scale(change.ratio.low), at, scale(change.ratio.high), at, f"l{look.colour[1:]}")
    told = f"{change.ratio.mid:.3f}× {within(change.ratio, places=3)}"
    board.mark(scale(change.ratio.mid), at, look, 5.0, f"{name}, {change.implementation}: {told}, {change.verdict}")


def markdown(comparisons: Sequence[Comparison], *, title: str = "") -> str:
    """For a comment on a pull request: the same text for the same runs, whatever machine writes it."""
    lines = [f"### {cell(title)}", ""] if title else []
    for one in comparisons:
        lines += [*_told(one), ""]
    return "\n".join(lines).rstrip() + "\n"


def _told(one: Comparison) -> Iterable[str]:
    after, before = (f"**{cell(run.study.run_id)}** ({cell(_facts(run))})" for run in (one.after, one.before))
    yield f"{after} against {before}"
    yield ""
    yield cell(one.headline())
    yield ""
    if one.comparable.reasons and not one.refused:
        yield f"> {one.comparable.level.value.capitalize()}: {cell('; '.join(one.comparable.reasons))}."
        yield ""
    names = labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    for setting in one.settings:
        yield from _markdown_table(one, setting, names)
        yield ""
    if one.changes:
        tolerated = f"changes within {percent(one.tolerance)} are none"
        yield f"Before and after: {one.unit()}. A ratio over 1 is faster; {tolerated}."


def _markdown_table(one: Comparison, setting: Setting, names: Mapping[str, str]) -> Iterable[str]:
    several = len(one.implementations) > 1
    if setting.name:
        yield f"**{cell(setting.name)}**: {cell(setting.meaning)}"
        yield ""
    shared = "-".join(common_parts(list(names))) or "case"
    yield f"| {shared} |{' implementation |' if several else ''} before | after | ratio | 95 % interval | verdict |"
    yield f"|---|{'---|' if several else ''}--:|--:|--:|--:|---|"
    for change in one.changes:
        if change.setting == setting:
            cells = (
                names[change.case_id], *([change.implementation] if several else []), digits(change.before.mid, 4),
                digits(change.after.mid, 4), f"{change.ratio.mid:.3f}", within(change.ratio, places=3),
                change.verdict.value,
            )  # fmt: skip
            loud = change.verdict in (Verdict.SLOWER, Verdict.FASTER)
            *words, verdict = (cell(text) for text in cells)
            yield "| " + " | ".join((*words, f"**{verdict}**" if loud else verdict)) + " |"
