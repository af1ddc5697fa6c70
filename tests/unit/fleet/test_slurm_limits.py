"""What a partition allows, and why nothing starts."""

from __future__ import annotations

import pytest

from orchestrator.core.fleet.slurm import time_limits, time_problem, waiting_reason

SAID = """PartitionName=short AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=00:05:00 State=UP
PartitionName=long AllowGroups=ALL Default=NO MaxTime=2-00:00:00 State=UP
PartitionName=free AllowGroups=ALL Default=NO MaxTime=UNLIMITED State=UP
a line of a login message
"""


def test_the_limits_of_all_partitions_are_read_and_the_default_is_known() -> None:
    assert time_limits(SAID) == {"short": 300, "": 300, "long": 172_800, "free": None}
    assert time_limits("") == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("90:30", 5430), ("12:00:00", 43_200), ("1-6", 108_000), ("1-06:30", 109_800), ("INFINITE", None)],
)
def test_every_form_of_a_time_of_slurms_is_read(text: str, seconds: int | None) -> None:
    assert time_limits(f"PartitionName=p MaxTime={text}")["p"] == seconds


@pytest.mark.parametrize(
    ("partition", "child_s", "fits"),
    [("", 100, True), ("", 121, False), ("short", 1800, False), ("long", 1800, True), ("free", 10**7, True),
     ("short,long", 1800, True), ("unknown", 1800, True)],
)  # fmt: skip
def test_a_child_that_asks_for_more_time_than_is_allowed_never_starts(partition: str, child_s: int, fits: bool) -> None:
    problem = time_problem(time_limits(SAID), partition, child_s)
    assert (problem == "") == fits
    assert fits or "allows a job 5 min" in problem


def test_a_reason_is_kept_as_slurm_gives_it_with_what_it_means() -> None:
    assert waiting_reason("PartitionTimeLimit").startswith("PartitionTimeLimit: the partition allows less time")
    assert waiting_reason("(Resources)") == "(Resources): no node that fits is free"
    assert waiting_reason("SomethingNew") == "SomethingNew"
