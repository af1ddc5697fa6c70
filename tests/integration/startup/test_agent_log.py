"""How the agent's log reaches the bucket."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from startup.agent.__main__ import Conductor
from startup.agent.clock import AgentClock, Patience
from startup.agent.logs import Log
from tests.support.patience import PATIENCE_S
from tests.unit.startup.cloud import RUN
from tests.unit.startup.conducted import Conducted, cloud_for, ended, environ


def test_the_log_is_stored_while_the_run_goes_on_and_only_when_it_has_changed(tmp_path: Path) -> None:
    with cloud_for({"build": [{"healthy": 1}, {"hang": 1}]}, timing={"log_every_s": 0.02}) as cloud:
        log = f"runs/{RUN}/artifacts/log.txt"

        def watch(conductor: Conductor) -> None:
            while log not in cloud.objects:
                time.sleep(0.005)
            time.sleep(0.1)
            with (conductor.home / "log.txt").open("a") as file:  # in one piece, as `tee` does: no half of it is seen
                file.write("and longer\n")
            while cloud.objects[log] != b"the log\nand longer\n":
                time.sleep(0.005)
            conductor.stop.request("terminated")

        Conducted(cloud, tmp_path, watch)
        assert cloud.journal.count("STORE artifacts/log.txt") == 2


class Copying(AgentClock):
    """A clock during whose third sleep the bootstrap has its turn, and copies what came through the pipe."""

    slept = 0

    def __init__(self, pipe: int, to: Path) -> None:
        super().__init__()
        self.pipe, self.to = pipe, to

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 3:
            with self.to.open("ab") as file:
                file.write(os.read(self.pipe, 65536))


@contextmanager
def copied_late(file: Path) -> Iterator[tuple[Log, Copying]]:
    """A log whose text comes into `file` as it is waited for, and which is waited for within the block."""
    out, into = os.pipe()
    clock = Copying(out, file)
    with os.fdopen(into, "w") as stream:
        yield Log(stream, clock), clock
    os.close(out)
    assert clock.slept == 3


def test_what_was_said_last_is_in_the_log_before_the_log_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with copied_late(file) as (log, clock):
        log.say("first\nnot the last: \u00e9\nthe last")
        log.await_copy(file, Patience(clock, PATIENCE_S))
    assert file.read_text().endswith(" the last\n")


def test_what_the_run_before_it_said_last_is_not_taken_for_the_end_of_the_log(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    with copied_late(file) as (log, clock):
        log.say("finish: succeeded")
        file.write_text(f"{log.last}\n")  # two runs on one VM may end within a second
        log.await_copy(file, Patience(clock, PATIENCE_S), file.stat().st_size)
    assert file.read_text().count(" finish: succeeded\n") == 2


def test_a_log_that_nobody_copies_is_not_waited_for(tmp_path: Path) -> None:
    clock = Copying(-1, tmp_path / "log.txt")
    for stream in (io.StringIO(), (tmp_path / "console").open("w")):
        with stream:
            log = Log(stream, clock)
            log.say("the last")
            log.await_copy(tmp_path / "log.txt", Patience(clock, PATIENCE_S))
    assert clock.slept == 0


def test_a_missing_log_or_a_closed_console_ends_nothing(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        where = environ(cloud, tmp_path)
        (tmp_path / "vm" / "log.txt").unlink()
        console = io.StringIO()
        console.close()
        assert Conductor(where, console).run() == 0
        assert ended(cloud)["outcome"] == "succeeded"
