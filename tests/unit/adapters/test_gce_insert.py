"""What the compute adapter does when a VM is asked for: lost answers, refusals and silence."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing, PermissionDenied, Unavailable
from orchestrator.core.market.machines import Accepted, CloudRefusal
from tests.support.machine_requests import L4, RUN, l4
from tests.support.ports import deaf_port
from tests.support.scripted_server import Answer, Drop, Request, Stall, google_error, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.unit.adapters.compute_script import Compute
from tests.unit.adapters.scripted_compute import cloud, compute, failed
from tests.unit.adapters.test_gce_body import FLEX, GOLDEN_FLEX, GOLDEN_L4
from tests.unit.adapters.test_gce_errors import STOCKOUT


def test_an_accepted_request_is_a_vm_with_its_id_and_times() -> None:
    with compute(polls=2) as (_script, server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, Accepted)
        vm = answer.instance
        assert (vm.name, vm.zone, vm.id, vm.machine_type) == (L4.name, "us-central1-a", "1001", "g2-standard-4")
        assert (vm.status, vm.preemptible, vm.labels["bench-run"]) == ("RUNNING", True, RUN)
        assert vm.created_at == datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)
        assert vm.started_at == datetime(2026, 11, 21, 4, 5, 16, tzinfo=UTC)
        assert vm.deadline_at == datetime(2026, 11, 21, 4, 35, 16, tzinfo=UTC)
        (insert,) = server.sent("POST", "/instances")
        assert insert.query["requestId"] == L4.request_id
        assert insert.json == GOLDEN_L4


@pytest.mark.parametrize("polls", [10**6, 0], ids=["its operation stays open", "its operation is done"])
def test_a_machine_in_the_queue_is_accepted_before_it_runs(polls: int) -> None:
    with compute(polls=polls, queue=True) as (_script, server, ours):
        answer = ours.insert(FLEX)
        assert isinstance(answer, Accepted)
        vm = answer.instance
        assert (vm.status, vm.started_at, vm.preemptible) == ("PENDING", None, False)
        assert server.sent("POST", "/instances")[0].json == GOLDEN_FLEX
        assert len(server.sent("GET", "/instances")) <= 2


def test_a_queue_that_is_left_at_once_is_a_stock_out_of_its_zone() -> None:
    with compute(failures=[failed("ZONE_RESOURCE_POOL_EXHAUSTED", "none", 503)]) as (_script, _server, ours):
        answer = ours.insert(FLEX)
        assert isinstance(answer, CloudRefusal)
        assert (answer.scope, answer.stock_out) == ("zone", True)


@pytest.mark.parametrize(
    "trouble", [Drop(), google_error(503, "later", "backendError"), google_error(429, "slow down")]
)
def test_an_insert_whose_answer_is_lost_makes_exactly_one_vm(trouble: Answer) -> None:
    with compute(after=[trouble, trouble]) as (script, server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, Accepted)
        assert (script.inserted, len(script.vms)) == (1, 1)
        sent = server.sent("POST", "/instances")
        assert len(sent) == 3
        assert {request.query["requestId"] for request in sent} == {L4.request_id}


@pytest.mark.parametrize("trouble", [Drop(), google_error(500, "oops"), google_error(503, "later")])
def test_a_passing_trouble_is_waited_out_on_the_clock(trouble: Answer) -> None:
    clock = SimulatedClock()
    with scripted_server(Compute(before=[trouble, trouble])) as server:
        assert isinstance(cloud(server.url, clock).insert(L4), Accepted)
    assert clock.slept[:2] == [0.5, 1.0]


def test_a_server_that_is_not_there_is_asked_five_times_and_then_reported() -> None:
    clock = SimulatedClock()
    with pytest.raises(Unavailable, match=r"cannot create the VM bench-.*127\.0\.0\.1:\d+ does not answer"):
        cloud(f"http://127.0.0.1:{deaf_port()}", clock).insert(L4)
    assert clock.slept == [0.5, 1.0, 2.0, 4.0]


def test_a_server_that_never_answers_is_reported() -> None:
    with scripted_server(lambda _request: Stall()) as server, pytest.raises(Unavailable):
        cloud(server.url, request_s=0.1).insert(L4)


def test_an_operation_that_is_done_with_errors_and_http_200_is_a_refusal() -> None:
    with compute(failures=[{"error": {"errors": [STOCKOUT]}}]) as (script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert answer.scope == "zone"
        assert answer.zones_available == ("us-central1-a", "us-central1-f")
        assert script.vms == {}


def test_a_stock_out_with_http_503_is_not_asked_for_again() -> None:
    with compute(failures=[{"error": {"errors": [STOCKOUT]}, "httpErrorStatusCode": 503}]) as (_s, server, ours):
        assert isinstance(ours.insert(L4), CloudRefusal)
        assert len(server.sent("POST", "/instances")) == 1


def test_a_stock_out_told_at_once_is_not_mistaken_for_a_passing_trouble() -> None:
    at_once = google_error(503, "no resources", "ZONE_RESOURCE_POOL_EXHAUSTED")
    with compute(before=[at_once]) as (_script, server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert (answer.scope, len(server.requests)) == ("zone", 1)


def test_the_error_that_the_table_knows_counts_among_several() -> None:
    errors = {"error": {"errors": [{"code": "SOMETHING_ELSE"}, STOCKOUT]}}
    with compute(failures=[errors]) as (_script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert answer.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"


@pytest.mark.parametrize(
    ("message", "scope"),
    [("Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", "all"),
     ("Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-central1.", "region")],
)  # fmt: skip
def test_a_quota_blocks_its_region_or_everything(message: str, scope: str) -> None:
    with compute(failures=[failed("QUOTA_EXCEEDED", message, 403)]) as (_script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert (answer.scope, answer.code) == (scope, "QUOTA_EXCEEDED")
        assert "quotas" in answer.hint
    with compute(before=[google_error(403, message, "quotaExceeded")]) as (_script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert answer.scope == scope


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (google_error(403, "Required 'compute.instances.create' permission for 'projects/p'", "forbidden"),
         PermissionDenied, "grant `compute.instances.create`"),
        (google_error(403, "Compute Engine API has not been used", "accessNotConfigured"), PermissionDenied, "enable"),
        (google_error(401, "Invalid Credentials", "authError"), CredentialsMissing, "gcloud auth"),
    ],
)  # fmt: skip
def test_what_no_zone_would_mend_is_raised(answer: Answer, error: type[BenchError], words: str) -> None:
    with compute(before=[answer]) as (_script, server, ours):
        with pytest.raises(error) as raised:
            ours.insert(L4)
        assert words in raised.value.hint
        assert len(server.requests) == 1


def test_an_operation_that_lacks_a_right_is_raised() -> None:
    fault = failed(
        "SERVICE_ACCOUNT_ACCESS_DENIED", "The user does not have access to service account 'bench-vm@…'", 400
    )
    with compute(failures=[fault]) as (_script, _server, ours), pytest.raises(PermissionDenied, match="bench-vm"):
        ours.insert(L4)


def test_a_request_at_fault_is_refused_for_all_zones() -> None:
    invalid = google_error(400, "Invalid value for field 'resource.name'", "invalid")
    with compute(before=[invalid]) as (_script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert answer.scope == "all"


def test_a_request_that_google_would_refuse_is_not_sent() -> None:
    with compute() as (_script, server, ours):
        with pytest.raises(ConfigError):
            ours.insert(l4(max_run_s=1))
        assert server.requests == []


# Which VM that is there already the compute adapter adopts.


def test_a_vm_of_this_run_that_is_there_already_is_adopted() -> None:
    with compute() as (script, _server, ours):
        first = ours.insert(L4)
        again = ours.insert(replace(L4, request_id=str(uuid.uuid4())))
        assert first == again
        assert script.inserted == 1


def test_adoption_waits_for_the_insert_that_is_still_going_on() -> None:
    with compute(polls=3) as (script, server, ours):
        ours.insert(L4)
        next(iter(script.operations.values())).update(status="RUNNING", _left=2)
        before = len(server.sent("POST", "/wait"))
        assert isinstance(ours.insert(replace(L4, request_id=str(uuid.uuid4()))), Accepted)
        assert len(server.sent("POST", "/wait")) - before == 2


def test_a_vm_of_another_run_is_never_adopted() -> None:
    with compute() as (script, _server, ours):
        ours.insert(L4)
        script.vms[L4.name]["labels"] = {**L4.labels, "bench-run": "20200101-000000-l4-0000"}
        answer = ours.insert(replace(L4, request_id=str(uuid.uuid4())))
        assert isinstance(answer, CloudRefusal)
        assert (answer.scope, answer.code) == ("all", "alreadyExists")
        assert "does not belong to this run" in answer.hint


def test_a_name_that_was_taken_and_is_free_again_is_an_error_that_passes() -> None:
    with compute(before=[google_error(409, "exists", "alreadyExists")]) as (_script, _server, ours):
        with pytest.raises(Unavailable, match="was deleted meanwhile"):
            ours.insert(L4)
        assert isinstance(ours.insert(L4), Accepted)


def test_an_operation_that_finds_the_vm_there_adopts_it_too() -> None:
    with compute() as (script, _server, ours):
        first = ours.insert(L4)
        operation = next(iter(script.operations.values()))
        operation.update(failed("RESOURCE_ALREADY_EXISTS", "exists", 409))
        assert ours.insert(L4) == first  # the same request id, so the same operation
        assert script.inserted == 1


def test_a_vm_that_was_preempted_before_it_could_be_looked_at_is_known_by_its_id() -> None:
    with compute(vanish=True) as (_script, _server, ours):
        answer = ours.insert(L4)
        assert isinstance(answer, Accepted)
        assert (answer.instance.id, answer.instance.status) == ("1001", "TERMINATED")
        assert ours.instance(L4.zone, L4.name) is None


# How the compute adapter waits for operations.


def test_operations_are_waited_for_at_our_own_endpoint() -> None:
    with compute(polls=3) as (_script, server, ours):
        ours.insert(L4)
        assert len(server.sent("POST", "/wait")) == 3


def test_an_operation_that_takes_for_ever_is_given_up_on() -> None:
    clock = SimulatedClock()
    with scripted_server(Compute(polls=10_000)) as server, pytest.raises(Unavailable, match="not done after 20 s"):
        cloud(server.url, clock, operation_s=20.0).insert(L4)
    assert 20 <= sum(clock.slept) < 30


def test_while_an_operation_is_waited_for_a_broken_connection_is_mended() -> None:
    script = Compute(polls=3)
    breaks = [True, False, True]

    def shaky(request: Request) -> Answer:
        return Drop() if request.path.endswith("/wait") and breaks and breaks.pop() else script(request)

    with scripted_server(shaky) as server:
        assert isinstance(cloud(server.url).insert(L4), Accepted)
        assert len(server.sent("POST", "/wait")) == 5
        assert script.inserted == 1


@pytest.mark.parametrize("there", [True, False])
def test_a_forgotten_operation_is_judged_by_whether_the_vm_is_there(there: bool) -> None:
    script = Compute(vanish=not there)

    def forgetting(request: Request) -> Answer:
        answer = script(request)
        script.operations.clear()
        return answer

    with scripted_server(forgetting) as server:
        if there:
            assert isinstance(cloud(server.url).insert(L4), Accepted)
        else:
            with pytest.raises(Unavailable, match="no longer knows"):
                cloud(server.url).insert(L4)


# How the compute adapter deletes a VM, and what it says when it cannot.


def test_a_delete_returns_when_the_vm_is_gone_and_again_when_there_is_none() -> None:
    with compute(polls=2) as (script, server, ours):
        ours.insert(L4)
        request_id = str(uuid.uuid4())
        ours.delete(L4.zone, L4.name, request_id)
        assert script.vms == {}
        ours.delete(L4.zone, L4.name, request_id)
        assert server.sent("DELETE")[0].query["requestId"] == request_id


def test_a_delete_whose_answer_is_lost_succeeds() -> None:
    with compute() as (script, _server, ours):
        ours.insert(L4)
        script.after.append(Drop())
        ours.delete(L4.zone, L4.name, str(uuid.uuid4()))
        assert script.vms == {}


def test_a_delete_that_failed_is_tried_under_a_new_request_id() -> None:
    with compute() as (script, server, ours):
        ours.insert(L4)
        script.keep = 1
        script.failures.append(failed("INTERNAL_ERROR", "oops", 500))
        ours.delete(L4.zone, L4.name, L4.request_id)
        assert script.vms == {}
        sent = server.sent("DELETE")
        assert len(sent) == 2
        assert sent[0].query["requestId"] != sent[1].query["requestId"]


def test_a_vm_that_cannot_be_deleted_is_an_error_never_silence() -> None:
    with compute(keep=2) as (script, _server, ours):
        ours.insert(L4)
        script.failures.extend([failed("INTERNAL_ERROR", "oops", 500)] * 2)
        with pytest.raises(Unavailable, match="INTERNAL_ERROR oops") as raised:
            ours.delete(L4.zone, L4.name, L4.request_id)
        assert "bench stop" in raised.value.hint


def test_a_delete_whose_operation_is_forgotten_is_judged_by_whether_the_vm_is_there() -> None:
    script = Compute()

    def forgetting(request: Request) -> Answer:
        answer = script(request)
        if request.method == "DELETE":
            script.operations.clear()
        return answer

    with scripted_server(forgetting) as server:
        cloud(server.url).insert(L4)
        script.keep = 1
        cloud(server.url).delete(L4.zone, L4.name, L4.request_id)
        assert script.vms == {}
        assert len(server.sent("DELETE")) == 2


def test_a_delete_that_is_not_allowed_is_raised() -> None:
    with compute() as (script, _server, ours):
        ours.insert(L4)
        script.before.append(google_error(403, "Required 'compute.instances.delete' permission", "forbidden"))
        with pytest.raises(PermissionDenied, match="cannot delete the VM"):
            ours.delete(L4.zone, L4.name, str(uuid.uuid4()))
