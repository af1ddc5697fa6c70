"""`bench ssh`: which machine it reaches, and what it says where it reaches none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.files import is_installed, run_attached
from orchestrator.cli.ssh import command_for
from orchestrator.core.errors import ConfigError, LocalError, NotFound, Unavailable
from orchestrator.core.hosts import HostRecord, HostTarget, parse_target
from orchestrator.core.naming import Mode
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.unit.core.builders import RUN, VM, Log, created, gone, planned, requested, running

BOX = parse_target("ada@box:2222")


@dataclass
class Hosts:
    known: dict[str, HostRecord] = field(default_factory=dict)

    def record(self, zone: str) -> HostRecord | None:
        return self.known.get(zone)


@dataclass
class Named:
    """The hosts that commands of this user have named."""

    hosts: tuple[str, ...] = (str(BOX),)

    def reachable(self, target: HostTarget) -> HostTarget:
        if str(target) not in self.hosts:
            raise Unavailable(f"no command has named {target}")
        return target


@dataclass
class Place:
    """As much of a wiring as the question takes."""

    mode: Mode = Mode.GCE
    hosts: Hosts = field(default_factory=Hosts)
    project: str = "my-project"
    named: Named = field(default_factory=Named)

    @property
    def settings(self) -> Place:
        return self


def command(run: Run | None, place: Place | None = None, *words: str) -> tuple[str, ...]:
    assert run is not None
    wiring: Any = place or Place()
    return command_for(wiring, run, words)


def on_host() -> Run | None:
    return replay(Log().add(0, planned(mode="host")).add(2, requested(BOX.zone)).add(5, created(4, BOX.zone)).events)


def test_a_rented_machine_is_reached_through_gcloud() -> None:
    assert command(replay(running().events))[:4] == ("gcloud", "compute", "ssh", VM)


def test_a_host_is_reached_by_the_name_that_it_was_given() -> None:
    place = Place(hosts=Hosts({BOX.zone: HostRecord(target=str(BOX))}))
    assert command(on_host(), place) == ("ssh", "-t", "-p", "2222", "--", "ada@box")
    assert command(on_host(), place, "nvidia-smi", "-l")[-1] == "nvidia-smi -l"


def test_a_host_that_the_bucket_has_forgotten_is_said_to_be() -> None:
    with pytest.raises(NotFound):
        command(on_host())


def test_a_guest_is_on_the_machine_that_another_run_kept() -> None:
    log = Log().add(0, planned()).add(1, ev.MachineTaken(vm="bench-other-1", zone="us-east1-b", owner=RUN))
    assert command(replay(log.events))[3:6] == ("bench-other-1", "--zone", "us-east1-b")


MALLORY = parse_target("mallory@evil.example:2222")


@pytest.mark.parametrize("vm", ["bench-x-1", VM, "root@other", "--ssh-flag=-oProxyCommand=touch x"])
@pytest.mark.parametrize("zone", [MALLORY.zone, BOX.zone, "me@vm", "us-central1-a"])
def test_no_machine_chooses_where_a_terminal_is_opened(vm: str, zone: str) -> None:
    """A machine says that its run was taken to another machine, and the bucket has a record of that host."""
    claim = ev.MachineTaken.model_construct(vm=vm, zone=zone, owner=RUN, attempt=1, generation=0, deadline_at=None)
    place = Place(hosts=Hosts({one.zone: HostRecord(target=str(one)) for one in (MALLORY, BOX)}))
    for log in (Log().add(0, planned()).vm(1, claim), running().add(60, gone(59)).vm(61, claim)):
        sent = [ev.decode_event(ev.encode_event(event)) for event in log.events]
        with pytest.raises(ConfigError, match="has no machine now"):
            command(replay([event for event in sent if event is not None]), place)


def test_a_host_that_only_the_bucket_names_is_not_reached() -> None:
    run = replay(Log().add(0, planned()).add(2, requested(MALLORY.zone)).add(5, created(4, MALLORY.zone)).events)
    with pytest.raises(Unavailable, match="mallory"):
        command(run, Place(hosts=Hosts({MALLORY.zone: HostRecord(target=str(MALLORY))})))
    with pytest.raises(NotFound, match="another host"):
        command(on_host(), Place(hosts=Hosts({BOX.zone: HostRecord(target=str(MALLORY))})))


@pytest.mark.parametrize(
    "log",
    [
        Log().add(0, planned()),
        running().add(60, gone(59)),
        running().add(60, gone(59)).add(61, ev.RunClosed(outcome="succeeded")),
    ],
    ids=["not yet", "gone", "over"],
)
def test_a_run_without_a_machine_says_so_and_where_its_log_is(log: Log) -> None:
    with pytest.raises(ConfigError) as refused:
        command(replay(log.events))
    assert "bench logs" in (refused.value.hint or "")


def test_the_embedded_clouds_machines_are_no_place_to_log_in_to() -> None:
    with pytest.raises(ConfigError, match="processes on this computer"):
        command(replay(running().events), Place(mode=Mode.EMBEDDED))


def test_a_programme_gets_the_terminal_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    script = tmp_path / "ssh-like"
    script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\nexit 7\n')
    script.chmod(0o755)
    assert run_attached([str(script), "one two", "three"]) == 7
    assert (tmp_path / "said").read_text() == "one two three\n"
    assert is_installed(str(script))


def test_a_programme_that_is_not_there_is_named() -> None:
    with pytest.raises(LocalError, match="no-such-ssh cannot be run"):
        run_attached(["no-such-ssh"])


def write_live_run(bench: Bench, run_id: str) -> None:
    """A run on a host, as its events and the host's record have it."""
    from orchestrator.core.hosts import record_object

    wiring = wire()
    log = wiring.log(run_id)
    log.append(planned(mode="host", gpu="host"))
    log.append(requested(BOX.zone))
    log.append(created(5, BOX.zone))
    wiring.bucket.create(record_object(BOX.zone), HostRecord(target=str(BOX)).model_dump_json(by_alias=True).encode())


@pytest.mark.usefixtures("cloud")
def test_the_command_prints_runs_and_tells_of_what_is_missing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_live_run(bench, RUN)
    wire().named.add_hosts([str(BOX)], "")
    line = "ssh -t -p 2222 -- ada@box"
    assert bench("ssh", RUN, "--print").out.strip() == line
    assert bench("ssh", RUN, "--json", "uptime").document["command"][-1] == "uptime"

    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    missing = bench("ssh", RUN, code=None)
    assert missing.code != 0
    assert line in missing.out
    assert "ssh is not installed here" in missing.err

    stand_in = folder / "ssh"
    stand_in.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\nexit 3\n')
    stand_in.chmod(0o755)
    bench("ssh", RUN, code=3)
    assert (tmp_path / "said").read_text().strip() == line.removeprefix("ssh ")
