"""How the compute adapter deletes a VM, and what it says when it cannot."""

from __future__ import annotations

import uuid

import pytest

from orchestrator.core.errors import PermissionDenied, Unavailable
from tests.support.machine_requests import L4
from tests.support.scripted_server import Answer, Drop, Request, google_error, scripted_server
from tests.unit.adapters.compute_script import Compute
from tests.unit.adapters.scripted_compute import cloud, compute, failed


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
