"""Which quotas a plan draws on, and what it says where there are none."""

from __future__ import annotations

import pytest

from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import LaunchPlan
from tests.unit.core.asked import TWO, accepted, asked, planned, refused
from tests.unit.core.limited import Limit, limits


@pytest.mark.parametrize(
    ("preemptible", "standard", "fits"),
    [(1, 0, True), (0, 1, True), (0, 0, False)],
    ids=["granted", "falls back", "none"],
)
def test_spot_uses_the_preemptible_quota_where_granted_else_the_standard_one(
    preemptible: int, standard: int, fits: bool
) -> None:
    quotas = limits(GPUS_ALL_REGIONS=1, PREEMPTIBLE_NVIDIA_L4_GPUS=preemptible, NVIDIA_L4_GPUS=standard)
    answer = planned(asked(TWO), quotas=quotas)
    assert isinstance(answer, LaunchPlan) is fits
    if isinstance(answer, PlanRefused):
        assert (
            answer.message == "quota NVIDIA_L4_GPUS in us-east4 is 0, 0 in use; this run needs 1 (and 1 more like it)"
            or (
                answer.message
                == "quota NVIDIA_L4_GPUS in us-central1 is 0, 0 in use; this run needs 1 (and 1 more like it)"
            )
        )


def test_a_granted_quota_that_is_in_use_does_not_fall_back() -> None:
    quotas = {
        "us-east4": (Limit("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, 1, "us-east4"), Limit("NVIDIA_L4_GPUS", 8, 0, "us-east4"))
    }
    plan = accepted(asked(TWO), quotas=quotas)
    assert {offer.region for offer in plan.offers} == {"us-central1"}
    assert plan.notices == (
        "left out for lack of quota: quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-east4 is 1, 1 in use; this run needs 1",
    )


def test_on_demand_draws_on_the_standard_quota() -> None:
    config = asked(TWO + "machine: {provisioning: standard}")
    assert refused(config, quotas=limits(PREEMPTIBLE_NVIDIA_L4_GPUS=4, NVIDIA_L4_GPUS=0)).kind == "quota"
    assert (
        accepted(config, quotas=limits(PREEMPTIBLE_NVIDIA_L4_GPUS=0, NVIDIA_L4_GPUS=1)).offers[0].provisioning
        == "STANDARD"
    )


def test_a_gpu_that_has_no_standard_quota_is_held_to_the_preemptible_one() -> None:
    config = asked("gpu: h100\nregions: [us-central1]")
    assert (
        refused(config, quotas=limits(PREEMPTIBLE_NVIDIA_H100_GPUS=0)).detail["metric"]
        == "PREEMPTIBLE_NVIDIA_H100_GPUS"
    )
    assert accepted(config, quotas=limits(CPUS=8)).offers


def test_a_machine_without_a_gpu_needs_a_quota_of_processors() -> None:
    e2 = asked("gpu: cpu\nregions: [us-central1]")
    assert refused(e2, quotas=limits(CPUS=3)).detail["needs"] == "4"
    assert accepted(e2, quotas=limits(CPUS=3, PREEMPTIBLE_CPUS=4)).offers
    assert accepted(e2, quotas=limits(CPUS=4, PREEMPTIBLE_CPUS=0, GPUS_ALL_REGIONS=0)).offers
    n2 = asked("gpu: cpu\nregions: [us-central1]\nmachine: {type: n2-standard-4}")
    assert refused(n2, quotas=limits(CPUS=99, N2_CPUS=2)).detail["metric"] == "N2_CPUS"


def test_a_quota_that_nobody_knows_rules_nothing_out() -> None:
    assert len(accepted(asked(TWO), quotas={}).offers) == len(accepted(asked(TWO), quotas=None).offers) == 5
