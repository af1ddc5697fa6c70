"""What becomes of answers of a login node that never arrive: the node is played, its words are Slurm's."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.adapters.hosts.host_operations import ANSWER
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.fleet.jobs import ChildOrder, JobSpec, PayloadRef
from orchestrator.core.fleet.slurm import (
    child_script,
    job_status,
    max_array,
    parse_tasks,
    sbatch,
    time_limits,
    time_problem,
    waiting_reason,
)
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.names import child_run, job_name
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


# What a partition allows, and why nothing starts.


SAID = """PartitionName=short AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=00:05:00 State=UP
PartitionName=long AllowGroups=ALL Default=NO MaxTime=2-00:00:00 State=UP
PartitionName=free AllowGroups=ALL Default=NO MaxTime=UNLIMITED State=UP
a line of a login message
"""


def test_the_limits_of_all_partitions_are_read_and_the_default_is_known() -> None:
    assert time_limits(SAID) == {"short": 300, "": 300, "long": 172_800, "free": None}
    assert time_limits("") == {}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 300), ("90:30", 5430), ("12:00:00", 43_200), ("1-6", 108_000), ("1-06:30", 109_800), ("INFINITE", None)],
)
def test_every_form_of_a_time_of_slurms_is_read(text: str, seconds: int | None) -> None:
    assert time_limits(f"PartitionName=p MaxTime={text}")["p"] == seconds


@pytest.mark.parametrize(
    ("partition", "child_s", "fits"),
    [("", 100, True), ("", 121, False), ("short", 1800, False), ("long", 1800, True), ("free", 10**7, True),
     ("short,long", 1800, True), ("unknown", 1800, True)],
)  # fmt: skip
def test_a_child_that_asks_for_more_time_than_is_allowed_never_starts(partition: str, child_s: int, fits: bool) -> None:
    problem = time_problem(time_limits(SAID), partition, child_s)
    assert (problem == "") == fits
    assert fits or "allows a job 5 min" in problem


def test_a_reason_is_kept_as_slurm_gives_it_with_what_it_means() -> None:
    assert waiting_reason("PartitionTimeLimit").startswith("PartitionTimeLimit: the partition allows less time")
    assert waiting_reason("(Resources)") == "(Resources): no node that fits is free"
    assert waiting_reason("SomethingNew") == "SomethingNew"


# What Slurm is asked and what it says, without a cluster.


CHILD = ChildOrder(0, 1, "20261122-040506-l4x7f3a-0000", {})
JOB = JobSpec(
    fleet="fleet-20261122-040506-7f3a", number=3, gpu="l4", machine_type="g2-standard-4", children=(CHILD,) * 40,
    parallel=8, ends_at=T0 + timedelta(hours=4), child_s=1800, payload=PayloadRef("b", "o", "s", ""),
)  # fmt: skip
PLACE = Cluster(folder="/shared", partition="gpu", account="kernels", gres={"h100": "gpu:nvidia_h100:1"})


def test_a_job_is_called_by_our_name_has_every_limit_and_is_requeued() -> None:
    command = sbatch(JOB, PLACE, "/shared/f", T0)
    assert "--job-name=bench-fleet-20261122-040506-7f3a-3" in command
    assert {"--array=0-39%8", "--time=33", "--deadline=now+14580", "--requeue", "--exclusive"} <= set(command)
    assert {"--gres=gpu:l4:1", "--partition=gpu", "--account=kernels", "--export=NONE"} <= set(command)
    assert command[-2:] == ("/shared/f/child.sh", "3")


def test_a_gpu_goes_by_the_clusters_own_name_and_a_processor_needs_none() -> None:
    assert "--gres=gpu:nvidia_h100:1" in sbatch(replace(JOB, gpu="h100"), PLACE, "/f", T0)
    assert not any(word.startswith("--gres") for word in sbatch(replace(JOB, gpu="cpu"), PLACE, "/f", T0))


def test_a_job_asks_for_no_more_time_than_the_fleet_has_left() -> None:
    assert "--time=13" in sbatch(JOB, PLACE, "/f", T0 + timedelta(hours=4, minutes=-10))


def test_the_interpreter_takes_the_shells_place_so_that_signals_reach_it() -> None:
    assert "exec python3 -m startup.host.child /shared/f" in child_script(PLACE, "/shared/f")


QUEUE = """bench-x-0|7|0|COMPLETED|None|node1
bench-x-0|7|1|RUNNING|None|node2
bench-x-0|7|2|PENDING|Resources|
bench-x-0|7|3|NODE_FAIL|None|node3
bench-x-1|8|0|CANCELLED|None|
a line of a login message
other|9|N/A|RUNNING|None|node4
"""


def test_lines_of_the_queue_are_counted_by_our_names() -> None:
    seen = parse_tasks(QUEUE)
    one = job_status("bench-x-0", seen)
    assert (one.state, one.pending, one.running, one.succeeded, one.failed) == ("running", 1, 1, 1, 1)
    assert one.reason == "Resources"
    assert job_status("bench-x-1", seen).state == "cancelled"
    assert job_status("bench-x-2", seen).state == "absent"


@pytest.mark.parametrize(("text", "most"), [("MaxArraySize            = 20001\n", 20001), ("", 1001)])
def test_the_longest_array_is_read_from_the_clusters_configuration(text: str, most: int) -> None:
    assert max_array(f"Configuration data\n{text}MaxJobCount = 50000") == most


# What clients of one fleet copy from a cluster to the bucket: of a file that grows, the newest version is kept.


HOME_FLEET = "fleet-20261122-040506-7f3a"
LOG = f"runs/{child_run(HOME_FLEET, 'l4', 0)}/artifacts/log.txt"


@dataclass
class HomeLogin:
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
    client.reconcile(HOME_FLEET, [job_name(HOME_FLEET, 0)], [0])


def stored(bucket: MemoryBucket) -> bytes:
    blob = bucket.read(LOG)
    return blob.data


def client_of(login: HomeLogin, bucket: MemoryBucket) -> Slurm:
    return Slurm(login, Cluster(folder="/shared"), bucket, SimulatedClock(T0))


def test_a_log_that_grows_is_copied_again_in_one_go() -> None:
    login, bucket = HomeLogin(), MemoryBucket()
    client = client_of(login, bucket)
    for log in (b"begin", b"begin, middle", b"begin, middle, end"):
        login.log = log
        look(client)
        assert stored(bucket) == log
    assert len(login.packed) == login.homed == 3


def test_a_client_that_is_late_does_not_replace_what_a_faster_one_has_copied() -> None:
    login, bucket = HomeLogin(), MemoryBucket()
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
    login, bucket = HomeLogin(), MemoryBucket()
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
