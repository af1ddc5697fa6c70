"""The claim of a kept machine, when its answer is lost or somebody else is at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.naming import Mode
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext, RunOrder, begin_launch
from tests.integration.stories.keeping import kept_vm
from tests.integration.stories.stage import PAYLOAD, Stage, Struck, staged, weather
from tests.integration.stories.test_kept_machines import NEXT, THIRD, assert_books_balance, keep, look_after_everything


def lost(stage: Stage) -> Callable[[], None]:
    fault = {"fault": "reset", "service": "storage", "method": "POST", "path": "/upload/", "after": "response"}
    return lambda: weather(stage, fault)


def test_a_claim_whose_answer_is_lost_makes_no_second_machine(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        world = stage.world()
        bucket = Struck(world.bucket, "replace", lost(stage), when="machines/", after=False)
        world = replace(world, bucket=bucket)  # type: ignore[arg-type]
        where = LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)
        said: list[str] = []
        begin_launch(world, RunOrder(NEXT, stage.plan(), PAYLOAD, where), say=said.append).follow()
        assert stage.fired() == [1]
        assert [row["vm"] for row in stage.bill()] == ["bench-20261121-040000-l4-0001-1"], said


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["list", "read_many", "read", "replace"])
@pytest.mark.parametrize("spare", [True, False])
def test_of_two_launches_at_one_slot_one_gets_it_and_nothing_is_paid_twice(
    home: Path, call: str, after: bool, spare: bool
) -> None:
    """Wherever the one is between its look and its claim, the other makes the whole of its claim then. With no money to
    `spare` for a machine of its own, the loser is told so."""
    with staged(home, kept_vm()) as stage:
        keep(stage)
        where = LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)
        refusal = None if spare else BudgetExceeded("$0 is left today", hint="wait")
        engines: dict[str, Engine] = {}
        said: dict[str, list[str]] = {NEXT: [], THIRD: []}
        refused: list[str] = []

        def launch(run_id: str, world: Any) -> None:
            try:
                order = RunOrder(run_id, stage.plan(), PAYLOAD, where)
                engines[run_id] = begin_launch(world, order, say=said[run_id].append, refused=refusal)
            except BudgetExceeded as exc:
                refused.append(str(exc))

        world = stage.world()
        bucket = Struck(world.bucket, call, lambda: launch(THIRD, stage.world()), when="machines/", after=after)
        launch(NEXT, replace(world, bucket=bucket))  # type: ignore[arg-type]
        runs = {run_id: engine.follow() for run_id, engine in engines.items()}
        guests = [run_id for run_id, run in runs.items() if run.taken is not None]
        assert guests == ([NEXT] if (call, after) == ("replace", True) else [THIRD])
        assert {run.phase for run in runs.values()} == {Phase.SUCCEEDED}
        assert len(runs) == (2 if spare else 1)
        assert len(refused) == (0 if spare else 1)
        loser = NEXT if guests == [THIRD] else THIRD
        if (call, after) in (("read_many", True), ("read", False), ("read", True), ("replace", False)):
            assert any("another launch took it first" in line for line in said[loser]), said
        look_after_everything(stage)
        assert len(stage.bill()) == (2 if spare else 1)
        assert_books_balance(stage)
