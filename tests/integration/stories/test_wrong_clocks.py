"""A client or a reaper whose clock is wrong deletes nothing that is young: ages are told by the server's time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.adapters.clock import ServerClock
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import World
from orchestrator.runs.reap import reap_orphans, survey_machines
from orchestrator.store.documents import LedgerStore
from orchestrator.store.events import EventLog
from orchestrator.store.index import RunIndex
from tests.integration.stories.stage import RUN, Stage, TimelineClock, good_vm, same_to_the_cent, silent_vm, staged
from tests.support.patience import PATIENCE_S
from tests.support.scripted_machines import ScriptedVm, Steps

OFF = [timedelta(minutes=11), timedelta(hours=2), timedelta(days=1)]
BOTH_WAYS = [sign * span for span in OFF for sign in (1, -1)]


@dataclass
class WrongClock(TimelineClock):
    """A machine's own clock, which is off."""

    off: timedelta = timedelta(0)

    def now(self) -> datetime:
        return self.timeline.now() + self.off


def wrong(stage: Stage, off: timedelta, said: list[str] | None = None) -> World:
    """The world of a client whose own clock is off, put together as `wiring` does it."""
    world = stage.world()
    local = WrongClock(stage.timeline, off)
    key = Bearer(stage.cloud.token)
    bucket = GoogleBucket(
        stage.cloud.bucket, endpoint=stage.cloud.storage_url, credentials=key, patience_s=PATIENCE_S, clock=local
    )
    clock = ServerClock(local, bucket.offset, (said if said is not None else []).append)
    google = GoogleCloud(project=stage.cloud.project, endpoint=stage.cloud.compute_url, credentials=key, clock=clock)
    writer = f"client-{abs(int(off.total_seconds())):06d}"
    return replace(
        world,
        cloud=lambda: google,
        bucket=bucket,
        clock=clock,
        accounts=replace(world.accounts, ledger=LedgerStore(bucket, clock), clock=clock),
        index=RunIndex(bucket),
        log=lambda run_id: EventLog(bucket, run_id, writer, clock),
    )


def slow_to_speak(vm: ScriptedVm) -> Steps:
    """A machine that boots for five minutes before its first word, as one with a new driver may."""
    yield 300
    yield from good_vm(cases=2)(vm)


@pytest.mark.parametrize("off", BOTH_WAYS, ids=str)
def test_a_client_with_a_wrong_clock_lets_its_machine_work_and_tells_the_offset(home: Path, off: timedelta) -> None:
    with staged(home, slow_to_speak) as stage:
        said: list[str] = []
        run = stage.begin(wrong(stage, off, said)).follow()
        assert run.phase is Phase.SUCCEEDED
        assert run.cases_done == 2
        assert run.settled is not None
        assert same_to_the_cent(run.settled.cost_usd, stage.billed())
        (told,) = said
        assert ("ahead of" if off > timedelta(0) else "behind") in told


@pytest.mark.parametrize("off", BOTH_WAYS, ids=str)
def test_a_reaper_whose_clock_is_wrong_deletes_no_machine_that_is_young(home: Path, off: timedelta) -> None:
    with staged(home, silent_vm) as stage:
        engine, _ = stage.with_a_machine()
        stage.timeline.advance(10)
        world = wrong(stage, off)
        (finding,) = survey_machines(world)
        assert not finding.orphan, finding.verdict.reason
        assert reap_orphans(world, survey_machines(world)).gone == ()
        assert len(stage.cloud.instances()) == 1
        engine.request_stop("ada", "enough")
        engine.follow()


@pytest.mark.parametrize("off", BOTH_WAYS, ids=str)
def test_a_reaper_whose_clock_is_wrong_still_deletes_what_has_been_silent_too_long(home: Path, off: timedelta) -> None:
    with staged(home, silent_vm) as stage:
        stage.with_a_machine()
        stage.timeline.advance(660)
        world = wrong(stage, off)
        assert [one.verdict.reason for one in reap_orphans(world, survey_machines(world)).gone] == [
            "it sent nothing for 11 min after it started"
        ]
        assert stage.cloud.instances() == []
        assert stage.ledger().runs[RUN].held == 0
