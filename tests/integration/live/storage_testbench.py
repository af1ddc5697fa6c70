"""Faults of Google's storage testbench through our bucket, by hand:
`python -m tests.integration.live.storage_testbench URL`.

The testbench (github.com/googleapis/storage-testbench) is a server of Google's with which its client libraries are
tested. Each case asks it for faults, does one thing, and passes if the right thing happened and the faults fired.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import requests

from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.errors import BenchError, CredentialsMissing, PermissionDenied, ProviderError

BUCKET: Final = "bench-faults"
SMALL: Final = b"0123456789" * 50
LARGE: Final = os.urandom(9 << 20)
"""More than the client sends in one request."""
STATUSES: Final = (408, 429, 500, 502, 503, 504)
LIMIT_S: Final = 60


def create(bucket: GoogleBucket, name: str) -> None:
    assert bucket.create(name, SMALL)
    assert read_back(bucket, name) == SMALL


def replace(bucket: GoogleBucket, name: str) -> None:
    assert bucket.replace(name, SMALL, generation=0, metadata={"a": "b"})
    (entry,) = bucket.list(name)
    assert entry.metadata["a"] == "b"  # beside what the testbench adds


def upload(bucket: GoogleBucket, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large"
        path.write_bytes(LARGE)
        assert bucket.upload(name, path, content_type="application/octet-stream")
    assert read_back(bucket, name) == LARGE


def read(bucket: GoogleBucket, name: str) -> None:
    assert read_back(bucket, f"seed-{name.rpartition('-')[2]}") == SMALL


def read_large(bucket: GoogleBucket, _: str) -> None:
    assert read_back(bucket, "seed-large") == LARGE


def listing(bucket: GoogleBucket, _: str) -> None:
    assert [entry.name for entry in bucket.list("seed-0")] == ["seed-0"]


def compose(bucket: GoogleBucket, name: str) -> None:
    bucket.compose(name, ["seed-0", "seed-1"])
    assert read_back(bucket, name) == SMALL * 2


def download(bucket: GoogleBucket, _: str) -> None:
    (entry,) = bucket.list("seed-large")
    with tempfile.TemporaryDirectory() as folder:
        bucket.download(entry, Path(folder) / "x")
        assert (Path(folder) / "x").read_bytes() == LARGE


def read_back(bucket: GoogleBucket, name: str) -> bytes:
    blob = bucket.read(name)
    assert blob is not None
    return blob.data


Act = Callable[[GoogleBucket, str], None]
ACTS: Final[dict[str, tuple[Act, str]]] = {
    "create": (create, "insert"), "replace": (replace, "insert"), "upload": (upload, "insert"), "read": (read, "get"),
    "list": (listing, "list"), "compose": (compose, "compose"), "download": (download, "get"),
}  # fmt: skip
READS: Final = (
    "return-broken-stream", "return-broken-stream-after-256K", "return-broken-stream-after-1024K",
    "return-broken-stream-after-4096K", "stall-for-1s-after-0K", "stall-for-1s-after-512K",
)  # fmt: skip
WRITES: Final = ("return-503-after-256K", "return-503-after-5120K", "return-408-after-1024K", "stall-for-1s-after-256K")
REFUSALS: Final[tuple[tuple[Act, str, int, type[BenchError]], ...]] = (
    (read, "get", 401, CredentialsMissing), (read, "get", 403, PermissionDenied), (listing, "list", 400, ProviderError),
    (create, "insert", 401, CredentialsMissing), (create, "insert", 400, ProviderError),
)  # fmt: skip


@dataclass(frozen=True)
class FaultCase:
    """What to do, and the faults that are to hit it."""

    name: str
    act: Act
    method: str
    faults: Sequence[str]
    error: type[BenchError] | None = None


def cases() -> Iterator[FaultCase]:
    for name, (act, method) in ACTS.items():
        for fault in (*(f"return-{status}" for status in STATUSES), "return-reset-connection"):
            yield FaultCase(f"{name} {fault}", act, method, [fault])
        yield FaultCase(f"{name} return-503 twice", act, method, ["return-503", "return-503"])
    yield from (FaultCase(f"read {fault}", read_large, "get", [fault]) for fault in READS)
    yield from (FaultCase(f"upload {fault}", upload, "insert", [fault]) for fault in WRITES)
    for act, method, status, error in REFUSALS:
        yield FaultCase(f"{act.__name__} refused {status}", act, method, [f"return-{status}"], error)


def run(url: str, number: int, case: FaultCase) -> str:
    """What went wrong; empty if nothing did."""
    body: dict[str, Any] = {"instructions": {f"storage.objects.{case.method}": list(case.faults)}, "transport": "HTTP"}
    test = requests.post(f"{url}/retry_test", json=body, timeout=LIMIT_S).json()["id"]
    bucket = GoogleBucket(BUCKET, endpoint=url, patience_s=30.0)
    bucket._session.headers["x-retry-test-id"] = test
    try:
        case.act(bucket, f"object-{number}-{number % 2}")
        raised = None
    except (BenchError, AssertionError) as exc:
        raised = exc
    finally:
        bucket.close()
    if case.error is None and raised is not None:
        return f"{type(raised).__name__}: {raised}"
    if case.error is not None and type(raised) is not case.error:
        return f"{raised!r} in the place of {case.error.__name__}"
    fired = requests.get(f"{url}/retry_test/{test}", timeout=LIMIT_S).json()["completed"]
    return "" if fired else "the fault did not fire"


def main(url: str) -> int:
    requests.post(f"{url}/storage/v1/b?project=p", json={"name": BUCKET}, timeout=LIMIT_S)
    seeds = GoogleBucket(BUCKET, endpoint=url)
    for name, data in (("seed-0", SMALL), ("seed-1", SMALL), ("seed-large", LARGE)):
        seeds.create(name, data)
    seeds.close()
    failures = 0
    every = list(cases())
    for number, case in enumerate(every):
        trouble = run(url, number, case)
        failures += bool(trouble)
        if trouble:
            sys.stderr.write(f"{case.name}: {trouble}\n")
    sys.stdout.write(f"{len(every) - failures} of {len(every)}\n")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/")))
