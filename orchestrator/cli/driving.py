"""A run, from its hold to its end or to where its client is no longer needed; and what Ctrl-C does meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.cli.streams import unheard
from orchestrator.cli.watch import Watch
from orchestrator.core.errors import NotFound
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import Engine, World


@dataclass(frozen=True, slots=True)
class Driving:
    """Who drives which run, and who is told. `begun` holds its money and makes its engine. With `detach` a machine is
    all that is waited for."""

    world: World
    run_id: str
    begun: Callable[[], Engine]
    watch: Watch
    user: str
    detach: bool = False


def driven(it: Driving) -> Run:
    """To the end of the run; or until Ctrl-C, or until nobody hears of it any more, once it goes on by itself."""

    def enough(run: Run) -> bool:
        begun = run.guest_of is None or run.booted_at is not None  # a kept machine may not be there any more
        return run.kept is not None or (run.goes_on_alone and begun and (it.detach or unheard()))

    engine = None
    try:
        engine = it.begun()
        return engine.follow(watch=it.watch.show, trouble=it.watch.trouble, until=enough)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough: a second must not cut the farewell short
        return _interrupted(it, engine)


def _interrupted(it: Driving, engine: Engine | None) -> Run:
    """Raises `KeyboardInterrupt` where there is no run yet, or the one to go on with is over as it was."""
    try:
        run = (engine or Engine(it.world, it.run_id)).look()
    except NotFound:
        raise KeyboardInterrupt from None
    if engine is None and run.closed is not None:
        raise KeyboardInterrupt
    if not run.goes_on_alone:
        asked = engine is not None and any(vm.generation == run.generation for vm in run.vms)
        run = _until_it_goes_on_alone(it, engine) if engine is not None and asked else _stopped(it)
    if run.closed is None:
        it.watch.detached(run)
    return run


def _until_it_goes_on_alone(it: Driving, engine: Engine) -> Run:
    """After one Ctrl-C, while a machine is asked for: nobody else would ask again. Another one stops the run."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # before it is offered: who is quick is heard too
        it.watch.say("waiting for the machine that was requested; Ctrl-C again stops the run")
        return engine.follow(watch=it.watch.show, trouble=it.watch.trouble, until=lambda run: run.goes_on_alone)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _stopped(it)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stopped(it: Driving) -> Run:
    engine = Engine(it.world, it.run_id)
    engine.request_stop(it.user, "interrupted before a machine existed")
    return engine.follow(watch=it.watch.show, trouble=it.watch.trouble)
