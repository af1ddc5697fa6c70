"""The mean ratio of a study, which must say something, for several files of tests."""

from __future__ import annotations

from orchestrator.analysis.study import Study


def mean_ratio(part: Study) -> float:
    mean = part.mean("sdpa:default")
    assert mean is not None
    assert mean.ratio.excludes(1.0)
    return mean.ratio.mid
