"""Of a plan from the bucket only what is measured is believed: all that costs, runs or reaches out is today's."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from operator import attrgetter

from orchestrator.core.config.model import Alerts, Budget, Config, MachineSpec
from orchestrator.core.plan.resumption import CHOSEN, plan_differences, resumed_config
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


def test_only_an_accepted_plan_chooses_machines_prices_and_what_counts_as_correct() -> None:
    today: Config = asked(TWO, "placement.max_usd_per_hour=3")
    wanted = ("placement.fallback_gpus=[h100]", "placement.on_demand_after=0", "machine.type=g2-standard-32",
              "machine.provisioning=standard", "correctness.max_abs_error=9", "environment.torch=1.0.0",
              "placement.max_usd_per_hour=99", "measure.repeats=7")  # fmt: skip
    stored = replace(accepted(today), config=asked(TWO, *wanted))
    kept, followed = resumed_config(today, stored), resumed_config(today, stored, accepted=True)
    assert kept.measure.repeats == followed.measure.repeats == 7
    assert kept.placement.max_usd_per_hour == followed.placement.max_usd_per_hour == 3
    assert [attrgetter(key)(kept) for key in CHOSEN] == [attrgetter(key)(today) for key in CHOSEN]
    assert [attrgetter(key)(followed) for key in CHOSEN] == [attrgetter(key)(stored.config) for key in CHOSEN]
    assert len(plan_differences(today, stored)) == 6
    assert plan_differences(today, accepted(today)) == ()


def test_every_key_of_a_configuration_is_measured_todays_own_or_a_choice_to_accept() -> None:
    """A new key that a stored plan could steer has to be put into one of these."""
    measured = {"gpu", "measure", "profile", "workload", "correctness.grid", "correctness.embedded_grid",
                "correctness.dtypes", "correctness.embedded_dtypes"}  # fmt: skip
    own = {"budget", "alerts", "payload", "host"}
    lower = {"run.max_minutes", "run.attempts", "placement.max_usd_per_hour"}
    todays = {"run.keep", "run.idle_minutes"} | {f"machine.{name}" for name in MachineSpec.model_fields}
    for name, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        for key in [name] if name in measured | own or not inner else [f"{name}.{one}" for one in inner]:
            assert key in measured | own | lower | todays | set(CHOSEN), key
