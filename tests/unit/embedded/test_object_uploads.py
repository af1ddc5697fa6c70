"""Uploads that are damaged, torn off, resumed or cancelled."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import struct

import pytest

from tests.unit.embedded.builders import Stage
from tests.unit.embedded.wired import UP, B, Wire, multipart

QUANTUM = 256 << 10


def hang_up(raw: socket.socket) -> None:
    """Send no more, and wait until the other end is done with it."""
    raw.shutdown(socket.SHUT_WR)
    try:
        while raw.recv(1 << 12):
            pass
    except OSError:
        pass  # cut off, which is as good
    raw.close()


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
