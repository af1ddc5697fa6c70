"""The laws of advice: what the port says of zones, over an embedded cloud that has advice, and over one that has none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.core.market.offers import Offer, ZoneAdvice, region_of
from orchestrator.embedded.server import EmbeddedCloud
from tests.integration.contract.test_cloud import talker
from tests.support import keyed
from tests.support.discovery import Recorder
from tests.support.scripted_machines import scripted
from tests.support.simulated_clock import TimelineClock
from tests.support.simulated_timeline import SimulatedTimeline

ADVICE = {
    "us-central1-a": {"obtainability": 0.8, "uptime_s": 7200.0, "preemption_rate": 0.125, "list_usd": 0.3612},
    "us-east1-b": {"obtainability": 0.25},
}


def offer(zone: str, price: str = "0.30", machine: str = "g2-standard-4", gpu: str | None = None) -> Offer:
    return Offer("l4", region_of(zone), zone, machine, gpu, 1 if gpu else 0, "SPOT", Decimal(price))


class Sky:
    def __init__(self, embedded: EmbeddedCloud, timeline: SimulatedTimeline, checker: Recorder) -> None:
        self.embedded = embedded
        self.checker = checker
        self.cloud = GoogleCloud(
            embedded.project, embedded.compute_url, credentials=Bearer(embedded.token), clock=TimelineClock(timeline)
        )


def sky_over(home: Path, advice: Any) -> Iterator[Sky]:
    timeline, checker = SimulatedTimeline(), Recorder()
    machines = scripted(talker)
    with EmbeddedCloud(home=home, timeline=timeline, machines=machines, observer=checker, advice=advice) as embedded:
        yield Sky(embedded, timeline, checker)
        assert not checker.problems, checker.problems


@pytest.fixture
def sky(home: Path) -> Iterator[Sky]:
    yield from sky_over(home, ADVICE)


@pytest.fixture
def plain_sky(home: Path) -> Iterator[Sky]:
    yield from sky_over(home, None)


def test_what_is_known_of_a_zone_is_told_and_what_is_not_is_none(sky: Sky) -> None:
    told = sky.cloud.advice([offer("us-central1-a"), offer("us-east1-b"), offer("us-central1-b")])
    assert set(told) == {
        ZoneAdvice("us-central1-a", 0.8, 7200.0, 0.125, Decimal("0.3612"), date(2026, 11, 1), Decimal("0.39732")),
        ZoneAdvice("us-east1-b", 0.25, None, None),
        ZoneAdvice("us-central1-b", None, None, None),
    }


def test_a_machine_with_a_gpu_attached_has_no_history_and_is_not_asked_about_it(sky: Sky) -> None:
    (told,) = sky.cloud.advice([offer("us-central1-a", machine="n1-standard-4", gpu="nvidia-tesla-t4")])
    assert told == ZoneAdvice("us-central1-a", 0.8, 7200.0, None)
    assert "compute.advice.capacityHistory" not in sky.checker.methods


def test_no_more_than_ten_requests_are_made_and_those_for_the_cheapest_zones(sky: Sky) -> None:
    zones = ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "us-east1-c", "us-east1-d", "us-east4-a")
    told = sky.cloud.advice([offer(zone, f"0.{30 + n}") for n, zone in enumerate(zones)])
    assert {found.zone for found in told} == set(zones[:5])
    assert sky.checker.exchanges == 10


def test_nothing_is_asked_about_machines_on_demand(sky: Sky) -> None:
    assert sky.cloud.advice([replace(offer("us-central1-a"), provisioning="STANDARD")]) == ()
    assert sky.checker.exchanges == 0


def test_a_project_without_advice_is_asked_once_and_gives_none(plain_sky: Sky) -> None:
    assert plain_sky.cloud.advice([offer("us-central1-a"), offer("us-east1-b")]) == ()
    assert plain_sky.checker.refused == {501: 1}


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_to_advise_is_no_error(sky: Sky, status: int) -> None:
    fault = {"fault": "http", "service": "compute", "method": "POST", "path": "/advice/", "status": status}
    sky.embedded.weather.replace({"faults": [fault]})
    assert sky.cloud.advice([offer("us-central1-a"), offer("us-east1-b")]) == ()
    assert not sky.embedded.weather.pending


def test_a_zone_that_is_refused_in_the_middle_is_left_out(sky: Sky) -> None:
    offers = [offer("us-central1-a"), offer("us-east1-b", "0.31")]
    fault = {"fault": "http", "service": "compute", "method": "POST", "path": "us-east1/advice/", "status": 503}
    sky.embedded.weather.replace({"faults": [fault]})
    assert [found.zone for found in sky.cloud.advice(offers)] == ["us-central1-a"]


def post(sky: Sky, kind: str, body: Any) -> int:
    url = f"{sky.embedded.compute_url}/compute/v1/projects/{sky.embedded.project}/regions/us-central1/advice/{kind}"
    keyed.know(sky.embedded)
    return keyed.post(url, json=body, timeout=600).status_code


def test_a_request_that_is_not_complete_is_refused_by_the_cloud(sky: Sky) -> None:
    spot = {"scheduling": {"provisioningModel": "SPOT"}}
    selections = {"instanceSelections": {"m": {"machineTypes": ["g2-standard-4"]}}}
    whole = {"instanceFlexibilityPolicy": selections, "instanceProperties": spot, "size": 1}
    assert post(sky, "capacity", whole) == 200
    assert post(sky, "capacity", {**whole, "size": 0}) == 400
    assert post(sky, "capacity", {**whole, "instanceProperties": {}}) == 400
    assert post(sky, "capacity", {**whole, "distributionPolicy": {"zones": [{"zone": "zones/atlantis-a"}]}}) == 400
    assert post(sky, "capacityHistory", {"types": []}) == 400
    attached = {"machineType": "n1-standard-4", "guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4"}]}
    assert post(sky, "capacityHistory", {"types": ["PREEMPTION"], "instanceProperties": attached}) == 400
    assert post(sky, "calendarMode", {}) == 501
