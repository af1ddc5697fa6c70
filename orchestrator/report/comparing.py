"""Compares two runs, and shows the comparison as one HTML file and as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.across import Change, Footing, find_changes, match_cases
from orchestrator.analysis.fingerprint import (
    MATTERS,
    NAMES,
    Comparability,
    ComparabilityLevel,
    compare_fingerprints,
    has_same_libraries,
    same_code,
)
from orchestrator.analysis.history import CAUSE_NAMES, short_digest
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import KERNEL, Study
from orchestrator.analysis.summaries import Shift, energy_shifts
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.results import is_control
from orchestrator.core.text import capitalize_first, count
from orchestrator.report.figures import (
    NAMED,
    RIGHT,
    SLIM,
    WIDTH,
    fit_names,
    noise_band,
    rows_frame,
    sample_items,
    scales_side_by_side,
    stack_rows,
)
from orchestrator.report.markdown import markdown_cell, table_line
from orchestrator.report.page import (
    Cell,
    Page,
    PageTable,
    Part,
    Section,
    Text,
    Word,
    figure_parts,
    write_page,
)
from orchestrator.report.report import Report
from orchestrator.report.style import Look
from orchestrator.report.svg import Area, Board, Scale, axis_span, draw_legend
from orchestrator.report.text import (
    UNKNOWN,
    case_labels,
    common_parts,
    format_digits,
    format_energy,
    format_limits,
    format_percent,
    format_ratio,
)

# Compares two runs: whether they may be compared, what changed, and a summary in words.


@dataclass(frozen=True, slots=True)
class LostTiming:
    """A timing that the earlier run has and the later one does not, with the reason that the later run gives."""

    case_id: str
    setting: Setting
    implementation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of `after` with `before`; a ratio over 1 means faster in `after`."""

    before: Report
    after: Report
    comparable: Comparability
    relative_to: str
    """The implementation whose speed-ups are compared; empty where times are compared."""
    tolerance: float
    """A change within it (0.02 is two per cent) is called neither faster nor slower."""
    changes: tuple[Change, ...]
    lost: tuple[LostTiming, ...]
    energy: tuple[Shift, ...] = ()
    """The energy of the compared calls in the two runs, where both have it."""

    @property
    def refused(self) -> bool:
        return self.comparable.level is ComparabilityLevel.REFUSED

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(dict.fromkeys(one.setting for one in self.changes))

    @property
    def implementations(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.implementation for one in self.changes))

    def of(self, verdict: Verdict) -> tuple[Change, ...]:
        """The changes with this verdict; those whose ratio is farthest from 1 come first."""
        changes = [one for one in self.changes if one.verdict is verdict]
        return tuple(sorted(changes, key=lambda one: -max(one.ratio.mid, 1 / one.ratio.mid)))

    def headline(self) -> str:
        """The result, in one sentence."""
        if self.refused:
            return f"Not comparable: {self.comparable.reasons[0]}."
        if not self.changes and not self.lost:
            return "The runs have no case, regime and implementation in common."
        verdict_counts = Counter(one.verdict for one in self.changes)
        verdicts = ", ".join(f"{verdict_counts[word]} {word}" for word in Verdict if verdict_counts[word])
        lost = f" {count(len(self.lost), 'timing')} lost: {self._gone()}." if self.lost else ""
        return f"{count(len(self.changes), 'comparison')}{f': {verdicts}' if verdicts else ''}.{lost}"

    def _gone(self) -> str:
        reasons = Counter((one.implementation, one.reason) for one in self.lost)
        return "; ".join(f"{name} ({number}): {reason}" for (name, reason), number in reasons.items())

    @property
    def code(self) -> tuple[str, ...]:
        """The parts of the code that differ, in words: the payload, and the kernels that ran."""
        fingerprints = run_fingerprint(self.before), run_fingerprint(self.after)
        key = "payload_sha256" if all(one.get("payload_sha256") for one in fingerprints) else "git_commit"
        digest, other = (short_digest(found.get(key) or "unknown") for found in fingerprints)
        versions = [f"{CAUSE_NAMES[key]} {digest} → {other}"] if digest != other else []
        kernels: Counter[tuple[str, str]] = Counter()
        for case, later in match_cases(self.before.study, self.after.study):
            for name in self.implementations:
                first, second = case.timing(name), later.timing(name)
                if first is not None and second is not None and first.backend != second.backend:
                    kernels[first.backend, second.backend] += 1
        some = [f"kernel {first} → {second} ({count(n, 'timing')})" for (first, second), n in kernels.most_common(4)]
        return (*versions, *some)

    def joules(self) -> str:
        """How the energy of a call changed, in a sentence; where not both runs have it, that it is not given. There is
        no verdict on it, as a run has only one value."""
        if not self.energy:
            return "Energy: not given by both runs."
        middle = math.exp(sum(math.log(one.ratio) for one in self.energy) / len(self.energy))
        where = count(len(self.energy), "timing")
        return f"Energy of a call: {format_ratio(middle)} of before (geometric mean of {where}; under 1 is less)."

    def unit(self) -> str:
        """The unit of `before` and `after`."""
        return f"times as fast as {self.relative_to} in the same run" if self.relative_to else "µs a call"


def compare_reports(
    before: Report,
    after: Report,
    *,
    relative_to: str = "",
    absolute: bool = False,
    implementations: Sequence[str] = (),
    tolerance: float = 0.02,
    across_devices: bool = False,
) -> Comparison:
    """Compares `after` with `before`. Speed-ups over PyTorch's default are compared where both runs have it, or times
    with `absolute`. Without `implementations` only the kernel is compared; where one run lacks it, all
    implementations."""

    def both(name: str) -> bool:
        return all(name in report.study.names for report in (before, after))

    for ordinal, report in (("first", before), ("second", after)):
        if not report.study.cases:
            nothing = Comparability(ComparabilityLevel.REFUSED, (f"the {ordinal} run measured nothing",))
            return Comparison(before, after, nothing, relative_to, tolerance, (), ())
    comparable = compare_fingerprints(run_fingerprint(before), run_fingerprint(after), across_devices=across_devices)
    comparable = with_caveats(comparable, before, after)
    names = tuple(implementations) or ((KERNEL,) if both(KERNEL) else ())
    common = [name for name in before.study.baselines if both(name) and name not in names]
    base = relative_to or next((name for name in (DEFAULT, *common) if name in common and not absolute), "")
    changed: tuple[Change, ...] = ()
    lost_timings: tuple[LostTiming, ...] = ()
    energy: tuple[Shift, ...] = ()
    if comparable.level is not ComparabilityLevel.REFUSED:
        fingerprints = run_fingerprint(before), run_fingerprint(after)
        busy = [ordinal for ordinal, one in (("first", before), ("second", after)) if one.busy()]
        changed = find_changes(
            before.study,
            after.study,
            relative_to=base,
            implementations=names,
            tolerance=tolerance,
            footing=Footing(
                steady=has_same_libraries(*fingerprints),
                doubt=f"the host of the {' and the '.join(busy)} run was busy" if busy else "",
                same_code=same_code(*fingerprints),
            ),
        )
        lost_timings = find_lost_timings(before.study, after.study, names)
        energy = tuple(
            one for one in energy_shifts(before.study, after.study) if not names or one.implementation in names
        )
    return Comparison(before, after, comparable, base, tolerance, changed, lost_timings, energy)


def find_lost_timings(before: Study, after: Study, implementations: Sequence[str] = ()) -> tuple[LostTiming, ...]:
    """The timings that the earlier run has and the later run gave up, for example after a wrong answer. Controls are
    left out."""
    return tuple(
        LostTiming(case.case_id, case.setting, timing.implementation, now.skipped)
        for case, other in match_cases(before, after)
        for timing in case.timings
        if timing.timed
        and not is_control(timing.implementation)
        and (not implementations or timing.implementation in implementations)
        and (now := other.timing(timing.implementation)) is not None
        and not now.timed
    )


def unmatched_cases(before: Study, after: Study) -> tuple[str, ...]:
    """Which cases of the earlier run have no counterpart in the later one, in sentences."""
    sentences = []
    missing = set(before.case_ids) - set(after.case_ids)
    if missing:
        sentences.append(
            f"{len(missing)} of {count(len(before.case_ids), 'case')} of the first run are not in the second"
        )
    matched_ids = {case.case_id for case, _ in match_cases(before, after)}
    otherwise = [name for name in before.case_ids if name in after.case_ids and name not in matched_ids]
    if otherwise:
        sentences.append(f"{count(len(otherwise), 'case')} timed in other regimes or caches, not compared")
    return tuple(sentences)


def with_caveats(comparable: Comparability, before: Report, after: Report) -> Comparability:
    """`comparable` with the warnings of the two runs added: a busy host, implementations that differ from
    themselves."""
    warnings = [
        f"{which} run: {words[:1].lower()}{words[1:].rstrip('.')}"
        for which, report in (("first", before), ("second", after))
        for words in (*report.busy(), *report.unsteady())
    ]
    warnings = [*unmatched_cases(before.study, after.study), *warnings]
    if not warnings:
        return comparable
    level = ComparabilityLevel.CAVEAT if comparable.level is ComparabilityLevel.COMPARABLE else comparable.level
    return Comparability(level, (*comparable.reasons, *warnings))


def run_fingerprint(report: Report) -> dict[str, Any]:
    """Everything known about how a run was measured (`orchestrator.analysis.fingerprint`)."""
    vms = report.manifest.get("vms")
    last = vms[-1] if isinstance(vms, list) and vms and isinstance(vms[-1], dict) else {}
    environment: dict[str, Any] = dict(report.environment)
    # The rows name the device that ran. A file beside them may come from another machine.
    environment["device"] = report.study.device or environment.get("device")
    environment["regimes"] = tuple(dict.fromkeys(one.regime for one in report.study.settings if one.regime))
    elsewhere = {
        "compiler": report.build.get("compiler_version"),
        "image": report.manifest.get("image"),
        "payload_sha256": report.manifest.get("payload_sha256"),
        "zone": last.get("zone"),
        "machine_type": last.get("machine_type"),
    }
    return environment | {key: value for key, value in elsewhere.items() if not environment.get(key)}


LOOKS: Mapping[Verdict, Look] = {
    Verdict.FASTER: Look("c2", "triangle"),
    Verdict.SLOWER: Look("c1", "square"),
    Verdict.SAME: Look("c0", "circle"),
    Verdict.INCONCLUSIVE: Look("c5", "ring"),
}
"""Each verdict has a shape as well as a colour, so that it can be told without colours."""


def comparison_page(comparisons: Sequence[Comparison]) -> str:
    """The whole file. There must be at least one comparison."""
    first = comparisons[0].before
    sections = [Section(one.after.study.run_id, [*_section(one)]) for one in comparisons]
    sections.append(Section("How this was compared", [Text(METHOD)]))
    title = f"Comparison with {first.study.run_id}"
    return write_page(Page(title, f"Against {first.study.run_id}", [Text(_facts(first), "soft")], sections))


METHOD = (
    "Two runs share no blocks, so their intervals are combined as independent ones and then widened by how much two "
    "runs of the same code differ. This spread comes from the controls and the baselines of both runs; if there are "
    "few of them, it is drawn towards 1 %. Nothing is decided if a host was busy, if a device was throttled, or if "
    "both runs had the same payload. faster and slower need an interval that excludes 1, a p-value below 0.05 after "
    "Holm’s correction over all rows, and a ratio beyond the noise of either run and beyond the tolerance. same means "
    "that the interval lies within 1 % of 1 (or within the tolerance, or the noise up to 3 %). Everything else is "
    "inconclusive. Each regime is compared only with itself."
)


def _facts(report: Report) -> str:
    study, commit = report.study, str(report.environment.get("git_commit") or "")[:10]
    dirty = "+" if report.environment.get("git_dirty") else ""
    facts = (study.device, f"commit {commit}{dirty}" if commit else "", study.regime)
    return " · ".join(fact for fact in (*facts, f"{count(study.measurements, 'measurement')}") if fact)


def _section(one: Comparison) -> Iterable[Part]:
    names = case_labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    yield Text(_facts(one.after), "soft")
    yield Text(one.headline(), "lead")
    if one.code:
        yield Text(f"{'; '.join(one.code)}.")
    yield Text(f"{one.comparable.level.value.capitalize()}.")
    yield from (Text(capitalize_first(f"{words}."), "warn") for words in one.comparable.reasons)
    if one.changes:
        yield from _changes(one, names)
        yield Text(one.joules())
    if one.energy:
        yield _energy(one, names)
    rows = list(_environments(one))
    if rows:
        yield PageTable("Environments", ("what", one.before.study.run_id, one.after.study.run_id), rows, long=(1, 2))


def _changes(one: Comparison, names: Mapping[str, str]) -> Iterable[Part]:
    common = "-".join(common_parts(list(names)))
    shared = f"All cases share {common}. " if common else ""
    who = f"{one.implementations[0]}: " if len(one.implementations) == 1 else ""
    yield from figure_parts(
        ratio_board(one, names),
        f"{who}how many times as fast as before, with the 95 % interval. The grey band is the noise and the "
        f"tolerance of {format_percent(one.tolerance)}: a mark within it shows no difference. {shared}",
        ratio_board(one, names, SLIM),
    )
    several = len(one.implementations) > 1
    for setting in one.settings:
        setting_text = f"{setting.meaning} " if setting.meaning else ""
        yield Text(
            f"{setting.name.capitalize() or 'Changes'}. {setting_text}{shared}Before and after: {one.unit()}.", "soft"
        )
        heads = ["case", *(["implementation"] if several else [])]
        heads += ["ratio", "95 % interval", "verdict", "before", "after", "p", "noise", "spread"]
        rows = [_row(change, names, several=several) for change in one.changes if change.setting == setting]
        place = heads.index("verdict")
        place_column = (1, place) if several else (place,)
        yield PageTable(setting.name or "Changes", heads, rows, left=place_column, wrap=(place,), stack=True)


def _row(change: Change, names: Mapping[str, str], *, several: bool) -> list[Cell]:
    noise = format_percent(change.noise.floor) if change.noise is not None else UNKNOWN
    p = "< 0.0001" if change.p < 1e-4 else f"{change.p:.4f}"
    return [
        names[change.case_id], *([change.implementation] if several else []),
        f"{change.ratio.mid:.3f}×", format_limits(change.ratio, places=3),
        Word(change.verdict.value, style=change.verdict.value, more=change.doubt),
        format_digits(change.before.mid, 4), format_digits(change.after.mid, 4), p, noise,
        format_percent(change.spread),
    ]  # fmt: skip


def _energy(one: Comparison, names: Mapping[str, str]) -> PageTable:
    rows: list[list[Cell]] = [
        [
            names.get(each.case_id, each.case_id), each.implementation, each.setting.name or UNKNOWN,
            format_energy(each.before), format_energy(each.after), format_ratio(each.ratio),
        ]
        for each in one.energy
    ]  # fmt: skip
    heads = ("case", "implementation", "regime", "before", "after", "ratio")
    return PageTable("Energy of a call", heads, rows, left=(1, 2), stack=True)


def _environments(one: Comparison) -> Iterable[list[Cell]]:
    """Rows for the facts of the two environments that matter, if one of the runs has them. Differences are
    highlighted."""
    before, after = run_fingerprint(one.before), run_fingerprint(one.after)
    for key in dict.fromkeys(("device", *MATTERS, "git_commit", "payload_sha256")):
        values = [before.get(key), after.get(key)]
        if all(value in (None, "") for value in values):
            continue
        most = 12 if "sha256" in key else None
        texts = [UNKNOWN if value in (None, "") else str(value)[:most] for value in values]
        style = "differs" if values[0] != values[1] else ""
        yield [NAMES.get(key, key.replace("_", " ")), *(Word(text, style) for text in texts)]


def ratio_board(one: Comparison, names: Mapping[str, str], width: float = WIDTH) -> Board | None:
    """A figure of the ratios with their intervals, case by case. The settings are side by side on one scale; with width
    `SLIM` they are one below the other."""
    keys = sample_items(list(dict.fromkeys((change.case_id, change.implementation) for change in one.changes)))
    marked = [change for change in one.changes if (change.case_id, change.implementation) in keys]
    if not marked:
        return None
    ends = [1.0, 1 + one.tolerance, 1 / (1 + one.tolerance)]
    for change in marked:
        ends += [change.ratio.low, change.ratio.high] if change.ratio.known else [change.ratio.mid]
    several, slim = len(one.implementations) > 1, width < WIDTH
    row_names = [f"{names[case_id]}{f', {who}' if several else ''}" for case_id, who in keys]
    start, titles = fit_names(row_names)
    start, right = (12.0, width - 12) if slim else (start, RIGHT)
    board = Board(width, 0, "Ratio of each case to the run before, with its interval")
    top = draw_legend(board, start, 18, [(verdict.value, look) for verdict, look in LOOKS.items()], right) + 24
    rows = dict(zip(keys, titles, strict=True))
    for settings in [[setting] for setting in one.settings] if slim else [one.settings]:
        area = Area(start, top, right - start)
        titles = [setting.name or "regime unknown" for setting in settings]
        found, board.height = scales_side_by_side(
            board, titles, area, axis_span(ends, log=True), named=len(one.settings) > 1
        )
        scales = dict(zip(settings, found, strict=True))
        _rows(board, [change for change in marked if change.setting in scales], scales, rows, names, one.tolerance)
        top = board.height + 28
    return board


def _rows(
    board: Board,
    changes: Sequence[Change],
    scales: Mapping[Setting, Scale],
    rows: Mapping[tuple[str, str], str],
    names: Mapping[str, str],
    tolerance: float,
) -> None:
    """Draws a row for each case and implementation of `rows`, below what is on the board so far."""
    above = NAMED if board.width < WIDTH else 0.0
    height, all_scales = 28.0 + above, tuple(scales.values())
    tops = {key: y for key, (y, _) in zip(rows, stack_rows(board.height, len(rows), height), strict=True)}
    unit = "times as fast as before (logarithmic; right of 1 is faster)"
    rows_frame(board, all_scales, [(y, height) for y in tops.values()], list(rows.values()), unit, all_scales[0].begin)
    board.height = max(tops.values()) + height + 52
    for change in changes:
        y = tops[change.case_id, change.implementation] + above
        _mark(board, change, tolerance, scales[change.setting], y, height - above, names[change.case_id])
    for scale in all_scales:
        for y in tops.values():
            board.line(scale(1), y + above, scale(1), y + height, "axis")


def _mark(board: Board, change: Change, tolerance: float, scale: Scale, y: float, height: float, name: str) -> None:
    floor = max(tolerance, change.noise.floor if change.noise is not None else 0.0)
    noise_band(board, scale, y, height, floor)
    look, at = LOOKS[change.verdict], y + height / 2
    if change.ratio.known:
        board.line(scale(change.ratio.low), at, scale(change.ratio.high), at, f"l{look.colour[1:]}")
    ratio_text = f"{change.ratio.mid:.3f}× {format_limits(change.ratio, places=3)}"
    board.mark(
        scale(change.ratio.mid), at, look, 5.0, f"{name}, {change.implementation}: {ratio_text}, {change.verdict}"
    )


def comparison_markdown(comparisons: Sequence[Comparison], *, title: str = "") -> str:
    """Markdown for a comment on a pull request. It is the same for the same runs, on whatever machine it is written."""
    lines = [f"### {markdown_cell(title)}", ""] if title else []
    for one in comparisons:
        lines += [*_told(one), ""]
    return "\n".join(lines).rstrip() + "\n"


def _told(one: Comparison) -> Iterable[str]:
    after, before = (
        f"**{markdown_cell(run.study.run_id)}** ({markdown_cell(_facts(run))})" for run in (one.after, one.before)
    )
    yield f"{after} against {before}"
    yield ""
    yield markdown_cell(one.headline())
    yield ""
    if one.code:
        yield f"{markdown_cell('; '.join(one.code))}."
        yield ""
    if one.comparable.reasons and not one.refused:
        yield f"> {one.comparable.level.value.capitalize()}: {markdown_cell('; '.join(one.comparable.reasons))}."
        yield ""
    names = case_labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    for setting in one.settings:
        yield from _markdown_table(one, setting, names)
        yield ""
    if one.changes:
        tolerated = f"changes within {format_percent(one.tolerance)} do not count"
        yield f"Before and after: {one.unit()}. A ratio over 1 is faster; {tolerated}."
    if one.energy:
        yield ""
        yield markdown_cell(one.joules())


def _markdown_table(one: Comparison, setting: Setting, names: Mapping[str, str]) -> Iterable[str]:
    several = len(one.implementations) > 1
    if setting.name:
        yield f"**{markdown_cell(setting.name)}**: {markdown_cell(setting.meaning)}"
        yield ""
    shared = "-".join(common_parts(list(names))) or "case"
    yield f"| {shared} |{' implementation |' if several else ''} before | after | ratio | 95 % interval | verdict |"
    yield f"|---|{'---|' if several else ''}--:|--:|--:|--:|---|"
    for change in one.changes:
        if change.setting == setting:
            cells = (
                names[change.case_id], *([change.implementation] if several else []),
                format_digits(change.before.mid, 4),
                format_digits(change.after.mid, 4), f"{change.ratio.mid:.3f}", format_limits(change.ratio, places=3),
                change.said,
            )  # fmt: skip
            loud = change.verdict in (Verdict.SLOWER, Verdict.FASTER)
            *row_cells, last = (markdown_cell(text) for text in cells)
            yield table_line((*row_cells, f"**{last}**" if loud else last))
