"""Children whose nodes fall silent: who is held for dead, on whose word, and what becomes of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.adapters.hosts.local_shell import LocalShell, this_machine
from orchestrator.core.fleet.jobs import ChildSeen
from orchestrator.core.fleet.slurm import child_script
from orchestrator.core.fleet.sweep import Cluster
from orchestrator.core.hosts import parse_target
from startup.host import cluster, heartbeats
from startup.host.child import child_order
from startup.host.heartbeats import (
    BEAT_S,
    SILENT_S,
    SURE_S,
    UNBEGUN_S,
    judge_heartbeats,
    keep_heartbeat,
    read_heartbeats,
    silent_tasks,
)
from tests.integration.fleet.test_follow import Forgetful, followed
from tests.support.patience import PATIENCE_S, await_truth
from tests.support.simulated_clock import SimulatedClock
from tests.unit.fleet.stage import FleetStage, sweep_of

NAME = "0-3.node5"


def looked(signs: Sequence[tuple[float, int]], size: int = 5) -> list[bool]:
    """Whether a child is held for dead, look by look: (when, what its sign is)."""
    known: dict[str, dict[str, object]] = {}
    found = []
    for now, beat in signs:
        known = judge_heartbeats(known, {NAME: [beat, size]}, now)
        doubted = known[NAME].get("doubted")
        found.append(isinstance(doubted, float) and now - doubted >= SURE_S)
    return found


def test_who_is_silent_for_a_minute_and_while_doubted_counts_as_dead() -> None:
    assert looked([(0.0, 1), (SILENT_S - 1, 1), (SILENT_S, 1), (SILENT_S + SURE_S - 1, 1)]) == [False] * 4
    assert looked([(0.0, 1), (SILENT_S, 1), (SILENT_S + SURE_S, 1)])[-1]


def test_one_sign_ends_every_doubt() -> None:
    assert not any(looked([(0.0, 1), (SILENT_S, 1), (SILENT_S + 5, 2), (SILENT_S + SURE_S, 2)]))


def test_a_folder_that_stood_still_for_ten_minutes_makes_nobody_dead() -> None:
    assert not any(looked([(0.0, 1), (600.0, 1), (600.0 + BEAT_S, 2), (615.0, 3), (700.0, 9)]))


def test_who_looks_for_the_first_time_in_a_week_holds_nobody_for_dead() -> None:
    assert looked([(0.0, 1), (604_800.0, 1)]) == [False, False]


def test_an_interpreter_may_take_longer_to_begin_than_a_child_may_be_silent() -> None:
    assert not any(looked([(0.0, 1), (SILENT_S, 1), (UNBEGUN_S - 1, 1)], size=0))
    assert looked([(0.0, 1), (UNBEGUN_S, 1), (UNBEGUN_S + SURE_S, 1)], size=0)[-1]


@pytest.mark.parametrize("since", [None, "yesterday", float("nan"), float("-inf"), 1e9, [], -5])
def test_what_nobody_could_have_noted_is_noted_anew(since: object) -> None:
    known = {NAME: {"sign": [1, 5], "since": since, "doubted": since}}
    assert judge_heartbeats(known, {NAME: [1, 5]}, 100.0) == {NAME: {"sign": [1, 5], "since": 100.0}}


def test_a_child_gives_signs_while_it_is_at_it_and_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "BEAT_S", 0.01)
    (tmp_path / "alive").mkdir()
    path = tmp_path / "alive" / NAME
    path.touch()
    with keep_heartbeat(path):
        await_truth(lambda: heartbeats.read_heartbeats(tmp_path / "alive")[NAME][1], "its first sign")
        first = heartbeats.read_heartbeats(tmp_path / "alive")
        await_truth(lambda: heartbeats.read_heartbeats(tmp_path / "alive") != first, "its second")
    assert silent_tasks(tmp_path, read_heartbeats(tmp_path / "alive"), time.time()) == {}
    assert not path.exists()


def test_a_look_tells_who_has_been_silent_and_for_how_long(tmp_path: Path) -> None:
    (tmp_path / "alive").mkdir()
    (tmp_path / "alive" / NAME).write_text("begun")
    assert [silent_tasks(tmp_path, read_heartbeats(tmp_path / "alive"), at) for at in (1000.0, 1060.0, 1080.0)] == [
        {},
        {},
        {NAME: 80},
    ]
    (tmp_path / "alive.json").write_text("[torn")
    assert cluster.look_at_fleet(tmp_path, {})["silent"] == {}


@dataclass
class Mute(Forgetful):
    """Its machines say nothing any more, and it holds them for alive."""

    mute: set[int] = field(default_factory=set)

    def reconcile(self, fleet: str, names: Sequence[str], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        def seen(one: ChildSeen) -> ChildSeen:
            again = [job for job in self.submitted for child in job.children if child.index == one.index]
            if one.index in self.mute and len(again) == 1:
                return ChildSeen(one.index, "lost", 1, "node5", "node5 has sent no sign of life for 80 s", silent=True)
            return one

        return [seen(one) for one in super().reconcile(fleet, names, indexes)]


def test_a_silent_child_is_started_again_without_waiting_for_its_scheduler(tmp_path: Path) -> None:
    real, _, clock = followed(tmp_path)
    scheduler = Mute()
    follower = replace(real, scheduler=scheduler)
    follower.step()
    scheduler.mute = {3}
    follower.step()
    assert [child.index for job in scheduler.submitted[2:] for child in job.children] == [3]
    clock.sleep(1)
    follower.step()
    clock.sleep(120)
    follower.step()
    assert len(scheduler.submitted) == 3, "once"


class Node:
    """A login node on a folder of this machine, whose Slurm says what it is told to say."""

    def __init__(self, folder: Path, said: str = "") -> None:
        self.real, self.said = LocalShell(parse_target("local", this_machine())), said
        self.asked: list[str] = []
        self.settings = "7\n"
        self.folder, self.states = folder, ""

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        command = line.removeprefix("env SLURM_TIME_FORMAT=%s ").split()[0]
        if command == "sinfo":
            return 0, self.states, ""
        if command in ("squeue", "scancel", "sbatch", "scontrol"):
            self.asked.append(line)
            return 0, {"squeue": self.said, "scontrol": self.settings}.get(command, "7\n"), ""
        return self.real.run(line, timeout_s=timeout_s)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def test_a_child_is_told_how_far_the_clients_clock_is_ahead_of_the_controllers(tmp_path: Path) -> None:
    stage, node = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 1)), Node(tmp_path)
    node.settings = f"Configuration data as of {int(time.time()) - 600}\n\nMaxArraySize = 1001\n"
    replace(stage, shell=node).launch().step()  # type: ignore[arg-type]
    order = json.loads((tmp_path / stage.fleet / "children" / "0.json").read_text())
    assert 598 < order["client_ahead_s"] < 600 + PATIENCE_S


@pytest.mark.parametrize(
    ("says", "ahead_s"),
    [("data as of $(($(date +%s) - 1020))", -720), ("data as of 2026-11-27T13:42:59", 300), ("", 300)],
)
def test_a_nodes_clock_is_corrected_by_the_controllers_if_that_answers(
    says: str, ahead_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if says:
        program = tmp_path / "scontrol"
        program.write_text(f'#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = %s ] && echo "{says}"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if says else str(tmp_path))
    order = {"run_id": "r", "spec": {}, "metadata": {}, "deadline_s": 60, "payload": "p", "client_ahead_s": 300}
    run = child_order(order, tmp_path, 1)
    assert ahead_s - 2 < run["client_time"] - run["host_time"] < ahead_s + PATIENCE_S
    assert ahead_s < 0 or run["client_time"] - run["host_time"] == ahead_s


def test_a_childs_leftovers_in_an_earlier_job_are_ended_before_resubmission(tmp_path: Path) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 3))
    node = Node(tmp_path)
    follower = replace(stage, shell=node).launch()  # type: ignore[arg-type]
    follower.step()
    control = follower.store.control()
    (first,) = control.jobs
    name = f"bench-{stage.fleet}-0"
    node.said = "".join(f"{name}|41|{place}|{state}|None|node{place}\n" for place, state in enumerate(
        ("RUNNING", "RUNNING", "COMPLETED")))  # fmt: skip
    node.asked.clear()
    follower.submit(follower.look().state, control, [first.model_copy(update={"number": 1, "children": (1, 2)})])
    assert [line for line in node.asked if line.startswith("scancel")] == [f"scancel --quiet --name={name} 41_1"]
    assert [line.split()[0] for line in node.asked][-2:] == ["scancel", "sbatch"]


@pytest.mark.parametrize(
    ("state", "there", "seen"),
    [
        ("RUNNING", "node1", "lost"),
        ("COMPLETING", "node1", "lost"),
        ("SUSPENDED", "node1", "running"),
        ("RUNNING", "node2", "running"),
        ("PENDING", "", "queued"),
    ],
)
def test_only_who_is_to_be_at_work_on_the_silent_node_is_lost(
    tmp_path: Path, state: str, there: str, seen: str
) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 1))
    name = f"bench-{stage.fleet}-0"
    node = Node(tmp_path)
    follower = replace(stage, shell=node).launch()  # type: ignore[arg-type]
    follower.step()
    node.said = f"{name}|41|0|{state}|None|{there}\n"
    folder = tmp_path / stage.fleet
    (folder / "alive" / "0-0.node1").write_text("begun")
    sign = heartbeats.read_heartbeats(folder / "alive")["0-0.node1"]
    past = time.time() - 1000
    heartbeats.write_json(folder / "alive.json", {"0-0.node1": {"sign": sign, "since": past, "doubted": past + 60}})
    (one,) = follower.scheduler.reconcile(stage.fleet, [name], [0])
    assert (one.state, one.silent) == (seen, seen == "lost")


@pytest.mark.parametrize(
    ("waited", "node_state", "seen"),
    [(59, "unknown*", "running"), (61, "unknown*", "lost"), (61, "allocated", "running"), (6000, "mixed", "running")],
)
def test_who_never_began_is_lost_only_where_the_node_does_not_answer_slurm_either(
    tmp_path: Path, waited: int, node_state: str, seen: str
) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 1))
    name, clock, node = f"bench-{stage.fleet}-0", SimulatedClock(), Node(tmp_path)
    follower = replace(stage, shell=node).launch()  # type: ignore[arg-type]
    follower.step()
    node.said, node.states = f"{name}|41|0|RUNNING|None|node1\n", f"node1|{node_state}\n"
    scheduler = replace(follower.scheduler, clock=clock)  # type: ignore[type-var]
    assert scheduler.reconcile(stage.fleet, [name], [0])[0].state == "running"
    clock.sleep(waited)
    (one,) = scheduler.reconcile(stage.fleet, [name], [0])
    assert (one.state, one.silent) == (seen, seen == "lost")
    (tmp_path / stage.fleet / "alive" / "0-0.node1").touch()
    assert scheduler.reconcile(stage.fleet, [name], [0])[0].state == "running", "it began after all"


def test_a_job_makes_its_first_sign_before_its_interpreter_begins(tmp_path: Path) -> None:
    (tmp_path / "node" / "startup" / "host").mkdir(parents=True)
    (tmp_path / "alive").mkdir()
    script = child_script(Cluster(folder=str(tmp_path), python="true"), str(tmp_path))
    given = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "node5"}

    def started() -> list[str]:
        subprocess.run(["bash", "-c", script, "child.sh", "0"], env=given, check=True)
        return [path.name for path in (tmp_path / "alive").iterdir()]

    assert started() == [], "a program that gives no signs would be held for dead"
    (tmp_path / "node" / "startup" / "host" / "heartbeats.py").touch()
    assert started() == [NAME]
