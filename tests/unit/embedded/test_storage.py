"""The real google-cloud-storage client, and plain HTTP, against the object store."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage  # type: ignore[attr-defined, unused-ignore]
from google.oauth2.credentials import Credentials

from tests.support import keyed as requests
from tests.unit.embedded.builders import Stage


@pytest.fixture
def bucket(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Any]:
    client = storage.Client(
        project=stage.cloud.project,
        credentials=Credentials(stage.cloud.token),  # type: ignore[no-untyped-call, unused-ignore]
        client_options={"api_endpoint": stage.cloud.storage_url},
    )
    yield client.bucket(stage.cloud.bucket)
    client.close()


@pytest.fixture
def url(stage: Stage) -> str:
    return f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o"


@pytest.fixture
def upload(stage: Stage) -> str:
    return f"{stage.cloud.storage_url}/upload/storage/v1/b/{stage.cloud.bucket}/o"


def test_a_plain_media_upload_keeps_its_type_and_body(upload: str, url: str) -> None:
    body = b"--embedded-cloud-boundary\r\nin the body\r\n"
    answer = requests.post(
        f"{upload}?uploadType=media&name=a%2Fb&ifGenerationMatch=0",
        data=body,
        headers={"Content-Type": "text/csv"},
        timeout=600,
    )
    assert (answer.status_code, answer.json()["name"], answer.json()["contentType"]) == (200, "a/b", "text/csv")
    assert requests.get(f"{url}/a%2Fb?alt=media", timeout=600).content == body


def test_a_stale_generation_deletes_and_reads_nothing(bucket: Any, url: str) -> None:
    blob = bucket.blob("stale")
    blob.upload_from_string(b"one")
    old = blob.generation
    blob.upload_from_string(b"two")
    with pytest.raises(PreconditionFailed):
        bucket.blob("stale").delete(if_generation_match=old)
    with pytest.raises(PreconditionFailed):
        bucket.blob("stale").download_as_bytes(if_generation_match=old)
    current = blob.generation
    assert requests.get(f"{url}/stale?ifGenerationNotMatch={current}", timeout=600).status_code == 304
    assert requests.delete(f"{url}/stale?ifGenerationNotMatch={current}", timeout=600).status_code == 412
    bucket.blob("stale").delete(if_generation_match=current)
    with pytest.raises(NotFound):
        bucket.blob("stale").delete(if_generation_match=current)


def test_metadata_changes_only_for_who_knows_its_generation(bucket: Any, url: str) -> None:
    bucket.blob("patched").upload_from_string(b"one")
    change = {"metadata": {"a": "b"}}
    assert requests.patch(f"{url}/patched?ifMetagenerationMatch=99", json=change, timeout=600).status_code == 412
    assert requests.patch(f"{url}/patched?ifMetagenerationMatch=1", json=change, timeout=600).status_code == 200
    assert bucket.get_blob("patched").metadata == {"a": "b"}


def test_pages_of_a_listing_together_hold_everything_from_an_offset_on(bucket: Any) -> None:
    for number in range(7):
        bucket.blob(f"list/{number}").upload_from_string(b"")
    names = [blob.name for blob in bucket.list_blobs(prefix="list/", page_size=2)]
    assert names == [f"list/{number}" for number in range(7)]
    assert [blob.name for blob in bucket.list_blobs(prefix="list/", start_offset="list/4")] == names[4:]


def test_a_resumable_upload_stays_with_this_cloud_and_comes_back_whole(bucket: Any, stage: Stage) -> None:
    data = bytes(range(256)) * 8192
    blob = bucket.blob("large", chunk_size=1 << 18)
    blob.upload_from_file(io.BytesIO(data), size=None)
    assert blob.size == len(data)
    assert bucket.blob("large").download_as_bytes(checksum="crc32c") == data
    with blob.open("wb", chunk_size=1 << 18) as file:
        file.write(data[: 1 << 19])
    assert bucket.blob("large").download_as_bytes(start=10, end=19) == data[10:20]
    found = bucket.get_blob("large")
    assert found.media_link.startswith(stage.cloud.storage_url)


def test_bodies_of_unknown_length_stream_through_both_ways(upload: str, url: str) -> None:
    pieces = (b"x" * 50_000 for _ in range(40))
    answer = requests.post(f"{upload}?uploadType=media&name=chunked", data=pieces, timeout=600)
    assert answer.json()["size"] == str(2_000_000)
    large = requests.post(f"{upload}?uploadType=media&name=sized", data=b"y" * 3_000_000, timeout=600)
    assert large.json()["size"] == str(3_000_000)
    assert requests.get(f"{url}/sized?alt=media", timeout=600).content == b"y" * 3_000_000
    small = (b"z" for _ in range(3))
    answer = requests.post(f"{upload}?uploadType=media&name=few&ifGenerationMatch=0", data=small, timeout=600)
    assert answer.json()["size"] == "3"
    assert requests.head(f"{url}/sized?alt=media", timeout=600).content == b""


def test_one_connection_serves_many_requests(upload: str, url: str) -> None:
    with requests.Session() as session:
        for number in range(5):
            assert session.post(f"{upload}?uploadType=media&name=k{number}", data=b"v", timeout=600).ok
            assert session.get(f"{url}/k{number}?alt=media", timeout=600).content == b"v"
            assert session.get(f"{url}/missing", timeout=600).status_code == 404


def test_what_was_stored_is_there_again_after_a_restart_with_its_generation(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        base = f"{stage.cloud.storage_url}/upload/storage/v1/b/{stage.cloud.bucket}/o"
        stored = requests.post(f"{base}?uploadType=media&name=kept", data=b"v", timeout=600).json()
    with Stage(tmp_path) as stage:
        found = requests.get(f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o/kept", timeout=600).json()
        assert (found["generation"], found["crc32c"]) == (stored["generation"], stored["crc32c"])
