"""What the object store answers about what it holds, and what it says when the disk is full."""

from __future__ import annotations

import errno
import json
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.embedded.errors import no_room
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.objects import Preconditions
from tests.support.discovery import Discovery
from tests.unit.embedded.builders import Stage
from tests.unit.embedded.wired import UP, B, Wire, multipart


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
    stage: Stage, found: set[str], prefix: str, size: int, delimited: bool
) -> None:
    api = stage.cloud.storage
    bucket = f"pages-{len(api.store.bucket_names())}"
    assert api.store.make_bucket(bucket)
    for name in found:
        api.store.commit(bucket, name, {}, api.store.incoming(), Preconditions())
    items: list[str] = []
    groups: list[str] = []
    token = ""
    for _ in range(40):
        query = (
            f"prefix={quote(prefix)}&maxResults={size}&pageToken={quote(token)}{'&delimiter=/' if delimited else ''}"
        )
        page = api.list_objects(HttpRequest("GET", f"/storage/v1/b/{bucket}/o?{query}"), bucket)
        items += [item["name"] for item in page.get("items", [])]
        groups += page.get("prefixes", [])
        token = page.get("nextPageToken", "")
        if not token:
            break
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
