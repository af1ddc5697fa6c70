"""What becomes of answers of a login node that never arrive: the node is played, its words are Slurm's."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from orchestrator.adapters.slurm import Slurm
from orchestrator.core.fleet.jobs import ChildOrder, JobSpec, PayloadRef
from orchestrator.core.fleet.names import child_run
from orchestrator.core.fleet.sweep import Cluster
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import T0

FLEET = "fleet-20261122-040506-7f3a"
TIMED_OUT = (1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")


@dataclass
class Login:
    """A login node whose first answers to `sbatch` are lost, after the job was taken or before."""

    lost: int = 1
    taken: bool = True
    jobs: list[str] = field(default_factory=list)

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        command = shlex.split(line)
        if command[0] == "squeue":
            return 0, "".join(f"{name}|{place + 7}|0|PENDING|None|\n" for place, name in enumerate(self.jobs)), ""
        if command[0] != "sbatch":
            return 0, "", ""
        name = next(word.partition("=")[2] for word in command if word.startswith("--job-name="))
        self.lost -= 1
        if self.lost < 0 or self.taken:
            self.jobs.append(name)
        return TIMED_OUT if self.lost >= 0 else (0, f"{len(self.jobs) + 6}\n", "")

    def get(self, path: str, *, limit: int) -> bytes | None:
        return None

    def put(self, data: bytes, path: str) -> None: ...

    def ask(self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60) -> Any: ...

    def close(self) -> None: ...


def job() -> JobSpec:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz"):
        pass
    return JobSpec(
        fleet=FLEET, number=0, gpu="l4", machine_type="", children=(ChildOrder(0, 1, child_run(FLEET, "l4", 0), {}),),
        parallel=1, ends_at=T0 + timedelta(hours=1), child_s=600,
        payload=PayloadRef("b", "payloads/x.tar.gz", "ab" * 32, "", made.getvalue()),
    )  # fmt: skip


def submitted(login: Login) -> list[str]:
    Slurm(login, Cluster(folder="/shared"), MemoryBucket(), SimulatedClock(T0)).submit([job()])
    return login.jobs


def test_a_job_whose_answer_is_lost_is_sought_by_name_before_it_is_sent_again() -> None:
    login = Login(lost=1, taken=True)
    assert submitted(login) == [job().name]


def test_a_job_that_was_not_taken_is_sent_again() -> None:
    assert submitted(Login(lost=3, taken=False)) == [job().name]


def test_a_job_that_the_queue_has_is_not_sent_at_all() -> None:
    login = Login(lost=0, jobs=[job().name])
    assert submitted(replace(login)) == [job().name]
