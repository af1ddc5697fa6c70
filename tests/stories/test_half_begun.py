"""A client that is interrupted, killed or refused between two steps of a beginning leaves no money held for nobody."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.cli.outcome import error_of
from orchestrator.core.run.fold import Phase
from tests.stories.stage import Stage, same_to_the_cent, staged, weather


def held(stage: Stage) -> list[str]:
    return [key for key, entry in stage.ledger().runs.items() if entry.settled_usd is None]


def assert_paid_as_billed(stage: Stage) -> None:
    assert held(stage) == []
    assert stage.cloud.instances() == []
    spent = sum((entry.spent for entry in stage.ledger().runs.values()), Decimal(0))
    assert same_to_the_cent(spent, stage.billed())


@pytest.mark.parametrize("overrides", [(), ("run.attempts=3",)])
def test_a_client_that_may_not_ask_for_machines_holds_no_money_once_it_was_told(
    home: Path, overrides: tuple[str, ...]
) -> None:
    with staged(home) as stage:
        fault = {"fault": "http", "service": "compute", "method": "POST", "path": r"/instances\?", "status": 403}
        weather(stage, fault)
        run = stage.launch(*overrides)
        assert stage.fired() == [1]
        assert run.phase is Phase.FAILED
        error = error_of(run)
        assert error is not None
        assert error.exit_code == 6
        assert "cannot create the VM" in str(error)
        assert_paid_as_billed(stage)
