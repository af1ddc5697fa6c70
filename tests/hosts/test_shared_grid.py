"""One grid on two hosts: two real servers, real agents, leases in a real bucket; one of the hosts is killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.cli.reading import about_machines
from orchestrator.core.run.leases import SharedGrid
from orchestrator.ports import Bucket
from orchestrator.wiring import wire
from tests.cli.conftest import Bench
from tests.hosts.conftest import Client, base_python, with_stand_ins
from tests.hosts.looking import await_truth, processes
from tests.support.sshd import Sshd, Wire, sshd

pytestmark = pytest.mark.slow

SHAPES = ", ".join(f"{{batch: 1, heads: 2, seq: {seq}, head_dim: 64}}" for seq in range(16, 96, 8))
TEN = ("--set", f"measure.grid={{shapes: [{SHAPES}], dtypes: [float32]}}")
SLOWER = ("--set", "measure.repeats=2000")
"""So that half of the grid is still to do when the plug is pulled, also on a computer that is busy."""


@pytest.fixture
def two(tmp_path: Path, client: Client) -> Iterator[tuple[Sshd, Sshd]]:
    """Two hosts that the client reaches as `one` and `other`."""
    path = base_python(tmp_path / "python")
    with ExitStack() as stack:
        servers = []
        for name in ("one", "other"):
            server = stack.enter_context(sshd(tmp_path / name, environment={"PATH": path}))
            with_stand_ins(server.home)
            servers.append(server)
        blocks = [
            f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.user_key}"
            for name, server in zip(("one", "other"), servers, strict=True)
        ]
        client.configure(*blocks)
        client.knows(*(server.known_line() for server in servers))
        yield servers[0], servers[1]


def kill(host: Sshd) -> None:
    """The plug is pulled: the server, its connections, and every process of the run, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.process.pid, signal.SIGKILL)
    wanted = str(host.folder).encode()
    for _ in range(3):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    if wanted in told:
                        os.kill(int(entry.name), signal.SIGKILL)
        time.sleep(0.05)


def half_done(seen: list[SharedGrid], bucket: Bucket) -> bool:
    """Whether the bucket has half of the only grid that there is, some of it by each host."""
    for entry in bucket.list("grids/"):
        blob = bucket.read(entry.name) if "/beats/" not in entry.name else None
        if blob is not None:
            seen.append(SharedGrid.parse(blob.data))
    return bool(seen) and len(seen[-1].done) >= 5 and len(set(seen[-1].done.values())) == 2


def cases_of(bench: Bench, run_id: str) -> tuple[list[str], Path]:
    """The case ids of what was fetched, one for each file; no case twice in the table."""
    document = bench("fetch", run_id, "--into", "out", "--json").document
    folder = Path(document["folder"])
    with (folder / "measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    key = Counter((row["case_id"], row["implementation"], row["repeat"]) for row in rows)
    assert set(key.values()) == {1}, "a case is in the table once"
    by_vm = {(row["case_id"], row["vm"]) for row in rows}
    assert len(by_vm) == len({case for case, _ in by_vm}), "a case is of one machine"
    return sorted(path.stem for path in (folder / "cases").glob("*.csv")), folder


def started(bench: Bench, runs: list[str]) -> Counter[str]:
    """How often each case was begun, by the events of all runs."""
    found: Counter[str] = Counter()
    for run_id in runs:
        document = bench("status", run_id, "--json").document
        found.update(case["case_id"] for case in document["cases"])
    return found


def test_two_hosts_share_a_grid_and_each_case_is_measured_once(
    bench: Bench, two: tuple[Sshd, Sshd], paced: tuple[str, ...]
) -> None:
    ran = bench("launch", "--gpu", "cpu", "--host", "one", "--host", "other", "--json", *paced, *TEN).document
    assert (ran["state"], ran["cases_done"], ran["cases_total"]) == ("succeeded", 10, 10)
    shares = [machine["cases"] for machine in ran["machines"]]
    assert all(len(share) >= 2 for share in shares), "both took part"
    assert len({case for share in shares for case in share}) == 10
    cases, folder = cases_of(bench, ran["run_id"])
    assert len(cases) == 10
    measured = started(bench, [machine["run_id"] for machine in ran["machines"]])
    assert set(measured.values()) == {1}, "0 cases measured twice"
    notes = json.loads((folder / "report.json").read_text())["warnings"]
    assert any("2 machines measured this grid" in note for note in notes)
    assert [processes(host) for host in two] == [[], []]
    member = ran["machines"][1]["run_id"]
    assert bench("fetch", member, "--into", "out", "--json").document["run_id"] == ran["run_id"]


def test_when_a_host_is_killed_with_half_of_the_grid_done_the_other_measures_the_rest(
    bench: Bench, two: tuple[Sshd, Sshd], paced: tuple[str, ...]
) -> None:
    one, other = two

    struck: list[SharedGrid] = []

    def pull_the_plug() -> None:
        await_truth(lambda: half_done(struck, bucket), "half of the grid")
        kill(one)

    bench("cloud", "start")
    bucket = wire().bucket
    killer = threading.Thread(target=pull_the_plug, daemon=True)
    killer.start()
    ran = bench("launch", "--gpu", "cpu", "--host", "one", "--host", "other", "--json", *paced, *TEN, *SLOWER).document
    killer.join()
    assert (ran["state"], ran["cases_done"]) == ("succeeded", 10)
    dead, living = ran["machines"]
    assert (dead["reached"], living["reached"]) == (False, True)
    assert 5 <= len(struck[-1].done) < 10
    assert set(struck[-1].done_by(dead["run_id"])) <= set(dead["cases"])
    assert len(dead["cases"]) >= 2, "it had done some"
    assert len(living["cases"]) == 10 - len(dead["cases"])
    cases, _ = cases_of(bench, ran["run_id"])
    assert len(cases) == 10
    measured = started(bench, [living["run_id"]])
    measured.update(dead["cases"])
    assert set(measured.values()) == {1}, "0 cases measured twice"
    assert processes(other) == []


def launched(bench: Bench, *arguments: str) -> subprocess.Popen[str]:
    """A client in a process of its own, so that it can be killed."""
    command = [sys.executable, "-m", "orchestrator.cli", "launch", "--gpu", "cpu", *arguments]
    return subprocess.Popen(command, cwd=bench.home, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_client_that_is_killed_is_followed_by_another_and_no_case_is_measured_twice(
    bench: Bench, two: tuple[Sshd, Sshd], paced: tuple[str, ...]
) -> None:
    bench("cloud", "start")
    bucket = wire().bucket
    seen: list[SharedGrid] = []
    client = launched(bench, "--host", "one", "--host", "other", *paced, *TEN)
    await_truth(lambda: half_done(seen, bucket), "half of the grid")
    client.kill()
    client.communicate()
    lead = next(iter(seen[-1].members))
    ran = bench("launch", "--resume", lead, *paced[:2], "--json").document
    assert (ran["state"], ran["cases_done"]) == ("succeeded", 10)
    cases, _ = cases_of(bench, lead)
    assert len(cases) == 10
    measured = started(bench, [machine["run_id"] for machine in ran["machines"]])
    assert set(measured.values()) == {1}
    assert [processes(host) for host in two] == [[], []]


def test_a_host_that_comes_back_takes_part_again_and_nothing_of_it_is_lost(
    bench: Bench, two: tuple[Sshd, Sshd], client: Client, paced: tuple[str, ...]
) -> None:
    one, other = two
    with Wire(one.port) as cable:
        blocks = [
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {server.user_key}"
            for name, port, server in (("one", cable.port, one), ("other", other.port, other))
        ]
        client.configure(*blocks)
        client.knows(one.known_line(cable.port), other.known_line())
        seen: list[SharedGrid] = []

        def cut() -> None:
            await_truth(lambda: half_done(seen, bucket), "half of the grid")
            cable.cut(down_s=3)

        bench("cloud", "start")
        bucket = wire().bucket
        cutter = threading.Thread(target=cut, daemon=True)
        cutter.start()
        ran = bench("launch", "--gpu", "cpu", "--host", "one", "--host", "other", "--json", *paced, *TEN).document
        cutter.join()
        assert cable.cuts == 1
        assert (ran["state"], ran["cases_done"]) == ("succeeded", 10)
        assert [machine["state"] for machine in ran["machines"]] == ["succeeded", "succeeded"]
        measured = started(bench, [machine["run_id"] for machine in ran["machines"]])
        assert set(measured.values()) == {1}
        assert [processes(host) for host in two] == [[], []]


def test_a_host_that_cannot_be_reached_takes_no_part_and_the_others_measure_all(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    ran = bench("launch", "--gpu", "cpu", "--host", "box", "--host", "127.0.0.1:1", "--json", *paced)
    assert ran.document["state"] == "succeeded"
    assert "127.0.0.1:1 takes no part" in ran.err


def test_a_shared_grid_needs_its_client(bench: Bench, two: tuple[Sshd, Sshd], paced: tuple[str, ...]) -> None:
    refused = bench("launch", "--gpu", "cpu", "--host", "one", "--host", "other", "--detach", *paced, code=2)
    assert "hand out its cases" in refused.err
    assert "bench launch --resume" in refused.err


def test_a_host_that_the_budget_has_nothing_left_for_is_left_out(
    bench: Bench, two: tuple[Sshd, Sshd], paced: tuple[str, ...]
) -> None:
    money = ("--set", "host.hourly_usd=1", "--set", "run.max_minutes=6", "--set", "budget.per_day_usd=0.15")
    ran = bench("launch", "--gpu", "cpu", "--host", "one", "--host", "other", "--json", *paced, *money)
    assert ran.document["cases_done"] == 2
    assert len(ran.document["machines"]) == 1
    assert "other is left out" in ran.err
    (entry,) = bench("costs", "--json").document["runs"]
    assert entry["settled_usd"] is not None


def test_hosts_that_differ_are_not_pooled_without_saying_so() -> None:
    first = {"device": "NVIDIA L4", "device_kind": "cuda", "driver": "580"}
    machines = [
        {"run_id": "a", "target": "ada@one", "cases": ["x", "y"]},
        {"run_id": "b", "target": "ada@other", "cases": ["z"]},
        {"run_id": "c", "target": "ada@idle", "cases": []},
    ]
    same = about_machines(first, {"b": first}, {"machines": machines})
    assert same == ("2 machines measured this grid, each case on one of them: 2 on ada@one, 1 on ada@other.",)
    mild = about_machines(first, {"b": {**first, "driver": "570"}}, {"machines": machines})
    assert "driver differs: 580 and 570" in mild[1]
    assert "with care" in mild[1]
    bad = about_machines(first, {"b": {**first, "device": "Tesla T4"}}, {"machines": machines})
    assert "must not be compared" in bad[1]
    assert about_machines(first, {}, {}) == ()
