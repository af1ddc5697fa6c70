"""Of a plan from the bucket only what is measured is believed: all that costs, runs or reaches out is today's."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.load import load, repeat_config
from orchestrator.core.config.model import Alerts, Budget, Config, MachineSpec, effective_grids, harness_settings
from orchestrator.core.naming import Mode
from orchestrator.core.plan.resumption import CHOSEN, plan_differences, resumed_config
from tests.unit.core.asked import GRIDS, TWO, accepted, asked

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


# What a run's spec asked for, asked for once more.


RESULTS = Path(__file__).parents[3] / "results"
SPECS = sorted(RESULTS.glob("*/spec.json"))
CAPABILITY = {"l4": "8.9", "t4": "7.5", "h100": "9.0", "cpu": ""}
SETTINGS = (
    "measure.repeats=7", "measure.warmup=3", "measure.warmup=0", "measure.control=false", "measure.regime=graph",
    "measure.cache=warm", "measure.seed=4", "measure.threads=2", "measure.stop_at_relative_ci=0.01",
    "measure.implementations=[bench, fa4]", "measure.grid=smoke", "measure.dtypes=[float32]",
    "correctness.max_abs_error=0.5", "correctness.grid=smoke",
)  # fmt: skip


def spec_of(config: Config, mode: Mode = Mode.HOST) -> dict[str, Any]:
    """As the machine gets it: through JSON."""
    told: dict[str, Any] = json.loads(json.dumps(harness_settings(config, effective_grids(config, mode), mode)))
    return told


def planned_again(spec: dict[str, Any], capability: str) -> Config:
    return load(json.dumps(repeat_config(spec, capability)), source="repeat.yaml", grids=GRIDS)


@given(st.sampled_from(sorted(CAPABILITY)), st.lists(st.sampled_from(SETTINGS), max_size=6, unique=True))
def test_the_same_spec_comes_of_it(gpu: str, settings: list[str]) -> None:
    first = asked(f"gpu: {gpu}", *settings)
    second = planned_again(spec_of(first), CAPABILITY[gpu])
    assert second.gpu == gpu
    assert spec_of(second) == spec_of(first)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.parent.name)
def test_what_is_published_can_be_measured_again(path: Path) -> None:
    """By its grid and in its way; what a case might cost was this machine's affair, and where a run was in parts, all
    implementations of all parts are in it."""
    spec = json.loads(path.read_text())
    capability = json.loads((path.parent / "environment.json").read_text())["compute_capability"]
    told = spec_of(planned_again(spec, capability))
    assert sorted(told.pop("implementations")) == sorted(spec["implementations"])
    assert told == {key: spec[key] for key in told}
    assert set(spec) - set(told) == {"implementations", "run_id", "vm", "usd_per_hour", "case_budget_usd"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"workload": {"form": "file", "path": "own/rmsnorm.py"}, "implementations": ["*"], "measure": {}},
        {"implementations": ["bench"], "measure": {"shapes": []}, "correctness": {}},
        {"implementations": [], "measure": {"shapes": [{}]}, "correctness": {}},
        {"implementations": "bench", "measure": {"shapes": [{}]}, "correctness": {}},
        {"implementations": ["bench"], "measure": [], "correctness": {}},
    ],
)
def test_a_spec_that_does_not_say_it_all_gives_none(spec: dict[str, Any]) -> None:
    assert repeat_config(spec, "9.0") == {}
