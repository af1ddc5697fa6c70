"""Asking what exists, without the heavy client, and named errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.adapters.google.compute_json import instance_from_json
from orchestrator.adapters.google.market import GoogleMarket
from orchestrator.core.errors import CredentialsMissing, NotFound, PermissionDenied, Unavailable
from orchestrator.core.market.machines import Instance
from tests.support.scripted_server import Answer, Reply, google_error, in_turn, scripted_server


def listing(*names: str, token: str = "") -> Reply:
    items = [{"name": name, "zone": "https://x/zones/us-central1-a", "id": "7", "status": "RUNNING"} for name in names]
    page: dict[str, Any] = {"items": {"zones/us-central1-a": {"instances": items}, "zones/b": {"warning": {}}}}
    return Reply(200, page | ({"nextPageToken": token} if token else {}))


def alive(url: str) -> tuple[Instance, ...]:
    return GoogleMarket("p", url, pauses_s=(0, 0)).instances()


def test_every_page_is_read() -> None:
    with scripted_server(in_turn(listing("one", token="more"), listing("two"))) as server:
        assert [vm.name for vm in alive(server.url)] == ["one", "two"]


def test_a_server_that_stumbles_is_asked_again() -> None:
    with scripted_server(in_turn(google_error(503, "later", "backendError"), listing("one"))) as server:
        assert [vm.name for vm in alive(server.url)] == ["one"]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (google_error(403, "Required 'compute.instances.list' permission", "forbidden"), PermissionDenied, "instances.list"),
        (Reply(401, data=b"what?"), CredentialsMissing, "list the VMs of p"),
        (Reply(403, data=b"what?"), PermissionDenied, "what?"),
        (google_error(404, "no such project", "notFound"), NotFound, "no such project"),
        (google_error(503, "later", "backendError"), Unavailable, "later"),
        (Reply(200, data=b"not json"), Unavailable, "not a JSON object"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_has_a_name(answer: Answer, kind: type[Exception], words: str) -> None:
    with scripted_server(in_turn(answer)) as server, pytest.raises(kind, match=words):
        alive(server.url)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with scripted_server(in_turn(listing())) as server:
        url = server.url
    with pytest.raises(Unavailable, match="list the VMs of p"):
        alive(url)


def test_a_deadline_is_worked_out_where_the_api_does_not_say_it() -> None:
    found = instance_from_json(
        {
            "name": "vm", "zone": "z/a", "lastStartTimestamp": "2026-11-21T04:00:00.000-08:00",
            "scheduling": {"maxRunDuration": {"seconds": "600"}, "provisioningModel": "SPOT"}, "creationTimestamp": "soon",
        }
    )  # fmt: skip
    assert found.started_at is not None
    assert found.deadline_at == found.started_at + timedelta(minutes=10)
    assert found.created_at == found.started_at
    assert found.preemptible
