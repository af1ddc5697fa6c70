"""What a hostile or unlucky client can do to the object store, by plain HTTP; judged on the disk and by byte counts."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.embedded.errors import no_room
from orchestrator.embedded.objects import Objects
from tests.embedded.builders import Stage
from tests.support.discovery import Discovery
from tests.support.simulated_timeline import SimulatedTimeline

B = "/storage/v1/b/bench-embedded/o"
UP = "/upload/storage/v1/b/bench-embedded/o"
QUANTUM = 256 << 10


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("store") / "below" / "here" / "cloud") as made:
        yield made


class Wire:
    """Requests by hand, on one connection."""

    def __init__(self, stage: Stage) -> None:
        self.host = stage.cloud.storage_url.removeprefix("http://")
        self.token = stage.cloud.token

    def __call__(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, timeout=600)
        try:
            connection.request(method, target, body, {"Authorization": f"Bearer {self.token}"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def begin(self, name: str, described: Any = None, **headers: str) -> str:
        """The target of a new resumable upload."""
        told = json.dumps(described or {})
        status, said, found = self("POST", f"{UP}?uploadType=resumable&name={name}", told, headers)
        assert status == 200, said
        location = found["Location"]
        assert location.startswith(f"http://{self.host}/"), "it would leave this cloud, and its weather"
        return location.removeprefix(f"http://{self.host}")

    def put(self, target: str, data: bytes, span: str) -> tuple[int, bytes, dict[str, str]]:
        return self("PUT", target, data, {"Content-Range": f"bytes {span}"})


@pytest.fixture
def wire(stage: Stage) -> Wire:
    return Wire(stage)


def files(stage: Stage) -> set[Path]:
    """Every file that is anywhere about."""
    root = stage.cloud.home.parents[2]
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def hang_up(raw: socket.socket) -> None:
    """Send no more, and wait until the other end is done with it."""
    raw.shutdown(socket.SHUT_WR)
    try:
        while raw.recv(1 << 12):
            pass
    except OSError:
        pass  # cut off, which is as good
    raw.close()


def multipart(name: str, data: bytes, **told: Any) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"name": name, **told}).encode()
    body = b"--bb\r\nContent-Type: application/json\r\n\r\n" + head + b"\r\n--bb\r\nContent-Type: a/b\r\n\r\n" + data
    return body + b"\r\n--bb--\r\n", {"Content-Type": "multipart/related; boundary=bb"}


HOSTILE = (
    "../../../../../../escape",
    "..",
    "a/../../../../escape",
    "/etc/escape",
    "//escape",
    "a\\..\\..\\escape",
    "a\x01b\x1b[31m",
    "a\x7f",
    "nul\0byte",
    "line\nfeed",
    "carriage\rreturn",
    ".",
    "x" * 1025,
    "é" * 600,
    "index.sqlite",
    "../index.sqlite",
    ".well-known/acme-challenge/x",
    "C:\\escape",
    "~/escape",
    "%2e%2e%2fescape",
    "\U0010ffff" * 10,
    "con/aux|nul?",
    "a" * 255 + "/" + "b" * 300,
)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_leads_a_byte_out_of_the_store_however_it_comes_in(stage: Stage, wire: Wire, name: str) -> None:
    blobs = stage.cloud.home / "objects" / "blobs"
    before = {path for path in files(stage) if "blobs" not in path.parts}
    quoted = quote(name, safe="")
    wire("POST", f"{UP}?uploadType=media&name=plain", b"plain")
    statuses = [wire("POST", f"{UP}?uploadType=media&name={quoted}", b"hostile")[0]]
    body, headers = multipart(name, b"hostile")
    statuses.append(wire("POST", f"{UP}?uploadType=multipart", body, headers)[0])
    status, _, found = wire("POST", f"{UP}?uploadType=resumable&name={quoted}", b"{}")
    if status == 200:
        target = found["Location"].removeprefix(f"http://{wire.host}")
        status = wire("PUT", target, b"hostile")[0]
    statuses.append(status)
    statuses.append(wire("POST", f"{B}/plain/rewriteTo/b/bench-embedded/o/{quoted}", b"{}")[0])
    statuses.append(wire("POST", f"{B}/plain/copyTo/b/bench-embedded/o/{quoted}", b"{}")[0])
    sources = json.dumps({"sourceObjects": [{"name": "plain"}]})
    statuses.append(wire("POST", f"{B}/{quoted}/compose", sources)[0])
    assert set(statuses) in ({200}, {400}), statuses
    after = {path for path in files(stage) if "blobs" not in path.parts}
    assert after == before
    assert all(len(path.name) == 32 and path.parent == blobs for path in blobs.rglob("*"))
    read = wire("GET", f"{B}/{quoted}?alt=media")
    listed = json.loads(wire("GET", f"{B}?prefix={quoted}")[1]).get("items", [])
    if statuses[0] == 200:
        assert (read[0], read[1]) == (200, b"plain")
        assert name in [item["name"] for item in listed]
        assert wire("DELETE", f"{B}/{quoted}")[0] == 204
    else:
        assert read[0] in (400, 404)
        assert name not in [item["name"] for item in listed]


def test_a_path_that_is_not_decoded_twice_reads_no_file_of_the_machine(wire: Wire) -> None:
    for path in (
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/%252e%252e%252fetc%252fpasswd",
        "/bench-embedded/x",
    ):
        for prefix in ("", B, "/download" + B, "/storage/v1/b/..%2f..%2f/o"):
            status, said, _ = wire("GET", f"{prefix}{path}?alt=media")
            assert status in (400, 404, 501), (prefix, path)
            assert b"root:" not in said


def test_a_bucket_is_no_path_either(stage: Stage, wire: Wire) -> None:
    before = files(stage)
    for name in ("..", "../x", "a/b", "A", "", "x" * 80, "a\0b"):
        told = {"Content-Type": "application/json"}
        assert wire("POST", "/storage/v1/b?project=p", json.dumps({"name": name}), told)[0] == 400
        upload = f"/upload/storage/v1/b/{quote(name, safe='') or '-'}/o?uploadType=media&name=x"
        assert wire("POST", upload, b"x")[0] in (404, 501)
    assert files(stage) == before


@pytest.mark.parametrize("names", [("../a", "b/../../c"), ("plain", "x" * 2000)])
def test_a_batch_is_judged_request_by_request(wire: Wire, names: tuple[str, ...]) -> None:
    parts = [
        f"--x\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\nGET {B}/{quote(name, safe='')} HTTP/1.1\r\n\r\n"
        for number, name in enumerate(names)
    ]
    body = "\r\n".join(parts) + "\r\n--x--\r\n"
    wire("DELETE", f"{B}/plain")
    status, said, _ = wire("POST", "/batch/storage/v1", body, {"Content-Type": "multipart/mixed; boundary=x"})
    assert status == 200
    assert said.count(b"HTTP/1.1 404") == 2
    assert said.count(b"response-") == 2


# Checksums


GOOD = base64.b64encode(struct.pack(">I", 0xE3069283)).decode()
"""The check value of CRC-32C: of 123456789."""
DIGITS = b"123456789"
MD5 = base64.b64encode(hashlib.md5(DIGITS).digest()).decode()


@pytest.mark.parametrize(
    ("promise", "status"),
    [
        ({"crc32c": GOOD}, 200),
        ({"md5Hash": MD5}, 200),
        ({"crc32c": "AAAAAA=="}, 400),
        ({"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}, 400),
        ({"crc32c": GOOD, "md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}, 400),
    ],
)
def test_an_upload_that_is_not_what_was_announced_is_refused_and_changes_nothing(
    wire: Wire, promise: dict[str, str], status: int
) -> None:
    wire("POST", f"{UP}?uploadType=media&name=sum", b"before")
    header = ",".join(f"{key.removesuffix('Hash')}={value}" for key, value in promise.items())
    kept = DIGITS if status == 200 else b"before"
    assert wire("POST", f"{UP}?uploadType=media&name=sum", DIGITS, {"X-Goog-Hash": header})[0] == status
    assert wire("GET", f"{B}/sum?alt=media")[1] == kept
    body, headers = multipart("sum", DIGITS, **promise)
    assert wire("POST", f"{UP}?uploadType=multipart", body, headers)[0] == status
    assert wire("GET", f"{B}/sum?alt=media")[1] == kept
    target = wire.begin("sum", promise)
    assert wire("PUT", target, DIGITS)[0] == status
    target = wire.begin("sum")
    assert wire("PUT", target, DIGITS, {"X-Goog-Hash": header})[0] == status
    assert wire("GET", f"{B}/sum?alt=media")[1] == kept


# Resumable uploads


def test_asking_how_far_an_upload_has_got_never_ends_it(wire: Wire) -> None:
    data = os.urandom(2 * QUANTUM)
    target = wire.begin("torn")
    for question in ("*/*", f"*/{len(data)}"):
        status, _, found = wire.put(target, b"", question)
        assert (status, found.get("Range")) == (308, None)
    status, _, found = wire.put(target, data[:QUANTUM], f"0-{QUANTUM - 1}/{len(data)}")
    assert (status, found["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    for question in ("*/*", f"*/{len(data)}"):
        status, _, found = wire.put(target, b"", question)
        assert (status, found["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
        assert wire("GET", f"{B}/torn")[0] == 404
    status, said, _ = wire.put(target, data[QUANTUM:], f"{QUANTUM}-{len(data) - 1}/{len(data)}")
    assert (status, json.loads(said)["size"]) == (200, str(len(data)))
    assert wire("GET", f"{B}/torn?alt=media")[1] == data
    again, said, _ = wire.put(target, b"", "*/*")
    assert (again, json.loads(said)["name"]) == (200, "torn")


def test_of_a_piece_in_the_middle_only_whole_quanta_are_kept_and_overlaps_count_once(wire: Wire) -> None:
    data = os.urandom(QUANTUM + 1000)
    target = wire.begin("ragged")
    status, _, found = wire.put(target, data[: QUANTUM + 10], f"0-{QUANTUM + 9}/*")
    assert (status, found["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    assert wire.put(target, data[QUANTUM + 10 :], f"{QUANTUM + 10}-{len(data) - 1}/{len(data)}")[0] == 400
    assert wire.put(target, data[100:], f"100-{len(data) - 1}/{len(data)}")[0] == 200
    assert wire("GET", f"{B}/ragged?alt=media")[1] == data


def test_an_upload_of_unknown_length_ends_when_its_length_is_told(wire: Wire) -> None:
    target = wire.begin("open")
    assert wire.put(target, b"x" * QUANTUM, f"0-{QUANTUM - 1}/*")[0] == 308
    assert wire.put(target, b"", f"*/{QUANTUM}")[0] == 200
    assert json.loads(wire("GET", f"{B}/open")[1])["size"] == str(QUANTUM)


@pytest.mark.parametrize("span", ["0-9/5", "9-0/20", "0-99/100", "ten", "0-1/2x"])
def test_a_range_that_does_not_fit_its_bytes_is_refused(wire: Wire, span: str) -> None:
    target = wire.begin("odd")
    assert wire.put(target, b"0123456789", span)[0] == 400
    assert wire("GET", f"{B}/odd")[0] == 404


def test_a_body_torn_off_on_its_way_leaves_no_object_and_can_be_gone_on_with(wire: Wire) -> None:
    data = os.urandom(2 * QUANTUM)
    target = wire.begin("cut")
    host, port = wire.host.split(":")
    raw = socket.create_connection((host, int(port)), timeout=600)
    head = (
        f"PUT {target} HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
        f"Content-Length: {len(data)}\r\nContent-Range: bytes 0-{len(data) - 1}/{len(data)}\r\n\r\n"
    )
    raw.sendall(head.encode() + data[: QUANTUM + 500])
    hang_up(raw)
    status, _, found = wire.put(target, b"", f"*/{len(data)}")
    assert (status, found["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")
    assert wire("GET", f"{B}/cut")[0] == 404
    assert wire.put(target, data[QUANTUM:], f"{QUANTUM}-{len(data) - 1}/{len(data)}")[0] == 200
    assert wire("GET", f"{B}/cut?alt=media")[1] == data


def test_a_plain_upload_torn_off_on_its_way_leaves_no_object(wire: Wire) -> None:
    host, port = wire.host.split(":")
    body, kind = multipart("half", b"z" * 5000)
    for query, headers, data in (
        ("media&name=half", "", b"y" * 5000),
        ("multipart", f"Content-Type: {kind['Content-Type']}\r\n", body),
    ):
        raw = socket.create_connection((host, int(port)), timeout=600)
        head = f"POST {UP}?uploadType={query} HTTP/1.1\r\nHost: {wire.host}\r\nAuthorization: Bearer {wire.token}\r\n"
        raw.sendall(f"{head}{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data[:2000])
        hang_up(raw)
        assert wire("GET", f"{B}/half")[0] == 404
    body, kind = multipart("half", b"z" * 5000)
    assert wire("POST", f"{UP}?uploadType=multipart", body[:-12], kind)[0] == 400
    assert wire("GET", f"{B}/half")[0] == 404


def test_a_cancelled_upload_is_gone_and_an_unknown_one_never_was(wire: Wire) -> None:
    target = wire.begin("never")
    assert wire("DELETE", target)[0] == 499
    assert wire.put(target, b"x", "0-0/1")[0] == 499
    assert wire.put(f"{UP}?uploadType=resumable&upload_id=guess", b"x", "0-0/1")[0] == 404


def test_weather_finds_the_pieces_of_a_large_upload_too(stage: Stage, wire: Wire) -> None:
    target = wire.begin("stormy")
    stage.cloud.weather.replace({"faults": [{"fault": "http", "service": "storage", "method": "PUT", "status": 503}]})
    assert wire.put(target, b"x" * 10, "0-9/10")[0] == 503
    assert stage.cloud.weather.pending == ()
    assert wire.put(target, b"x" * 10, "0-9/10")[0] == 200


def test_an_answer_can_be_lost_after_the_work_as_an_error_and_as_a_broken_connection(stage: Stage, wire: Wire) -> None:
    for number, fault in enumerate(({"fault": "reset"}, {"fault": "http", "status": 503})):
        name = f"swap-{number}"
        first = json.loads(wire("POST", f"{UP}?uploadType=media&name={name}", b"0")[1])["generation"]
        lost = {**fault, "service": "storage", "path": "ifGenerationMatch=[1-9]", "after": "response"}
        stage.cloud.weather.replace({"faults": [lost]})
        swap = f"{UP}?uploadType=media&name={name}&ifGenerationMatch={first}"
        if fault["fault"] == "reset":
            with pytest.raises(OSError):  # noqa: PT011 - whatever a broken connection is here
                wire("POST", swap, b"1")
        else:
            assert wire("POST", swap, b"1")[0] == 503
        assert wire("GET", f"{B}/{name}?alt=media")[1] == b"1"
        assert wire("POST", swap, b"1")[0] == 412


# Everything else


def test_reads_of_parts_are_as_asked(wire: Wire) -> None:
    wire("POST", f"{UP}?uploadType=media&name=parts", b"0123456789")
    for span, status, piece in (
        ("bytes=0-3", 206, b"0123"),
        ("bytes=4-", 206, b"456789"),
        ("bytes=-2", 206, b"89"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=99-", 416, b""),
        ("lines=1-2", 200, b"0123456789"),
    ):
        assert wire("GET", f"{B}/parts?alt=media", None, {"Range": span})[:2] == (status, piece)


def test_metadata_is_merged_counted_and_taken_away(wire: Wire) -> None:
    body, headers = multipart("said", b"x", metadata={"a": "1", "b": "2"})
    wire("POST", f"{UP}?uploadType=multipart", body, headers)
    told = {"Content-Type": "application/json"}
    found = json.loads(wire("PATCH", f"{B}/said", '{"metadata": {"a": null, "c": "3"}}', told)[1])
    assert (found["metadata"], found["metageneration"]) == ({"b": "2", "c": "3"}, "2")
    assert wire("PATCH", f"{B}/said?ifMetagenerationMatch=1", "{}", told)[0] == 412
    found = json.loads(wire("PUT", f"{B}/said", '{"metadata": {"d": "4"}}', told)[1])
    assert found["metadata"] == {"d": "4"}
    assert wire("PATCH", f"{B}/said", '{"metadata": {"d": 4}}', told)[0] == 400
    assert wire("PATCH", f"{B}/said", "[]", told)[0] == 400


def test_composed_and_copied_objects_are_what_they_were_made_of(wire: Wire) -> None:
    for name in ("one", "two"):
        wire("POST", f"{UP}?uploadType=media&name={name}", name.encode())
    told = json.dumps({"sourceObjects": [{"name": "one"}, {"name": "two"}], "destination": {"contentType": "a/b"}})
    found = json.loads(wire("POST", f"{B}/both/compose?ifGenerationMatch=0", told)[1])
    assert (found["componentCount"], found["contentType"], found.get("md5Hash")) == (2, "a/b", None)
    assert wire("POST", f"{B}/both/compose?ifGenerationMatch=0", told)[0] == 412
    copied = json.loads(wire("POST", f"{B}/both/rewriteTo/b/bench-embedded/o/copy", b"{}")[1])
    assert (copied["done"], copied["resource"]["contentType"]) == (True, "a/b")
    assert wire("GET", f"{B}/copy?alt=media")[1] == b"onetwo"
    assert wire("POST", f"{B}/one/compose", json.dumps({"sourceObjects": [{"name": "absent"}]}))[0] == 404
    assert wire("POST", f"{B}/one/rewriteTo/b/absent-bucket/o/x", b"{}")[0] == 404


names = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=st.sets(names, max_size=12),
    prefix=st.text("a/é", max_size=2),
    size=st.integers(1, 5),
    delimited=st.booleans(),
)
def test_pages_of_any_listing_together_are_the_sorted_whole(
    tmp_path_factory: pytest.TempPathFactory, found: set[str], prefix: str, size: int, delimited: bool
) -> None:
    from orchestrator.embedded.asking import Ask
    from orchestrator.embedded.objects import Wanted
    from orchestrator.embedded.storage import Storage

    store = Objects(tmp_path_factory.mktemp("pages"), SimulatedTimeline().now)
    store.make_bucket("b")
    for name in found:
        store.commit("b", name, {}, store.incoming(), Wanted())
    api = Storage(store, None, lambda *_: None, lambda: "")  # type: ignore[arg-type]
    items: list[str] = []
    groups: list[str] = []
    token = ""
    for _ in range(40):
        query = (
            f"prefix={quote(prefix)}&maxResults={size}&pageToken={quote(token)}{'&delimiter=/' if delimited else ''}"
        )
        reply = api.list_objects(Ask("GET", f"/storage/v1/b/b/o?{query}", {}, iter(()), 0, True), "b")
        page = json.loads(reply.body)
        items += [item["name"] for item in page.get("items", [])]
        groups += page.get("prefixes", [])
        token = page.get("nextPageToken", "")
        if not token:
            break
    api.sessions.close()
    store.close()
    wanted = sorted((name for name in found if name.startswith(prefix)), key=str.encode)
    rest = {name: name[len(prefix) :] for name in wanted}
    folders = {prefix + text[: text.index("/") + 1] for text in rest.values() if delimited and "/" in text}
    assert items == [name for name in wanted if not (delimited and "/" in rest[name])]
    assert groups == sorted(folders, key=str.encode)


def test_the_object_resource_is_as_google_documents_it(wire: Wire) -> None:
    body, headers = multipart("documented", b"x", metadata={"a": "1"}, cacheControl="no-store")
    judge = Discovery.load("storage.v1")
    _, said, _ = wire("POST", f"{UP}?uploadType=multipart", body, headers)
    assert judge.problems("Object", json.loads(said), "Object", outgoing=False) == []
    _, said, _ = wire("GET", f"{B}?prefix=documented")
    assert judge.problems("Objects", json.loads(said), "Objects", outgoing=False) == []
    _, said, _ = wire("POST", f"{B}/documented/rewriteTo/b/bench-embedded/o/again", b"{}")
    assert judge.problems("RewriteResponse", json.loads(said), "RewriteResponse", outgoing=False) == []
    status, said, _ = wire("GET", "/storage/v1/b/bench-embedded/storageLayout")
    assert status == 200
    assert judge.problems("BucketStorageLayout", json.loads(said), "layout", outgoing=False) == []


def test_a_full_disk_is_told_as_that_and_what_fits_again_is_stored(wire: Wire, stage: Stage) -> None:
    """SQLite's own bound on the pages of a file stands for the disk's."""
    store = stage.cloud.storage.store
    (pages,) = store.index.execute("PRAGMA page_count").fetchone()
    store.index.execute(f"PRAGMA max_page_count={pages}")
    try:
        for at in range(2000):
            status, answer, _ = wire("POST", f"{UP}?uploadType=media&name=full/{at}{'x' * 500}", b"v")
            if status != 200:
                break
    finally:
        store.index.execute("PRAGMA max_page_count=1000000")
    assert status == 507
    assert "full" in json.loads(answer)["error"]["message"]
    assert wire("POST", f"{UP}?uploadType=media&name=full/again", b"v")[0] == 200


def test_only_a_full_disk_is_told_as_one() -> None:
    assert no_room(OSError(errno.ENOSPC, "")) is not None
    assert no_room(OSError(errno.EDQUOT, "")) is not None
    assert [no_room(one) for one in (OSError(errno.EIO, ""), ConnectionResetError(), ValueError())] == [None] * 3
