"""The order in which workers take files: those that wait are spread among those that compute."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.order import AT_FIRST, BETWEEN, COMPUTING, RANK, WAITING, interleaved, rank

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_named_is_there_and_named_once() -> None:
    named = (*WAITING, *COMPUTING)
    assert [file for file in named if not (ROOT / file).is_file()] == []
    assert len(set(named)) == len(named)


def test_no_two_files_that_wait_follow_each_other_but_the_first() -> None:
    order = list(RANK)
    wait, compute = AT_FIRST
    assert order[: wait + compute] == [*WAITING[:wait], *COMPUTING[:compute]]
    places = [place for place, file in enumerate(order) if file in WAITING]
    assert all(later - earlier > BETWEEN for earlier, later in pairwise(places[wait - 1 :]))


def test_nothing_is_lost_where_there_is_more_of_one_kind_than_of_the_other() -> None:
    for waiting, computing in ((("a", "b", "c", "d"), ()), ((), ("x", "y")), (("a",), ("x", "y", "z", "u"))):
        order = interleaved(waiting, computing)
        assert sorted(order) == sorted([*waiting, *computing])
        assert [one for one in order if one in waiting] == list(waiting)


def test_what_is_not_named_comes_last() -> None:
    assert rank(f"{WAITING[0]}::test_anything") == 0
    assert rank("tests/unit/test_order.py::test_anything") == len(WAITING) + len(COMPUTING)
