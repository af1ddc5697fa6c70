"""Cloud Storage's XML API, in the shapes that google-cloud-storage and libcloud send and read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from google.cloud import storage  # type: ignore[attr-defined, unused-ignore]
from google.cloud.storage import transfer_manager
from google.oauth2.credentials import Credentials

from orchestrator.embedded.xml_api import IN_PARTS, LISTING
from tests.support import keyed as requests
from tests.unit.embedded.builders import Stage


@pytest.fixture
def url(stage: Stage) -> str:
    return f"{stage.cloud.storage_url}/{stage.cloud.bucket}"


def tree(answer: Any) -> ElementTree.Element:
    assert answer.headers["Content-Type"].startswith("application/xml")
    return ElementTree.fromstring(answer.content)


def refusal(answer: Any) -> tuple[int, str | None]:
    return answer.status_code, tree(answer).findtext("Code")


def test_an_object_is_written_read_and_deleted_by_its_path(url: str) -> None:
    data, headers = b"hello", {"Content-Type": "text/plain", "x-goog-meta-who": "ada"}
    stored = requests.put(f"{url}/a/b%20c", data=data, headers=headers, timeout=600)
    etag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
    assert (stored.status_code, stored.headers["ETag"]) == (200, etag)
    read = requests.get(f"{url}/a/b%20c", timeout=600)
    assert (read.content, read.headers["Content-Type"], read.headers["ETag"]) == (data, "text/plain", etag)
    assert read.headers["X-Goog-Generation"] == stored.headers["X-Goog-Generation"]
    assert requests.head(f"{url}/a/b%20c", timeout=600).headers["Content-Length"] == "5"
    part = requests.get(f"{url}/a/b%20c", headers={"Range": "bytes=1-2"}, timeout=600)
    assert (part.status_code, part.content) == (206, b"el")
    described = url.replace(f"/{url.rsplit('/', 1)[1]}", f"/storage/v1/b/{url.rsplit('/', 1)[1]}/o/a%2Fb%20c")
    assert requests.get(described, timeout=600).json()["metadata"] == {"who": "ada"}
    assert requests.delete(f"{url}/a/b%20c", timeout=600).status_code == 204
    assert refusal(requests.get(f"{url}/a/b%20c", timeout=600)) == (404, "NoSuchKey")


def test_conditions_and_checksums_in_headers_are_checked(url: str) -> None:
    new = {"x-goog-if-generation-match": "0"}
    assert requests.put(f"{url}/once", data=b"1", headers=new, timeout=600).status_code == 200
    assert refusal(requests.put(f"{url}/once", data=b"2", headers=new, timeout=600)) == (412, "PreconditionFailed")
    damaged = {"x-goog-hash": "crc32c=AAAAAA=="}
    assert refusal(requests.put(f"{url}/damaged", data=b"3", headers=damaged, timeout=600)) == (400, "InvalidArgument")
    assert requests.get(f"{url}/once", timeout=600).content == b"1"
    assert refusal(requests.get(f"{url}/damaged", timeout=600)) == (404, "NoSuchKey")


def test_a_listing_has_pages_and_folders_and_names_its_next_page(url: str) -> None:
    names = [f"l/{number}" for number in range(5)]
    for name in (*names, "l/z/1", "other"):
        requests.put(f"{url}/{name}", data=b"x", timeout=600)
    seen, marker = [], ""
    for _ in range(4):
        query = {"prefix": "l/", "delimiter": "/", "max-keys": "2", "marker": marker}
        page = tree(requests.get(url, params=query, timeout=600))
        seen += [key.text for key in page.iterfind(f"{{{LISTING}}}Contents/{{{LISTING}}}Key")]
        seen += [group.text for group in page.iterfind(f"{{{LISTING}}}CommonPrefixes/{{{LISTING}}}Prefix")]
        marker = page.findtext(f"{{{LISTING}}}NextMarker") or ""
        if page.findtext(f"{{{LISTING}}}IsTruncated") == "false":
            break
    assert seen == [*names, "l/z/"]


def test_buckets_are_listed_and_a_missing_one_is_named(url: str, stage: Stage) -> None:
    buckets = tree(requests.get(f"{stage.cloud.storage_url}/", timeout=600))
    assert [one.text for one in buckets.iter(f"{{{LISTING}}}Name")] == [stage.cloud.bucket]
    assert requests.head(url, timeout=600).status_code == 200
    assert requests.head(f"{url}-not", timeout=600).status_code == 404
    assert refusal(requests.get(f"{url}-not", timeout=600)) == (404, "NoSuchBucket")


def test_googles_client_uploads_in_parts_at_once(stage: Stage, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(3 << 20))
    client = storage.Client(
        project=stage.cloud.project,
        credentials=Credentials(stage.cloud.token),  # type: ignore[no-untyped-call, unused-ignore]
        client_options={"api_endpoint": stage.cloud.storage_url},
    )
    blob = client.bucket(stage.cloud.bucket).blob("in/parts")
    transfer_manager.upload_chunks_concurrently(
        str(source), blob, chunk_size=1 << 20, worker_type=transfer_manager.THREAD, checksum="crc32c"
    )
    assert blob.download_as_bytes(checksum="crc32c") == source.read_bytes()
    client.close()


def begin(url: str, name: str = "parts") -> str:
    begun = tree(requests.post(f"{url}/{name}?uploads", timeout=600))
    return begun.findtext(f"{{{IN_PARTS}}}UploadId") or ""


def complete(url: str, number: str, parts: list[tuple[int, str]]) -> Any:
    listed = "".join(f"<Part><PartNumber>{place}</PartNumber><ETag>{etag}</ETag></Part>" for place, etag in parts)
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
    return requests.post(f"{url}/parts?uploadId={number}", data=body, timeout=600)


def test_only_the_parts_that_arrived_make_an_object(url: str) -> None:
    number = begin(url)
    etags = [
        requests.put(f"{url}/parts?uploadId={number}&partNumber={place}", data=data, timeout=600).headers["ETag"]
        for place, data in ((1, b"one"), (2, b"wrong"), (2, b"two"))
    ]
    assert refusal(complete(url, number, [(1, etags[0]), (2, etags[1])])) == (400, "InvalidArgument")
    assert complete(url, number, [(1, etags[0]), (2, etags[2])]).status_code == 200
    assert requests.get(f"{url}/parts", timeout=600).content == b"onetwo"
    assert refusal(complete(url, number, [(1, etags[0])])) == (404, "NoSuchUpload")


def test_an_upload_in_parts_that_is_given_up_leaves_nothing(url: str, stage: Stage) -> None:
    blobs = stage.cloud.storage.store.blobs
    before = len(list(blobs.iterdir()))
    number = begin(url, "given-up")
    requests.put(f"{url}/given-up?uploadId={number}&partNumber=1", data=b"one", timeout=600)
    assert len(list(blobs.iterdir())) == before + 1
    assert requests.delete(f"{url}/given-up?uploadId={number}", timeout=600).status_code == 204
    assert refusal(requests.get(f"{url}/given-up", timeout=600)) == (404, "NoSuchKey")
    assert len(list(blobs.iterdir())) == before


def test_a_right_that_is_missing_is_missing_here_too(url: str, stage: Stage) -> None:
    stage.cloud.weather.add({"fault": "permission_missing", "permission": "storage.objects.create"})
    assert refusal(requests.put(f"{url}/denied", data=b"x", timeout=600)) == (403, "AccessDenied")


def test_the_weather_of_storage_reaches_it_by_either_api_and_in_batches(stage: Stage, url: str) -> None:
    batch = f"{stage.cloud.storage_url}/batch/storage/v1"
    for method, target in (("GET", f"{url}/x"), ("POST", batch)):
        stage.cloud.weather.replace({"faults": [{"fault": "http", "service": "storage", "status": 503}]})
        assert requests.request(method, target, timeout=600).status_code == 503
        assert stage.cloud.weather.pending == ()


def test_a_bucket_that_the_weather_takes_away_is_missing_in_the_apis_own_words(stage: Stage, url: str) -> None:
    stage.cloud.weather.replace({"faults": [{"fault": "bucket_missing", "bucket": stage.cloud.bucket}]})
    answer = requests.get(f"{url}/x", timeout=600)
    stage.cloud.weather.replace({"faults": []})
    assert (answer.status_code, "<Code>NoSuchBucket</Code>" in answer.text) == (404, True)
