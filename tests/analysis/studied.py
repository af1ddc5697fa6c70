"""Runs that several tests of studies use."""

from __future__ import annotations

from typing import Any

from orchestrator.analysis.study import Study
from tests.report.written import csv_text, records


def mean_ratio(part: Study) -> float:
    mean = part.mean("sdpa:default")
    assert mean is not None
    assert mean.ratio.excludes(1.0)
    return mean.ratio.mid


def other(speed: float, seed: int, **more: Any) -> str:
    return csv_text(
        records(speeds={"bench": 1.5 * speed, "sdpa:default": 1.0, "bench:aa": 1.5 * speed}, seed=seed, **more)
    )
