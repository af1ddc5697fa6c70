"""What Slurm is asked and what it says, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core.fleet.jobs import ChildOrder, JobSpec, PayloadRef
from orchestrator.core.fleet.slurm import child_script, job_status, max_array, parse_tasks, sbatch
from orchestrator.core.fleet.sweep import Cluster
from tests.unit.core.builders import T0

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
