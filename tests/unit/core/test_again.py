"""What a run's spec asked for, asked for once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.load import load, repeat_config
from orchestrator.core.config.model import Config, effective_grids, harness_settings
from orchestrator.core.mode import Mode
from tests.unit.core.asked import GRIDS, asked

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
