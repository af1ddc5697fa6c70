"""Ctrl-C may come at any step of a launch. Afterwards the run has a machine and goes on, or its money is free again."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console, RenderableType
from rich.live import Live

from orchestrator.cli import driving, interrupts
from orchestrator.cli.driving import PATIENCE_S, Driving, follow_to_end
from orchestrator.cli.watch import KeyHint, LiveView, LiveWatch
from orchestrator.core.run.fold import Run
from orchestrator.ports import INTERRUPTION
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.resume import resume_run
from orchestrator.store.events import EventLog
from tests.integration.stories.recovering import careful_vm, where
from tests.integration.stories.stage import PAYLOAD, RUN, MortalLog, Stage, good_vm, same_to_the_cent, staged, weather
from tests.support.patience import PATIENCE_S as WAIT_S
from tests.support.simulated_clock import TimelineClock
from tests.unit.core.builders import at


@pytest.fixture(autouse=True)
def own_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time is simulated, and this machine may be slow."""
    monkeypatch.setattr(driving, "LEAVE_S", WAIT_S)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


class InterruptedLog(MortalLog):
    death = KeyboardInterrupt


class ImpatientLog(MortalLog):
    death = interrupts.Insisted


class Telling(LiveView):
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def interrupted(stage: Stage, after: int, kind: type[MortalLog] = InterruptedLog) -> World:
    """A client that gets Ctrl-C right after the n-th event that it notes."""
    world = stage.world()
    logs: list[EventLog] = []

    def log(run_id: str) -> EventLog:
        logs.append(world.log(run_id) if logs else kind(world.log(run_id), after))
        return logs[-1]

    return replace(world, log=log)


def launched(stage: Stage, after: int, *overrides: str, detach: bool = False) -> tuple[Run, list[str]]:
    world, watch = interrupted(stage, after), Telling()
    made = stage.plan(*overrides)
    run = follow_to_end(Driving(world, RUN, lambda: stage.begin(world, made), watch, "ada", detach))
    return run, watch.said


def assert_nobody_is_waited_for(stage: Stage, said: list[str]) -> None:
    """By the cloud, the ledger and what the user was told; then another client brings it to its end."""
    held = [entry for entry in stage.ledger().runs.values() if entry.settled_usd is None]
    assert len(stage.cloud.instances()) == len(held)
    assert ("detached; the run continues" in said) == bool(held)
    ended = stage.look_after()
    assert ended.closed is not None
    assert stage.cloud.instances() == []
    assert same_to_the_cent(stage.billed(), sum(entry.spent for entry in stage.ledger().runs.values()))


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("after", range(1, 6))
def test_ctrl_c_at_any_event_before_boot_leaves_no_money_held_for_nobody(home: Path, after: int, detach: bool) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        run, said = launched(stage, after, detach=detach)
        assert run.phase.value == ("stopped" if after < 4 else "booting")
        assert_nobody_is_waited_for(stage, said)


@pytest.mark.parametrize(("after", "phase"), [(3, "stopped"), (4, "stopped"), (5, "booting")])
def test_a_second_ctrl_c_before_the_first_is_answered_waits_for_no_machine(home: Path, after: int, phase: str) -> None:
    """A run that has its machine goes on all the same."""
    with staged(home, good_vm(cases=1)) as stage:
        world, watch = interrupted(stage, after, ImpatientLog), Telling()
        run = follow_to_end(Driving(world, RUN, lambda: stage.begin(world), watch, "ada"))
        assert run.phase.value == phase
        assert not [line for line in watch.said if "waiting for the machine" in line]
        assert_nobody_is_waited_for(stage, watch.said)


def test_what_hangs_after_a_second_ctrl_c_is_left_and_its_money_stays_held(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        world, watch = interrupted(stage, 4, ImpatientLog), Telling()
        world = replace(world, clock=HungClock(stage.timeline))
        with pytest.raises(KeyboardInterrupt):
            follow_to_end(Driving(world, RUN, lambda: stage.begin(world), watch, "ada"))
        assert "a machine may exist for it, so its money stays held" in watch.said[-1]
        assert [entry.settled_usd for entry in stage.ledger().runs.values()] == [None]
        assert stage.look_after().phase.value == "stopped"


@pytest.mark.parametrize("after", range(6, 9))
def test_ctrl_c_between_two_machines_waits_for_the_second(home: Path, after: int) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 2}, "notice_s": 0})
        run, said = launched(stage, after, "run.attempts=2")
        assert [vm.attempt for vm in run.vms] == [1, 2]
        assert_nobody_is_waited_for(stage, said)


@pytest.mark.parametrize("after", range(2, 5))
def test_ctrl_c_as_a_run_is_resumed_counts_the_machines_of_its_new_generation_only(home: Path, after: int) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 2}, "notice_s": 0})
        assert stage.launch().phase.value == "preempted"
        world, watch = interrupted(stage, after), Telling()
        made = stage.plan()

        def begun() -> Engine:
            return resume_run(world, made, run_id=RUN, where=where(stage), fresh=lambda: PAYLOAD)

        run = follow_to_end(Driving(world, RUN, begun, watch, "ada"))
        assert run.generation == 1
        assert_nobody_is_waited_for(stage, watch.said)


def test_ctrl_c_before_there_is_a_run_is_only_ctrl_c(home: Path) -> None:
    def begun() -> Engine:
        raise KeyboardInterrupt

    with staged(home) as stage:
        world = stage.world()
        with pytest.raises(KeyboardInterrupt):
            follow_to_end(Driving(world, RUN, begun, Telling(), "ada"))
        assert list(world.bucket.list("runs/")) == []
        assert stage.cloud.instances() == []
        assert not world.cloud().instances()


@pytest.mark.parametrize("fault", [{"fault": "http", "status": 503}, {"fault": "reset"}])
def test_after_ctrl_c_a_cloud_that_cannot_be_reached_is_waited_for(home: Path, fault: dict[str, object]) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        weather(stage, {**fault, "service": "compute", "method": "POST", "path": "/instances(\\?|$)", "times": 12})
        run, said = launched(stage, 4)
        assert run.phase.value == "booting"
        assert stage.fired() == [12]
        assert_nobody_is_waited_for(stage, said)


class Screen:
    """The lines of a live view, each time that it is drawn."""

    def __init__(self) -> None:
        self.hints: list[str] = []

    def update(self, picture: RenderableType) -> None:
        text = io.StringIO()
        Console(file=text, width=100).print(picture)
        self.hints.append(text.getvalue().splitlines()[-1].strip())


class Watching(LiveWatch):
    """What a person sees, who presses Ctrl-C `presses` times when it is offered."""

    def __init__(self, presses: int = 0) -> None:
        self.screen, self.text, self.presses = Screen(), io.StringIO(), presses
        super().__init__(Console(file=self.text, width=200), cast(Live, self.screen), lambda: at(0))

    def say(self, text: str) -> None:
        super().say(text)
        if "Ctrl-C again" in text and self.presses:
            self.presses -= 1
            signal.raise_signal(signal.SIGINT)


def answered_late(stage: Stage) -> None:
    """A request for a machine is answered at the third attempt only."""
    fault = {"fault": "http", "status": 503, "service": "compute", "method": "POST", "path": "/instances(\\?|$)"}
    weather(stage, {**fault, "times": 2})


def watched(stage: Stage, world: World, watch: Watching) -> Run:
    return follow_to_end(Driving(world, RUN, lambda: stage.begin(world), watch, "ada"))


def test_while_a_machine_is_requested_the_screen_says_what_ctrl_c_does(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        answered_late(stage)
        watch = Watching()
        assert watched(stage, stage.world(), watch).phase.value == "succeeded"
        assert stage.fired() == [2]
        assert watch.screen.hints[0] == "Ctrl-C waits for the machine, then detaches; twice stops the run"
        assert watch.screen.hints[1] == "Ctrl-C detaches; the run continues"


def test_after_ctrl_c_the_screen_says_that_it_detaches_and_that_another_stops(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        answered_late(stage)
        watch = Watching()
        run = watched(stage, interrupted(stage, 4), watch)
        assert stage.fired() == [2]
        assert run.goes_on_alone
        assert watch.screen.hints[0] == "detaches as soon as there is a machine; Ctrl-C stops the run"
        assert "waiting for the machine that was requested; Ctrl-C again stops the run" in watch.text.getvalue()
        stage.look_after()


def test_while_a_request_is_waited_for_the_screen_answers_ctrl_c_at_once(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        run, _ = launched(stage, 4)
        pictured = KeyHint(replace(run, vms=(replace(run.vms[-1], started_at=None),)), is_left=False)
        lines = []
        for INTERRUPTION.requested in (False, True, False):
            lines.append(str(pictured.__rich__()))
        assert lines == [
            "Ctrl-C waits for the machine, then detaches; twice stops the run",
            "detaches as soon as there is a machine; Ctrl-C stops the run",
            lines[0],
        ]
        stage.look_after()


def test_after_a_second_ctrl_c_the_screen_says_that_the_run_is_stopped(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        watch = Watching(presses=1)
        assert watched(stage, interrupted(stage, 4), watch).phase.value == "stopped"
        assert "stopping the run: the machine is deleted if it was made" in watch.text.getvalue()
        assert f"the run is being stopped; a later Ctrl-C leaves that to `bench stop {RUN}`" in watch.screen.hints
        assert not [hint for hint in watch.screen.hints if "then detaches" in hint]


@pytest.mark.parametrize("detach", [False, True])
def test_what_prints_the_answer_is_imported_while_the_machine_works(home: Path, *, detach: bool) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        machines: list[int] = []
        begin, note = (lambda: stage.begin(stage.world())), (lambda: machines.append(len(stage.cloud.instances())))
        follow_to_end(Driving(stage.world(), RUN, begin, Telling(), "ada", detach, import_answer=note))
        assert bool(machines) != detach, "who leaves prints no answer"
        assert machines[:1] == ([] if detach else [1])
        stage.look_after()


class Prompt(Telling):
    """Somebody who presses Ctrl-C in the moment in which it is offered."""

    def say(self, text: str) -> None:
        super().say(text)
        if "Ctrl-C again" in text:
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_counts_from_the_moment_in_which_it_is_offered(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        weather(stage, {"fault": "reset", "service": "compute", "method": "POST", "path": "/instances(\\?|$)"})
        world, watch = interrupted(stage, 4), Prompt()
        run = follow_to_end(Driving(world, RUN, lambda: stage.begin(world), watch, "ada"))
        assert run.phase.value == "stopped"
        assert_nobody_is_waited_for(stage, watch.said)


class HungClock(TimelineClock):
    """A clock whose waits end only with a signal. With the first, the time after a second Ctrl-C is over."""

    def sleep(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        threading.Event().wait(WAIT_S)


@dataclass
class ImpatientClock(TimelineClock):
    """The clock of somebody who presses Ctrl-C whenever a command has waited."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        signal.raise_signal(signal.SIGINT)


def test_a_run_that_cannot_be_ended_at_once_is_left_to_the_next_command(home: Path) -> None:
    with staged(home, good_vm(cases=1)) as stage:
        weather(stage, {"fault": "reset", "service": "compute", "method": "POST", "path": "/instances(\\?|$)"})
        watch = Prompt()
        world = replace(interrupted(stage, 4), clock=ImpatientClock(stage.timeline))
        began = stage.timeline.now()

        def seconds() -> float:
            return (stage.timeline.now() - began).total_seconds()

        with pytest.raises(KeyboardInterrupt):
            follow_to_end(Driving(world, RUN, lambda: stage.begin(world), watch, "ada", seconds=seconds))
        assert PATIENCE_S <= seconds() < 2 * PATIENCE_S
        assert f"`bench stop {RUN}` ends it" in watch.said[-1]
        assert stage.look_after().phase.value == "stopped"
        assert stage.cloud.instances() == []
        assert [entry.settled_usd for entry in stage.ledger().runs.values()] == [0]
