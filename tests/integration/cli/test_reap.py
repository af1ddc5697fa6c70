"""`bench reap`, `bench diagnose`, and what `bench status` says is alive: against machines that nobody remembers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from orchestrator.core.fleet.sweep import Sweep, expand_children
from orchestrator.core.ledger.budget import HoldTerms, Ledger, hold
from orchestrator.core.ledger.unlisted import arm_request
from orchestrator.core.names import plan_object
from orchestrator.core.naming import Mode, artifacts_prefix, instance_name, machine_labels
from orchestrator.core.run import events as ev
from orchestrator.runs.fleet.follow import with_jobs
from orchestrator.store.fleets import FleetRecord, FleetStore, JobRecord
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_start_up import loaded_by
from tests.support.machine_requests import L4
from tests.unit.core.builders import planned as planned_run

pytestmark = pytest.mark.usefixtures("cloud")

RUN = "20261120-010203-l4-00aa"
Weather = Callable[..., None]


def forgotten(wiring: Wiring, run: str = RUN, bucket: str | None = None) -> str:
    """A machine that carries our labels, and whose run is not in the bucket."""
    name = instance_name(run, 1)
    tags = machine_labels(run, 1, "ada", bucket or wiring.bucket.name)
    image = wiring.cloud().image("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")
    wiring.cloud().insert(replace(L4, name=name, labels=tags, image=image, metadata={}, request_id=str(uuid4())))
    return name


def test_a_machine_whose_run_nobody_knows_is_listed_and_deleted_only_when_told_to(
    bench: Bench, weather: Weather
) -> None:
    weather({"fault": "never_boots"})
    name = forgotten(wire())
    shown = bench("status", width=200).out
    assert f"orphan  {L4.zone}/{name}  RUNNING" in shown
    assert "VMs alive now: 1, $0." in shown
    assert "no live run owns 1 of them: `bench reap --yes`" in shown
    assert "google.cloud.compute_v1" not in loaded_by("status")

    listed = bench("reap").out
    assert "is not in this bucket" in listed
    assert "1 VM alive, 1 owned by no live run; `bench reap --yes` deletes them" in listed
    bench("reap", "--yes", "--dry-run")
    document = bench("reap", "--json").document
    (found,) = document["machines"]
    assert (found["name"], found["orphan"], document["deleted"]) == (name, True, 0)
    assert Decimal(found["usd_per_hour"]) > 0
    assert found["deadline_at"] is not None

    assert "1 VM alive, 1 deleted" in bench("reap", "--yes").out
    assert bench("cloud", "status", "--json").document["instances"] == []
    assert bench("reap", "--yes", "--json").document == {
        "schema": 1, "mode": "embedded", "deleted": 0, "machines": [], "images": [], "images_deleted": [],
        "settled": [], "failed": [],
    }  # fmt: skip
    assert "VMs alive now: 0, $0.00/h" in bench("status").out


def test_a_fleet_that_ended_days_ago_without_its_client_holds_no_money(bench: Bench) -> None:
    wiring, fleet = wire(), "fleet-20261120-010203-00cc"
    ended = wiring.clock.now() - timedelta(days=2)
    sweep = Sweep.model_validate({"engine": "slurm", "axes": {"gpu": ["l4"]}, "slurm": {"folder": str(bench.home)}})
    record = FleetRecord(
        fleet=fleet, engine="slurm", mode=Mode.HOST, user="ada", sweep=sweep, created_at=ended - timedelta(hours=4),
        ends_at=ended, hold_usd=Decimal(7),
    )  # fmt: skip
    store = FleetStore(wiring.bucket, wiring.clock, fleet)
    store.create(record, expand_children(sweep, lambda _: ()))
    store.decide(lambda one: with_jobs(one, [JobRecord(number=0, gpu="l4", children=(0,), parallel=1)], 0))
    wiring.accounts().change(
        lambda ledger: hold(ledger, fleet, Decimal(7), 14400, record.created_at, HoldTerms("fleet"))
    )
    wiring.bucket.replace(plan_object(fleet), b"[]", generation=None)  # so that no scheduler of this machine is asked
    bench("reap")
    assert wiring.ledger.read().runs[fleet].settled_usd is None, "it only lists"
    bench("reap", "--yes")
    assert wiring.ledger.read().runs[fleet].settled_usd == Decimal(7)


# --- holds without events -------------------------------------------------------------------------------------------


def take(wiring: Wiring, key: str, *, age: timedelta = timedelta(0), armed: bool = False, usd: str = "0.18") -> None:
    """A hold of half an hour that was taken so long ago, and under which a machine was asked for where it is armed."""
    since = wiring.clock.now() - age

    def change(ledger: Ledger) -> Ledger:
        made = hold(ledger, key, Decimal(usd), 1800, since, HoldTerms("l4", pretend=True))
        found = arm_request(made, key, 1, "client-gone", since, 60) if armed else made
        assert isinstance(found, Ledger)
        return found

    wiring.accounts().change(change)


def settled(wiring: Wiring, key: str) -> Decimal | None:
    return wiring.ledger.read().runs[key].settled_usd


def test_reap_counts_a_hold_without_events_as_spent_once_no_machine_can_run(bench: Bench) -> None:
    wiring = wire()
    take(wiring, RUN, age=timedelta(hours=3), armed=True)
    bench("reap")
    bench("reap", "--yes", "--dry-run")
    assert settled(wiring, RUN) is None, "it only lists"
    ran = bench("reap", "--yes")
    assert settled(wiring, RUN) == Decimal("0.18")
    assert f"settled  {RUN}: its events are gone: the whole hold counts as spent" in ran.out


def test_reap_gives_a_hold_back_under_which_no_machine_was_asked_for(bench: Bench) -> None:
    wiring = wire()
    take(wiring, RUN, age=timedelta(hours=1))
    assert bench("reap", "--yes", "--json").document["settled"] == [
        {"hold": RUN, "why": "no machine was ever requested"}
    ]
    assert settled(wiring, RUN) == 0


def test_reap_leaves_a_run_whose_events_are_there_to_its_clients(bench: Bench) -> None:
    wiring = wire()
    wiring.log(RUN).append(planned_run(mode="embedded"))
    take(wiring, RUN, age=timedelta(hours=3), armed=True)
    bench("reap", "--yes")
    assert settled(wiring, RUN) is None
    bench("stop", RUN)
    assert settled(wiring, RUN) == 0


# --- machines and the timer -----------------------------------------------------------------------------------------


def test_a_machine_of_another_bucket_is_left_alone(bench: Bench, weather: Weather) -> None:
    weather({"fault": "never_boots"})
    wiring = wire()
    name = forgotten(wiring, bucket="somebody-elses")
    assert "it belongs to the bucket somebody-elses" in bench("reap", "--yes").out
    assert [vm["name"] for vm in bench.control("/control/status")["instances"]] == [name]
    wiring.cloud().delete(L4.zone, name, "0e2a0c3c-2f3e-4a44-9d33-3f7d8d3c1a01")


def test_status_says_so_when_the_cloud_cannot_be_asked(bench: Bench, weather: Weather) -> None:
    weather(
        {"fault": "http", "service": "compute", "path": "aggregated", "status": 403, "message": "no right", "times": 2}
    )
    shown = bench("status", width=200).out
    assert "the cloud did not answer" in shown
    assert "VMs alive now: 0" in shown
    assert bench("status", "--json").document["instances"] is None


@pytest.mark.parametrize("works", [True, False], ids=["it starts", "it does not start"])
def test_a_timer_is_written_where_there_is_a_systemd(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit {0 if works else 1}\n')
    (tools / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    said = bench("reap", "--install-timer", width=200).out
    service, timer = (tmp_path / "config/systemd/user" / f"bench-reap.{kind}" for kind in ("service", "timer"))
    assert "reap --yes" in service.read_text()
    assert f"BENCH_HOME={bench.home}" in service.read_text()
    assert "OnUnitActiveSec=15min" in timer.read_text()
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("--user daemon-reload")
    assert ("enable --now bench-reap.timer" in asked) == works
    assert ("runs every 15 minutes" if works else "to start it: systemctl") in said
    again = bench("reap", "--install-timer", "--json").document
    assert (again["active"], again["files"]) == (works, [str(service), str(timer)])


def test_where_there_is_no_systemd_the_line_for_cron_is_printed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = bench("reap", "--install-timer", width=200)
    assert said.out.startswith("*/15 * * * * BENCH_HOME=")
    assert "reap --yes" in said.out
    assert "crontab -e" in said.err


# --- diagnose -------------------------------------------------------------------------------------------------------


def over(wiring: Wiring, run: str, outcome: str, log: str = "", *facts: Any) -> None:
    """A run that ended so."""
    events = wiring.log(run)
    for fact in (planned_run(mode="embedded"), *facts, ev.Settled(cost_usd=Decimal(0), released_usd=Decimal("0.18"))):
        events.append(fact)
    events.append(ev.RunClosed(outcome=outcome))
    if log:
        wiring.bucket.create(f"{artifacts_prefix(run)}log.txt", log.encode(), content_type="text/plain")


def test_a_failure_with_a_name_is_told_with_its_remedy(bench: Bench) -> None:
    over(wire(), RUN, "failed", "booted\nImportError: x.so: undefined symbol: _ZN3c104cuda14ExchangeDeviceEa\n")
    said = bench("diagnose", RUN, width=200).out
    assert f"run {RUN} (failed): abi mismatch" in said
    assert "remedy: rebuild the extension" in said
    found = bench("diagnose", RUN, "--json").document
    assert (found["cause"], found["state"]) == ("abi_mismatch", "failed")
    assert "ExchangeDevice" in found["detail"]


def test_a_failure_without_a_name_is_said_to_have_none_and_its_lines_are_shown(bench: Bench) -> None:
    over(wire(), RUN, "failed", "booted\nthe fan reported an error\nbye\n")
    said = bench("diagnose", RUN).out
    assert "the cause is not known" in said
    assert "  | the fan reported an error" in said
    assert bench("diagnose", RUN, "--json").document["lines"][-1] == "bye"


def test_a_run_that_went_well_has_nothing_to_diagnose(bench: Bench) -> None:
    over(wire(), RUN, "succeeded", "Segmentation fault is a word in this log\n")
    assert "nothing is wrong with it" in bench("diagnose", RUN).out
    assert bench("diagnose", RUN, "--json").document["cause"] is None


def test_a_refusal_is_diagnosed_from_the_events_alone(bench: Bench) -> None:
    message = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
    over(wire(), RUN, "failed", "", ev.InstanceRejected(attempt=1, zone="z", code="QUOTA_EXCEEDED", message=message))
    assert bench("diagnose", RUN, "--json").document["cause"] == "quota_zero"
