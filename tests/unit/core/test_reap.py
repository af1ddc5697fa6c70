"""Whether a machine should exist, from its labels and the log of its run."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.fleet.jobs import Life, machine_seconds
from orchestrator.core.market.machines import Instance
from orchestrator.core.naming import bucket_label, machine_labels
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import Policy
from orchestrator.core.run.orphans import (
    Keep,
    Orphan,
    cost_so_far,
    judge_machine,
    judge_of_fleet,
    machine_flags,
    requesting_vm,
)
from orchestrator.core.setup.plan import plan_setup
from orchestrator.core.setup.steps import GrantRole
from tests.unit.core.builders import RATE, RUN, Log, at, created, gone, instance, planned, replayed, requested, running
from tests.unit.core.set_up import WANTED

POLICY = Policy()


def ours(status: str = "RUNNING", started: float | None = 4, **changes: Any) -> Instance:
    return replace(instance(status, started), labels=machine_labels(RUN, 1, "ada", "my-bench"), **changes)


def verdict(machine: Instance, log: Log | None, seconds: float, bucket: str = "my-bench") -> Keep | Orphan:
    return judge_machine(machine, replayed(log) if log else None, bucket, at(seconds), POLICY)


def test_a_machine_of_a_live_run_is_kept() -> None:
    assert verdict(ours(), running(), 60) == Keep(f"run {RUN} is running")


def test_a_machine_that_is_asked_for_and_not_yet_made_is_kept() -> None:
    log = Log().add(0, planned()).add(2, requested())
    assert isinstance(verdict(ours("STAGING", None), log, 20), Keep)


def test_a_machine_of_another_bucket_is_not_ours_to_judge() -> None:
    assert verdict(ours(), None, 60, "another.bucket") == Keep(f"it belongs to the bucket {bucket_label('my-bench')}")


def test_buckets_whose_names_look_alike_in_a_label_are_told_apart() -> None:
    machine = replace(ours(), labels=machine_labels(RUN, 1, "ada", "acme.bench"))
    assert isinstance(verdict(machine, None, 60, "acme-bench"), Keep)
    assert isinstance(verdict(machine, None, 60, "acme.bench"), Orphan)


def test_an_older_versions_machine_is_its_buckets_where_the_label_holds_the_name() -> None:
    older = {**machine_labels(RUN, 1, "ada", "acme-bench"), "bench-bucket": "acme-bench"}
    machine = replace(ours(), labels=older)
    assert isinstance(verdict(machine, None, 60, "acme-bench"), Orphan)
    assert isinstance(verdict(machine, None, 60, "acme.bench"), Keep)


def test_a_bucket_whose_name_a_label_cannot_hold_still_knows_its_machines() -> None:
    machine = replace(ours(), labels=machine_labels(RUN, 1, "ada", "my.bench.example"))
    assert isinstance(verdict(machine, running(), 60, "my.bench.example"), Keep)
    assert isinstance(verdict(machine, None, 60, "my.bench.example"), Orphan)


@pytest.mark.parametrize(
    ("machine", "log", "seconds", "why"),
    [
        (ours(), None, 60, f"run {RUN} is not in this bucket"),
        (replace(ours(), labels={}), None, 60, "its labels name no run"),
        (ours("TERMINATED"), running(), 60, "it stopped without being deleted"),
        (ours(), running(), 4000, "it is 37 min past its deadline"),
        (ours(), running().add(20, ev.RunClosed(outcome="failed")), 60, "its run is over"),
        (ours(zone="asia-east1-a"), running(), 60, "its run never requested it"),
        (ours(), running().add(30, gone(30, "preempted")), 60, "its run gave it up"),
        (ours(), running().add(30, ev.StopRequested(by="bob", reason="enough")), 60, "its run was stopped: enough"),
        (ours(), running().vm(30, ev.Finished(outcome="failed")), 100, "it finished but did not delete itself"),
        (ours(), Log().add(0, planned()).add(2, requested()).add(5, created(4)), 700, "it sent nothing for 12 min"),
        (ours(), running().add(30, requested(attempt=2)), 60, "its run has moved to another machine"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_machine_that_no_live_run_owns_is_an_orphan(
    machine: Instance, log: Log | None, seconds: float, why: str
) -> None:
    found = verdict(machine, log, seconds)
    assert isinstance(found, Orphan)
    assert found.reason.startswith(why)


def test_a_machine_that_is_going_is_left_to_go() -> None:
    assert verdict(ours("STOPPING"), None, 60) == Keep("it is being deleted")


def test_a_machine_that_has_just_finished_may_delete_itself() -> None:
    assert isinstance(verdict(ours(), running().vm(30, ev.Finished(outcome="failed")), 40), Keep)


def test_idle_and_stale_machines_are_flagged() -> None:
    long = replace(ours(), deadline_at=None)
    assert machine_flags(long, replayed(running()), at(60)) == ()
    assert machine_flags(long, replayed(running()), at(10 + 31 * 60)) == ("idle",)
    assert machine_flags(long, None, at(13 * 3600)) == ("idle", "stale")
    found = verdict(long, running(), 13 * 3600)
    assert isinstance(found, Keep)
    assert found.flags == ("idle", "stale")


def test_a_name_alone_does_not_make_an_owner() -> None:
    assert requesting_vm(ours(), None) is None
    assert requesting_vm(ours(zone="asia-east1-a"), replayed(running())) is None
    vm = requesting_vm(ours(), replayed(running()))
    assert vm.usd_per_hour == RATE


def test_what_a_machine_has_cost_is_known_when_its_price_is() -> None:
    assert cost_so_far(ours(), None, at(60)) is None
    assert cost_so_far(ours("STAGING", None), RATE, at(60)) == 0
    assert cost_so_far(ours(), Decimal("3.6"), at(1004)) == 1


@pytest.mark.parametrize(("held", "kind"), [(True, Keep), (False, Orphan)])
def test_a_machine_of_a_fleet_may_be_there_while_its_fleet_holds_money(held: bool, kind: type) -> None:
    machine = replace(ours(), labels={"bench-tool": "spotbench", "bench-fleet": "fleet-20261121-040506-7f3a"})
    found = judge_of_fleet(machine, "fleet-20261121-040506-7f3a", held=held, bucket="b", now=at(60), policy=POLICY)
    assert isinstance(found, kind)


def test_a_machine_of_a_fleet_that_outlived_its_end_is_an_orphan_whatever_is_held() -> None:
    machine = replace(ours(), deadline_at=at(0), labels={})
    late = at(POLICY.deadline_slack_s + 1)
    assert isinstance(judge_of_fleet(machine, "f", held=True, bucket="b", now=late, policy=POLICY), Orphan)


# How long machines can have been there: never less than they were, and no longer than the money lasts.


START = datetime(2026, 11, 21, 4, tzinfo=UTC)
SLACK = timedelta(seconds=30)


def life(began: int, ended: int, parallel: int = 2, *, seen: bool = True) -> Life:
    return Life(START + timedelta(seconds=began), START + timedelta(seconds=ended), parallel, seen)


def test_one_job_lasts_as_long_as_it_says_and_as_the_server_may_be_late() -> None:
    assert machine_seconds([life(0, 100)], SLACK) == 2 * 130
    assert machine_seconds([], SLACK) == 0


def test_a_requested_job_that_is_absent_counts_until_its_gpus_next_one_begins() -> None:
    assert machine_seconds([life(0, 3000, seen=False)], SLACK) == 2 * 3030
    assert machine_seconds([life(200, 3000), life(0, 3000, seen=False)], SLACK) == 2 * 3030


def test_what_outlasted_the_next_ones_start_counts_for_all_of_it() -> None:
    assert machine_seconds([life(0, 500), life(400, 600)], SLACK) == 2 * 500 + 2 * 230


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 9),
)
def test_jobs_one_after_another_never_come_to_more_than_the_time_that_was_held(
    steps: list[tuple[int, int, bool]], parallel: int
) -> None:
    at, lives = 0, []
    for lasts, gap, _ in steps:
        lives.append((at, at + lasts))
        at += lasts + gap
    end = lives[-1][1]
    jobs = [
        life(began, ended if seen else end, parallel, seen=seen)
        for (began, ended), (_, _, seen) in zip(lives, steps, strict=True)
    ]
    found = machine_seconds(jobs, SLACK)
    assert sum((ended - began) * parallel for began, ended in lives) <= found <= parallel * (end + 30)


# Which objects a machine's account reaches.


class ResourceName(str):
    """A resource's name with IAM's `extract`: what stands where the template has its braces, or nothing."""

    def extract(self, template: str) -> str:
        before, _, rest = template.partition("{")
        after = rest.partition("}")[2]
        if before not in self or after not in self.partition(before)[2]:
            return ""
        tail = self.partition(before)[2]
        return tail.partition(after)[0] if after else tail


def allowed(name: str, permission: str, *, bucket: str = "my-bench") -> bool:
    """Whether the machine's account may do that with an object, by the expressions that are granted: evaluated here as
    the Common Expression Language has it, for the few forms that they use."""
    roles = {
        "roles/storage.objectUser": {"create", "get", "list", "delete"},
        "roles/storage.objectViewer": {"get", "list"},
    }
    of_bucket = permission == "list"  # Cloud Storage asks for it on the bucket itself
    resource = {
        "type": "storage.googleapis.com/Bucket" if of_bucket else "storage.googleapis.com/Object",
        "name": f"projects/_/buckets/{bucket}" + ("" if of_bucket else f"/objects/{name}"),
    }
    for step in plan_setup(WANTED):
        if not isinstance(step, GrantRole) or step.on != "bucket" or not step.member.startswith("serviceAccount:"):
            continue
        assert step.condition is not None, "nothing on the bucket without a condition"
        python = step.condition.expression.replace("&&", " and ").replace("||", " or ")
        python = re.sub(r"!(?!=)", " not ", python).replace("startsWith", "startswith").replace("endsWith", "endswith")
        python = python.replace("resource.type", "kind").replace("resource.name", "name")
        held = eval(python, {"__builtins__": {}}, {"kind": resource["type"], "name": ResourceName(resource["name"])})
        if held and permission in roles[step.role]:
            return True
    return False


EVENTS = "runs/20261121-040506-l4-7f3a/events/"


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("runs/20261121-040506-l4-7f3a/events/x.json", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/cases/a.csv", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-vm-1-0a1b2c3d-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-boot-1-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-client-0a1b2c-000001-machine_taken.json", {"list"}),
        ("runs/20261121-040506-l4-7f3a/cases/client-side.csv", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/plan.json", {"list"}),
        ("machines/bench-20261121-040506-l4-7f3a-1.json", {"create", "get", "delete", "list"}),
        ("payloads/ab.tar.gz", {"get", "list"}),
        ("ledger/ledger.json", {"list"}),
        ("index/20261121-040506-l4-7f3a.json", {"list"}),
        ("hosts/host-box-123456.json", {"list"}),
        ("baselines/main.json", {"list"}),
        ("fleets/fleet-20261121-040506-7f3a/control.json", {"list"}),
        ("placement/g2-standard-4.json", {"list"}),
        ("xruns/a", {"list"}),
    ],
)
def test_a_machines_account_reaches_its_runs_and_slots_and_no_money(name: str, permissions: set[str]) -> None:
    assert {one for one in ("create", "get", "delete", "list") if allowed(name, one)} == permissions


def test_a_machines_account_reaches_no_other_bucket() -> None:
    assert not any(allowed("runs/a/cases/x.csv", one, bucket="my-bench-2") for one in ("create", "get", "delete"))
