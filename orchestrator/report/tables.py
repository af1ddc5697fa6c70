"""The tables of a report: verdicts and times of one setting, the settings side by side, and what was not timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.second_clock import Told
from orchestrator.analysis.study import Case, Contrast, Study
from orchestrator.analysis.timings import Timing
from orchestrator.analysis.watched_launches import Watched
from orchestrator.core.results import TIMER_SHARE, is_control
from orchestrator.report.page import Cell, Part, Table, Word
from orchestrator.report.text import UNKNOWN, backend, digits, elsewhere, energy, estimate, percent, ratio, size, within

MARKS = "A percentage in small print is the timer's own share of the median, from 2 % on."


MOST_WIDE = 2
"""With more regimes than this the rival has no column of its own: it is shown beside the verdict."""


def side_by_side(study: Study, names: Mapping[str, str]) -> Table:
    """A row for each case: the subject against the fastest baseline in each regime. Nothing is summed over regimes. The
    cache states of a regime share a column if no case has two of them."""
    found: dict[tuple[Setting, str], Case] = {}
    columns = list(dict.fromkeys(Setting(one.regime) for one in study.settings))
    for case in study.cases:
        key = (Setting(case.setting.regime), case.case_id)
        if key in found:
            columns = list(study.settings)
            break
        found[key] = case
    if columns and columns[0] in study.settings:
        found = {(case.setting, case.case_id): case for case in study.cases}
    columns = [one for one in columns if any(case.contrasts for key, case in found.items() if key[0] == one)]
    each = [f"{study.subject}, µs", "rival, µs", "verdict"]
    if len(columns) > MOST_WIDE:
        each = [f"{study.subject}, µs", "rival, µs, and verdict"]
    groups = [("", 1), *((one.name or "ratio", len(each)) for one in columns)]
    rows: list[list[Cell]] = []
    for case_id in study.case_ids:
        row: list[Cell] = [names[case_id]]
        for one in columns:
            own, rival, said = _against_best(found.get((one, case_id)), study.subject)
            row += [own, rival, said] if len(columns) <= MOST_WIDE else [own, _with(rival, said)]
        rows.append(row)
    heads = ["case", *each * len(columns)]
    left = [*range(len(each), len(heads), len(each))]
    return Table("Side by side", heads, rows, left=left, wrap=left, groups=groups, stack=True)


def _with(rival: str, verdict: Cell) -> Cell:
    """The rival and the verdict in one cell, as three regimes with three columns each are wider than a screen."""
    return replace(verdict, text=f"{rival}: {verdict.text}") if isinstance(verdict, Word) else verdict


def _against_best(case: Case | None, subject: str) -> tuple[Cell, str, Cell]:
    best = case.best if case is not None else None
    own = case.timing(subject) if case is not None else None
    if case is None:  # the case was timed only in another regime
        return "", "", ""
    if own is None or not own.timed:
        return UNKNOWN, UNKNOWN, "not timed"
    rival = case.timing(best.baseline) if best is not None else None
    if best is None or rival is None:
        return _median(own), UNKNOWN, "not compared"
    theirs = f"{backend(best.baseline)} {digits(rival.median_us.mid, 4)}"
    said = Word(f"{ratio(best.ratio.mid)} {best.verdict.value}", best.verdict.value, best.doubt)
    return _median(own), theirs, said


def _median(timing: Timing) -> Cell:
    """A median, with the timer's share where it is large enough to matter."""
    median = digits(timing.median_us.mid, 4)
    return Word(median, more=f"timer {timing.timer_share:.0%}") if timing.timer_share > TIMER_SHARE else median


def verdicts(part: Study, names: Mapping[str, str]) -> Table:
    """A row for each case, a column for each baseline."""
    compared = [name for name in part.baselines if part.against(name)]
    noisy = [case for case in part.cases if case.contrasts]
    rows: list[list[Cell]] = []
    for case in noisy:
        found = {one.baseline: one for one in case.contrasts}
        noise = max((one.noise.floor for one in case.contrasts if one.noise is not None), default=float("nan"))
        rows.append([names[case.case_id], *(_verdict(found.get(name)) for name in compared), percent(noise)])
    heads = ["case", *(f"over {backend(name)}" for name in compared), "noise"]
    return Table("Verdicts", heads, rows, wrap=range(1, len(heads) - 1), stack=True, file="verdicts.csv")


def _verdict(one: Contrast | None) -> Cell:
    return UNKNOWN if one is None else Word(one.said, one.verdict.value, estimate(one.ratio) + elsewhere(one))


def kernels(part: Study, names: Mapping[str, str]) -> Table:
    """A row for each case: the kernel that ran, and the median time of every implementation."""
    timed = [case for case in part.cases if any(one.timed for one in case.timings)]
    there = {one.implementation for case in timed for one in case.timings if one.timed}
    shown = [name for name in (part.subject, *part.baselines) if name in there]
    rows: list[list[Cell]] = []
    for case in timed:
        own = case.timing(part.subject)
        cells: list[Cell] = []
        for name in shown:
            timing = case.timing(name)
            cells.append(UNKNOWN if timing is None or not timing.timed else _median(timing))
        rate = UNKNOWN if own is None or not own.timed else digits(own.tflops)
        rows.append([names[case.case_id], own.backend if own is not None else UNKNOWN, *cells, rate])
    heads = ["case", f"kernel of {part.subject}", *(f"{backend(name)}, µs" for name in shown), "TFLOP/s"]
    if all(row[-1] == UNKNOWN for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return Table("Kernels and times", heads, rows, left=(1,), wrap=(1,), stack=True, file="summary.csv")


def times(part: Study, names: Mapping[str, str]) -> Table:
    """A row for every implementation that was timed, with all its numbers. Columns without any value are left out."""
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    hidden = {True: "no", False: "yes"}
    columns: Sequence[tuple[str, list[str]]] = (
        ("% of roof", [digits(t.roof_percent) for _, t in timed]),
        ("% at clock", [digits(t.held_percent) for _, t in timed]),
        ("SM MHz", [digits(t.clock_mhz, 4) for _, t in timed]),
        ("energy a call", [energy(t.joules) for _, t in timed]),
        ("peak memory", [size(t.peak_bytes) for _, t in timed]),
        ("host µs", [digits(t.host_us) for _, t in timed]),
        ("timer", [percent(t.timer_share) for _, t in timed]),
        ("TFLOP/s", [digits(t.tflops) for _, t in timed]),
        ("throttled", [UNKNOWN if math.isnan(t.clock_mhz) else percent(t.throttled, places=0) for _, t in timed]),
        ("launch hidden", [UNKNOWN if math.isnan(t.host_us) else hidden[t.group.exposed] for _, t in timed]),
        ("max error", [digits(t.max_abs_error, 2) for _, t in timed]),
    )
    known = [(head, cells) for head, cells in columns if any(cell != UNKNOWN for cell in cells)]
    heads = ["case", "implementation", "backend", "median µs", "95 % interval", "p5 to p95"]
    heads += [head for head, _ in known]
    rows = []
    for place, (case, t) in enumerate(timed):
        places = 2 if t.median_us.mid < 100 else 1
        rows.append(
            [
                names[case.case_id], t.implementation, t.backend, digits(t.median_us.mid, 4),
                within(t.median_us, places=places), f"{digits(t.p5_us)} to {digits(t.p95_us)}",
                *(cells[place] for _, cells in known),
            ]
        )  # fmt: skip
    return Table("All times", heads, rows, left=(1, 2))


def second_clock(study: Study, told: Sequence[Told], names: Mapping[str, str]) -> Table:
    """A row for each case and implementation that CUPTI has a time of: its time, and ours in each regime."""
    settings = [one for one in study.settings if one.regime in ("burst", "graph") and one.cache != "warm"]
    found = {(case.case_id, case.setting): case for case in study.cases}
    rows: list[list[Cell]] = []
    for one in told:
        cells: list[Cell] = []
        for setting in settings:
            case = found.get((one.case_id, setting))
            timing = case.timing(one.implementation) if case is not None else None
            known = timing is not None and timing.timed
            theirs = one.unrested_us if setting.regime == "graph" else one.cupti_us
            cells.append(Word(digits(timing.median_us.mid, 4), more=f"{timing.median_us.mid / theirs:.3f} of it")
                         if timing is not None and known else UNKNOWN)  # fmt: skip
        if any(cell != UNKNOWN for cell in cells):
            busy = UNKNOWN if math.isnan(one.busy_us) else digits(one.busy_us, 4)
            rows.append([names[one.case_id], one.implementation, digits(one.cupti_us, 4), busy, *cells])
    heads = ("case", "implementation", "CUPTI, µs", "without rest, µs", *(f"{one.name}, µs" for one in settings))
    return Table("A second clock", heads, rows, left=(1,), file="cupti.csv")


def watched_launches(told: Sequence[Watched], names: Mapping[str, str]) -> Table:
    """A row for each implementation, case and regime in which CUPTI watched the launches that we timed."""
    rows: list[list[Cell]] = []
    for one in told:
        if one.case_id not in names:
            continue
        cells: list[Cell] = [names[one.case_id], one.implementation, one.regime]
        if one.skipped:
            rows.append([*cells, one.skipped, UNKNOWN, UNKNOWN, UNKNOWN])
            continue
        ours = Word(digits(one.watched_us, 4), more=f"{one.ratio:.3f} of CUPTI's")
        covered, unwatched = (UNKNOWN if math.isnan(us) else digits(us, 4) for us in (one.covered_us, one.unwatched_us))
        rows.append([*cells, ours, digits(one.cupti_us, 4), covered, unwatched])
    heads = (
        "case",
        "implementation",
        "regime",
        "watched, µs",
        "CUPTI's kernels, µs",
        "from the gate on, µs",
        "unwatched, µs",
    )
    return Table("The same launches by CUPTI", heads, rows, left=(1, 2), file="cupti.csv")


def not_timed(study: Study) -> list[Part]:
    """A row for each reason, with the number of cases that were not timed for it; empty where everything was timed."""
    reasons: dict[tuple[str, str, str], int] = {}
    for case in study.cases:
        for one in case.timings:
            if one.skipped and not is_control(one.implementation):
                key = (one.implementation, case.setting.name, one.skipped)
                reasons[key] = reasons.get(key, 0) + 1
    if not reasons:
        return []
    several = len(study.settings) > 1
    rows = [
        [name, *([setting] if several else []), str(cases), reason]
        for (name, setting, reason), cases in reasons.items()
    ]
    heads = ("implementation", *(("regime",) if several else ()), "cases", "reason")
    return [Table("Not timed", heads, rows, left=(1,) if several else (), long=(len(heads) - 1,))]
