"""The rehearsal of `make live`, held in the embedded cloud: on simulated time with scripted machines, and, for what a
machine tries by itself, with a real process that runs the real probe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.rest import Rest, endpoints
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.doctor.project import ASSUMPTIONS, Rehearsal, judge_rehearsal, read_rehearsal
from orchestrator.core.doctor.project import check_rehearsal as check
from orchestrator.core.doctor.verdicts import CheckLevel, Subject
from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps, window_exposure
from orchestrator.core.market.pricing import PricedMachine
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Clock
from orchestrator.runs.holds import Accounts
from orchestrator.store.documents import LedgerStore
from tests.integration.live import assumptions
from tests.integration.live.assumptions import LOOKS, looked
from tests.integration.live.place import NotSeen, Place
from tests.integration.live.rehearse import rehearse
from tests.integration.stories.stage import SHEET, Heard, TimelineClock
from tests.support.conversations import lead
from tests.support.scripted_machines import HttpFailure, Script, ScriptedVm, Steps, scripted
from tests.support.simulated_timeline import SimulatedTimeline

RUN = "20261121-040000-live-0001"
NONE_GRANTED = {
    f"us-central1/{metric}": 0.0 for metric in ("PREEMPTIBLE_CPUS", "NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS")
}
CONDITIONS = "the embedded cloud keeps conditions and does not judge by them"


def probing(*, deletes: bool = True, doors: int = 200, driver: str = "none") -> Script:
    """A machine that does what probe.sh does; `doors` is what it is answered where it may not go."""

    def script(vm: ScriptedVm) -> Steps:
        if "bench-probe" not in vm.metadata:
            while True:
                yield 60
        told = json.loads(vm.metadata["bench-probe"])

        def status(method: str, url: str) -> int:
            try:
                vm.request(method, url)
            except HttpFailure as failure:
                return failure.status
            return 200

        base = f"{vm.guest.storage_url}/upload/storage/v1/b/{told['bucket']}/o?uploadType=media&name="
        vms = f"{vm.guest.compute_url}/compute/v1/projects/{vm.guest.project}/zones/{vm.zone}/instances/"
        yield 20
        report = {
            "own": status("POST", f"{base}runs%2F{told['run']}%2Fevents%2Fprobe"),
            "list": status("GET", f"{vm.guest.storage_url}/storage/v1/b/{told['bucket']}/o"),
            **dict.fromkeys(("ledger", "ledger_read", "plan", "client"), doors),
            "other": status("DELETE", vms + told["other"]),
            "driver": driver,
            "uptime": 20,
        }
        vm.request("POST", f"{base}runs%2F{told['run']}%2Fartifacts%2F{vm.name}.json", json.dumps(report).encode())
        if deletes:
            vm.delete_self()
        while True:
            yield 60

    return script


def place_in(cloud: EmbeddedCloud, clock: Clock, caps: Caps | None = None, **other: Any) -> Place:
    key = Bearer(cloud.token)
    bucket = GoogleBucket(cloud.bucket, endpoint=cloud.storage_url, credentials=key)
    price = SHEET.hourly(PricedMachine("e2-standard-4"), "us-central1", "standard", 10, external_ip=True)
    assert price is not None
    made = Place(
        project=cloud.project,
        run=RUN,
        zone="us-central1-a",
        small="e2-standard-4",
        usd_per_hour=price,
        cloud=GoogleCloud(project=cloud.project, endpoint=cloud.compute_url, credentials=key, clock=clock),
        bucket=bucket,
        rest=Rest(key, endpoints(cloud.compute_url, cloud.storage_url), changes=True),
        clock=clock,
        accounts=Accounts(LedgerStore(bucket, clock), caps or Caps(), Heard(), clock),
        preempt=lambda instance: cloud.preempt(instance.name),
        endpoints={"storage": cloud.storage_url, "compute": cloud.compute_url},
        bill=lambda name: sum((row.usd for row in cloud.bill().rows if row.vm == name), Decimal(0)),
        unlike_google={"prefixes": CONDITIONS},
    )
    return replace(made, **other)


@contextmanager
def stage(home: Path, script: Script | None = None, **other: Any) -> Iterator[tuple[EmbeddedCloud, Place]]:
    timeline = SimulatedTimeline()
    with EmbeddedCloud(
        home / "cloud", timeline=timeline, machines=scripted(script or probing()), quotas=NONE_GRANTED
    ) as cloud:
        place = place_in(cloud, TimelineClock(timeline), **other)
        yield cloud, place
        place.rest.close()


def states(found: Rehearsal) -> dict[str, str]:
    return {finding.name: finding.state for finding in found.findings}


def test_every_assumption_is_looked_at_and_nothing_is_left_but_the_verdict(home: Path) -> None:
    with stage(home) as (cloud, place):
        found = rehearse(place, Decimal("0.50"))
        unseen = {"prefixes", "driver", "api-settles"}
        assert states(found) == dict.fromkeys(ASSUMPTIONS, "verified") | dict.fromkeys(unseen, "not seen"), found
        assert all(finding.detail for finding in found.findings)
        assert cloud.instances() == []
        assert {entry.name for entry in place.bucket.list("")} == {"ledger/ledger.json", found.object}
        spent = window_exposure(place.accounts.ledger.read(), "day", place.clock.now()).total
        assert cloud.bill().usd <= spent == Decimal(found.usd_at_most) <= Decimal("0.50")
        assert all(row.has_deadline for row in cloud.bill().rows)


def test_in_a_place_that_is_as_google_says_all_fourteen_are_verified(home: Path) -> None:
    """Those too that the embedded cloud is not like: machines that are refused, a driver, an API that settles."""
    script = probing(doors=403, driver="580.126.09")
    with stage(home, script, unlike_google={}, gpu=True, gpu_usd_per_hour=Decimal("0.40")) as (cloud, place):

        def switched_off() -> str:
            for fault in ({"fault": "api_disabled"}, {"fault": "api_propagation", "minutes": 3}):
                cloud.weather.add({**fault, "api": "iam.googleapis.com"})
            return "iam.googleapis.com"

        place.spare_api = switched_off
        found = rehearse(place, Decimal("0.60"))
        assert states(found) == dict.fromkeys(ASSUMPTIONS, "verified"), found
        assert len(ASSUMPTIONS) == 14
        assert cloud.instances() == []


def test_an_api_that_answers_at_once_settles_nothing(home: Path) -> None:
    with stage(home) as (_cloud, place):
        place.spare_api = lambda: "iam.googleapis.com"
        with pytest.raises(NotSeen, match="is on"):
            assumptions.the_api(place)


def test_a_rehearsal_that_could_cost_too_much_is_refused_before_any_request(home: Path) -> None:
    with stage(home) as (cloud, place):
        with pytest.raises(BudgetExceeded, match=r"can cost up to \$0\.0") as caught:
            rehearse(place, Decimal("0.01"))
        assert caught.value.hint.startswith(f"make live PROJECT={cloud.project} CAP=0.0")
        tight = replace(place.accounts, caps=Caps(day=Decimal("0.01")))
        with pytest.raises(BudgetExceeded):
            rehearse(replace(place, accounts=tight), Decimal("0.50"))
        assert cloud.bill().rows == ()


def test_an_interrupted_rehearsal_leaves_no_machine_and_counts_all_its_cost(home: Path) -> None:
    with stage(home) as (cloud, place):

        def interrupted(_place: Place) -> dict[str, str]:
            request = place.request()
            place.insert(request)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            rehearse(place, Decimal("0.50"), looks={interrupted: ("deadline",)})
        place.clock.sleep(60)
        assert cloud.instances() == []
        assert 0 < cloud.bill().usd <= window_exposure(place.accounts.ledger.read(), "day", place.clock.now()).total


def refuted(place: Place, look: assumptions.Look) -> dict[str, str]:
    names = LOOKS[look]
    return {one.name: one.detail for one in looked(place, look, names) if one.state == "refuted"}


def test_a_machine_that_does_not_delete_itself_refutes_it(home: Path) -> None:
    with stage(home, probing(deletes=False)) as (_, place):
        assert "did not delete itself" in refuted(place, assumptions.the_machine)["self-delete"]


def test_a_machine_that_reaches_the_ledger_refutes_the_conditions(home: Path) -> None:
    with stage(home, unlike_google={}) as (_, place):
        assert refuted(place, assumptions.the_machine)["prefixes"].startswith(
            "it reaches ledger, ledger_read, plan, client"
        )


def test_an_image_that_is_gone_refutes_its_family(home: Path) -> None:
    with stage(home) as (cloud, place):
        cloud.weather.add({"fault": "image_gone", "family": "ubuntu-2404-lts-amd64"})
        assert "ubuntu-2404-lts-amd64" in refuted(place, assumptions.the_images)["image"]


@pytest.mark.parametrize("look", [assumptions.the_deadline, assumptions.the_machine, assumptions.the_preemption])
def test_where_there_is_no_machine_nothing_is_seen_and_nothing_refuted(home: Path, look: assumptions.Look) -> None:
    with stage(home) as (cloud, place):
        cloud.weather.add({"fault": "stockout", "times": 9})
        findings = looked(place, look, LOOKS[look])
        assert {one.state for one in findings} == {"not seen"}


def test_a_preemption_that_leaves_no_operation_is_not_said_to_be_seen(home: Path) -> None:
    with stage(home, preempt=lambda _instance: None) as (_, place):
        found = {one.name: one.state for one in looked(place, assumptions.the_preemption, ("preemption", "spot-quota"))}
        assert found["preemption"] == "not seen"


def test_the_probe_that_a_real_machine_runs_reports_and_deletes_its_machine(home: Path) -> None:
    with EmbeddedCloud(home / "cloud") as cloud:
        place = place_in(cloud, SystemClock())
        found = looked(place, assumptions.the_machine, ("self-delete", "prefixes"))
        place.rest.close()
        assert [(one.name, one.state) for one in found] == [("self-delete", "verified"), ("prefixes", "not seen")], (
            found
        )
        assert cloud.instances() == []


# --- what the doctor says of it -------------------------------------------------------------------------------------


def told(cloud: EmbeddedCloud, place: Place, **other: Any) -> tuple[CheckLevel, str, str]:
    subject = Subject(cloud.project, cloud.bucket, who="user:ada@example.com", **other)
    verdict = check(place.rest, subject)
    return verdict.level, verdict.why, verdict.remedy


def test_the_doctor_says_never_verified_and_then_since_when_and_what_was_not_seen(home: Path) -> None:
    with stage(home) as (cloud, place):
        level, why, remedy = told(cloud, place)
        assert (level, remedy) == (CheckLevel.WARN, f"make live PROJECT={cloud.project} CAP=0.50")
        assert "never verified in this project" in why
        assert told(cloud, place, embedded=True)[0] is CheckLevel.OK
        rehearse(place, Decimal("0.50"), looks={assumptions.the_bucket: ("generation", "date")})
        place.clock.sleep(86_400)
        assert told(cloud, place)[:2] == (CheckLevel.OK, "verified on 2026-11-21: 2 of 14 assumptions")
        again = replace(place, run=RUN.replace("0001", "0002"))
        rehearse(again, Decimal("0.50"), looks={assumptions.the_driver: ("driver",)})
        assert told(cloud, place)[1] == "verified on 2026-11-22: 0 of 14 assumptions; not seen: driver"


def change(**other: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda found: found | other


@pytest.mark.parametrize(
    "spoilt",
    [
        change(schema=2), change(at="yesterday"), change(at="2026-11-21T04:00:00"), change(findings=7), change(project=None),
        change(project="another"), change(findings=[{"name": "date"}]), lambda _found: {},
    ],
)  # fmt: skip
def test_a_verdict_that_is_none_or_of_another_project_verifies_nothing(spoilt: Callable[..., Any], home: Path) -> None:
    with stage(home) as (cloud, place):
        made = Rehearsal(project=cloud.project, at=place.clock.now(), findings=())
        place.bucket.create(made.object, json.dumps(spoilt(json.loads(made.dump()))).encode())
        assert "never verified" in told(cloud, place)[1]


def test_a_refuted_assumption_is_a_failure_that_says_what_was_seen() -> None:
    text = {"name": "deadline", "state": "refuted", "detail": "it was gone 400 s \x1b[2Jafter"}
    found = read_rehearsal({"schema": 1, "project": "p", "at": "2026-11-21T04:00:00+00:00", "findings": [text]})
    assert found is not None
    verdict = judge_rehearsal(found)
    assert verdict.level is CheckLevel.FAIL
    assert "it was gone 400 s" in verdict.why
    assert "\x1b" not in verdict.why
    assert lead(check, Subject("p", "b"), reply={}).result.level is not CheckLevel.OK


def test_the_page_of_assumptions_names_each_rehearsal_once() -> None:
    page = (Path(__file__).parents[3] / "docs" / "assumptions.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ") and "`" in line.split("|")[1]]
    named = [row[0].strip().strip("`") for row in rows]
    assert sorted(named) == sorted(ASSUMPTIONS)
