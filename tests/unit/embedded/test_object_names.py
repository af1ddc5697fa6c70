"""No name of an object or a bucket, however hostile, leads out of the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.unit.embedded.builders import Stage
from tests.unit.embedded.wired import UP, B, Wire, multipart


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("store") / "below" / "here" / "cloud") as made:
        yield made


def files(stage: Stage) -> set[Path]:
    """Every file that is anywhere about."""
    root = stage.cloud.home.parents[2]
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


HOSTILE = (
    "../../../../../../escape", "..", "a/../../../../escape", "/etc/escape", "//escape", "a\\..\\..\\escape",
    "a\x01b\x1b[31m", "a\x7f", "nul\0byte", "line\nfeed", "carriage\rreturn", ".", "x" * 1025, "é" * 600,
    "index.sqlite", "../index.sqlite", ".well-known/acme-challenge/x", "C:\\escape", "~/escape", "%2e%2e%2fescape",
    "\U0010ffff" * 10, "con/aux|nul?", "a" * 255 + "/" + "b" * 300,
)  # fmt: skip


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
