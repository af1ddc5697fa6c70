"""Which VM that is there already the compute adapter adopts."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from orchestrator.core.errors import Unavailable
from orchestrator.core.market.machines import Accepted, CloudRefusal
from tests.support.machine_requests import L4
from tests.support.scripted_server import google_error
from tests.unit.adapters.scripted_compute import compute, failed


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
