"""When measurements are too doubtful to decide anything."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.study import Study
from orchestrator.analysis.verdicts import Verdict
from tests.unit.report.written import csv_text, records, studied


def regimes(burst: float, graph: float, length: int = 1024, **changes: str) -> str:
    """One case in burst and in graph; the baseline takes so many times as long in each as it should."""
    rows = []
    for regime, factor in (("burst", burst), ("graph", graph)):
        speeds = {"bench": 1.5, "sdpa:default": 1.0 / factor, "bench:aa": 1.5}
        rows += list(records(lengths=(length,), speeds=speeds, regime=regime, cache="cold", **changes))
    return csv_text(rows)


def test_where_burst_and_graph_disagree_nothing_is_decided_and_the_worst_is_named() -> None:
    found = studied(regimes(1.4, 1.0))
    assert {(one.verdict, one.doubt) for one in found.contrasts} == {(Verdict.INCONCLUSIVE, "regimes disagree")}
    assert "In 1 of 1 case burst and graph disagree about sdpa:default" in found.notes[0]
    assert found.contrasts[0].said == "inconclusive: regimes disagree"
    assert "sdpa:default takes 91" in found.notes[0]
    assert found.answers == 0
    assert {one.verdict for one in studied(regimes(1.2, 1.0)).contrasts} == {Verdict.FASTER}
    assert {one.verdict for one in studied(regimes(1.0, 1.4)).contrasts} == {Verdict.INCONCLUSIVE}


def test_times_below_twenty_microseconds_and_other_caches_and_regimes_raise_no_alarm() -> None:
    short = studied(regimes(1.4, 1.0, length=128))
    assert {one.verdict for one in short.contrasts} == {Verdict.FASTER}
    apart = studied(regimes(1.4, 1.0).replace(",graph,", ",sustained,"))
    assert {one.verdict for one in apart.contrasts} == {Verdict.FASTER}
    lines = regimes(1.4, 1.0).splitlines(keepends=True)
    warm = "".join(line.replace(",cold,", ",warm,") if ",graph," in line else line for line in lines)
    assert {one.verdict for one in studied(warm).contrasts} == {Verdict.FASTER}


def test_one_doubtful_implementation_leaves_others_judged_a_doubtful_subject_none() -> None:
    """A dozen kernels begin sooner in a graph than in a stream, which says nothing of two others that are one each."""

    def judged(**factors: float) -> dict[str, Verdict]:
        speeds = {"bench": 1.5, "sdpa:default": 1.0, "sdpa:math": 0.9, "bench:aa": 1.5}
        rows = []
        for regime in ("burst", "graph"):
            own = {name: speed / (factors.get(name, 1.0) if regime == "burst" else 1) for name, speed in speeds.items()}
            rows += list(records(lengths=(1024,), speeds=own, regime=regime, cache="cold"))
        found = studied(csv_text(rows)).contrasts
        assert len({one.verdict for one in found if one.baseline == "sdpa:default"}) == 1
        return {one.baseline: one.verdict for one in found}

    assert judged(**{"sdpa:math": 1.4}) == {"sdpa:default": Verdict.FASTER, "sdpa:math": Verdict.INCONCLUSIVE}
    assert judged(bench=1.4) == {"sdpa:default": Verdict.INCONCLUSIVE, "sdpa:math": Verdict.INCONCLUSIVE}
    assert judged(**{"bench:aa": 1.4}) == {"sdpa:default": Verdict.INCONCLUSIVE, "sdpa:math": Verdict.INCONCLUSIVE}


def test_what_the_timer_takes_itself_raises_no_alarm() -> None:
    def judged(overhead: str) -> set[Verdict]:
        rows = []
        for regime, factor, timer in (("burst", 1.31, overhead), ("graph", 1.0, "0")):
            speeds = {"bench": 1.5, "sdpa:default": 1.0 / factor, "bench:aa": 1.5}
            rows += records(lengths=(1024,), speeds=speeds, regime=regime, cache="cold", timer_overhead_us=timer)
        return {one.verdict for one in studied(csv_text(rows)).contrasts}

    assert judged("0") == {Verdict.INCONCLUSIVE}
    assert judged("3") == {Verdict.FASTER}


def test_the_alarm_of_one_case_leaves_the_other_cases_alone() -> None:
    good, bad = regimes(1.0, 1.0, length=2048), regimes(1.4, 1.0)
    found = studied(good + "".join(bad.splitlines(keepends=True)[1:]))
    assert {one.case_id.split("-")[3]: one.verdict for one in found.contrasts} == {
        "q1024": Verdict.INCONCLUSIVE, "q2048": Verdict.FASTER,
    }  # fmt: skip


def test_a_measurement_whose_launch_was_not_hidden_is_no_material_for_a_verdict() -> None:
    rows = [row | {"hidden": "true"} for row in records(lengths=(1024,))]
    columns = [*rows[0]]
    slow = [row | {"hidden": "false", "latency_us": "900"} if int(row["block"]) % 2 else row for row in rows]
    found, clean = studied(csv_text(slow, columns)), studied(csv_text(rows, columns))
    assert found.contrasts[0].paired.ratio.mid == pytest.approx(clean.contrasts[0].paired.ratio.mid, rel=0.01)
    assert found.contrasts[0].paired.blocks == 25
    assert "launch not hidden" in found.faults[0]
    open_ = [row | {"hidden": "false"} if row["implementation"] == "sdpa:math" else row for row in rows]
    judged = {one.baseline: one for one in studied(csv_text(open_, columns)).contrasts}
    assert judged["sdpa:math"].said == "inconclusive: launch not hidden"
    assert judged["sdpa:default"].verdict is Verdict.FASTER


@pytest.mark.parametrize(("every", "decided"), [(20, True), (5, False)])
def test_an_implementation_that_was_often_disturbed_is_not_decided(every: int, decided: bool) -> None:
    rows = [
        row | {"shared": str(row["implementation"] == "sdpa:math" and int(row["block"]) % every == 0).lower()}
        for row in records(lengths=(1024,))
    ]
    found = studied(csv_text(rows, [*rows[0]]))
    judged = {one.baseline: one for one in found.contrasts}
    assert judged["sdpa:default"].verdict is Verdict.FASTER
    assert (judged["sdpa:math"].said == "inconclusive: something else used the device") is not decided
    assert any("something else used the device, each time" in note for note in found.notes)


def test_what_differs_by_less_than_the_timer_takes_is_not_decided() -> None:
    found = studied(csv_text(records(lengths=(128,), timer_overhead_us="3")))
    assert {one.baseline: one.said for one in found.contrasts} == {
        "sdpa:default": "inconclusive: below the timer's resolution",
        "sdpa:math": "inconclusive: below the timer's resolution",
    }
    fine = studied(csv_text(records(lengths=(1024,), timer_overhead_us="3")))
    assert {one.verdict for one in fine.contrasts} == {Verdict.FASTER}
    assert fine.cases[0].timings[0].timer_share == pytest.approx(3 / 43.7, rel=0.01)


def test_a_greater_second_control_on_another_implementation_sets_the_noise() -> None:
    rows = records(lengths=(1024,), speeds={"bench": 1.5, "sdpa:default": 1.0, "bench:aa": 1.5, "sdpa:default:aa": 0.9})
    found = studied(csv_text(rows))
    assert {one.implementation for one in found.controls} == {"bench", "sdpa:default"}
    assert found.baselines == ("sdpa:default",)
    noise = found.contrasts[0].noise
    assert noise is not None
    assert noise.floor > 0.1


def test_a_mean_is_within_its_interval_and_there_is_none_where_a_case_has_none() -> None:
    found = studied(csv_text(records(lengths=(128, 256, 1024))))
    mean = found.mean("sdpa:default")
    assert mean is not None
    ratios = [one.paired.ratio.mid for one in found.against("sdpa:default")]
    assert mean.ratio.mid == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert mean.ratio.low < mean.ratio.mid < mean.ratio.high
    assert (mean.cases, mean.decided) == (3, 3)
    few = [*records(lengths=(128,)), *records(lengths=(256,), blocks=3)]
    assert studied(csv_text(few)).mean("sdpa:default") is None


def two_regimes(burst: float, graph: float) -> Study:
    """One case; the kernel's speed-up in each of the two regimes, a per cent of noise."""
    speeds = ({"bench": speed, "sdpa:default": 1.0, "bench:aa": speed} for speed in (burst, graph))
    rows = [
        row
        for regime, own in zip(("burst", "graph"), speeds, strict=True)
        for row in records(lengths=(1024,), speeds=own, regime=regime, cache="cold")
    ]
    return studied(csv_text(rows))


@pytest.mark.parametrize(("burst", "graph", "apart"), [(1.3, 1.3, False), (1.2, 1.3, True), (1.3, 1.2, True)])
def test_two_ratios_whose_intervals_do_not_meet_name_each_other(burst: float, graph: float, apart: bool) -> None:
    found = two_regimes(burst, graph)
    one, other = found.contrasts
    assert (one.setting.regime, other.setting.regime) == ("burst", "graph")
    if apart:
        assert (one.elsewhere, other.elsewhere) == (other.ratio.mid, one.ratio.mid)
        assert any("2 of 2 comparisons the intervals of burst and graph do not overlap" in n for n in found.notes)
    else:
        assert math.isnan(one.elsewhere)
        assert math.isnan(other.elsewhere)
