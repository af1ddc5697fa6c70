"""What clients of one fleet copy from a cluster to the bucket: of a file that grows, the newest version is kept."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.adapters.hosts.host_operations import ANSWER
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.names import child_run, job_name
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import T0

FLEET = "fleet-20261122-040506-7f3a"
LOG = f"runs/{child_run(FLEET, 'l4', 0)}/artifacts/log.txt"


@dataclass
class Login:
    """A login node, with one log of one child. `meanwhile` happens once, while a client has fetched the log and not
    stored it yet."""

    log: bytes = b"begin"
    meanwhile: Callable[[], None] = lambda: None
    homed: int = 0
    packed: list[bytes] = field(default_factory=list)

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        words = shlex.split(line)
        if words[0] != "sh" or "startup.host.cluster" not in line:
            return 0, "", ""
        operation = line.partition("startup.host.cluster ")[2].split()[0]
        self.homed += operation == "homed"
        return 0, f"\n{ANSWER}{json.dumps(self.answer(operation))}\n", ""

    def answer(self, operation: str) -> Mapping[str, Any]:
        if operation == "look":
            return {"now": 1.0, "stored": {"0": [[LOG, len(self.log), len(self.log)]]}}
        if operation == "pack":
            self.packed.append(self.log)
            return {"path": f"/shared/{len(self.packed) - 1}", "count": 1}
        return {}

    def get(self, path: str, *, limit: int) -> bytes | None:
        if not path.rpartition("/")[2].isdecimal():
            return None
        data = self.packed[int(path.rpartition("/")[2])]
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            entry = tarfile.TarInfo(f"0/{LOG}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        then, self.meanwhile = self.meanwhile, lambda: None
        then()
        return made.getvalue()

    def put(self, data: bytes, path: str) -> None: ...

    def ask(self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60) -> Any: ...

    def close(self) -> None: ...


def look(client: Slurm) -> None:
    client.reconcile(FLEET, [job_name(FLEET, 0)], [0])


def stored(bucket: MemoryBucket) -> bytes:
    blob = bucket.read(LOG)
    return blob.data


def client_of(login: Login, bucket: MemoryBucket) -> Slurm:
    return Slurm(login, Cluster(folder="/shared"), bucket, SimulatedClock(T0))


def test_a_log_that_grows_is_copied_again_in_one_go() -> None:
    login, bucket = Login(), MemoryBucket()
    client = client_of(login, bucket)
    for log in (b"begin", b"begin, middle", b"begin, middle, end"):
        login.log = log
        look(client)
        assert stored(bucket) == log
    assert len(login.packed) == login.homed == 3


def test_a_client_that_is_late_does_not_replace_what_a_faster_one_has_copied() -> None:
    login, bucket = Login(), MemoryBucket()
    slow, fast = client_of(login, bucket), client_of(login, bucket)
    look(slow)
    login.log = b"begin, middle"

    def faster() -> None:
        login.log = b"begin, middle, end"
        look(fast)

    login.meanwhile = faster
    look(slow)
    assert stored(bucket) == b"begin, middle, end"


def test_what_others_replace_all_the_time_is_left_for_the_next_look() -> None:
    login, bucket = Login(), MemoryBucket()
    slow, fast = client_of(login, bucket), client_of(login, bucket)

    def faster() -> None:
        bucket.replace(LOG, b"another client's", generation=None)
        login.meanwhile = faster

    login.meanwhile = faster
    look(slow)
    assert login.homed == 0, "it is not all in the bucket"
    login.meanwhile = lambda: None
    look(fast)
    assert (stored(bucket), login.homed) == (b"begin", 1)
