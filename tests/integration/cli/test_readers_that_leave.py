"""Whoever reads a command's output may leave, or never have been there: what was asked for is done, and is told of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.cli import interrupts
from orchestrator.ports import INTERRUPTION
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench, Ran
from tests.integration.cli.test_full_disk import FULL
from tests.integration.cli.test_real_machines import QUICK, SMALL, assert_our_account_is_the_bill
from tests.integration.cli.test_reap import forgotten
from tests.integration.cli.test_shapes import holds
from tests.support.foreground import beside, run_here, run_unread
from tests.support.patience import await_truth

Paced = Callable[..., tuple[str, ...]]


def unread(*arguments: str) -> Ran:
    """A process whose reader had left before it wrote anything."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHONUNBUFFERED")}
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    with subprocess.Popen(command, text=True, env=environment, stdout=writer, stderr=subprocess.PIPE) as ran:
        os.close(writer)
        _, err = ran.communicate()
    return Ran(ran.returncode, "", err)


@pytest.mark.parametrize("arguments", [("man",), ("config", "keys", "--json"), ("--help",)])
def test_a_reader_that_left_ends_a_command_quietly_and_as_a_shell_expects(arguments: tuple[str, ...]) -> None:
    ran = unread(*arguments)
    assert (ran.code, ran.err) == (141, "")


@pytest.mark.usefixtures("cloud")
def test_an_error_keeps_its_own_exit_code_and_words_where_nobody_reads_its_document() -> None:
    ran = run_unread("plan", "--gpu", "nosuch", "--json")
    assert ran.code == 2
    assert "nosuch" in ran.err


CLOSED = ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-")


@pytest.mark.parametrize("closed", CLOSED)
def test_a_stream_that_is_closed_takes_nothing_and_spoils_no_other(
    bench: Bench, request: pytest.FixtureRequest, closed: str
) -> None:
    if closed != CLOSED[-1]:  # with all of them closed, it starts a cloud too
        request.getfixturevalue("cloud")
    script = f'exec "$0" -m orchestrator.cli status --json {closed}'
    ran = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout == "" if "1>" in closed else json.loads(ran.stdout)["runs"] == []


@pytest.mark.usefixtures("cloud")
def test_machines_are_deleted_though_nobody_reads_which(bench: Bench, weather: Callable[..., None]) -> None:
    weather({"fault": "never_boots"})
    forgotten(wire())
    assert run_unread("reap", "--yes").code == 141
    assert bench.alive() == []


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_a_launch_whose_reader_leaves_gets_its_machine_and_says_how_to_follow_it(
    bench: Bench, tmp_path: Path, paced: Paced, how: tuple[str, ...]
) -> None:
    ran = run_unread("launch", "--gpu", "l4", *how, *SMALL, *paced("case 2"))
    (run,) = bench("status", "--json").document["runs"]
    assert ran.code == 141
    assert f"bench logs -f {run['run_id']}" in ran.err
    (tmp_path / "paced-case-2-goes-on").touch()
    await_truth(lambda: not bench.machines())
    ended = bench("status", run["run_id"], "--json").document
    assert (ended["state"], ended["cases_done"]) == ("succeeded", 2)
    assert_our_account_is_the_bill(bench, ended)


def interrupt_once_fired(bench: Bench) -> None:
    """Sends Ctrl-C to this process as soon as the first fault has struck, within which the command waits."""
    await_truth(lambda: bench.fired()[0] >= 1)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("cloud")
def test_ctrl_c_while_a_machine_is_asked_for_leaves_a_run_that_has_it(
    bench: Bench, paced: Paced, weather: Callable[..., None]
) -> None:
    path = "/zones/[^/]+/instances(\\?|$)"
    weather({"fault": "reset", "service": "compute", "method": "POST", "path": path, "after": "request", "times": 3})
    with beside(lambda: interrupt_once_fired(bench)):
        ran = run_here("launch", "--gpu", "l4", *SMALL, *paced("case 2"))
    assert (ran.code, "goes on without this terminal" in ran.out) == (0, True)
    (run,) = bench("status", "--json").document["runs"]
    assert run["phase"] in ("booting", "running")
    assert len(bench.alive()) == 1
    bench("stop", run["run_id"])


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_a_second_ctrl_c_while_a_machine_is_asked_for_leaves_what_may_exist_held_for(
    bench: Bench,
    paced: Paced,
    weather: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    how: tuple[str, ...],
) -> None:
    """The answer that does not come is not waited for."""
    monkeypatch.setattr(interrupts, "HURRY_S", 0.0)
    path = "/zones/[^/]+/instances(\\?|$)"
    weather({"fault": "stall", "service": "compute", "method": "POST", "path": path, "seconds": 3600, "times": 1000})

    def interrupt_twice() -> None:
        interrupt_once_fired(bench)
        await_truth(lambda: INTERRUPTION.requested)
        os.kill(os.getpid(), signal.SIGINT)

    with beside(interrupt_twice):
        ran = run_here("launch", "--gpu", "l4", *how, *SMALL, *paced())
    (run,) = bench("status", "--json").document["runs"]
    assert ran.code == 130
    assert "stopping the run" in ran.out
    last = f"a machine may exist for it, so its money stays held: `bench stop {run['run_id']}` ends it"
    assert last in ran.out.replace("\n", " ")
    assert bench.fired()[0] == 1, "the request was sent once"
    (entry,) = wire().ledger.read().runs.values()
    assert entry.settled_usd is None


@pytest.mark.usefixtures("cloud")
def test_a_launch_that_gets_no_machine_gives_its_hold_back_though_nobody_reads_of_it(
    bench: Bench, paced: Paced, weather: Callable[..., None]
) -> None:
    weather({"fault": "stockout", "times": 100})
    ran = run_unread("launch", "--gpu", "l4", *SMALL, *QUICK, *paced())
    assert ran.code == 4
    assert "no capacity" in ran.err
    (entry,) = wire().ledger.read().runs.values()
    assert entry.settled_usd == Decimal(0)
    assert bench("cloud", "bill", "--json").document["rows"] == []


@pytest.mark.usefixtures("cloud")
def test_a_log_that_is_followed_ends_with_its_reader(bench: Bench, paced: Paced) -> None:
    bench("launch", "--gpu", "l4", "--detach", *SMALL, *paced("case 2"))
    reader, writer = os.pipe()

    def read_and_leave() -> None:
        assert os.read(reader, 1)
        os.close(reader)

    with beside(read_and_leave):
        ran = run_here("logs", "last", "--follow", stdout=writer)
    os.close(writer)
    quiet = [line for line in ran.err.splitlines() if "has no log yet (booting)" not in line]  # a quick command's
    assert (ran.code, quiet) == (141, [])
    assert bench("stop", "last").code == 0


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.usefixtures("cloud")
def test_a_launch_whose_output_has_no_room_gets_its_machine_and_says_both(bench: Bench, paced: Paced) -> None:
    with FULL.open("w") as full:
        ran = run_here("launch", "--gpu", "l4", *SMALL, *paced("case 2"), stdout=full.fileno())
    assert ran.code == 11
    assert "No space left on device" in ran.err
    assert "goes on without this terminal" in ran.err
    assert bench("stop", "last", "--json").document["state"] == "stopped"
    holds("status", bench("status", "last", "--json").document)
