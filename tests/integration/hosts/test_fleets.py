"""A fleet on machines of one's own: two real servers, real agents, and one of them that dies."""

from __future__ import annotations

import contextlib
import csv
import gzip
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from orchestrator.cli.documents import SHAPES
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.integration.hosts.conftest import Client, base_python, with_stand_ins
from tests.integration.hosts.looking import in_phase, processes
from tests.support.paced import held_at
from tests.support.patience import await_truth
from tests.support.sshd import Sshd, Wire, sshd

pytestmark = [pytest.mark.usefixtures("cloud")]

GRID = [{"batch": 1, "heads": 2, "seq": seq, "head_dim": 64} for seq in range(16, 96, 8)]
CHILDREN, CASES = 3, 10


@dataclass(frozen=True)
class Two:
    """Two hosts that the client reaches as `one` and `other`, the first of them by way of a wire."""

    one: Sshd
    other: Sshd
    wire: Wire

    def pull_the_plug(self) -> None:
        """The first host is gone at once: its connections, and every process of what it measures."""
        self.wire.cut(down_s=1e6)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.one.process.pid, signal.SIGKILL)
        await_truth(lambda: not self.killed(), "the end of every process of one host")

    def killed(self) -> list[int]:
        """What there was to kill of the first host. One that forked while it was killed is met on the next round."""
        found, wanted = [], str(self.one.folder).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                    if wanted in told:
                        os.kill(int(entry.name), signal.SIGKILL)
                        found.append(int(entry.name))
        return found


@pytest.fixture
def two(tmp_path: Path, client: Client) -> Iterator[Two]:
    path = base_python(tmp_path / "python")
    with ExitStack() as stack:
        servers = []
        for name in ("one", "other"):
            server = stack.enter_context(sshd(tmp_path / name, environment={"PATH": path}))
            with_stand_ins(server.home)
            servers.append(server)
        wire = stack.enter_context(Wire(servers[0].port))
        ports = (wire.port, servers[1].port)
        blocks = [
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {server.user_key}"
            for name, port, server in zip(("one", "other"), ports, servers, strict=True)
        ]
        client.configure(*blocks)
        client.knows(*(server.known_line(port) for port, server in zip(ports, servers, strict=True)))
        yield Two(*servers, wire)


@pytest.fixture
def sweep(bench: Bench, paced: tuple[str, ...]) -> Path:
    """Ten cases in three chunks, on two hosts."""
    document = {
        "engine": "hosts",
        "hosts": ["one", "other"],
        "axes": {"gpu": ["cpu"]},
        "cases_per_child": 4,
        "settings": {
            "payload.root": paced[1].partition("=")[2],
            "measure.grid": {"shapes": GRID, "dtypes": ["float32"]},
            "measure.repeats": 200,
            "measure.warmup": 20,
            "environment.min_free_gb": 0,
        },
    }
    path = bench.home / "sweep.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def held(sweep: Path, case: str) -> Path:
    """The file without which no host goes on past a case of its chunk: a host that is to die is seen at it."""
    root = yaml.safe_load(sweep.read_text())["settings"]["payload.root"]
    return held_at(Path(root), case)[case]


def begun(host: Sshd) -> bool:
    """Whether the host is about to measure the cases of a chunk."""
    with contextlib.suppress(OSError):
        return in_phase(host, "measure")
    return False


def stored() -> dict[str, int]:
    """Every case in the bucket, and the generation that it was created as."""
    return {entry.name: entry.generation for entry in wire().bucket.list("runs/") if "/cases/" in entry.name}


def under_way(host: str, case: int = 1) -> bool:
    """Whether the host has something in hand, of which that many cases are stored."""
    fleets = list(wire().bucket.list("fleet-index/"))
    if not fleets:
        return False
    fleet = fleets[0].name.removeprefix("fleet-index/").removesuffix(".json")
    lines = [entry.metadata for entry in wire().bucket.list(f"fleets/{fleet}/index/")]
    mine = [line["child"] for line in lines if (line["machine"], line["state"]) == (host, "running")]
    return any(sum(name.split("/")[1].endswith(f"{int(child):04x}") for name in stored()) >= case for child in mine)


def rows_of(bench: Bench) -> list[dict[str, str]]:
    fetched = bench("fleet", "fetch", "--into", "out", "--json").document
    TypeAdapter(SHAPES["fleet fetch"]).validate_python(fetched)
    folder = Path(fetched["folder"])
    with gzip.open(folder / "measurements.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def measured_once(bench: Bench) -> Counter[str]:
    """How many cases each machine has measured, once it is seen that each is there once."""
    rows = rows_of(bench)
    key = Counter((row["case_id"], row["implementation"], row["repeat"]) for row in rows)
    assert set(key.values()) == {1}, "a case is in the table once"
    by_vm = {(row["case_id"], row["vm"]) for row in rows}
    assert len(by_vm) == len({case for case, _ in by_vm}) == CASES, "a case is of one machine"
    return Counter(vm for _, vm in by_vm)


def states(document: Any) -> Counter[str]:
    return Counter(child["state"] for child in document["children"])


def test_hosts_divide_the_chunks_and_each_case_is_measured_once(bench: Bench, two: Two, sweep: Path) -> None:
    go_on = held(sweep, "case 1")

    def both_at_it() -> None:
        await_truth(lambda: begun(two.one) and begun(two.other), "a chunk for each")
        go_on.touch()

    looker = threading.Thread(target=both_at_it, daemon=True)
    looker.start()
    ended = bench("fleet", "launch", str(sweep), "--json").document
    looker.join()
    TypeAdapter(SHAPES["fleet launch"]).validate_python(ended)
    assert states(ended) == {"stored": CHILDREN}
    assert {child["machine"] for child in ended["children"]} == {"one", "other"}, "both took part"
    assert len(measured_once(bench)) == CHILDREN
    assert [processes(host) for host in (two.one, two.other)] == [[], []]
    before = stored()
    bench("fleet", "resume", "--json")
    assert stored() == before, "nothing is left to measure"


def test_what_a_host_that_dies_had_in_hand_is_measured_by_the_other(bench: Bench, two: Two, sweep: Path) -> None:
    bench("cloud", "start")
    kept: dict[str, int] = {}
    go_on = held(sweep, "case 1")

    def pull_the_plug() -> None:
        await_truth(lambda: begun(two.one), "the first chunk of one host")
        two.pull_the_plug()
        kept.update(stored())
        go_on.touch()

    killer = threading.Thread(target=pull_the_plug, daemon=True)
    killer.start()
    ran = bench("fleet", "launch", str(sweep), "--json")
    killer.join()
    assert "one is not used any more" in ran.err
    assert states(ran.document) == {"stored": CHILDREN}
    assert {child["machine"] for child in ran.document["children"]} == {"other"}
    after = stored()
    assert {name: after[name] for name in kept} == kept, "what was stored is not stored again"
    measured_once(bench)
    assert processes(two.other) == []


def test_resume_measures_on_the_living_host_what_dead_host_and_client_left(bench: Bench, two: Two, sweep: Path) -> None:
    bench("cloud", "start")
    go_on = held(sweep, "case 2")
    command = [sys.executable, "-m", "orchestrator.cli", "fleet", "launch", str(sweep)]
    client = subprocess.Popen(command, cwd=bench.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    await_truth(lambda: under_way("one"), "one host's first case", 0.5)
    client.kill()
    client.communicate()
    two.pull_the_plug()
    kept = stored()
    go_on.touch()
    ended = bench("fleet", "resume", "--json")
    assert states(ended.document) == {"stored": CHILDREN}
    after = stored()
    assert {name: after[name] for name in kept} == kept
    measured_once(bench)
    assert processes(two.other) == []


def test_a_host_that_was_never_there_takes_no_part_and_the_others_measure_all(
    bench: Bench, two: Two, sweep: Path
) -> None:
    sweep.write_text(sweep.read_text().replace("- other", "- 127.0.0.1:1"))
    ran = bench("fleet", "launch", str(sweep), "--json")
    assert "127.0.0.1:1 is not used any more" in ran.err
    assert states(ran.document) == {"stored": CHILDREN}
    assert {child["machine"] for child in ran.document["children"]} == {"one"}
    assert [processes(host) for host in (two.one, two.other)] == [[], []]


def test_a_run_on_several_hosts_is_refused_with_the_fleet_that_does_it(bench: Bench) -> None:
    for command in ("launch", "plan"):
        refused = bench(command, "--gpu", "cpu", "--host", "one", "--host", "other", code=2)
        assert "a run is measured on one machine, and 2 are named" in refused.err
        assert "bench fleet launch --engine hosts --host one --host other" in refused.err
