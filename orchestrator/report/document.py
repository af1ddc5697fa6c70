"""The report as data: one JSON document, and a CSV with a row a comparison. What is not known is null, or empty."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from orchestrator.analysis.across import Point
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import CONVENTION
from orchestrator.analysis.study import Contrast, Timing
from orchestrator.analysis.verdicts import Noise
from orchestrator.report.comparison import Comparison
from orchestrator.report.report import Report


def known(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not math.isfinite(value) else value


def limits(interval: Interval) -> dict[str, float | None]:
    return {"low": known(interval.low), "mid": known(interval.mid), "high": known(interval.high)}


def document(report: Report) -> dict[str, Any]:
    """The whole report; `schema` is 2: a case has an entry for each setting (regime and cache) that it was timed in."""
    study = report.study
    return {
        "schema": 2,
        "run_id": study.run_id,
        "device": study.device,
        "settings": [_setting(one) | {"meaning": one.meaning} for one in study.settings],
        "subject": study.subject,
        "baselines": list(study.baselines),
        "measurements": study.measurements,
        "cost_usd": known(report.cost_usd),
        "usd_per_answer": known(report.usd_per_answer),
        "answers": study.answers,
        "flop_convention": CONVENTION,
        "headlines": list(report.headlines()),
        "sentences": list(report.sentences()),
        "warnings": list(report.warnings()),
        "cases": [
            {
                "case_id": case.case_id,
                **_setting(case.setting),
                "timings": [_timing(timing) for timing in case.timings],
                "contrasts": [_contrast(one) for one in case.contrasts],
                "controls": [
                    {
                        "implementation": one.implementation,
                        "ratio": limits(one.paired.ratio),
                        "p": known(one.paired.test.p),
                        "verdict": one.verdict.value,
                    }
                    for one in case.controls
                ],
            }
            for case in study.cases
        ],
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {"regime": setting.regime or None, "cache": setting.cache or None}


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "implementation": timing.implementation,
        "backend": timing.backend,
        "count": timing.count,
        "median_us": limits(timing.median_us),
        "p5_us": known(timing.p5_us),
        "p95_us": known(timing.p95_us),
        "min_us": known(timing.min_us),
        "tflops": known(timing.tflops),
        "roof_percent": known(timing.roof_percent),
        "held_percent": known(timing.held_percent),
        "sm_clock_mhz": known(timing.clock_mhz),
        "throttled": known(timing.throttled),
        "joules": known(timing.joules),
        "peak_memory_bytes": known(timing.peak_bytes),
        "max_abs_error": known(timing.max_abs_error),
        "skipped": timing.skipped,
    }


def _contrast(one: Contrast) -> dict[str, Any]:
    return {
        "subject": one.subject,
        "baseline": one.baseline,
        "blocks": one.paired.blocks,
        "ratio": limits(one.paired.ratio),
        "p": known(one.p),
        "effect": known(one.paired.test.effect),
        "order_shift": known(one.order_shift),
        **_noise(one.noise),
        "verdict": one.verdict.value,
    }


def _noise(noise: Noise | None) -> dict[str, Any]:
    return {"noise": known(noise.floor) if noise else None, "noise_source": noise.source.value if noise else None}


COLUMNS = (
    "run_id", "device", "case_id", "regime", "cache", "subject", "baseline", "blocks", "subject_median_us",
    "baseline_median_us", "ratio", "ratio_low", "ratio_high", "p_holm", "effect", "order_shift", "noise",
    "noise_source", "verdict",
)  # fmt: skip


def verdicts_csv(report: Report) -> str:
    """One row a comparison."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in report.study.cases:
        medians = {timing.implementation: timing.median_us.mid for timing in case.timings}
        for one in case.contrasts:
            found, noise = one.paired.ratio, one.noise
            numbers = (medians[one.subject], medians[one.baseline], found.mid, found.low, found.high, one.p)
            writer.writerow(
                [
                    report.study.run_id, report.study.device, case.case_id, case.setting.regime,
                    case.setting.cache, one.subject, one.baseline,
                    one.paired.blocks,
                    *(_cell(number) for number in (*numbers, one.paired.test.effect, one.order_shift)),
                    _cell(noise.floor if noise else math.nan), noise.source.value if noise else "", one.verdict.value,
                ]
            )  # fmt: skip
    return text.getvalue()


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def changes_document(comparison: Comparison) -> dict[str, Any]:
    """Two runs side by side; `ratio` over 1 is faster in the second."""
    before, after = comparison.before, comparison.after
    return {
        "before": before.study.run_id,
        "after": after.study.run_id,
        "devices": [before.study.device, after.study.device],
        "commits": [report.environment.get("git_commit") for report in (before, after)],
        "comparability": comparison.comparable.level.value,
        "reasons": list(comparison.comparable.reasons),
        "relative_to": comparison.relative_to or None,
        "headline": comparison.headline(),
        "lost": [
            {
                "case_id": one.case_id,
                **_setting(one.setting),
                "implementation": one.implementation,
                "reason": one.reason,
            }
            for one in comparison.lost
        ],
        "changes": [
            {
                "case_id": one.case_id,
                **_setting(one.setting),
                "implementation": one.implementation,
                "relative_to": one.relative_to or None,
                "before": limits(one.before),
                "after": limits(one.after),
                "ratio": limits(one.ratio),
                "p": known(one.p),
                **_noise(one.noise),
                "verdict": one.verdict.value,
            }
            for one in comparison.changes
        ],
    }


def history_document(
    case_id: str, setting: Setting | None, implementation: str, relative_to: str, points: Sequence[Point]
) -> dict[str, Any]:
    """One case over runs; `change` is the verdict against the run that began the level before."""
    return {
        "schema": 1,
        "case_id": case_id,
        **_setting(setting or Setting("")),
        "implementation": implementation,
        "relative_to": relative_to or None,
        "points": [
            {
                "run_id": one.run_id,
                "git_commit": one.fingerprint.get("git_commit"),
                "git_dirty": one.fingerprint.get("git_dirty"),
                "device": one.fingerprint.get("device"),
                "value": limits(one.value),
                "ratio": limits(one.ratio) if one.ratio is not None else None,
                **_noise(one.noise),
                "change": one.change.value if one.change is not None else None,
            }
            for one in points
        ],
    }
