"""A proxy answers in Google's place, or what Google sends is torn: each question has an answer of ours or an error of ours."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from google.auth.credentials import AnonymousCredentials

from orchestrator.adapters.batch.templates import InstanceTemplates
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.images import GoogleImages
from orchestrator.adapters.google.market import CallPatience
from orchestrator.adapters.google.network import Session
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.market.machines import Accepted, Instance
from orchestrator.core.market.offers import Offer
from orchestrator.ports import ImageRequest, ObjectEntry
from tests.support.machine_requests import L4
from tests.support.scripted_server import Answer, Drop, Reply, Request, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.unit.adapters.compute_script import Compute

PROJECT = "bench-project"
ZONE = L4.zone
ONCE = str(UUID(int=7))
JSON = {"Content-Type": "application/json"}
HASTE = CallPatience(pauses_s=(0.0,), operation_s=5.0)
SPOT = Offer(
    gpu="cpu",
    region="us-central1",
    zone=ZONE,
    machine_type="n2-standard-4",
    provisioning="SPOT",
    usd_per_hour=Decimal("0.05"),
    accelerator=None,
    accelerator_count=0,
)
VM = {"name": L4.name, "zone": ZONE, "status": "RUNNING", "id": "5"}
OPERATION = {"name": "operation-1", "operationType": "insert", "id": "7", "status": "DONE"}


def raw(data: bytes, status: int = 200, **headers: str) -> Reply:
    return Reply(status, data=data, headers={**JSON, **{key.replace("_", "-"): text for key, text in headers.items()}})


def stated(document: Any, status: int = 200) -> Reply:
    return raw(json.dumps(document).encode(), status)


ANSWERS: dict[str, Answer] = {
    "a page": raw(b"<html>log in to this network</html>"),
    "nothing": raw(b""),
    "half a document": raw(b'{"name": "x", "sta'),
    "less than was said": raw(b'{"items": []', Content_Length="5000", Connection="close"),
    "what is not packed": raw(b"{}", Content_Encoding="gzip"),
    "half of what was packed": raw(gzip.compress(b"{}" * 5000)[:40], Content_Encoding="gzip"),
    "a way elsewhere": raw(b"", 302, Location="http://127.0.0.1:1/"),
    "no connection": Drop(),
    "502 and a page": raw(b"<html>bad gateway</html>", 502),
    "403 and a page": raw(b"<html>blocked by policy</html>", 403),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """All that asks one server."""

    cloud: GoogleCloud
    images: GoogleImages
    templates: InstanceTemplates
    bucket: GoogleBucket
    folder: Path


QUESTIONS: dict[str, Callable[[Asked], object]] = {
    "insert": lambda at: at.cloud.insert(L4),
    "delete": lambda at: at.cloud.delete(ZONE, L4.name, ONCE),
    "instance": lambda at: at.cloud.instance(ZONE, L4.name),
    "instances": lambda at: at.cloud.instances(),
    "serial": lambda at: at.cloud.serial_output(ZONE, L4.name, 0),
    "operations": lambda at: at.cloud.operations(ZONE, "5"),
    "operations by name": lambda at: at.cloud.operations_by_name(ZONE, L4.name),
    "family": lambda at: at.cloud.image("p", "f"),
    "quotas": lambda at: at.cloud.quotas("us-central1"),
    "advice": lambda at: at.cloud.advice([SPOT]),
    "images": lambda at: at.images.images(),
    "image": lambda at: at.images.image("x"),
    "newest": lambda at: at.images.newest("x"),
    "deprecate": lambda at: at.images.deprecate("x"),
    "seal": lambda at: at.images.seal(ImageRequest("n", "f", ZONE, "d", {}, "", ONCE, 5)),
    "template": lambda at: at.templates.insert({"name": "t"}),
    "template gone": lambda at: at.templates.delete("t"),
    "read": lambda at: at.bucket.read("p/a"),
    "list": lambda at: at.bucket.list("p/"),
    "create": lambda at: at.bucket.create("p/a", b"{}"),
    "replace": lambda at: at.bucket.replace("p/a", b"{}", generation=3),
    "download": lambda at: at.bucket.download(ObjectEntry("p/a", 5, 1, "AAAAAA==", {}), at.folder / "a"),
    "compose": lambda at: at.bucket.compose("p/a", ["p/b"]),
    "time": lambda at: at.bucket.offset(),
}


@dataclass
class Liar:
    """Gives one answer to every request."""

    answer: Answer = ANSWERS["nothing"]

    def __call__(self, _request: Request) -> Answer:
        return self.answer


@pytest.fixture(scope="module")
def lied_to(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Liar, Asked]]:
    liar, clock = Liar(), SimulatedClock()
    with scripted_server(liar) as server:
        bucket = GoogleBucket("b", endpoint=server.url, patience_s=0.01)
        yield (
            liar,
            Asked(
                GoogleCloud(PROJECT, server.url, clock=clock, patience=HASTE),
                GoogleImages(project=PROJECT, endpoint=server.url, clock=clock, patience=HASTE),
                InstanceTemplates(PROJECT, clock, Session(AnonymousCredentials(), server.url)),  # type: ignore[no-untyped-call]
                bucket,
                tmp_path_factory.mktemp("liar"),
            ),
        )
        bucket.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_answer_is_too_strange(question: str, lied_to: tuple[Liar, Asked]) -> None:
    liar, asked = lied_to
    hints: dict[str, str] = {}
    for what, answer in ANSWERS.items():
        liar.answer = answer
        try:
            QUESTIONS[question](asked)
        except BenchError as error:
            hints[what] = error.hint
        except Exception as exc:
            raise AssertionError(f"{question}: {what}") from exc
    assert [what for what, hint in hints.items() if not hint] == []


@pytest.mark.parametrize("answer", ["a page", "half a document", "502 and a page"])
def test_an_insert_whose_answer_cannot_be_read_makes_one_machine(answer: str) -> None:
    script = Compute(after=[ANSWERS[answer]])
    with scripted_server(script) as server:
        found = GoogleCloud(PROJECT, server.url, clock=SimulatedClock(), patience=HASTE).insert(L4)
    assert isinstance(found, Accepted)
    assert (found.instance.name, script.inserted) == (L4.name, 1)


def test_a_delete_that_is_called_done_and_left_the_machine_is_asked_for_anew() -> None:
    script = Compute()
    with scripted_server(script) as server:
        cloud = GoogleCloud(PROJECT, server.url, clock=SimulatedClock(), patience=HASTE)
        cloud.insert(L4)
        script.keep = 1
        cloud.delete(ZONE, L4.name, ONCE)
        assert script.vms == {}
        first, second = server.sent("DELETE")
        assert first.query["requestId"] == ONCE != second.query["requestId"]


def test_a_machine_that_no_delete_ends_is_told() -> None:
    script = Compute()
    with scripted_server(script) as server:
        cloud = GoogleCloud(PROJECT, server.url, clock=SimulatedClock(), patience=HASTE)
        cloud.insert(L4)
        script.keep = 9
        with pytest.raises(Unavailable, match="is done, and the VM is still RUNNING"):
            cloud.delete(ZONE, L4.name, ONCE)


def test_a_delete_does_not_end_another_machine_that_has_the_name_by_now() -> None:
    script = Compute()

    def replacing(request: Request) -> Answer:
        before = dict(script.vms)
        answer = script(request)
        if request.method == "DELETE":
            script.vms[L4.name] = before[L4.name] | {"id": "2002"}
        return answer

    with scripted_server(replacing) as server:
        cloud = GoogleCloud(PROJECT, server.url, clock=SimulatedClock(), patience=HASTE)
        cloud.insert(L4)
        cloud.delete(ZONE, L4.name, ONCE)
        assert len(server.sent("DELETE")) == 1
        left = cloud.instance(ZONE, L4.name)
    assert isinstance(left, Instance)
    assert left.id == "2002"


def test_a_machine_that_two_pages_list_is_one() -> None:
    answers = iter([{**page("RUNNING"), "nextPageToken": "2"}, page("STOPPING")])
    with scripted_server(lambda _: stated(next(answers))) as server:
        (found,) = GoogleCloud(PROJECT, server.url, clock=SimulatedClock(), patience=HASTE).instances()
    assert found.status == "STOPPING"


def page(status: str) -> dict[str, Any]:
    return {"items": {f"zones/{ZONE}": {"instances": [{**VM, "status": status}]}}}
