"""A host that the bucket names, and no command of this user's: nothing is sent to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.errors import Unavailable
from orchestrator.core.hosts import HostRecord, HostRun, parse_target, record_object
from orchestrator.core.naming import plan_object
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.run import events as ev
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.unit.core.builders import planned as planned_run

RUN = "20260921-090000-cpu-0bad"


@dataclass
class Listener:
    """A machine that counts who connects to it."""

    door: socket.socket

    @property
    def name(self) -> str:
        return f"mallory@127.0.0.1:{self.door.getsockname()[1]}"

    def called(self) -> bool:
        try:
            self.door.accept()[0].close()
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        door.setblocking(False)
        yield Listener(door)


def planted(wiring: Wiring, host: str) -> None:
    """A run that was cut short, on a host, as anybody who can write to the bucket can make one up."""
    config, name = wiring.configured(LaunchOptions("cpu", None, ()))
    made = plan_document(wiring.plan(config, name))
    offer: dict[str, Any] = made["offers"][0] | {"zone": parse_target(host).zone, "region": "host", "host": host}
    stored = made | {"mode": "host", "offers": [offer]}
    wiring.bucket.replace(plan_object(RUN), json.dumps(stored).encode(), generation=None)
    log = wiring.log(RUN)
    log.append(planned_run(gpu="cpu", config="cpu", user="mallory", mode="host", ceiling_usd=made["ceiling_usd"]))
    log.append(ev.RunClosed(outcome="preempted", detail="made up", generation=0))


@pytest.mark.usefixtures("cloud")
def test_a_stored_plan_makes_no_client_connect_to_a_host(bench: Bench, listener: Listener) -> None:
    planted(wire(), listener.name)
    refused = bench("launch", "--resume", RUN, code=2).err
    assert "no command on this computer has named it" in refused
    assert "bench doctor --host mallory@127.0.0.1" in refused
    assert not listener.called()


@pytest.mark.parametrize("command", [("status",), ("reap", "--yes")])
@pytest.mark.usefixtures("cloud")
def test_a_stored_record_of_a_host_makes_no_client_connect_to_it(
    bench: Bench, listener: Listener, command: tuple[str, ...]
) -> None:
    wiring, target = wire(), parse_target(listener.name)
    now = wiring.clock.now()
    run = HostRun(run_id=RUN, created_at=now, deadline_at=now + timedelta(hours=1))
    record = HostRecord(target=str(target), runs={f"bench-{RUN}-1": run})
    wiring.bucket.create(record_object(target.zone), record.model_dump_json(by_alias=True).encode())
    bench(*command, code=None)
    assert not listener.called()


def test_a_host_is_connected_to_once_a_command_has_named_it(bench: Bench, listener: Listener) -> None:
    target = parse_target(listener.name)
    with pytest.raises(Unavailable, match="no command on this computer has named it"):
        wire().shell(target)
    wire().name_hosts((listener.name,))
    wire().shell(target)


def test_a_hint_that_is_pasted_runs_nothing_that_a_name_from_the_bucket_holds(bench: Bench) -> None:
    with pytest.raises(Unavailable) as refused:
        wire().shell(parse_target("$(touch${IFS}PWNED)"))
    assert "--host '$(touch${IFS}PWNED)'" in refused.value.hint
