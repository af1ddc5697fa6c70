"""Of a plan from the bucket only what is measured is believed: all that costs, runs or reaches out is today's."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from orchestrator.core.config.model import Alerts, Budget, Config
from orchestrator.core.plan.resumption import resumed_config
from tests.unit.core.asked import TWO, accepted, asked

HOSTILE = {
    "alerts": Alerts(command="touch pwned", webhook="http://127.0.0.1:9/x"),
    "budget": Budget(per_run_usd=Decimal(10**6), per_day_usd=Decimal(10**6), per_month_usd=None, total_usd=None),
}


def test_commands_prices_caps_and_code_sources_are_the_resuming_clients() -> None:
    today: Config = asked(TWO)
    stored = accepted(today)
    machine = today.machine.model_copy(
        update={"service_account": "eve@x.iam", "network": "global/networks/eve", "image_project": "eve"}
    )
    wish = today.model_copy(update={**HOSTILE, "machine": machine})
    payload = today.payload.model_copy(update={"root": "/tmp/eve"})
    hostile = wish.model_copy(update={"payload": payload, "run": today.run.model_copy(update={"attempts": 20})})
    made = resumed_config(today, replace(stored, config=hostile, ceiling_usd=Decimal(10**6)))
    assert made.alerts == today.alerts
    assert made.payload == today.payload
    assert made.budget == today.budget
    assert made.run.attempts <= today.run.attempts
    for name in ("service_account", "network", "image_project", "image_family"):
        assert getattr(made.machine, name) == getattr(today.machine, name)
