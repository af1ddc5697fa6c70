"""What clients copy from a host to the bucket: of a file that grows, the bucket keeps the newest version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator.adapters.hosts.cloud import bring_home
from orchestrator.core.errors import Unavailable
from orchestrator.store.copies import Copies
from tests.support.memory_bucket import MemoryBucket

RUN = "20261121-040000-cpu-0001"
LOG = f"runs/{RUN}/artifacts/log.txt"


@dataclass
class Host:
    """A host with one log. `meanwhile` happens once, after the log was read and before the client has it."""

    log: bytes | None = b"begin"
    meanwhile: Callable[[], None] = lambda: None

    def ask(self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60) -> Any: ...

    def put(self, data: bytes, path: str) -> None: ...

    def get(self, path: str, *, limit: int) -> bytes | None:
        assert path == f"/spool/{LOG}"
        data, then = self.log, self.meanwhile
        self.meanwhile = lambda: None
        then()
        return data

    def close(self) -> None: ...

    def grow(self, log: bytes) -> None:
        self.log = log

    def answer(self) -> Mapping[str, Any]:
        size = len(self.log or b"")
        return {"spool": "/spool", "files": [[LOG, size, size]]}


@dataclass
class LateBucket(MemoryBucket):
    """A bucket where the first upload is given up, and arrives when `arrive` is called."""

    arrive: Callable[[], object] | None = None

    def replace(self, name: str, data: bytes, **how: Any) -> int | None:  # type: ignore[override]
        if self.arrive is None:
            self.arrive = lambda: super(LateBucket, self).replace(name, data, **how)
            raise Unavailable("no answer")
        return super().replace(name, data, **how)


def stored(bucket: MemoryBucket) -> bytes | None:
    blob = bucket.read(LOG)
    return None if blob is None else blob.data


@pytest.mark.parametrize("before", [False, True], ids=["a new log", "a log that is there"])
def test_a_client_that_is_late_does_not_replace_what_a_faster_one_has_copied(before: bool) -> None:
    bucket, host, slow, fast = MemoryBucket(), Host(), Copies(), Copies()
    if before:
        bring_home(bucket, host, RUN, host.answer(), slow)
    host.grow(b"begin, middle")

    def faster() -> None:
        host.grow(b"begin, middle, end")
        bring_home(bucket, host, RUN, host.answer(), fast)

    host.meanwhile = faster
    bring_home(bucket, host, RUN, host.answer(), slow)
    assert stored(bucket) == b"begin, middle, end"


def test_a_client_that_is_late_leaves_what_was_copied_before_the_host_forgot_the_run() -> None:
    bucket, host = MemoryBucket(), Host()

    def faster() -> None:
        host.grow(b"begin, end")
        bring_home(bucket, host, RUN, host.answer(), Copies())
        host.log = None

    host.meanwhile = faster
    bring_home(bucket, host, RUN, host.answer(), Copies())
    assert stored(bucket) == b"begin, end"


def test_an_upload_that_was_given_up_does_not_replace_a_newer_one_when_it_arrives() -> None:
    bucket, host, home = LateBucket(), Host(), Copies()
    with pytest.raises(Unavailable):
        bring_home(bucket, host, RUN, host.answer(), home)
    host.grow(b"begin, end")
    bring_home(bucket, host, RUN, host.answer(), home)
    assert bucket.arrive is not None
    bucket.arrive()
    assert stored(bucket) == b"begin, end"


def test_an_upload_that_was_given_up_and_arrived_is_followed_by_the_newer_one() -> None:
    bucket, host, home = LateBucket(), Host(), Copies()
    with pytest.raises(Unavailable):
        bring_home(bucket, host, RUN, host.answer(), home)
    assert bucket.arrive is not None
    bucket.arrive()
    assert stored(bucket) == b"begin"
    host.grow(b"begin, end")
    bring_home(bucket, host, RUN, host.answer(), home)
    assert stored(bucket) == b"begin, end"


def test_what_others_replace_all_the_time_is_not_taken_for_copied() -> None:
    bucket, host = MemoryBucket(), Host()

    def faster() -> None:
        host.grow((host.log or b"") + b".")
        bring_home(bucket, Host(host.log), RUN, host.answer(), Copies())
        host.meanwhile = faster

    host.meanwhile = faster
    home = Copies()
    with pytest.raises(Unavailable, match="12 times"):
        bring_home(bucket, host, RUN, host.answer(), home)
    host.meanwhile = lambda: None
    host.grow(b"the end")
    bring_home(bucket, host, RUN, host.answer(), home)
    assert stored(bucket) == b"the end"
