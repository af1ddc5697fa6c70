"""How the compute adapter waits for operations."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import Unavailable
from orchestrator.core.market.machines import Accepted
from tests.support.machine_requests import L4
from tests.support.scripted_server import Answer, Drop, Request, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.unit.adapters.compute_script import Compute
from tests.unit.adapters.scripted_compute import cloud, compute


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
