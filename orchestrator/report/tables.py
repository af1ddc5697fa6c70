"""The tables of a report: verdicts and times of one setting, the settings side by side, and what was not timed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from orchestrator.analysis.study import Case, Contrast, Study
from orchestrator.core.results import is_control
from orchestrator.report.page import table, word
from orchestrator.report.text import UNKNOWN, backend, digits, percent, ratio, size, within


def side_by_side(study: Study, names: Mapping[str, str]) -> str:
    """Each case in a line, the subject against the fastest baseline in each setting. Nothing is summed over them."""
    parts = study.parts()
    found = {(part.settings[0], case.case_id): case for part in parts for case in part.cases}
    heads = ["case", *[f"{study.subject}, µs", "rival, µs", "ratio", "verdict"] * len(parts)]
    groups = [("", 1), *((part.settings[0].name, 4) for part in parts)]
    rows = []
    for case_id in study.case_ids:
        row = [escape(names[case_id])]
        for part in parts:
            row += _against_best(found.get((part.settings[0], case_id)), part.subject)
        rows.append(row)
    return table(heads, rows, left=range(4, len(heads), 4), groups=groups)


def _against_best(case: Case | None, subject: str) -> list[str]:
    best = case.best if case is not None else None
    own = case.timing(subject) if case is not None else None
    if case is None:  # timed in another regime only
        return ["", "", "", ""]
    if own is None or not own.timed:
        return [UNKNOWN, UNKNOWN, UNKNOWN, "not timed"]
    rival = case.timing(best.baseline) if best is not None else None
    if best is None or rival is None:
        return [digits(own.median_us.mid, 4), UNKNOWN, UNKNOWN, "not compared"]
    theirs = f"{escape(backend(best.baseline))} {digits(rival.median_us.mid, 4)}"
    return [digits(own.median_us.mid, 4), theirs, ratio(best.paired.ratio.mid), word(best.verdict.value)]


def verdicts(part: Study, names: Mapping[str, str]) -> str:
    heads = ("case", "against", "ratio", "95 % interval", "verdict", "p", "effect", "noise")
    rows = (_verdict(names[case.case_id], one) for case in part.cases for one in case.contrasts)
    return table(heads, rows, left=(1, 4))


def _verdict(name: str, one: Contrast) -> list[str]:
    found = one.paired
    p = "&lt; 0.0001" if one.p < 1e-4 else f"{one.p:.4f}"
    noise = f"{percent(one.noise.floor)}" if one.noise is not None else UNKNOWN
    return [
        escape(name), escape(backend(one.baseline)), ratio(found.ratio.mid), within(found.ratio),
        word(one.verdict.value), p, f"{found.test.effect:+.2f}", noise,
    ]  # fmt: skip


def times(part: Study, names: Mapping[str, str]) -> str:
    """Every implementation that was timed. Columns of which nothing is known are left out."""
    timed = [(case, t) for case in part.cases for t in case.timings if t.timed]
    columns = (
        ("% of roof", [digits(t.roof_percent) for _, t in timed]),
        ("% at clock", [digits(t.held_percent) for _, t in timed]),
        ("SM MHz", [digits(t.clock_mhz, 4) for _, t in timed]),
        ("mJ a call", [digits(t.joules * 1e3) for _, t in timed]),
        ("peak memory", [size(t.peak_bytes) for _, t in timed]),
    )
    known = [(head, cells) for head, cells in columns if any(cell != UNKNOWN for cell in cells)]
    heads = ["case", "implementation", "backend", "median µs", "95 % interval", "p5 to p95", "TFLOP/s"]
    heads += [*(head for head, _ in known), "throttled", "max error"]
    rows = []
    for place, (case, t) in enumerate(timed):
        places = 2 if t.median_us.mid < 100 else 1
        rows.append(
            [
                escape(names[case.case_id]), escape(t.implementation), escape(t.backend), digits(t.median_us.mid, 4),
                within(t.median_us, places=places), f"{digits(t.p5_us)} to {digits(t.p95_us)}", digits(t.tflops),
                *(cells[place] for _, cells in known), percent(t.throttled, places=0), digits(t.max_abs_error, 2),
            ]
        )  # fmt: skip
    return table(heads, rows, left=(1, 2))


def not_timed(study: Study) -> str:
    """Each reason once, with how many cases it left out; nothing where everything was timed."""
    reasons: dict[tuple[str, str, str], int] = {}
    for case in study.cases:
        for one in case.timings:
            if one.skipped and not is_control(one.implementation):
                key = (one.implementation, case.setting.name, one.skipped)
                reasons[key] = reasons.get(key, 0) + 1
    if not reasons:
        return ""
    several = len(study.settings) > 1
    rows = (
        [escape(name), *([escape(setting)] if several else []), str(cases), escape(reason)]
        for (name, setting, reason), cases in reasons.items()
    )
    heads = ("implementation", *(("regime",) if several else ()), "cases", "reason")
    return table(heads, rows, left=(1,) if several else (), wrap=(len(heads) - 1,))
