"""Follows a run from its hold until it ends or no longer needs this client, and handles Ctrl-C meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator.cli import interrupts
from orchestrator.cli.terminal import is_stdout_closed
from orchestrator.cli.watch import LiveView
from orchestrator.core.errors import NotFound
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import Engine, World

PATIENCE_S: Final = 10.0
"""Seconds after a Ctrl-C in which another one does nothing. After them it leaves a run that cannot be ended yet, and
the next command goes on with it."""
LEAVE_S: Final = 1.5
"""Seconds after a second Ctrl-C in which the run is stopped or detached, or else left as it is."""


@dataclass(frozen=True, slots=True)
class Driving:
    """One run to follow. `begun` takes the hold and returns the run's engine; `watch` shows the progress; a stop is
    recorded in the name of `user`. With `detach`, following ends as soon as the run has a machine or waits for one.
    `seconds` is a clock that nobody sets."""

    world: World
    run_id: str
    begun: Callable[[], Engine]
    watch: LiveView
    user: str
    detach: bool = False
    seconds: Callable[[], float] = time.monotonic
    wait_on: Callable[[Run], str] | None = None
    """Leaves the wait for capacity to a process in the background, and returns what to say about it."""
    keeps_waiting: bool = False
    """Whether it waits for capacity (`--wait`)."""
    import_answer: Callable[[], object] = lambda: None
    """Imports what prints the answer. It is called once the machine works, while this client has nothing to do."""

    def hold_off(self) -> None:
        """Another Ctrl-C must not interrupt what follows."""
        interrupts.ignore(PATIENCE_S, self.seconds)


def follow_to_end(it: Driving) -> Run:
    """Follows the run and returns its last state. Following ends with the run. Once the run can continue without this
    client, it also ends at Ctrl-C, if `detach` is set, and if nobody reads the output any more."""
    with interrupts.deferred():
        return _follow(it)


def _follow(it: Driving) -> Run:

    def enough(run: Run) -> bool:
        begun = run.guest_of is None or run.current.booted_at is not None  # a kept machine may be gone by now
        if it.detach and _waits(it, run):
            return True
        return run.kept is not None or (run.goes_on_alone and begun and (it.detach or is_stdout_closed()))

    def show(run: Run) -> None:
        it.watch.seen(run)
        if run.current.booted_at is not None and not it.detach:
            it.import_answer()

    engine = None
    try:
        engine = it.begun()
        run = engine.follow(watch=show, trouble=it.watch.trouble, until=enough)
        return _waiting_on(it, run) or run
    except KeyboardInterrupt as exc:
        it.hold_off()
        if engine is None or not isinstance(exc, interrupts.Insisted):
            return _interrupted(it, engine)
        with interrupts.limited(LEAVE_S):
            return _interrupted(it, engine, again=True)


def _waits(it: Driving, run: Run) -> bool:
    """Whether the run waits for capacity, so that a client asks on, or will when its machine leaves
    the cloud's queue."""
    is_queued = it.keeps_waiting and run.vm is not None and run.vm.queued
    return it.wait_on is not None and (run.waiting is not None or is_queued)


def _waiting_on(it: Driving, run: Run) -> Run | None:
    """The run, once a process in the background waits for capacity for it; None if it does not wait."""
    if it.wait_on is None or not _waits(it, run):
        return None
    it.watch.say(it.wait_on(run))
    return run


def _interrupted(it: Driving, engine: Engine | None, *, again: bool = False) -> Run:
    """Stops or detaches the run after Ctrl-C, and returns its state; after a second one (`again`) it waits for no
    machine. Raises `KeyboardInterrupt` if there is no run yet, or if the run to be resumed is still closed."""
    try:
        run = (engine or Engine(it.world, it.run_id)).look()
    except NotFound:
        raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        _say_left(it, machine=True)
        raise
    if engine is None and run.closed is not None:
        raise KeyboardInterrupt
    if (handed_over := _waiting_on(it, run)) is not None:
        return handed_over
    if not run.goes_on_alone:
        asked = engine is not None and any(vm.generation == run.generation for vm in run.vms)
        run = _until_it_goes_on_alone(it, engine) if engine is not None and asked and not again else _stopped(it)
    if run.closed is None:
        it.watch.detached(run)
    return run


def _until_it_goes_on_alone(it: Driving, engine: Engine) -> Run:
    """After one Ctrl-C while a machine is requested: waits for it, because no other client would request it again. A
    second Ctrl-C stops the run."""
    try:
        interrupts.listen(it.seconds, at_once=True)  # before the message: a quick second Ctrl-C counts too
        it.watch.is_left = True
        it.watch.say("waiting for the machine that was requested; Ctrl-C again stops the run")
        it.watch.seen(engine.look())
        return engine.follow(watch=it.watch.seen, trouble=it.watch.trouble, until=lambda run: run.goes_on_alone)
    except KeyboardInterrupt:
        it.hold_off()
        with interrupts.limited(LEAVE_S):
            return _stopped(it)
    finally:
        it.hold_off()


def _stopped(it: Driving) -> Run:
    """Ends the run. Raises `KeyboardInterrupt` where the user does not wait for that: the next client goes on."""
    engine, requested = Engine(it.world, it.run_id), True
    try:
        engine.request_stop(it.user, "interrupted before a machine existed")
        run = engine.look()
        requested = run.vm is not None and run.vm.open
        fate = "the machine is deleted if it was made" if requested else "no machine was made"
        it.watch.say(f"stopping the run: {fate}")
        it.watch.seen(run)
        return engine.follow(watch=it.watch.seen, trouble=it.watch.trouble)
    except KeyboardInterrupt:
        _say_left(it, machine=requested)
        raise


def _say_left(it: Driving, *, machine: bool) -> None:
    """Says what is left of a run that was not ended; `machine`: one may exist for it."""
    held = "a machine may exist for it, so its money stays held" if machine else "its money stays held"
    it.watch.say(f"run {it.run_id} is not over yet; {held}: `bench stop {it.run_id}` ends it")
