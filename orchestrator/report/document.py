"""The report as data: one JSON document, and a CSV with a row for each comparison. Unknown values are null in JSON and
empty in CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from orchestrator.analysis.across import Change
from orchestrator.analysis.history import HistoryPoint
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Case, Contrast
from orchestrator.analysis.summaries import THRESHOLDS, fast_p, find_energies
from orchestrator.analysis.verdicts import Noise
from orchestrator.core.bundled import counting_convention
from orchestrator.core.results import plain_cell
from orchestrator.report.answer import failures
from orchestrator.report.comparing import Comparison
from orchestrator.report.report import Report


def json_value(value: Any) -> Any:
    """A value as JSON has it: a word by its value, an object by its fields; a number that JSON cannot hold is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
    return [json_value(one) for one in value] if isinstance(value, (list, tuple)) else value


def pick_fields(source: object, names: str) -> dict[str, Any]:
    """Attributes of an object as JSON, in this order: `p`, or `effect=paired.test.effect` under another name."""
    pairs = [(name, path or name) for name, _, path in (word.partition("=") for word in names.split())]
    return {name: json_value(attrgetter(path)(source)) for name, path in pairs}


def report_document(report: Report) -> dict[str, Any]:
    """The whole report. Its `schema` is 2: a case has an entry for each setting (regime and cache) in which it was
    timed."""
    study = report.study
    return {
        "schema": 2,
        **pick_fields(study, "run_id device"),
        "settings": [setting_of(one) | {"meaning": one.meaning} for one in study.settings],
        **pick_fields(study, "subject kernels baselines measurements"),
        **pick_fields(report, "cases_planned=planned cost_usd prices_simulated=simulated usd_per_answer"),
        "answers": study.answers,
        "energy": [
            {**setting_of(one.setting), "cases": one.cases, "joules_per_call": one.joules}
            for one in find_energies(study)
        ],
        "time": report.minutes.document() if report.minutes is not None else None,
        "flop_convention": counting_convention(case.axes for case in study.cases),
        "fast_p": [
            {
                "implementation": one.implementation,
                **setting_of(one.setting),
                "problems": one.problems,
                "shares": {f"{p:g}": one.share(at) for at, p in enumerate(THRESHOLDS)},
            }
            for one in fast_p(study)
        ],
        "failures": [
            pick_fields(one, "implementation kind cases")
            | {"reasons": {reason: list(cases) for reason, cases in one.reasons.items()}}
            for one in failures(study)
        ],
        "headlines": list(report.headlines()),
        "sentences": list(report.sentences()),
        "warnings": list(report.warnings()),
        "cases": [_case(one) for one in study.cases],
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "case_id": case.case_id,
        **setting_of(case.setting),
        "timings": [pick_fields(timing, TIMING) for timing in case.timings],
        "contrasts": [_contrast(one) for one in case.contrasts],
        "between_kernels": [_contrast(one) for one in case.beside],
        "places": {rank.implementation: [rank.first, rank.last] for rank in case.ranks},
        "controls": [pick_fields(one, "implementation ratio p=paired.test.p verdict") for one in case.controls],
    }


TIMING: Final = (
    "implementation backend count median_us p5_us p95_us min_us timer_share launch_hidden=group.is_hidden tflops "
    "roof_percent held_percent sm_clock_mhz=clock_mhz throttled joules peak_memory_bytes=peak_bytes max_abs_error "
    "modes fault=group.fault skipped"
)


def setting_of(setting: Setting) -> dict[str, Any]:
    return {"regime": setting.regime or None, "cache": setting.cache or None}


def _contrast(one: Contrast) -> dict[str, Any]:
    before = pick_fields(one, "subject baseline blocks=paired.blocks ratio p effect=paired.test.effect order_shift")
    return before | _noise(one.noise) | pick_fields(one, "verdict doubt elsewhere")


def _noise(noise: Noise | None) -> dict[str, Any]:
    return (
        {"noise": None, "noise_source": None}
        if noise is None
        else pick_fields(noise, "noise=floor noise_source=source")
    )


COLUMNS = (
    "run_id", "device", "case_id", "regime", "cache", "subject", "baseline", "blocks", "subject_median_us",
    "baseline_median_us", "ratio", "ratio_low", "ratio_high", "p_holm", "effect", "order_shift", "noise",
    "noise_source", "verdict", "doubt", "elsewhere", "family", "fastest_baseline",
)  # fmt: skip


def verdicts_csv(report: Report) -> str:
    """A CSV with a row for each comparison: kernels with baselines, then kernels with each other; `family` says which,
    as each is corrected apart."""
    rows = []
    for case in report.study.cases:
        medians = {timing.implementation: timing.median_us.mid for timing in case.timings}
        fastest = {one.subject: one.baseline for one in case.best}
        for one in (*case.contrasts, *case.beside):
            ratio, noise = one.ratio, one.noise
            numbers = (medians[one.subject], medians[one.baseline], ratio.mid, ratio.low, ratio.high, one.p)
            rows.append(
                [
                    report.study.run_id, report.study.device, case.case_id, case.setting.regime, case.setting.cache,
                    one.subject, one.baseline, str(one.paired.blocks),
                    *(_cell(number) for number in (*numbers, one.paired.test.effect, one.order_shift)),
                    _cell(noise.floor if noise else math.nan), noise.source.value if noise else "", one.verdict.value,
                    one.doubt, _cell(one.elsewhere), "kernels" if one.between_kernels else "baselines",
                    "" if one.between_kernels else str(fastest[one.subject] == one.baseline).lower(),
                ]
            )  # fmt: skip
    return _csv(COLUMNS, rows)


def summary_csv(report: Report) -> str:
    """A CSV with a row for each case, setting and implementation. The subject's rows have its ratio to each baseline,
    with interval and verdict, as everywhere else in a report."""
    study = report.study
    axes = list(dict.fromkeys(name for case in study.cases for name in case.axes))
    against = [(name, f"speedup_vs_{name.replace(':', '_')}") for name in study.baselines]
    columns = (
        "run_id", "device", "case_id", "implementation", "backend", *axes, "regime", "cache", "count", "median_us",
        "median_low_us", "median_high_us", "min_us", "p5_us", "p95_us", "throttled", "max_abs_error", "skipped",
        "timer_share", "peak_memory_bytes", "joules_per_call",
        *(f"{name}{part}" for _, name in against for part in ("", "_low", "_high", "_verdict")),
    )  # fmt: skip
    rows = []
    for case in study.cases:
        for one in case.timings:
            contrasts_by_baseline = {
                each.baseline: each for each in case.contrasts if each.subject == one.implementation
            }
            ratios: list[str] = []
            for name, _ in against:
                mine = contrasts_by_baseline.get(name)
                at = mine.ratio if mine is not None else None
                ratios += [_cell(at.mid), _cell(at.low), _cell(at.high)] if at is not None else [""] * 3
                ratios.append(mine.said if mine is not None else "")
            middle = one.median_us
            rows.append(
                [
                    study.run_id, one.group.device, case.case_id, one.implementation, one.backend,
                    *(case.axes.get(name, "") for name in axes), case.setting.regime, case.setting.cache,
                    str(one.count), _cell(middle.mid), _cell(middle.low), _cell(middle.high), _cell(one.min_us),
                    _cell(one.p5_us), _cell(one.p95_us), _cell(one.throttled), _cell(one.max_abs_error), one.skipped,
                    _cell(one.timer_share), "" if math.isnan(one.peak_bytes) else str(int(one.peak_bytes)),
                    _cell(one.joules), *ratios,
                ]
            )  # fmt: skip
    return _csv(columns, rows)


def _csv(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as CSV. Cells that a spreadsheet would take for formulas are marked as text."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([plain_cell(cell) for cell in row] for row in (columns, *rows))
    return text.getvalue()


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def changes_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison of two runs as JSON; a `ratio` over 1 means faster in the second."""
    before, after = comparison.before, comparison.after
    return {
        "before": before.study.run_id,
        "after": after.study.run_id,
        "devices": [before.study.device, after.study.device],
        "commits": [report.environment.get("git_commit") for report in (before, after)],
        "code": list(comparison.code),
        "comparability": comparison.comparable.level.value,
        "reasons": list(comparison.comparable.reasons),
        "relative_to": comparison.relative_to or None,
        "headline": comparison.headline(),
        "lost": [_placed(one, "implementation reason") for one in comparison.lost],
        "changes": [_change(one) for one in comparison.changes],
        "energy": [
            _placed(one, "implementation joules_before=before joules_after=after ratio") for one in comparison.energy
        ],
    }


def _placed(one: Any, names: str) -> dict[str, Any]:
    """Where it was measured, and these attributes."""
    return {"case_id": one.case_id, **setting_of(one.setting), **pick_fields(one, names)}


def _change(one: Change) -> dict[str, Any]:
    """`relative_to` is null where times are compared."""
    made = _placed(one, "implementation relative_to before after ratio p") | _noise(one.noise)
    return made | {"relative_to": one.relative_to or None} | pick_fields(one, "spread verdict doubt")


def history_document(
    case_id: str, setting: Setting | None, implementation: str, relative_to: str, points: Sequence[HistoryPoint]
) -> dict[str, Any]:
    """The history of one case as JSON; `change` is the verdict against the run that began the previous level."""
    return {
        "schema": 2,
        "case_id": case_id,
        **setting_of(setting or Setting("")),
        "implementation": implementation,
        "relative_to": relative_to or None,
        "points": [_point(one) for one in points],
    }


def _point(one: HistoryPoint) -> dict[str, Any]:
    fingerprint = one.reading.fingerprint
    keys = ("git_commit", "git_dirty", "payload_sha256", "backend", "device")
    return {
        "run_id": one.reading.run_id,
        **{key: fingerprint.get(key) for key in keys},
        **pick_fields(one, "value=reading.value ratio"),
        **_noise(one.reading.noise),
        **pick_fields(one, "change doubt split"),
    }
