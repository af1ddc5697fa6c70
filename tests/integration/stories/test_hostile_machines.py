"""Whatever a machine writes in its own name, no money stays held for it, and no client is kept from its work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import NotFound, ProviderError
from orchestrator.core.run.events import EventBounds
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.events import EventLog
from tests.integration.stories.recovering import PAYLOAD, where
from tests.integration.stories.stage import RUN, Stage, good_vm, same_to_the_cent, silent_vm, staged
from tests.support.crowded_bucket import CrowdedBucket

OTHER = "20261121-050000-l4-0002"
VALUES: tuple[dict[str, Any], ...] = (
    {"vm": "a/b"}, {"vm": "a b"}, {"vm": "-x"}, {"vm": "x" * 9000}, {"zone": "a/b"}, {"zone": "host-evil-17f660"},
    {"zone": ""}, {"owner": "../x"}, {"owner": RUN}, {"owner": OTHER, "vm": f"bench-{OTHER}-1"}, {"attempt": 10**9},
    {"generation": 9}, {"deadline_at": "2190-01-01T00:00:00Z"},
)  # fmt: skip


def says(stage: Stage, kind: str, **data: object) -> None:
    """Stores an event as the run's machine may: under its own name, and with its own words inside."""
    at, writer = stage.timeline.now(), "vm-1-deadbeef"
    event = {"schema": 1, "run_id": RUN, "kind": kind, "time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "writer": writer,
             "seq": 7, "data": data}  # fmt: skip
    name = f"runs/{RUN}/events/{at:%Y%m%dT%H%M%S.%fZ}-{writer}-000007-{kind}.json"
    stage.world().bucket.replace(name, json.dumps(event).encode(), generation=None)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_no_claim_of_a_machine_keeps_its_run_open_or_its_money_held(home: Path, values: dict[str, Any]) -> None:
    with staged(home, silent_vm) as stage:
        _, vm = stage.with_a_machine()
        says(stage, "machine_taken", **({"vm": vm.name, "zone": vm.zone, "owner": RUN, "attempt": 1} | values))
        stage.world().cloud().delete(vm.zone, vm.name, "00000000-0000-0000-0000-000000000001")
        run = stage.look_after()
        assert run.over
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())


@dataclass
class Deaf:
    """A cloud that does not answer when it is asked for one machine."""

    cloud: Any
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cloud, name)

    def instance(self, zone: str, name: str) -> Any:
        self.asked += 1
        raise ProviderError(f"cannot look at {zone}/{name}")


def test_past_its_last_deadline_a_run_is_settled_at_most_at_what_it_can_have_cost(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        engine, vm = stage.with_a_machine()
        world = stage.world()
        deaf = Deaf(world.cloud())
        blind: World = replace(world, cloud=lambda: deaf)
        with pytest.raises(ProviderError):
            reconcile_holds(blind)
        assert stage.ledger().runs[RUN].settled_usd is None
        stage.timeline.advance(vm.max_run_s + 3600)
        assert deaf.asked
        reconcile_holds(blind)
        entry = stage.ledger().runs[RUN]
        assert entry.settled_usd is not None
        assert stage.billed() <= entry.settled_usd <= entry.hold_usd
        assert stage.cloud.instances() == []
        run = Engine(stage.world(), RUN).look()
        assert (run.phase, run.closed is not None) == (Phase.EXPIRED, True)
        assert engine.step()[0].over
        assert entry.settled_usd > Decimal(0)


def test_a_stop_of_a_run_that_cannot_be_looked_at_ends_and_is_recorded(home: Path) -> None:
    from orchestrator.core.errors import Unavailable

    class Gone(Deaf):
        def instance(self, zone: str, name: str) -> Any:
            raise Unavailable(f"cannot look at {zone}/{name}")

    with staged(home, silent_vm) as stage:
        stage.with_a_machine()
        world = stage.world()
        gone = Gone(world.cloud())
        engine = Engine(replace(world, cloud=lambda: gone), RUN)
        engine.request_stop("ada", "enough")
        begun = stage.timeline.now()
        with pytest.raises(Unavailable):
            engine.follow(patience_s=45)
        assert stage.timeline.now() - begun <= timedelta(seconds=60)
        assert engine.look().stop is not None


def test_a_million_events_of_a_machine_keep_no_command_from_its_end(home: Path) -> None:
    """Stop, the reconciliation of `bench status`, and another launch each list for less than 30 seconds."""
    with staged(home, silent_vm) as stage:
        _, vm = stage.with_a_machine()
        plain = stage.world()
        crowded = CrowdedBucket(plain.bucket, RUN)
        world = replace(plain, bucket=crowded, log=lambda run: EventLog(crowded, run, "client-00000b", plain.clock))
        engine = Engine(world, RUN)
        took: dict[str, float] = {}
        bound = EventBounds(len(stage.plan().cases)).most("healed") + 100

        @contextmanager
        def timed(what: str) -> Iterator[None]:
            begun, crowded.spent_s, crowded.reads = stage.timeline.now(), 0.0, 0
            yield
            took[what] = crowded.spent_s
            assert crowded.reads <= bound, what
            assert (stage.timeline.now() - begun).total_seconds() < 60, what

        with timed("status"):
            reconcile_holds(world)
        with timed("stop"):
            engine.request_stop("ada", "enough")
            run = engine.follow()
        assert run.over
        assert stage.cloud.instances() == [], vm.name
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())
        with timed("launch"):
            order = RunOrder(OTHER, stage.plan(), PAYLOAD, where(stage))
            assert begin_launch(world, order).end_unbegun("enough")
        assert max(took.values()) < 30, took
        assert stage.ledger().runs[OTHER].settled_usd == 0


EARLY = {
    "an event": ("events/20261121T035959.000000Z-vm-1-deadbeef-000001-finished.json", "finished"),
    "a case": ("cases/case-1.csv", ""),
    "an artifact": ("artifacts/environment.json", ""),
    "a seal": ("sealed.json", ""),
}  # fmt: skip


def guessed(stage: Stage, run_id: str, early: str) -> None:
    """A machine of another run stores an object of a run that nobody has launched yet."""
    name, kind = EARLY[early]
    event = {"schema": 1, "run_id": run_id, "kind": kind, "time": "2026-11-21T03:59:59.000000Z",
             "writer": "vm-1-deadbeef", "seq": 1, "data": {"outcome": "succeeded", "exit_code": 0}}  # fmt: skip
    stage.world().bucket.create(f"runs/{run_id}/{name}", json.dumps(event).encode() if kind else b"{}")


@pytest.mark.parametrize("early", EARLY)
def test_a_run_whose_id_was_guessed_before_its_launch_does_not_begin(home: Path, early: str) -> None:
    """Its events would count as the run's own: what ends it, what it has measured, what it costs."""
    with staged(home, good_vm()) as stage:
        guessed(stage, RUN, early)
        world = stage.world()
        with pytest.raises(ProviderError, match="stored before"):
            begin_launch(world, RunOrder(RUN, stage.plan(), PAYLOAD, where(stage)))
        assert stage.ledger().runs == {}
        assert Engine(stage.world(), RUN).look().phase is Phase.REFUSED
        assert stage.launch(run_id=OTHER).phase is Phase.SUCCEEDED
        assert list(stage.ledger().runs) == [OTHER]


def test_no_machine_settles_a_run_whose_clients_events_are_gone(home: Path) -> None:
    """Somebody deletes the folder of a run; its machine goes on, and says that the run is over."""
    with staged(home, silent_vm) as stage:
        _, vm = stage.with_a_machine()
        stage.delete_objects(f"runs/{RUN}/")
        says(stage, "finished", outcome="succeeded", exit_code=0)
        stage.timeline.advance(400)
        (hold,) = reconcile_holds(stage.world())
        assert not hold.settled
        with pytest.raises(NotFound, match="are gone"):
            Engine(stage.world(), RUN).follow()
        assert stage.ledger().runs[RUN].settled_usd is None
        assert len(stage.cloud.instances()) == 1
        stage.timeline.advance(vm.max_run_s + 3600)
        reconcile_holds(stage.world())
        assert stage.billed() <= stage.ledger().runs[RUN].spent
        assert stage.ledger().runs[RUN].settled_usd is not None
        assert Engine(stage.world(), RUN).follow().over, "its hold is settled, so no client gives up"
