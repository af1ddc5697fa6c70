"""An upload that was given up may still arrive, after a newer one. It must not replace what is newer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from startup.agent.clock import AgentClock, Patience
from startup.agent.facts import Files
from startup.agent.logs import LogUploader
from startup.agent.metadata import Metadata
from startup.agent.spec import PhaseTiming
from startup.agent.storage import AgentStorage, StorageError
from startup.host.child import FAILED, MEASURED, attempt_outcome
from startup.host.services import ServedMachine, ServicesServer
from startup.host.spool import Spool
from tests.support.patience import PATIENCE_S, await_truth
from tests.support.scripted_server import Reply, Request, scripted_server
from tests.unit.startup.cloud import BUCKET, RUN, Cloud, Fault
from tests.unit.startup.conducted import cloud_for

Upload = Callable[[str, Patience], bool]
"""Uploads a text; false when it was given up."""
Uploads = Callable[[Cloud, Path], tuple[str, Upload]]
"""The name of an object that is replaced, and what replaces it."""
GIVEN_UP_S = 0.1
"""After so long a request is given up: only the one that the cloud holds must be, and any other is sent again."""
ARTIFACTS = f"runs/{RUN}/artifacts/"


def storage_of(cloud: Cloud) -> AgentStorage:
    timing = PhaseTiming(request_timeout_s=GIVEN_UP_S, retry_first_s=0.01, retry_max_s=0.01)
    storage = AgentStorage(cloud.url, BUCKET, Metadata(cloud.host, AgentClock()), timing)
    storage.names("runs/", patient())  # from now on it has a token
    return storage


@contextmanager
def held(cloud: Cloud, pattern: str) -> Iterator[Fault]:
    """The first request that matches is carried out when the block is over, and is over with it."""
    gate = threading.Event()
    fault = cloud.fail(pattern, until=gate)
    try:
        yield fault
    finally:
        gate.set()
    await_truth(lambda: fault.done == 1, "the late upload")


def once() -> Patience:
    """For one try."""
    return Patience(AgentClock(), 0)


def patient() -> Patience:
    return Patience(AgentClock(), PATIENCE_S)


def log_uploads(cloud: Cloud, folder: Path) -> tuple[str, Upload]:
    log = folder / "log.txt"
    name = ARTIFACTS + "log.txt"
    uploader = LogUploader(log, name, storage_of(cloud), AgentClock(), 1.0)

    def upload(text: str, patience: Patience) -> bool:
        log.write_text(text)
        return uploader.upload(patience)

    return name, upload


def artifact_uploads(cloud: Cloud, folder: Path) -> tuple[str, Upload]:
    files = Files(RUN, folder, storage_of(cloud))

    def upload(text: str, patience: Patience) -> bool:
        (folder / "correctness.csv").write_text(text)
        try:
            files.put("correctness.csv", patience)
        except StorageError:
            return False
        return True

    return ARTIFACTS + "correctness.csv", upload


UPLOADS = pytest.mark.parametrize("uploads", [log_uploads, artifact_uploads])


@UPLOADS
@pytest.mark.parametrize("before", [False, True], ids=["of a new object", "of an object that is there"])
def test_an_upload_that_arrives_late_does_not_replace_a_newer_one(
    tmp_path: Path, uploads: Uploads, before: bool
) -> None:
    with cloud_for() as cloud:
        name, upload = uploads(cloud, tmp_path)
        if before:
            assert upload("begin", patient())
        with held(cloud, f"POST .*{name}"):
            assert not upload("begin, middle", once())
            assert upload("begin, middle, end", patient())
        assert cloud.objects[name] == b"begin, middle, end"


@UPLOADS
def test_an_upload_that_is_given_up_and_arrives_is_followed_by_the_newer_one(tmp_path: Path, uploads: Uploads) -> None:
    with cloud_for() as cloud:
        name, upload = uploads(cloud, tmp_path)
        with held(cloud, f"POST .*{name}"):
            assert not upload("begin", once())
        assert cloud.objects[name] == b"begin"
        assert upload("begin, end", patient())
        assert cloud.objects[name] == b"begin, end"


@UPLOADS
def test_what_an_earlier_attempt_left_is_replaced_even_without_time_left(tmp_path: Path, uploads: Uploads) -> None:
    with cloud_for() as cloud:
        name, upload = uploads(cloud, tmp_path)
        cloud.objects[name] = b"of the first attempt"
        cloud.generations[name] = 7
        await_truth(lambda: upload("of the second", once()))
        assert cloud.objects[name] == b"of the second"


# How a child of a fleet takes its run's last word: what measured may have stored anything under the name of an event.


@pytest.mark.parametrize(
    "nonsense",
    [
        "[" * 100_000, '{"kind": []}', '{"kind": {"a": 1}, "data": 3}', '{"kind": "finished", "data": []}', "\x00",
        "1e999",
    ],
)  # fmt: skip
def test_an_event_that_is_nonsense_hides_no_last_word(nonsense: str, tmp_path: Path) -> None:
    events = tmp_path / "runs" / "r1" / "events"
    events.mkdir(parents=True)
    (events / "20260101-vm-1-9-finished.json").write_text(nonsense)
    assert attempt_outcome(tmp_path, "r1", 1) == (FAILED, "it ended without reporting why")
    finished = {"kind": "finished", "data": {"outcome": "succeeded", "detail": "all is well"}}
    (events / "20260101-vm-1-1-finished.json").write_text(json.dumps(finished))
    assert attempt_outcome(tmp_path, "r1", 1) == (MEASURED, "all is well")


# What a run sends to its steward: uploads of a length that there is, and never without an end.


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999", "1e3"])
def test_an_upload_of_no_length_that_there_is_is_refused_before_it_is_read(length: str, tmp_path: Path) -> None:
    server = ServicesServer(ServedMachine({"vm": "v"}, Spool(tmp_path / "spool")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_address[1])) as asking:
            asking.settimeout(PATIENCE_S)
            head = f"POST /upload/storage/v1/b/x/o HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
            asking.sendall(head.encode())
            assert asking.recv(100).startswith(b"HTTP/1.1 413 ")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# A listing that has ever another page does not hold the agent for longer than it is patient.


def test_a_listing_that_has_ever_another_page_is_given_up_when_patience_is_over() -> None:
    clock, numbers = AgentClock(), count()

    def handle(request: Request) -> Reply:
        if request.path.startswith("/computeMetadata/"):
            return Reply(json={"access_token": "t", "expires_in": 3600}, headers={"Metadata-Flavor": "Google"})
        return Reply(json={"nextPageToken": f"{next(numbers)}"})

    with scripted_server(handle) as server:
        metadata = Metadata(server.url.removeprefix("http://"), clock)
        storage = AgentStorage(server.url, "bench", metadata, PhaseTiming())
        with pytest.raises(StorageError, match="its list of pages does not end"):
            storage.names("runs/", Patience(clock, 0.2))
