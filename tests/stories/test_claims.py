"""The claim of a kept machine, when its answer is lost or somebody else is at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.mode import Mode
from orchestrator.runs.launch import LaunchContext, RunOrder, begin
from tests.stories.keeping import kept_vm
from tests.stories.stage import PAYLOAD, Stage, staged, weather
from tests.stories.test_kept_machines import NEXT, keep


class LossyAnswers:
    """A bucket whose next replacement under a prefix is done, and whose answer is lost."""

    def __init__(self, bucket: Any, prefix: str, lose: Callable[[], None]) -> None:
        self.bucket, self.prefix, self.lose = bucket, prefix, lose

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    def replace(self, name: str, data: bytes, **how: Any) -> Any:
        if name.startswith(self.prefix):
            self.lose()
        return self.bucket.replace(name, data, **how)


def lost(stage: Stage) -> Callable[[], None]:
    fault = {"fault": "reset", "service": "storage", "method": "POST", "path": "/upload/", "after": "response"}
    return lambda: weather(stage, fault)


def test_a_claim_whose_answer_is_lost_makes_no_second_machine(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        world = stage.world()
        object.__setattr__(world, "bucket", LossyAnswers(world.bucket, "machines/", lost(stage)))
        where = LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)
        said: list[str] = []
        begin(world, RunOrder(NEXT, stage.plan(), PAYLOAD, where), say=said.append).follow()
        assert stage.fired() == [1]
        assert [row["vm"] for row in stage.bill()] == ["bench-20261121-040000-l4-0001-1"], said
