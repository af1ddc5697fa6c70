"""Fleets on a real Slurm cluster of this machine: real sbatch, squeue and scancel, nodes that lose their power."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.hosts.ssh import SshShell
from orchestrator.adapters.payload import bundle_root
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.slurm import waiting_reason
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.core.hosts import parse_target
from orchestrator.core.names import job_name
from orchestrator.runs.fleet.follow import FleetSighting, Follower
from tests.integration.hosts.conftest import Client, client  # noqa: F401
from tests.support.patience import PATIENCE_S
from tests.support.slurm import MISSING, NOTICED_SOON, SlurmCluster, slurm_cluster
from tests.support.sshd import SSHD, sshd
from tests.unit.fleet.stage import PACE, SCRIPT, FleetStage, payload, sweep_of


@pytest.fixture(autouse=True, scope="module")
def _needs_slurm() -> None:
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as their user: only root can")
    if MISSING:
        if os.environ.get("CI"):
            pytest.fail(f"CI lacks {', '.join(MISSING)}: .ci/run installs slurmctld, slurmd and slurm-client")
        pytest.skip(f"there is no {MISSING[0]} here: apt-get install slurmctld slurmd slurm-client")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 6, ("l4", "l4", "t4")) as made:
        yield made


@pytest.fixture
def stage(tmp_path: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> FleetStage:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    (tmp_path / "shared").mkdir()
    return FleetStage(tmp_path, sweep_of(tmp_path / "shared", ("l4", "t4"), 6))


def held(go_on: Path) -> str:
    """What a machine runs where a child is at its case until a file is there: what befalls a node finds it there."""
    return SCRIPT.replace(PACE, f"until [[ -e {go_on} ]]; do sleep 0.1; done")


def followed(follower: Follower, until: Callable[[FleetSighting], bool] = lambda seen: seen.over) -> FleetSighting:
    began = time.monotonic()
    while True:
        seen = follower.step()
        if until(seen):
            return seen
        assert time.monotonic() - began < PATIENCE_S, (seen.state.counts, seen.jobs)
        time.sleep(1)  # each look is six processes


def test_every_child_is_stored_once_and_the_fleet_settles_its_one_hold(stage: FleetStage) -> None:
    follower = stage.launch()
    seen = followed(follower)
    assert seen.state.counts == {"stored": 6}
    assert len(stage.stored()) == len(stage.claims()) == 6
    assert {line.attempt for line in seen.state.lines.values()} == {1}
    (entry,) = stage.world().ledger.read().runs.values()
    assert entry.settled_usd is not None
    assert 0 < entry.settled_usd <= entry.hold_usd
    run = stage.again().store.state(stage.children)
    assert run == seen.state, "who looks later sees the same"
    follower.step()
    assert len(stage.claims()) == 6, "nothing is measured twice"


def test_a_job_whose_answer_was_lost_is_not_submitted_again(stage: FleetStage, cluster: SlurmCluster) -> None:
    follower = stage.launch()
    follower.step()
    control = follower.store.control()
    # A client that died before it read sbatch's answer has left the job, and no note of it.
    for note in (Path(stage.sweep.slurm.folder) / stage.fleet / "jobs").glob("*.submitted"):
        note.unlink()
    other = stage.again()
    other.submit(other.look().state, control, control.jobs)
    ids = cluster.run(
        "squeue", "-h", "-t", "all", f"--name={job_name(stage.fleet, 0)},{job_name(stage.fleet, 1)}", "-o", "%j %F"
    )
    assert len(set(ids.split("\n")) - {""}) == len(control.jobs)
    assert followed(other).state.counts == {"stored": 6}
    assert len(stage.claims()) == 6


def test_a_partition_that_allows_less_time_is_known_and_why_a_job_waits_is_told(
    stage: FleetStage, cluster: SlurmCluster
) -> None:
    follower = stage.launch()
    assert isinstance(follower.scheduler, Slurm)
    assert follower.scheduler.time_problem(10**6) == ""
    cluster.run("scontrol", "update", "PartitionName=gpu", "MaxTime=2")
    try:
        assert "the default partition allows a job 2 min" in follower.scheduler.time_problem(600)
        seen = followed(follower, lambda seen: any(job.reason for job in seen.jobs))
        told = {waiting_reason(job.reason) for job in seen.jobs if job.reason}
        assert told
        assert told <= {
            "PartitionTimeLimit: the partition allows less time than a child asks for",
            "PartitionConfig: the partition's settings do not allow the job",
        }
    finally:
        cluster.run("scontrol", "update", "PartitionName=gpu", "MaxTime=UNLIMITED")
    assert followed(stage.again()).state.counts == {"stored": 6}


def test_a_node_whose_clock_is_wrong_stores_its_events_by_the_controllers(stage: FleetStage, tmp_path: Path) -> None:
    early = tmp_path / "python-17-minutes-ahead"
    program = "import runpy, sys, time; real = time.time; time.time = lambda: real() + 1020; sys.argv = sys.argv[2:]"
    early.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c \'{program}; runpy.run_module(sys.argv[0], None, "__main__", True)\' "$@"\n'
    )
    early.chmod(0o755)
    # As the agent does: by the date of the server that it stores with.
    served = "date -u -d \"$(curl --silent --noproxy '*' -D - -o /dev/null \"$store/\" | sed -n 's/^Date: //p')\" +%Y"
    cluster = stage.sweep.slurm.model_copy(update={"python": str(early)})
    sweep = stage.sweep.model_copy(update={"slurm": cluster, "axes": {"gpu": ("l4",)}, "repeats": 1})
    script = SCRIPT.replace("date -u +%Y", served)
    assert script != SCRIPT
    began = SystemClock().now() - timedelta(seconds=2)
    seen = followed(replace(stage, sweep=sweep, parcel=payload(script=script)).launch())
    assert seen.state.counts == {"stored": 1}
    stamps = [found[1] for entry in stage.bucket.list("runs/") if (found := VM_EVENT.search(entry.name))]
    moments = [datetime.strptime(stamp, "%Y%m%dT%H%M%S.%f%z") for stamp in stamps]
    assert len(moments) == 4
    assert began < min(moments) <= max(moments) < SystemClock().now() + timedelta(seconds=2)


VM_EVENT = re.compile(r"/events/([^/]*?Z)-vm-1-")


def test_a_stopped_fleet_keeps_its_results_and_resumes_without_measuring_again(
    stage: FleetStage, cluster: SlurmCluster
) -> None:
    follower = stage.launch()
    followed(follower, lambda seen: seen.state.counts["stored"] >= 1)
    stopped = stage.again().stop("ada")
    assert stopped.control.stopped == "ada"
    seen = followed(stage.again())
    assert not any(job.running or job.pending for job in seen.jobs)
    kept = stage.stored()
    assert kept
    other = stage.again()
    other.resume()
    assert followed(other).state.counts == {"stored": 6}
    assert {run: stage.stored()[run] for run in kept} == kept, "not one was stored again"


def test_a_configuration_that_fails_on_three_machines_is_a_row_with_its_reason(stage: FleetStage) -> None:
    sweep = stage.sweep.model_dump() | {"axes": {"gpu": ["l4"], "measure.seed": [13]}, "repeats": 3}
    failing = replace(stage, sweep=Sweep.model_validate(sweep), fleet=f"{stage.fleet[:-4]}f{stage.fleet[-3:]}")
    seen = followed(failing.launch())
    assert seen.state.counts == {"given_up": 3}
    assert {line.reason for line in seen.state.lines.values()} == {"failed on 3 machines: no kernel image"}


def test_what_the_cluster_can_never_run_is_refused_with_what_helps(stage: FleetStage) -> None:
    sweep = stage.sweep.model_copy(update={"axes": {"gpu": ("h100",)}})
    with pytest.raises(ConfigError, match="the cluster refused the job") as refused:
        replace(stage, sweep=sweep).launch().step()
    assert "sinfo" in refused.value.hint


def test_a_login_node_over_ssh_does_the_same_and_no_node_has_a_credential(
    stage: FleetStage,
    cluster: SlurmCluster,
    client: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert SSHD is not None, ".ci/run installs openssh-server"
    known = {"PATH": cluster.environment["PATH"], "SLURM_CONF": str(cluster.conf)}
    with sshd(tmp_path / "server", environment=known) as server:
        client.reaches(server, name="login")
        shell = SshShell(parse_target("login"))
        try:
            far = replace(stage, shell=shell)
            seen = followed(far.launch())
        finally:
            shell.close()
    assert seen.state.counts == {"stored": 6}
    assert len(far.stored()) == 6
    folder = Path(stage.sweep.slurm.folder) / stage.fleet
    spread = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"PRIVATE KEY" not in spread
    assert server.user_key.read_bytes() not in spread


def test_arrays_are_cut_to_what_the_cluster_allows(stage: FleetStage) -> None:
    scheduler = stage.launch().scheduler
    assert isinstance(scheduler, Slurm)
    assert scheduler.most_children == 1001, "Slurm's own default"


def test_a_dead_node_and_a_restarted_controller_lose_and_repeat_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm_cluster(tmp_path / "own", 4, ("l4",), NOTICED_SOON) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        (tmp_path / "shared").mkdir()
        go_on = tmp_path / "go-on"
        stage = FleetStage(tmp_path, sweep_of(tmp_path / "shared", ("l4",), 12), parcel=payload(script=held(go_on)))
        follower = stage.launch()
        followed(follower, lambda seen: seen.state.counts["running"] >= 3)
        cluster.cut_power("node2")
        cluster.end_controller(15)
        go_on.touch()
        time.sleep(1)
        cluster.start_controller()
        seen = followed(follower)
    assert seen.state.counts == {"stored": 12}
    assert len(stage.stored()) == 12


def test_a_node_that_falls_silent_is_not_waited_for_until_slurm_misses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = tmp_path / "heartbeats.py"  # nodes' programs, which wait a minute, in a test's time
    text = (bundle_root() / "startup" / "host" / "heartbeats.py").read_text(encoding="utf-8")
    for name, seconds in {"BEAT_S": 0.5, "SILENT_S": 4, "UNBEGUN_S": 8, "SURE_S": 2}.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {seconds}", text, flags=re.MULTILINE)
    signs.write_text(text, encoding="utf-8")
    with slurm_cluster(tmp_path / "own", 2, ("l4",), {"SlurmdTimeout": "3600"}) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        (tmp_path / "shared").mkdir()
        go_on = tmp_path / "go-on"
        parcel = payload({"startup/host/heartbeats.py": signs}, held(go_on))
        stage = FleetStage(tmp_path, sweep_of(tmp_path / "shared", ("l4",), 2), parcel=parcel)
        follower = stage.launch()
        followed(follower, lambda seen: any(claim["machine"] == "node2" for claim in stage.claims()))
        cluster.cut_power("node2")
        go_on.touch()
        seen = followed(follower)
        assert seen.state.counts == {"stored": 2}
        assert len(stage.stored()) == 2
        last = max(follower.store.control().jobs, key=lambda job: job.number)
        assert last.number > 0, "the child of the dead node was asked for again"
        queue = cluster.run("squeue", "-h", "-a", "-o", "%j|%t|%N")
        assert f"{job_name(stage.fleet, 0)}|CG|node2" in queue, "and its first job is never requeued"
        assert "DOWN" not in cluster.run("sinfo", "-h", "-N", "-o", "%T").upper(), "though Slurm holds it for alive"
