"""The laws of `orchestrator.ports.Bucket`, for every implementation."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.errors import BenchError, DocumentUnreadable, LocalError, NotFound
from orchestrator.ports import Bucket


def names(bucket: Bucket, prefix: str = "", after: str = "") -> list[str]:
    return [entry.name for entry in bucket.list(prefix, after=after)]


def test_what_was_created_reads_back_byte_for_byte(bucket: Bucket) -> None:
    data = bytes(range(256)) * 300
    assert bucket.create("a/b.bin", data, content_type="application/octet-stream")
    blob = bucket.read("a/b.bin")
    assert blob.data == data
    assert blob.generation > 0


def test_an_empty_object_is_an_object(bucket: Bucket) -> None:
    assert bucket.create("empty", b"")
    blob = bucket.read("empty")
    assert blob.data == b""


def test_what_is_there_is_never_created_again(bucket: Bucket) -> None:
    assert bucket.create("a", b"first")
    assert not bucket.create("a", b"second")
    blob = bucket.read("a")
    assert blob.data == b"first"


def test_of_many_that_create_the_same_object_one_succeeds(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: bucket.create("race", str(n).encode()), range(8)))
    assert won.count(True) == 1
    blob = bucket.read("race")
    assert blob.data == str(won.index(True)).encode()


def test_of_many_that_replace_the_same_generation_one_succeeds(bucket: Bucket) -> None:
    first = bucket.replace("race", b"0", generation=0)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: bucket.replace("race", str(n).encode(), generation=first), range(1, 9)))
    assert sum(generation is not None for generation in won) == 1


def test_a_stale_generation_replaces_nothing(bucket: Bucket) -> None:
    first = bucket.replace("ledger", b"1", generation=0)
    second = bucket.replace("ledger", b"2", generation=first)
    assert first is not None
    assert second is not None
    assert second != first
    assert bucket.replace("ledger", b"3", generation=first) is None
    assert bucket.replace("ledger", b"3", generation=0) is None
    blob = bucket.read("ledger")
    assert (blob.data, blob.generation) == (b"2", second)


def test_without_a_generation_whatever_is_there_is_replaced(bucket: Bucket) -> None:
    assert bucket.replace("index", b"1", generation=None) is not None
    assert bucket.replace("index", b"2", generation=None) is not None
    blob = bucket.read("index")
    assert blob.data == b"2"


def test_what_is_not_there_reads_as_none(bucket: Bucket) -> None:
    assert bucket.read("nothing/here") is None


def test_many_objects_are_read_at_once_and_missing_ones_left_out(bucket: Bucket) -> None:
    wanted = {f"many/{n:02}": f"{n}".encode() for n in range(20)}
    for name, data in wanted.items():
        bucket.create(name, data)
    found = bucket.read_many([*wanted, "many/none"])
    assert {name: blob.data for name, blob in found.items()} == wanted
    assert bucket.read_many([]) == {}


def test_a_listing_is_in_name_order_and_only_of_its_prefix(bucket: Bucket) -> None:
    for name in ("b/2", "b/10", "a/1", "b/1", "c"):
        bucket.create(name, b"")
    assert names(bucket, "b/") == ["b/1", "b/10", "b/2"]
    assert names(bucket) == ["a/1", "b/1", "b/10", "b/2", "c"]
    assert names(bucket, "z") == []


def test_a_listing_can_go_on_after_a_name(bucket: Bucket) -> None:
    for name in ("e/1", "e/2", "e/3"):
        bucket.create(name, b"")
    assert names(bucket, "e/", after="e/1") == ["e/2", "e/3"]
    assert names(bucket, "e/", after="e/2-and-more") == ["e/3"]
    assert names(bucket, "e/", after="e/3") == []


def test_a_listing_tells_size_generation_checksum_and_time(bucket: Bucket) -> None:
    bucket.create("a", b"123456789")
    (entry,) = bucket.list("a")
    blob = bucket.read("a")
    assert (entry.size, entry.generation) == (9, blob.generation)
    assert entry.crc32c == "4waSgw=="  # the check value of CRC-32C, 0xE3069283
    assert entry.updated is not None
    assert abs(datetime.now(UTC) - entry.updated).total_seconds() < 600


def test_a_listing_carries_custom_metadata(bucket: Bucket) -> None:
    status = {"phase": "running", "note": "Größe × 2 — ok", "cost_usd": "0.0123"}
    bucket.replace("index/r.json", b"{}", generation=None, metadata=status)
    (entry,) = bucket.list("index/")
    assert entry.metadata == status


def test_a_replaced_object_has_the_new_metadata_only(bucket: Bucket) -> None:
    bucket.replace("index/r.json", b"{}", generation=None, metadata={"phase": "running", "eta": "10"})
    bucket.replace("index/r.json", b"{}", generation=None, metadata={"phase": "done"})
    (entry,) = bucket.list("index/")
    assert entry.metadata == {"phase": "done"}


def test_a_download_writes_the_object_and_makes_its_folders(bucket: Bucket, tmp_path: Path) -> None:
    bucket.create("cases/x.csv", b"a,b\n1,2\n")
    (entry,) = bucket.list("cases/")
    bucket.download(entry, tmp_path / "deep" / "down" / "x.csv")
    assert (tmp_path / "deep" / "down" / "x.csv").read_bytes() == b"a,b\n1,2\n"
    assert [path.name for path in (tmp_path / "deep" / "down").iterdir()] == ["x.csv"]


def test_a_download_that_is_not_what_was_listed_leaves_the_file_alone(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    target.write_bytes(b"before")
    bucket.create("cases/x.csv", b"after")
    (entry,) = bucket.list("cases/")
    with pytest.raises(BenchError, match="not what was listed"):
        bucket.download(dataclasses.replace(entry, crc32c="AAAAAA=="), target)
    assert target.read_bytes() == b"before"
    assert list(tmp_path.glob("**/*.part")) == []


def test_a_download_onto_a_folder_is_an_error_of_this_machine(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    bucket.create("x", b"data")
    (entry,) = bucket.list("x")
    with pytest.raises(LocalError, match="cannot write"):
        bucket.download(entry, tmp_path / "x")


def test_a_vanished_object_cannot_be_downloaded(bucket: Bucket, tmp_path: Path) -> None:
    bucket.create("a", b"1")
    (entry,) = bucket.list("a")
    with pytest.raises(NotFound):
        bucket.download(dataclasses.replace(entry, name="b"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_file_is_uploaded_once(bucket: Bucket, tmp_path: Path) -> None:
    source = tmp_path / "payload.tar.gz"
    source.write_bytes(b"\x1f\x8b" + bytes(100_000))
    assert bucket.upload("payloads/p", source, content_type="application/gzip")
    assert not bucket.upload("payloads/p", source, content_type="application/gzip")
    blob = bucket.read("payloads/p")
    assert blob.data == source.read_bytes()


def test_a_file_that_cannot_be_read_is_an_error_of_this_machine(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot read"):
        bucket.upload("x", tmp_path / "none", content_type="text/plain")


def test_a_missing_bucket_is_told_from_a_missing_object(missing_bucket: Bucket) -> None:
    for use in (
        lambda: missing_bucket.read("x"),
        lambda: missing_bucket.read_many(["x", "y"]),
        lambda: missing_bucket.list("x"),
        lambda: missing_bucket.create("x", b""),
        lambda: missing_bucket.replace("x", b"", generation=None),
    ):
        with pytest.raises(NotFound):
            use()


OBJECT_NAMES = st.text(st.sampled_from("ab0-_./ é%+?#&=~:"), min_size=1, max_size=20).filter(
    lambda name: not {".", "..", ""} & set(name.split("/")) and name == name.strip()
)


@given(name=OBJECT_NAMES, data=st.binary(max_size=200))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_and_any_bytes_survive_the_way_there_and_back(bucket: Bucket, name: str, data: bytes) -> None:
    generation = bucket.replace(f"p/{name}/x", data, generation=None)
    blob = bucket.read(f"p/{name}/x")
    assert (blob.data, blob.generation) == (data, generation)


def test_objects_become_one_in_their_order_and_again_when_it_is_made_again(bucket: Bucket) -> None:
    for name, data in (("b", b"2"), ("a", b"1"), ("c", b"")):
        bucket.create(name, data)
    for sources, whole in ((["a", "b", "c", "a"], b"121"), (["b", "a"], b"21")):
        bucket.compose("whole", sources)
        blob = bucket.read("whole")
        assert blob.data == whole
        (entry,) = bucket.list("whole")
        assert entry.size == len(whole)


def test_a_listing_ends_after_the_most_that_were_asked_for(bucket: Bucket) -> None:
    for number in range(7):
        bucket.create(f"a/{number}", b"")
    assert [entry.name for entry in bucket.list("a/", most=3)] == ["a/0", "a/1", "a/2"]
    assert [entry.name for entry in bucket.list("a/", after="a/4", most=3)] == ["a/5", "a/6"]
    assert len(bucket.list("a/", most=100)) == 7


def test_a_pattern_selects_by_the_whole_name_and_no_star_spans_a_slash(bucket: Bucket) -> None:
    for name in ("r/1/e/x-client-1.json", "r/1/e/x-vm-1.json", "r/1/e/deep/x-client-1.json", "r/2/e/y-client-2.json"):
        bucket.create(name, b"")
    assert [entry.name for entry in bucket.list("r/1/", matching="r/1/e/*-client-*")] == ["r/1/e/x-client-1.json"]
    both = bucket.list("r/", matching="r/*/e/*-client-*.json")
    assert [entry.name for entry in both] == ["r/1/e/x-client-1.json", "r/2/e/y-client-2.json"]
    assert bucket.list("r/", matching="e/*-client-*") == ()
    assert [entry.name for entry in bucket.list("r/", matching="r/*/e/*-client-*", most=1)] == [both[0].name]


def test_an_object_larger_than_the_caller_has_room_for_is_refused_unread(bucket: Bucket) -> None:
    bucket.create("large", b"x" * 5000)
    bucket.create("small", b"x" * 50)
    with pytest.raises(DocumentUnreadable, match="more than 4000 bytes") as refused:
        bucket.read("large", largest=4000)
    assert refused.value.exit_code == 16
    assert list(bucket.read_many(["large", "small"], largest=4000)) == ["small"]
    blob = bucket.read("large", largest=5000)
    assert len(blob.data) == 5000
