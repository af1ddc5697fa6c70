"""A run in few numbers. They are kept between two builds of a site, so that the pages of a thousand runs can be made
from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from orchestrator.analysis.across import estimate_latency, floor_of
from orchestrator.analysis.axes import parse_number
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.fingerprint import SOFTWARE
from orchestrator.analysis.history import CODE
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Case, Study
from orchestrator.analysis.verdicts import Noise, NoiseSource
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.results import is_control
from orchestrator.core.run.status import StatusLine
from orchestrator.report.answer import wrong_first
from orchestrator.report.report import Report

Limits = tuple[float | None, float, float | None]
"""Low, mid and high; low and high are null where there are too few blocks for an interval."""
KEPT: Final = ("device", "git_dirty", *CODE, *SOFTWARE)


@checked(frozen=True, slots=True)
class CaseDigest:
    """One case in one setting. `value` is the subject's speed-up over `relative_to` of the run, or its median in
    microseconds where that is empty; None where the subject was not timed. `times` has medians by implementation."""

    case_id: str
    regime: str
    cache: str
    backend: str
    value: Limits | None
    relative: bool
    noise: float | None
    control: bool
    """Whether the noise floor comes from a control."""
    times: dict[str, Limits]
    rates: dict[str, float]
    """TFLOP/s by implementation, where they are known."""
    kernel: str = ""
    """The kernel that `value` is of; empty in digests of older versions, which have only the run's subject."""

    @property
    def setting(self) -> Setting:
        return Setting(self.regime, self.cache)

    @property
    def floor(self) -> Noise | None:
        source = NoiseSource.CONTROL if self.control else NoiseSource.HALVES
        return None if self.noise is None else Noise(self.noise, source)


@checked(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Digest:
    """One run. Unknown values are empty, 0 or None."""

    line: dict[str, str | int]
    workload: str = ""
    subject: str = ""
    relative_to: str = ""
    measurements: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """How often each verdict occurs for the subject against the fastest baseline of each case."""
    answers: int = 0
    usd_per_hour: float | None = None
    fingerprint: dict[str, str | bool] = field(default_factory=dict)
    busy: str = ""
    cases: tuple[CaseDigest, ...] = ()
    problem: str = ""
    wrong: tuple[str, ...] = ()
    """A sentence for each implementation that was wrong or failed."""

    @property
    def status(self) -> StatusLine:
        return StatusLine(**self.line)  # type: ignore[arg-type]

    @property
    def run_id(self) -> str:
        return str(self.line["run_id"])

    @property
    def device(self) -> str:
        return str(self.fingerprint.get("device") or self.line.get("device") or "")

    @property
    def simulated(self) -> bool:
        return self.line.get("mode") == "embedded"

    @property
    def cost_usd(self) -> float:
        return parse_number(self.line.get("cost_usd")) or 0.0


def digest_of(line: Mapping[str, Any], report: Report | None, usd_per_hour: float | None, problem: str) -> Digest:
    """The digest of a run. `line` is its status line; `report` is None where nothing was measured."""
    if report is None:
        return Digest(dict(line), usd_per_hour=usd_per_hour, problem=problem)
    study = report.study
    over = relative_to(study)
    environment = {**report.environment, "device": study.device}
    return Digest(
        line=dict(line),
        workload=report.workload,
        subject=study.subject,
        relative_to=over,
        measurements=study.measurements,
        counts=dict(Counter(best.verdict.value for case in study.cases for best in case.best)),
        answers=study.answers,
        usd_per_hour=usd_per_hour,
        fingerprint={key: value for key in KEPT if isinstance(value := environment.get(key), str | bool) and value},
        busy="; ".join(words.rstrip(".") for words in report.busy()),
        cases=tuple(_case(case, kernel, over) for case in study.cases for kernel in study.kernels),
        problem=problem,
        wrong=wrong_first(study),
    )


def relative_to(study: Study) -> str:
    """The baseline of the subject's history: PyTorch's default, or else the first baseline."""
    return DEFAULT if DEFAULT in study.baselines else next(iter(study.baselines), "")


def _case(case: Case, kernel: str, over: str) -> CaseDigest:
    subject_timing = case.timing(kernel)
    value = estimate_latency(case, kernel, over) if over else None
    relative = value is not None
    value = value or estimate_latency(case, kernel)
    floor = floor_of(case, kernel)
    timed = [one for one in case.timings if one.timed and not is_control(one.implementation)]
    return CaseDigest(
        case_id=case.case_id,
        regime=case.setting.regime,
        cache=case.setting.cache,
        backend=subject_timing.backend if subject_timing is not None else "",
        value=pack_interval(value) if value is not None else None,
        relative=relative,
        noise=_short(floor.floor) if floor is not None and math.isfinite(floor.floor) else None,
        control=floor is not None and floor.source is NoiseSource.CONTROL,
        times={one.implementation: pack_interval(one.median_us) for one in timed},
        rates={one.implementation: _short(one.tflops) for one in timed if math.isfinite(one.tflops)},
        kernel=kernel,
    )


def pack_interval(interval: Interval) -> Limits:
    low, high = (_short(end) if interval.known else None for end in (interval.low, interval.high))
    return low, _short(interval.mid), high


def unpack_interval(limits: Limits) -> Interval:
    low, mid, high = limits
    return Interval(math.nan if low is None else low, mid, math.nan if high is None else high)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def newest_first(digests: Sequence[Digest]) -> list[Digest]:
    return sorted(digests, key=lambda one: one.run_id, reverse=True)
