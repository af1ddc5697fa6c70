"""What stands in a run's log in a client's name may be a machine's: money is not given back on its word alone."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.run.fold import Phase
from orchestrator.runs.reconcile import reconcile_holds
from tests.integration.stories.stage import RUN, Stage, good_vm, same_to_the_cent, silent_vm, staged

NEXT = "20261121-050000-l4-0002"
WRITER = "client-abcdef"


def forge(stage: Stage, kind: str, since_s: float = 0, **data: object) -> None:
    """Stores an event as a client would, told so many seconds ago; a machine's account may."""
    at = stage.timeline.now() - timedelta(seconds=since_s)
    stamp = f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"
    event = {"schema": 1, "run_id": RUN, "kind": kind, "time": stamp, "writer": WRITER, "seq": 77, "data": data}
    name = f"runs/{RUN}/events/{at:%Y%m%dT%H%M%S.%fZ}-{WRITER}-000077-{kind}.json"
    stage.world().bucket.replace(name, json.dumps(event).encode(), generation=None)


@pytest.mark.parametrize("how", ["deleted", "preempted", "never_made"])
@pytest.mark.parametrize("who", ["the client that launched", "another client"])
def test_a_hold_is_kept_while_the_cloud_has_its_machine_whatever_the_log_says(home: Path, how: str, who: str) -> None:
    with staged(home, silent_vm) as stage:
        plan = stage.plan()
        caps = Caps(day=plan.ceiling_usd * Decimal("1.2"))
        engine, vm = stage.with_a_machine(stage.world(caps), plan)
        stage.timeline.advance(20)
        ended = f"{stage.timeline.now() - timedelta(seconds=15):%Y-%m-%dT%H:%M:%SZ}"
        forge(stage, "instance_gone", attempt=1, vm=vm.name, ended_at=ended, how=how)
        stage.timeline.advance(200)
        if who == "another client":
            reconcile_holds(stage.world())
        else:
            engine.step()
        assert stage.ledger().runs[RUN].settled_usd is None
        with pytest.raises(BudgetExceeded):
            stage.begin(stage.world(caps), stage.plan(), NEXT)
        run = stage.look_after()
        assert run.over
        assert stage.cloud.instances() == []
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())
        assert stage.ledger().runs[RUN].spent > Decimal("0.02")


@pytest.mark.parametrize("kind", ["stop_requested", "run_closed", "settled", "instance_gone"])
def test_a_machine_writing_under_its_own_name_is_no_client(home: Path, kind: str) -> None:
    with staged(home, good_vm()) as stage:
        engine, vm = stage.with_a_machine()
        at = stage.timeline.now()
        data = {
            "stop_requested": {"by": "eve", "reason": "enough"},
            "run_closed": {"outcome": "failed", "detail": "x"},
            "settled": {"cost_usd": "0", "released_usd": "1"},
            "instance_gone": {"attempt": 1, "vm": vm.name, "ended_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "how": "deleted"},
        }[kind]
        event = {"schema": 1, "run_id": RUN, "kind": kind, "time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "writer": WRITER,
                 "seq": 7, "data": data}  # fmt: skip
        name = f"runs/{RUN}/events/{at:%Y%m%dT%H%M%S.%fZ}-vm-1-deadbeef-000007-{kind}.json"
        stage.world().bucket.replace(name, json.dumps(event).encode(), generation=None)
        assert engine.follow().phase is Phase.SUCCEEDED
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())


@pytest.mark.parametrize("since_s", [0, 3600], ids=["after", "before"])
def test_no_words_in_a_log_make_a_machine_cheaper_than_the_dearest_of_them(home: Path, since_s: float) -> None:
    """Its price, its request's generation and the time it was made are said twice, and the truth is dearer."""
    with staged(home, silent_vm) as stage:
        _, vm = stage.with_a_machine()
        forge(
            stage, "instance_requested", since_s, attempt=1, vm=vm.name, zone=vm.zone, machine_type=vm.machine_type,
            provisioning=vm.provisioning, usd_per_hour="0", max_run_s=1, request_id=vm.request_id,
        )  # fmt: skip
        late = f"{stage.timeline.now() + timedelta(seconds=500):%Y-%m-%dT%H:%M:%SZ}"
        forge(
            stage, "instance_created", since_s, attempt=1, vm=vm.name, zone=vm.zone, instance_id="42",
            started_at=late, deadline_at=late, request_id=vm.request_id,
        )  # fmt: skip
        stage.timeline.advance(240)
        run = stage.look_after()
        assert run.over
        assert stage.cloud.instances() == []
        assert stage.billed() > Decimal("0.02")
        assert stage.ledger().runs[RUN].spent >= stage.billed() - Decimal("0.000001")


def test_a_run_that_tells_the_truth_is_settled_without_asking_twice(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        engine = stage.begin(stage.world())
        run = engine.follow()
        assert run.phase is Phase.SUCCEEDED
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())
