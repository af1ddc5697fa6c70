"""The laws of the index of runs, over every bucket."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.ports import Bucket
from orchestrator.store.index import METADATA_BYTES, RunIndex


def run_id(number: int) -> str:
    return f"20261121-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-l4-{number:04x}"


def test_the_status_line_of_a_run_is_in_the_listing(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    index.write(run_id(1), {"phase": "running", "cases": "3/12"}, b'{"a": 1}')
    (line,) = index.list_runs()
    assert line.run_id == run_id(1)
    assert line.status == {"phase": "running", "cases": "3/12"}
    assert line.updated is not None
    assert index.read(run_id(1)) == b'{"a": 1}'


def test_the_last_to_write_wins(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    index.write(run_id(1), {"phase": "running"})
    index.write(run_id(1), {"phase": "succeeded"})
    assert [line.status for line in index.list_runs()] == [{"phase": "succeeded"}]


def test_runs_come_oldest_first(bucket: Bucket) -> None:
    index = RunIndex(bucket)
    for number in (3, 1, 2):
        index.write(run_id(number), {"n": str(number)})
    assert [line.status["n"] for line in index.list_runs()] == ["1", "2", "3"]


def test_what_is_no_run_is_passed_over(bucket: Bucket) -> None:
    bucket.create("index/README.txt", b"hello")
    assert RunIndex(bucket).list_runs() == ()
    assert RunIndex(bucket).read(run_id(9)) is None


def test_a_status_line_that_google_would_refuse_is_refused_before_it_is_sent(bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="metadata holds"):
        RunIndex(bucket).write(run_id(1), {"note": "x" * METADATA_BYTES})
    assert RunIndex(bucket).list_runs() == ()
