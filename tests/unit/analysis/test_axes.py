"""Times along an axis of a sweep: what is compared is alike, and limits are those of independent estimates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest

from orchestrator.analysis.axes import Along, Measured, axis_views, geometric_mean
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.devices import Time
from orchestrator.analysis.regimes import Setting

BURST = Setting("burst", "cold")


def times(base: float, cases: Iterable[str] = ("a", "b"), setting: Setting = BURST) -> list[Time]:
    return [
        Time(case, setting, name, Interval(0.9 * us, us, 1.1 * us))
        for place, case in enumerate(cases)
        for name, us in (("bench", base * 4**place), ("sdpa", 2 * base * 4**place))
    ]


def swept(*points: Measured, **axes: Sequence[str]) -> tuple[Along, ...]:
    return axis_views({name.replace("_", "."): values for name, values in axes.items()}, points)


def test_there_is_a_line_for_each_device_and_implementation_in_numeric_order() -> None:
    points = [
        Measured(gpu, {"tile": tile}, times(float(tile) * scale))
        for gpu, scale in (("l4", 1.0), ("t4", 3.0))
        for tile in ("128", "16", "64")
    ]
    (view,) = swept(*points, tile=("128", "16", "64"))
    assert (view.axis, view.values, view.numbers, view.timed, view.alike) == (
        "tile", ("16", "64", "128"), (16.0, 64.0, 128.0), "burst, cold", True,
    )  # fmt: skip
    assert [(line.device, line.implementation) for line in view.lines] == [
        ("l4", "bench"), ("l4", "sdpa"), ("t4", "bench"), ("t4", "sdpa"),
    ]  # fmt: skip
    first = view.lines[0]
    assert [point.value for point in first.points] == ["16", "64", "128"]
    assert [point.time_us.mid for point in first.points] == pytest.approx([32.0, 128.0, 256.0])  # of x and 4 x
    assert {point.cases for point in first.points} == {2}


def test_what_is_fixed_beside_an_axis_has_a_view_of_its_own() -> None:
    points = [
        Measured("l4", {"a": a, "b": b}, times(1.0 + int(a) + 10 * int(b))) for a in ("1", "2") for b in ("3", "4", "5")
    ]
    views = swept(*points, a=("1", "2"), b=("3", "4", "5"))
    assert [(view.axis, view.fixed) for view in views] == [
        ("a", (("b", "3"),)), ("a", (("b", "4"),)), ("a", (("b", "5"),)), ("b", (("a", "1"),)), ("b", (("a", "2"),)),
    ]  # fmt: skip


def test_only_cases_that_every_point_has_are_compared() -> None:
    points = [Measured("l4", {"n": "1"}, times(1.0, "ab")), Measured("l4", {"n": "2"}, times(1.0, "bc"))]
    (view,) = swept(*points, n=("1", "2"))
    assert view.alike
    assert [point.time_us.mid for point in view.lines[0].points] == pytest.approx([4.0, 1.0])


def test_where_no_case_is_shared_each_point_has_its_own_and_that_is_said() -> None:
    points = [Measured("l4", {"n": "1"}, times(1.0, "a")), Measured("l4", {"n": "2"}, times(1.0, "b"))]
    (view,) = swept(*points, n=("1", "2"))
    assert not view.alike


def test_an_axis_that_changes_the_caches_is_compared_by_regime() -> None:
    points = [
        Measured("l4", {"measure.cache": cache}, times(base, setting=Setting("burst", cache)))
        for cache, base in (("cold", 4.0), ("warm", 1.0))
    ]
    (view,) = swept(*points, measure_cache=("cold", "warm"))
    assert (view.timed, view.numbers) == ("burst", None)
    assert [point.time_us.mid for point in view.lines[0].points] == pytest.approx([8.0, 2.0])


def test_ways_of_timing_that_only_some_points_share_are_left_out() -> None:
    both = [*times(1.0), *times(2.0, setting=Setting("graph", "warm"))]
    points = [Measured("l4", {"n": "1"}, both), Measured("l4", {"n": "2"}, times(1.0))]
    assert [view.timed for view in swept(*points, n=("1", "2"))] == ["burst, cold"]


def test_a_line_of_one_point_and_an_axis_of_one_value_are_none() -> None:
    assert swept(Measured("l4", {"n": "1"}, times(1.0)), n=("1",)) == ()
    assert swept(Measured("l4", {"n": "1"}, times(1.0)), n=("1", "2")) == ()


def test_a_mean_of_many_independent_cases_is_known_better_than_one_of_them() -> None:
    one = Interval(0.9, 1.0, 1.0 / 0.9)
    found = geometric_mean([one] * 16)
    assert found.mid == pytest.approx(1.0)
    assert math.log(found.high) == pytest.approx(math.log(one.high) / 4)
    assert math.log(found.low) == pytest.approx(math.log(one.low) / 4)


def test_limits_that_are_not_known_for_one_case_are_not_known_for_the_mean() -> None:
    assert not geometric_mean([Interval(0.9, 1.0, 1.1), Interval(math.nan, 2.0, math.nan)]).known
