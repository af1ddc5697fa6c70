"""What several runs say about each other: changes, histories, and whether they may be compared at all."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.across import find_changes, quotient
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.fingerprint import ComparabilityLevel, compare_fingerprints
from orchestrator.analysis.history import Reading, history
from orchestrator.analysis.verdicts import Noise, NoiseSource, Verdict
from tests.unit.report.written import both, csv_text, records, studied


def other(speed: float, seed: int, **more: Any) -> str:
    return csv_text(
        records(speeds={"bench": 1.5 * speed, "sdpa:default": 1.0, "bench:aa": 1.5 * speed}, seed=seed, **more)
    )


def test_a_change_between_runs_is_found_and_none_where_there_is_none() -> None:
    before = studied(other(1.0, 1))
    for relative_to in ("", "sdpa:default"):
        same = find_changes(before, studied(other(1.0, 2)), relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in same} <= {Verdict.SAME, Verdict.INCONCLUSIVE}
        slower = find_changes(before, studied(other(0.9, 3)), relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in slower} == {Verdict.SLOWER}
        assert slower[0].ratio.mid == pytest.approx(0.9, rel=0.02)
        faster = find_changes(studied(other(0.9, 3)), before, relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in faster} == {Verdict.FASTER}


def test_a_change_within_the_tolerance_is_no_regression() -> None:
    before, after = studied(other(1.0, 1)), studied(other(0.96, 2))
    assert {one.verdict for one in find_changes(before, after, implementations=["bench"])} == {Verdict.SLOWER}
    assert {one.verdict for one in find_changes(before, after, implementations=["bench"], tolerance=0.1)} == {
        Verdict.SAME
    }


def test_only_what_both_runs_timed_is_compared_and_controls_are_not() -> None:
    before, after = studied(other(1.0, 1)), studied(other(1.0, 2, lengths=(1024, 2048)))
    found = find_changes(before, after)
    assert {one.case_id.split("-")[3] for one in found} == {"q1024"}
    assert {one.implementation for one in found} == {"bench", "sdpa:default"}


def test_a_regime_is_compared_with_itself_only() -> None:
    before, after = studied(csv_text(both())), studied(csv_text(both(noise=0.011)))
    found = find_changes(before, after, implementations=["bench"])
    assert [(one.case_id.split("-")[3], one.setting.regime) for one in found] == [
        ("q128", "burst"), ("q1024", "burst"), ("q128", "sustained"), ("q1024", "sustained"),
    ]  # fmt: skip
    burst = studied(csv_text(row for row in both() if row["regime"] == "burst"))
    assert {one.setting.regime for one in find_changes(before, burst)} == {"burst"}
    assert find_changes(studied(csv_text(records(regime="graph"))), before) == ()


def test_an_older_run_without_named_caches_is_compared_where_there_is_no_doubt() -> None:
    older, named = studied(csv_text(records())), studied(csv_text(records(cache="cold")))
    assert len(find_changes(older, named, implementations=["bench"])) == 2
    assert len(find_changes(named, older, implementations=["bench"])) == 2
    two = studied(csv_text([*records(cache="cold"), *records(cache="warm")]))
    assert find_changes(older, two) == find_changes(two, older) == ()
    assert find_changes(named, studied(csv_text(records(cache="warm")))) == ()


def test_a_slower_machine_cancels_out_of_speed_ups_and_is_no_regression() -> None:
    speeds = {"bench": 1.2, "sdpa:default": 0.8, "bench:aa": 1.2}
    before, after = studied(other(1.0, 1)), studied(csv_text(records(speeds=speeds, seed=4)))
    (relative, _) = find_changes(before, after, relative_to="sdpa:default", implementations=["bench"])
    (absolute, _) = find_changes(before, after, implementations=["bench"])
    assert relative.verdict in (Verdict.SAME, Verdict.INCONCLUSIVE)
    assert absolute.ratio.mid == pytest.approx(0.8, rel=0.02)
    assert (absolute.verdict, absolute.spread > 0.1) == (Verdict.INCONCLUSIVE, True), "the baseline slowed down as much"


def test_the_interval_of_a_quotient_covers_at_least_as_often_as_it_says() -> None:
    import numpy as np

    from orchestrator.analysis.bootstrap import median_interval

    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        top, bottom = (median_interval(100 * np.exp(0.02 * rng.standard_normal(50))) for _ in range(2))
        found = quotient(top, bottom)
        covered += found.low <= 1 <= found.high
    assert 940 <= covered <= 985


def test_a_history_marks_where_a_new_level_begins_and_nowhere_else() -> None:
    def at(value: float) -> Interval:
        return Interval(value * 0.995, value, value * 1.005)

    values = [100, 100.3, 99.9, 110, 110.2, 90, 90.1]
    noise = Noise(0.004, NoiseSource.CONTROL)
    readings = [Reading(str(n), {}, at(value), noise) for n, value in enumerate(values)]
    found = history(readings, relative=False, tolerance=0.02)
    marked = {point.reading.run_id: point.change for point in found if point.change in (Verdict.FASTER, Verdict.SLOWER)}
    assert marked == {"3": Verdict.SLOWER, "5": Verdict.FASTER}
    assert found[0].change is None


FIRST = {
    "device": "NVIDIA L4",
    "device_kind": "cuda",
    "regimes": ("burst",),
    "driver": "580",
    "payload_sha256": "a",
    "git_commit": "c0",
    "torch": "2.13",
    "threads": 4,
}


@pytest.mark.parametrize(
    ("change", "across", "level", "reason"),
    [
        ({}, False, ComparabilityLevel.COMPARABLE, ""),
        ({"driver": "570"}, False, ComparabilityLevel.CAVEAT, "driver differs: 580 and 570"),
        ({"device_uuid_sha256": "x"}, False, ComparabilityLevel.CAVEAT, "known for one run only"),
        ({"git_dirty": True}, False, ComparabilityLevel.CAVEAT, "the second run's kernels have uncommitted changes"),
        ({"threads": 2}, False, ComparabilityLevel.CAVEAT, "threads differs"),
        ({"device": "Tesla T4"}, False, ComparabilityLevel.REFUSED, "device differs: NVIDIA L4 and Tesla T4"),
        ({"device": "Tesla T4"}, True, ComparabilityLevel.CAVEAT, "device differs"),
        ({"regimes": ("sustained",)}, True, ComparabilityLevel.REFUSED, "no regime is in both: burst and sustained"),
        ({"regimes": ("burst", "graph")}, False, ComparabilityLevel.CAVEAT, "only burst is in both"),
        ({"nvrtc": "13.1"}, False, ComparabilityLevel.CAVEAT, "nvrtc differs: unknown and 13.1"),
        ({"power_limit_w": 300}, False, ComparabilityLevel.CAVEAT, "power limit differs"),
        ({"ecc": False}, False, ComparabilityLevel.CAVEAT, "ecc differs"),
        ({"payload_sha256": "b"}, False, ComparabilityLevel.CAVEAT, "although the commit is the same"),
        ({"payload_sha256": "b", "git_commit": "c1"}, False, ComparabilityLevel.COMPARABLE, ""),
        ({"image": None}, False, ComparabilityLevel.COMPARABLE, ""),
    ],
)
def test_runs_are_comparable_with_a_caveat_or_not_at_all_and_the_reason_is_given(
    change: dict[str, Any], across: bool, level: ComparabilityLevel, reason: str
) -> None:
    found = compare_fingerprints(FIRST, FIRST | change, across_devices=across)
    assert found.level is level
    assert (reason in found.reasons[0]) if reason else found.reasons == ()


def test_on_a_processor_another_number_of_threads_is_another_machine() -> None:
    first = FIRST | {"device_kind": "cpu"}
    assert compare_fingerprints(first, first | {"threads": 2}).level is ComparabilityLevel.REFUSED
    chips = first | {"device_uuid_sha256": "a"}, first | {"device_uuid_sha256": "b"}
    assert compare_fingerprints(*chips).reasons == ("another chip of the same kind",)
    kinds = (chips[0], chips[1] | {"device": "NVIDIA H100"})
    assert "another chip of the same kind" not in compare_fingerprints(*kinds).reasons
    assert "another chip of the same kind" not in compare_fingerprints(*kinds, across_devices=True).reasons
