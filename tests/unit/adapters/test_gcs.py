"""What the storage adapter does when the service is slow, wrong, forbidden or not there at all."""

from __future__ import annotations

import base64
import gzip
import json
import time
import tracemalloc
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import google_crc32c
import pytest

from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    LocalError,
    NotFound,
    PermissionDenied,
    ProviderError,
    QuotaExceeded,
    Unavailable,
)
from orchestrator.core.naming import index_object, run_id
from orchestrator.ports import ObjectEntry
from orchestrator.store.index import RECENT, RunIndex
from tests.support.patience import PATIENCE_S
from tests.support.ports import deaf_port
from tests.support.scripted_server import (
    Answer,
    Drop,
    Handle,
    Reply,
    Request,
    Stall,
    google_error,
    in_turn,
    scripted_server,
)
from tests.support.storage_server import storage_server


def checksum(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


def download(data: bytes, claimed: bytes | None = None) -> Reply:
    """A download whose checksum is that of `claimed`."""
    crc = checksum(data if claimed is None else claimed)
    return Reply(data=data, headers={"x-goog-hash": f"crc32c={crc}", "x-goog-generation": "7"})


def uploaded(name: str = "x") -> Reply:
    return Reply(json={"name": name, "bucket": "b", "generation": "7", "crc32c": "AAAAAA=="})


GOOGLES_S = 115
"""Less than the client's own patience of two minutes, and more than a machine may stand still."""


def bucket(url: str, patience_s: float = PATIENCE_S) -> GoogleBucket:
    return GoogleBucket("bench", endpoint=url, patience_s=patience_s)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_not_followed_so_no_token_goes_elsewhere(status: int) -> None:
    with scripted_server(lambda _: Reply(json={})) as other:
        away = Reply(status=status, json={}, headers={"Location": other.url + "/elsewhere"})
        with scripted_server(lambda _: away) as server:
            mine = GoogleBucket("bench", endpoint=server.url, credentials=Bearer("secret"), patience_s=PATIENCE_S)
            for use in (lambda: mine.read("x"), lambda: mine.list("x"), lambda: mine.create("x", b"data")):
                with pytest.raises(ProviderError):
                    use()
        assert other.requests == []


@pytest.mark.parametrize("name", ["a\r\nX-Evil: 1", "a b", "../../o?alt=media", "a%2F", "#", "ü\n"])
def test_a_name_is_one_name_whatever_is_in_it(name: str) -> None:
    with scripted_server(in_turn(download(b"data"), uploaded())) as server:
        mine = bucket(server.url)
        assert mine.read(name) is not None
        assert mine.create(name, b"data")
        read, stored = server.requests
        assert read.path == f"/download/storage/v1/b/bench/o/{name}"
        assert (read.query, stored.query["uploadType"]) == ({"alt": "media"}, "multipart")
        assert "X-Evil" not in {**read.headers, **stored.headers}
        assert json.dumps(name).encode() in stored.body


def test_a_dead_endpoint_costs_no_more_than_the_patience() -> None:
    dead = bucket(f"http://127.0.0.1:{deaf_port()}", patience_s=0.5)
    for use in (
        lambda: dead.read("x"),
        lambda: dead.list("x"),
        lambda: dead.create("x", b""),
        lambda: dead.read_many(["x", "y"]),
    ):
        begun = time.monotonic()
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ does not answer: Connection refused"):
            use()
        assert time.monotonic() - begun < GOOGLES_S


def test_a_server_that_never_answers_costs_no_more_than_twice_the_patience() -> None:
    with scripted_server(lambda _request: Stall()) as server:
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            bucket(server.url, patience_s=0.4).read("x")
        assert time.monotonic() - begun < GOOGLES_S


def test_the_default_patience_is_ten_seconds_not_two_minutes() -> None:
    ours = GoogleBucket("bench", endpoint="http://127.0.0.1:9")
    assert ours._patience_s == 10.0


@pytest.mark.parametrize("trouble", [google_error(503, "later"), google_error(429, "slow down"), Drop()])
def test_a_passing_trouble_is_waited_out(trouble: Answer) -> None:
    with scripted_server(in_turn(trouble, trouble, download(b"data"))) as server:
        blob = bucket(server.url).read("x")
        assert blob is not None
        assert (blob.data, blob.generation) == (b"data", 7)
        assert len(server.requests) == 3


def test_an_answer_that_never_comes_is_asked_for_again_while_there_is_patience() -> None:
    with scripted_server(in_turn(Stall(), download(b"data"))) as server:
        blob = GoogleBucket("bench", endpoint=server.url, patience_s=PATIENCE_S, answer_s=0.3).read("x")
        assert blob is not None
        assert blob.data == b"data"
        assert len(server.requests) >= 2, "an answer that takes 0.3 s on a machine that is busy does not come either"


@pytest.mark.parametrize("trouble", [google_error(503, "later"), Drop()])
def test_an_upload_is_sent_again_with_all_its_bytes_and_the_same_condition(trouble: Answer) -> None:
    with scripted_server(in_turn(trouble, uploaded())) as server:
        assert bucket(server.url).create("x", b"payload-bytes")
        assert [request.query["ifGenerationMatch"] for request in server.requests] == ["0", "0"]
        assert all(b"payload-bytes" in request.body for request in server.requests)


def test_an_upload_carries_its_checksum_so_that_the_server_can_refuse_damage() -> None:
    with scripted_server(in_turn(uploaded())) as server:
        bucket(server.url).create("x", b"123456789")
        assert b'"crc32c": "4waSgw=="' in server.requests[0].body


def test_damage_on_the_way_is_noticed_and_the_object_asked_for_again() -> None:
    with scripted_server(in_turn(download(b"dAta", b"data"), download(b"data"))) as server:
        blob = bucket(server.url).read("x")
        assert blob is not None
        assert blob.data == b"data"


def test_an_object_that_a_machine_has_stored_compressed_is_never_unpacked() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    plain = download(bomb)
    stored = Reply(data=bomb, headers={**plain.headers, "Content-Encoding": "gzip"})
    with scripted_server(in_turn(stored)) as server:
        tracemalloc.start()
        blob = bucket(server.url).read("x")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert blob is not None
    assert blob.data == bomb
    assert most < 3_000_000


def test_lasting_damage_is_never_passed_on(tmp_path: Path) -> None:
    entry = ObjectEntry("x", 4, 7, checksum(b"data"), {})
    with scripted_server(in_turn(download(b"dAta", b"data"))) as server:
        with pytest.raises(Unavailable, match="cannot read gs://bench/x"):
            bucket(server.url, patience_s=0.3).read("x")
        with pytest.raises(Unavailable):
            bucket(server.url, patience_s=0.3).download(entry, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_answer_cut_short_is_asked_for_again() -> None:
    whole = download(b"data")
    short = Reply(data=b"da", headers={**whole.headers, "Content-Length": "4", "Connection": "close"})
    with scripted_server(in_turn(short, whole)) as server:
        blob = bucket(server.url, patience_s=PATIENCE_S).read("x")
        assert blob is not None
        assert blob.data == b"data"


@pytest.mark.parametrize(
    ("answer", "error", "hint"),
    [
        (google_error(403, "caller does not have storage.objects.get access to the object", "forbidden"),
         PermissionDenied, "grant `storage.objects.get`"),
        (google_error(403, "no", "forbidden"), PermissionDenied, "bench docs gce"),
        (google_error(403, "API has not been used", "accessNotConfigured"), PermissionDenied, "gcloud services enable"),
        (google_error(403, "daily", "dailyLimitExceeded"), QuotaExceeded, "iam-admin/quotas"),
        (google_error(401, "Invalid Credentials", "authError"), CredentialsMissing, "gcloud auth"),
        (google_error(400, "bad name", "invalid"), ProviderError, "configuration"),
        (google_error(403, "rate", "rateLimitExceeded"), Unavailable, "same command again"),
        (google_error(500, "oops"), Unavailable, "same command again"),
        (google_error(507, "the disk is full", "insufficientStorage"), LocalError, "free some space"),
    ],
)  # fmt: skip
def test_each_kind_of_error_is_ours_and_says_what_to_do(answer: Answer, error: type[BenchError], hint: str) -> None:
    with scripted_server(in_turn(answer)) as server:
        ours = bucket(server.url, 0.3 if error is Unavailable else PATIENCE_S)
        for use in (
            lambda: ours.read("x"),
            lambda: ours.list("x"),
            lambda: ours.create("x", b""),
        ):
            with pytest.raises(error) as raised:
                use()
            assert type(raised.value) is error
            assert hint in raised.value.hint
            assert "gs://bench/" in str(raised.value)
            assert "\n" not in str(raised.value)
            assert raised.value.__cause__ is not None


def test_after_the_bucket_was_seen_a_missing_object_costs_one_request(tmp_path: Path) -> None:
    with storage_server(tmp_path / "storage", "bench") as url:
        ours = bucket(url)
        ours.create("a", b"1")
        before = ours.calls
        assert ours.read("b") is None
        assert ours.calls - before == 1


def listing_of(names: list[str]) -> Handle:
    """A bucket of `names`, listed as Google does: at most `maxResults` a page."""

    def handle(request: Request) -> Answer:
        matching = [name for name in names if name.startswith(request.query.get("prefix", ""))]
        matching = matching[bisect_left(matching, request.query.get("startOffset", "")) :]
        first = int(request.query.get("pageToken", "0"))
        size = int(request.query["maxResults"])
        page: dict[str, Any] = {
            "items": [
                {"name": name, "size": "2", "generation": "1", "crc32c": "AAAAAA==", "metadata": {"phase": "done"}}
                for name in matching[first : first + size]
            ]
        }
        if first + size < len(matching):
            page["nextPageToken"] = str(first + size)
        return Reply(json=page)

    return handle


def test_a_thousand_runs_are_one_request() -> None:
    names = [f"index/20261121-040506-l4-{number:04x}.json" for number in range(1000)]
    with scripted_server(listing_of(names)) as server:
        ours = bucket(server.url)
        lines = RunIndex(ours).list_runs()
        assert len(lines) == 1000
        assert lines[-1].status == {"phase": "done"}
        assert ours.calls == len(server.requests) == 1
        assert "metadata" in server.requests[0].query["fields"]


def three_years(runs: int, now: datetime) -> list[str]:
    """The names of the index of a bucket that got its last run an hour ago."""
    step = timedelta(days=1095) / runs
    moments = (now - timedelta(hours=1) - step * (runs - number) for number in range(1, runs + 1))
    return [index_object(run_id(moment, "l4", f"{number % 65536:04x}")) for number, moment in enumerate(moments)]


@pytest.mark.parametrize(("runs", "calls"), [(999, 1), (2000, 4), (20_000, 2), (60_000, 2)])
def test_the_newest_runs_cost_as_many_requests_however_many_there_are(runs: int, calls: int) -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)
    names = three_years(runs, now)
    with scripted_server(listing_of(names)) as server:
        ours = bucket(server.url)
        lines, complete = RunIndex(ours).list_recent(now)
        assert len(server.requests) == ours.calls == calls
        assert complete == (runs == 999)
        assert [line.run_id for line in lines] == [name[6:-5] for name in names[-len(lines) :]]
        assert len(lines) >= RECENT
        assert RunIndex(ours).find([lines[3].run_id, "20200101-000000-l4-0000"]) == (lines[3],)
        assert ours.calls == calls + 2


def test_a_bucket_that_was_left_alone_for_years_is_listed_whole() -> None:
    names = three_years(1500, datetime(2020, 1, 1, tzinfo=UTC))
    with scripted_server(listing_of(names)) as server:
        lines, complete = RunIndex(bucket(server.url)).list_recent(datetime(2026, 11, 27, tzinfo=UTC))
        assert (len(lines), complete) == (1500, True)


def test_pages_are_followed_to_the_last() -> None:
    names = [f"e/{number:05}" for number in range(2500)]
    with scripted_server(listing_of(names)) as server:
        ours = bucket(server.url)
        assert [entry.name for entry in ours.list("e/")] == names
        assert ours.calls == 3


def test_nothing_is_asked_that_was_not_asked_for() -> None:
    with scripted_server(in_turn(uploaded())) as server:
        ours = bucket(server.url)
        ours.create("x", b"")
        ours.close()
        time.sleep(0.05)
        assert len(server.requests) == ours.calls == 1


def test_no_credentials_travel_to_an_endpoint_of_our_own() -> None:
    with scripted_server(in_turn(uploaded())) as server:
        bucket(server.url).create("x", b"")
        assert "authorization" not in {key.lower() for key in server.requests[0].headers}


def test_many_are_read_in_parallel() -> None:
    together = Barrier(8)

    def in_company(request: Request) -> Answer:
        together.wait()  # fails unless eight requests are under way at once
        return download(request.path.encode())

    with scripted_server(in_company) as server:
        assert len(bucket(server.url, patience_s=PATIENCE_S).read_many([f"o{number}" for number in range(16)])) == 16


def test_a_large_file_is_uploaded_whole(tmp_path: Path) -> None:
    source = tmp_path / "big.bin"
    source.write_bytes(bytes(range(256)) * 40_000)
    with storage_server(tmp_path / "storage", "bench") as url:
        ours = bucket(url, patience_s=PATIENCE_S)
        assert ours.upload("big", source, content_type="application/octet-stream")
        assert not ours.upload("big", source, content_type="application/octet-stream")
        (entry,) = ours.list("big")
        assert entry.size == source.stat().st_size
        ours.download(entry, tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_missing_bucket_names_the_command_that_makes_it() -> None:
    with scripted_server(in_turn(google_error(404, "The specified bucket does not exist.", "notFound"))) as server:
        with pytest.raises(NotFound) as raised:
            bucket(server.url).read("x")
        assert "gcloud storage buckets create gs://bench" in raised.value.hint
        assert str(raised.value) == "cannot read gs://bench/x: there is no bucket gs://bench"
