"""Whoever asks a cloud in this process directly gets what a connection brings."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.adapters.google.network import ADAPTERS, PlainSession
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.direct import LISTENERS, asked_directly
from tests.support.patience import PATIENCE_S
from tests.support.scripted_machines import scripted
from tests.support.simulated_timeline import SimulatedTimeline

OBJECTS = "/storage/v1/b/bench-embedded/o"
UPLOAD = f"/upload{OBJECTS}?uploadType=media"
INSTANCES = "/compute/v1/projects/bench-embedded/zones/us-central1-a/instances"
PARTS = b'--x\r\nContent-Type: application/json\r\n\r\n{"name": "p"}\r\n--x\r\n\r\n12\r\n--x--\r\n'
ASKED: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("storage", "POST", f"{UPLOAD}&name=a%2Fb%20%C3%A9", {"data": b"\x00\xff" * 50_000}),
    ("storage", "POST", f"{UPLOAD}&name=c", {"data": "12345"}),
    ("storage", "POST", f"{UPLOAD}&name=c&ifGenerationMatch=0", {"data": b"x"}),
    ("storage", "POST", f"/upload{OBJECTS}?uploadType=multipart", {"data": PARTS, "type": "multipart/related; boundary=x"}),
    ("storage", "GET", f"{OBJECTS}?prefix=a/&fields=items(name,size)", {}),
    ("storage", "GET", f"{OBJECTS}/c?alt=media", {}),
    ("storage", "GET", f"{OBJECTS}/c?alt=media", {"Range": "bytes=1-3"}),
    ("storage", "GET", f"{OBJECTS}/c?alt=media", {"Range": "bytes=9-"}),
    ("storage", "HEAD", f"{OBJECTS}/c?alt=media", {}),
    ("storage", "GET", f"{OBJECTS}/none", {}),
    ("storage", "GET", f"{OBJECTS}/%ff", {}),
    ("storage", "GET", f"{OBJECTS}/late", {}),
    ("storage", "GET", f"{OBJECTS}/cut", {}),
    ("storage", "POST", f"{UPLOAD}&name=lost", {"data": b"stored all the same"}),
    ("storage", "GET", f"{OBJECTS}/lost?alt=media", {}),
    ("storage", "DELETE", f"{OBJECTS}/c", {}),
    ("storage", "GET", OBJECTS, {"Authorization": ""}),
    ("compute", "GET", INSTANCES, {}),
    ("compute", "POST", INSTANCES, {"data": b'{"name": "x"}', "type": "application/json"}),
    ("compute", "POST", INSTANCES, {"data": b"{", "type": "application/json"}),
    ("compute", "POST", INSTANCES, {"data": {"name": "a form"}}),
    ("compute", "GET", INSTANCES, {"Origin": "http://example.com"}),
    ("compute", "GET", INSTANCES, {"Host": "example.com"}),
    ("compute", "GET", INSTANCES, {"Authorization": "Bearer no"}),
    ("compute", "PATCH", INSTANCES, {"data": b"{}", "type": "application/json"}),
    ("control", "GET", "/control/bill", {}),
    ("control", "GET", "/control/nothing", {}),
)  # fmt: skip
WEATHER = [
    {"fault": "http", "status": 503, "path": "/o/late"},
    {"fault": "reset", "path": "/o/cut"},
    {"fault": "reset", "after": "response", "path": "name=lost"},
    {"fault": "clock_skew", "seconds": 40},
]
COMPARED = ("date", "content-length", "content-type", "content-range", "content-encoding", "www-authenticate")
OWN = re.compile(r'"generation": "\d+"|"etag": "[^"]*"|generation=\d+|/\d{16}"|127\.0\.0\.1:\d+')
"""What no two clouds have alike."""


def ask(cloud: EmbeddedCloud, service: str, method: str, target: str, sent: dict[str, Any]) -> Any:
    """What arrives of one answer."""
    kind = {"Content-Type": sent["type"]} if "type" in sent else {}
    headers = kind | {name: value for name, value in sent.items() if name not in ("data", "type")}
    base = {"storage": cloud.storage_url, "compute": cloud.compute_url, "control": cloud.control_url}[service]
    with PlainSession() as session:
        try:
            answer = session.request(
                method, base + target, data=sent.get("data"), timeout=PATIENCE_S,
                headers={"Authorization": f"Bearer {cloud.token}", **headers},
            )  # fmt: skip
        except requests.ConnectionError:
            return "cut"
    kept: dict[str, Any] = {name: answer.headers[name] for name in COMPARED if name in answer.headers}
    # The control service dates its answers by this machine's clock, which goes on between two of them.
    for name in ("content-length", *(["date"] if service == "control" else [])):
        kept[name] = bool(kept.get(name))
    return answer.status_code, OWN.sub("", answer.text), kept


def test_a_cloud_that_is_asked_directly_answers_as_over_a_connection(tmp_path: Path) -> None:
    answers: list[list[Any]] = []
    for directly in (False, True):
        made = EmbeddedCloud(
            tmp_path / str(directly), timeline=SimulatedTimeline(), machines=scripted(lambda _: (yield 1)),
            weather={"faults": WEATHER},
        )  # fmt: skip
        with made as cloud, asked_directly(cloud) if directly else nullcontext():
            answers.append([ask(cloud, *asked) for asked in ASKED])
            assert all(fault["fired"] for fault in cloud.weather.document()["faults"])
    over_a_connection, direct = answers
    for asked, *pair in zip(ASKED, over_a_connection, direct, strict=True):
        assert pair[0] == pair[1], asked[:3]
    assert {"cut", 200, 204, 206, 400, 401, 404, 412, 503} <= {a if a == "cut" else a[0] for a in direct}


def test_a_cloud_is_asked_over_a_connection_where_a_client_may_be_tired_of_waiting(tmp_path: Path) -> None:
    with EmbeddedCloud(tmp_path, weather={"faults": [{"fault": "stall", "seconds": 3600}]}) as cloud:
        key = {"Authorization": f"Bearer {cloud.token}"}
        with asked_directly(cloud), PlainSession() as session, pytest.raises(requests.ReadTimeout):
            session.get(cloud.storage_url + OBJECTS, headers=key, timeout=0.1)


def test_a_cloud_that_was_asked_directly_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedCloud(tmp_path, timeline=SimulatedTimeline()) as cloud, PlainSession() as earlier:
        key, url = {"Authorization": f"Bearer {cloud.token}"}, f"{cloud.control_url}/control/status"
        with asked_directly(cloud), PlainSession() as session:
            assert {*ADAPTERS} >= {f"{cloud.control_url}/"}
            answers = [each.get(url, headers=key, timeout=PATIENCE_S).ok for each in (earlier, session)]
        assert not ({*LISTENERS} | {*ADAPTERS})
        answers.append(session.get(url, headers=key, timeout=PATIENCE_S).ok)
        assert answers == [True, True, True]
    with pytest.raises(requests.ConnectionError):
        session.get(url, headers=key, timeout=PATIENCE_S)
