"""The tables of a report: verdicts and times of one setting, the settings side by side, and what was not timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.case import CaseTiming
from orchestrator.analysis.second_clock import Told, Watched
from orchestrator.analysis.study import Contrast, Study
from orchestrator.core.results import TIMER_SHARE
from orchestrator.report.answer import FAILURES, HERE, AnswerRow, failures
from orchestrator.report.page import Cell, PageTable, Part, Word
from orchestrator.report.text import (
    UNKNOWN,
    display_name,
    format_digits,
    format_energy,
    format_estimate,
    format_limits,
    format_percent,
    format_ratio,
    format_size,
    other_regime_text,
)

MARKS = "A percentage in small print is the timer's own share of the median, from 2 % on."


def answers(rows: Sequence[AnswerRow], names: Mapping[str, str], *, several: bool) -> PageTable:
    """A row for each kernel and case: its time, the fastest baseline's, the ratio and the verdict, and the rate. The
    column of the kernel is left out if there is only one."""
    cells: list[list[Cell]] = []
    for row in rows:
        interval_text = format_estimate(row.contrast.ratio).partition(" ")[2] if row.contrast is not None else ""
        theirs = Word(format_digits(row.baseline_us, 4), more=display_name(row.baseline)) if row.baseline else UNKNOWN
        badge = Word(row.verdict, f"badge {row.style}", "; ".join(one for one in (row.why, *_beside(row)) if one))
        timing = row.case.timing(row.kernel)
        cells.append(
            [
                names[row.case.case_id],
                *([row.kernel] if several else []),
                _median(timing) if timing is not None and timing.timed else UNKNOWN,
                theirs,
                Word(format_ratio(row.contrast.ratio.mid), more=interval_text) if row.contrast is not None else UNKNOWN,
                badge if row.verdict != UNKNOWN else Word("not compared", "soft", row.why),
                Word(row.rate.text or UNKNOWN, more=f"{row.rate.share} of the roof" if row.rate.share else ""),
            ]
        )
    first = 2 if several else 1
    heads = ["case", *(["kernel"] if several else []), "µs", "fastest baseline, µs", "ratio", "verdict", "rate"]
    if all(row[-1] == Word(UNKNOWN) for row in cells):
        heads, cells = heads[:-1], [row[:-1] for row in cells]
    column_places = [*range(1, first), first + 3]
    return PageTable(
        "Verdicts at a glance", heads, cells, left=column_places, wrap=(first + 3,), stack=True, file="verdicts.csv"
    )


def _beside(row: AnswerRow) -> list[str]:
    """The ratio in the other of burst and graph where they disagree, and the two modes of the kernel."""
    other = other_regime_text(row.contrast).removeprefix(", ") if row.contrast is not None else ""
    return [part for part in (other, f"two modes: {row.modes}" if row.modes else "") if part]


def places(part: Study, names: Mapping[str, str]) -> PageTable | None:
    """Which of the kernels is the fastest: a row for each case, a column for each kernel, with its place and time.
    Kernels that cannot be told apart share places. None for a single kernel."""
    ranked = [case for case in part.cases if case.ranks]
    if not ranked:
        return None
    rows: list[list[Cell]] = []
    for case in ranked:
        rank_texts = {rank.implementation: rank.text for rank in case.ranks}
        cells: list[Cell] = []
        for name in part.kernels:
            timing = case.timing(name)
            us = format_digits(timing.median_us.mid, 4) if timing is not None and timing.timed else "not timed"
            cells.append(Word(rank_texts.get(name, UNKNOWN), "faster" if rank_texts.get(name) == "1" else "", us))
        rows.append([names[case.case_id], *cells])
    heads = ["case", *(display_name(name) for name in part.kernels)]
    return PageTable("Which of the kernels", heads, rows, stack=True, file="verdicts.csv")


def _median(timing: CaseTiming) -> Cell:
    """A median, with the timer's share where it is large enough to matter."""
    median = format_digits(timing.median_us.mid, 4)
    return Word(median, more=f"timer {timing.timer_share:.0%}") if timing.timer_share > TIMER_SHARE else median


def verdict_table(part: Study, names: Mapping[str, str]) -> PageTable:
    """A row for each case and kernel, a column for each baseline; the kernel's column is left out if it is alone."""
    several = len(part.kernels) > 1
    compared = [name for name in part.baselines if any(one.baseline == name for one in part.contrasts)]
    rows: list[list[Cell]] = []
    for case in part.cases:
        noise = max((one.noise.floor for one in case.contrasts if one.noise is not None), default=float("nan"))
        for kernel in dict.fromkeys(one.subject for one in case.contrasts):
            contrast_by_baseline = {one.baseline: one for one in case.contrasts if one.subject == kernel}
            cells = [_verdict(contrast_by_baseline.get(name)) for name in compared]
            rows.append([names[case.case_id], *([kernel] if several else []), *cells, format_percent(noise)])
    heads = ["case", *(["kernel"] if several else []), *(f"over {display_name(name)}" for name in compared), "noise"]
    first = 2 if several else 1
    wrap = range(first, len(heads) - 1)
    return PageTable("Verdicts", heads, rows, left=range(1, first), wrap=wrap, stack=True, file="verdicts.csv")


def _verdict(one: Contrast | None) -> Cell:
    return (
        UNKNOWN
        if one is None
        else Word(one.said, one.verdict.value, format_estimate(one.ratio) + other_regime_text(one))
    )


def kernel_table(part: Study, names: Mapping[str, str]) -> PageTable:
    """A row for each case: the kernel that ran, and the median time of every implementation."""
    timed = [case for case in part.cases if any(one.timed for one in case.timings)]
    there = {one.implementation for case in timed for one in case.timings if one.timed}
    shown = [name for name in part.names if name in there]
    alone = len(part.kernels) == 1
    rows: list[list[Cell]] = []
    for case in timed:
        subject_timing = case.timing(part.subject)
        cells: list[Cell] = []
        for name in shown:
            timing = case.timing(name)
            cells.append(UNKNOWN if timing is None or not timing.timed else _median(timing))
        rate = UNKNOWN if subject_timing is None or not subject_timing.timed else format_digits(subject_timing.tflops)
        ran = [subject_timing.backend if subject_timing is not None else UNKNOWN] if alone else []
        rows.append([names[case.case_id], *ran, *cells, rate])
    kernel = [f"kernel of {part.subject}"] if alone else []
    heads = ["case", *kernel, *(f"{display_name(name)}, µs" for name in shown), f"TFLOP/s of {part.subject}"]
    if all(row[-1] == UNKNOWN for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    text_columns = (1,) if alone else ()
    return PageTable(
        "Kernels and times", heads, rows, left=text_columns, wrap=text_columns, stack=True, file="summary.csv"
    )


def times_table(part: Study, names: Mapping[str, str]) -> PageTable:
    """A row for every implementation that was timed, with all its numbers. Columns without any value are left out."""
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    hidden = {True: "no", False: "yes"}
    columns: Sequence[tuple[str, list[str]]] = (
        ("% of roof", [format_digits(t.roof_percent) for _, t in timed]),
        ("% at clock", [format_digits(t.held_percent) for _, t in timed]),
        ("SM MHz", [format_digits(t.clock_mhz, 4) for _, t in timed]),
        ("energy a call", [format_energy(t.joules) for _, t in timed]),
        ("peak memory", [format_size(t.peak_bytes) for _, t in timed]),
        ("host µs", [format_digits(t.host_us) for _, t in timed]),
        ("timer", [format_percent(t.timer_share) for _, t in timed]),
        ("TFLOP/s", [format_digits(t.tflops) for _, t in timed]),
        (
            "throttled",
            [UNKNOWN if math.isnan(t.clock_mhz) else format_percent(t.throttled, places=0) for _, t in timed],
        ),
        ("launch hidden", [UNKNOWN if math.isnan(t.host_us) else hidden[t.group.exposed] for _, t in timed]),
        ("max error", [format_digits(t.max_abs_error, 2) for _, t in timed]),
    )
    known_columns = [(head, cells) for head, cells in columns if any(cell != UNKNOWN for cell in cells)]
    heads = ["case", "implementation", "backend", "median µs", "95 % interval", "p5 to p95"]
    heads += [head for head, _ in known_columns]
    rows = []
    for place, (case, t) in enumerate(timed):
        places = 2 if t.median_us.mid < 100 else 1
        rows.append(
            [
                names[case.case_id], t.implementation, t.backend, format_digits(t.median_us.mid, 4),
                format_limits(t.median_us, places=places), f"{format_digits(t.p5_us)} to {format_digits(t.p95_us)}",
                *(cells[place] for _, cells in known_columns),
            ]
        )  # fmt: skip
    return PageTable("All times", heads, rows, left=(1, 2))


def second_clock(study: Study, told: Sequence[Told], names: Mapping[str, str]) -> PageTable:
    """A row for each case and implementation that CUPTI has a time of: its time, and ours in each regime."""
    settings = [one for one in study.settings if one.regime in ("burst", "graph") and one.cache != "warm"]
    case_by_setting = {(case.case_id, case.setting): case for case in study.cases}
    rows: list[list[Cell]] = []
    for one in told:
        cells: list[Cell] = []
        for setting in settings:
            case = case_by_setting.get((one.case_id, setting))
            timing = case.timing(one.implementation) if case is not None else None
            is_timed = timing is not None and timing.timed
            theirs = one.unrested_us if setting.regime == "graph" else one.cupti_us
            cells.append(Word(format_digits(timing.median_us.mid, 4), more=f"{timing.median_us.mid / theirs:.3f} of it")
                         if timing is not None and is_timed else UNKNOWN)  # fmt: skip
        if any(cell != UNKNOWN for cell in cells):
            busy = UNKNOWN if math.isnan(one.busy_us) else format_digits(one.busy_us, 4)
            rows.append([names[one.case_id], one.implementation, format_digits(one.cupti_us, 4), busy, *cells])
    heads = ("case", "implementation", "CUPTI, µs", "without rest, µs", *(f"{one.name}, µs" for one in settings))
    return PageTable("A second clock", heads, rows, left=(1,), file="cupti.csv")


def watched_launches(told: Sequence[Watched], names: Mapping[str, str]) -> PageTable:
    """A row for each implementation, case and regime in which CUPTI watched the launches that we timed."""
    rows: list[list[Cell]] = []
    for one in told:
        if one.case_id not in names:
            continue
        cells: list[Cell] = [names[one.case_id], one.implementation, one.regime]
        if one.skipped:
            rows.append([*cells, one.skipped, UNKNOWN, UNKNOWN, UNKNOWN])
            continue
        ours = Word(format_digits(one.watched_us, 4), more=f"{one.ratio:.3f} of CUPTI's")
        covered, unwatched = (
            UNKNOWN if math.isnan(us) else format_digits(us, 4) for us in (one.covered_us, one.unwatched_us)
        )
        rows.append([*cells, ours, format_digits(one.cupti_us, 4), covered, unwatched])
    heads = (
        "case",
        "implementation",
        "regime",
        "watched, µs",
        "CUPTI's kernels, µs",
        "from the gate on, µs",
        "unwatched, µs",
    )
    return PageTable("The same launches by CUPTI", heads, rows, left=(1, 2), file="cupti.csv")


def not_timed(study: Study) -> list[Part]:
    """A row for each reason, with the cases that were not timed for it; empty where everything was timed."""
    rows: list[list[Cell]] = [
        [one.implementation, Word(FAILURES.get(one.kind, one.kind), "slower" if one.kind != HERE else "soft"),
         str(len(cases)), reason]
        for one in failures(study)
        for reason, cases in one.reasons.items()
    ]  # fmt: skip
    heads = ("implementation", "what", "cases", "reason")
    return [PageTable("Not timed", heads, rows, left=(1,), long=(3,), stack=True)] if rows else []
