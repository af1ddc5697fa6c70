"""Which grids, data types and modes a configuration measures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.bundled import IMPLEMENTATIONS
from orchestrator.core.config.model import (
    DTYPES,
    Config,
    baseline_only,
    count_measurements,
    effective_grids,
    harness_settings,
)
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import GPU_NAMES
from tests.unit.core.asked import CONFIGS, GRIDS, asked, shipped


def names(config: Config, mode: str) -> tuple[str, tuple[str, ...], str, tuple[str, ...]]:
    grids = effective_grids(config, mode)
    return grids.measure.name, grids.measure.dtypes, grids.correctness.name, grids.correctness.dtypes


def test_the_embedded_cloud_measures_its_own_grid() -> None:
    config = asked("gpu: l4")
    both = ("float16", "bfloat16")
    cpu = ("float32", "bfloat16")
    assert names(config, "gce") == ("standard", both, "correctness-classic", both)
    assert names(config, "embedded") == ("cpu", cpu, "correctness-cpu", cpu)
    assert effective_grids(config, "embedded").replaced
    assert not effective_grids(config, "gce").replaced


def test_a_grid_that_the_user_names_is_measured_everywhere() -> None:
    for config in (
        asked("gpu: l4\nmeasure: {grid: hopper}"),
        asked((CONFIGS / "l4.yaml").read_text(encoding="utf-8"), "measure.grid=hopper"),
    ):
        assert names(config, "gce")[:2] == names(config, "embedded")[:2] == ("hopper", ("bfloat16",))
        assert not effective_grids(config, "embedded").replaced


def test_dtypes_that_the_user_names_for_one_run_are_measured_everywhere() -> None:
    config = asked((CONFIGS / "t4.yaml").read_text(encoding="utf-8"), "measure.dtypes=[float32]")
    assert names(config, "gce")[:2] == ("standard", ("float32",))
    assert names(config, "embedded")[:2] == ("cpu", ("float32",))


def test_dtypes_of_a_config_are_for_its_gpu() -> None:
    config = shipped("t4")
    assert names(config, "gce")[1] == ("float16",)
    assert names(config, "embedded")[1] == ("float32", "bfloat16")


def test_the_embedded_cloud_may_have_dtypes_of_its_own() -> None:
    text = "gpu: l4\nmeasure: {grid: smoke, embedded_dtypes: [bfloat16]}\ncorrectness: {embedded_dtypes: [float16]}"
    assert names(asked(text), "gce")[1] == ("float32",)
    assert names(asked(text), "embedded") == ("smoke", ("bfloat16",), "correctness-cpu", ("float16",))


def test_a_dtype_that_a_grid_brings_along_and_the_gpu_lacks_is_left_out() -> None:
    grids = effective_grids(asked("gpu: t4"), "gce")
    assert grids.measure.dtypes == grids.correctness.dtypes == ("float16",)
    assert grids.left_out == ("bfloat16",)


def test_correctness_is_checked_in_what_is_measured_unless_it_says_otherwise() -> None:
    assert names(asked("gpu: l4\nmeasure: {dtypes: [float32]}"), "gce")[3] == ("float32",)
    assert names(asked("gpu: l4\ncorrectness: {dtypes: [bfloat16]}"), "gce")[3] == ("bfloat16",)
    only_bfloat16 = (
        "gpu: t4\ncorrectness: {grid: {dtypes: [bfloat16], shapes: [{batch: 1, heads: 1, seq: 1, head_dim: 1}]}}"
    )
    assert names(asked(only_bfloat16), "gce")[3] == ("float16",)


def test_a_grid_without_dtypes_is_measured_in_single_precision() -> None:
    inline = "gpu: l4\nmeasure: {grid: {shapes: [{batch: 1, heads: 1, seq: 1, head_dim: 1}]}}"
    assert names(asked(inline), "gce")[:2] == ("inline", ("float32",))


@given(
    st.sampled_from(GPU_NAMES),
    st.lists(st.sampled_from(DTYPES), unique=True),
    st.sampled_from(sorted(GRIDS)),
    st.sampled_from(["gce", "embedded"]),
)
def test_what_is_measured_can_always_be_computed(gpu: str, dtypes: list[str], grid: str, mode: str) -> None:
    try:
        config = asked(f"gpu: {gpu}\nmeasure: {{grid: {grid}, dtypes: [{', '.join(dtypes)}]}}")
    except ConfigError:
        return
    grids = effective_grids(config, mode)
    supported: tuple[str, ...] = DTYPES if mode == "embedded" else config.gpu_spec.dtypes
    assert grids.measure.dtypes
    assert grids.correctness.dtypes
    assert set(grids.measure.dtypes) | set(grids.correctness.dtypes) <= set(supported)
    assert set(dtypes) <= set(grids.measure.dtypes)


def test_the_harness_is_told_all_that_it_needs() -> None:
    config = asked("gpu: l4\nmeasure: {grid: smoke, repeats: 3, warmup: 1, regime: sustained, seed: 5, threads: 2}")
    spec = harness_settings(config, effective_grids(config, "gce"), "gce")
    shape = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 16, "seq_k": 16, "head_dim": 16, "causal": False}
    correctness = spec.pop("correctness")
    assert spec == {
        "implementations": [*IMPLEMENTATIONS, "bench:aa"],
        "measure": {"shapes": [shape], "dtypes": ["float32"]},
        "repeats": 3,
        "warmup": 1,
        "regime": "sustained",
        "cache": "cold",
        "seed": 5,
        "threads": 2,
        "skip_cases": [],
    }
    assert len(correctness["shapes"]) == 7
    assert (correctness["dtypes"], correctness["max_abs_error"]) == (["float32"], 0.01)


def test_a_control_may_be_left_out_and_a_case_may_end_when_its_interval_is_tight() -> None:
    config = asked("gpu: l4\nmeasure: {control: false, stop_at_relative_ci: 0.01}")
    spec = harness_settings(config, effective_grids(config, "gce"), "gce")
    assert spec["implementations"] == list(IMPLEMENTATIONS)
    assert spec["stop_at_relative_ci"] == 0.01
    alone = baseline_only(asked("gpu: l4"))
    assert harness_settings(alone, effective_grids(alone, "gce"), "gce")["implementations"][-1] == "sdpa:default:aa"


@pytest.mark.parametrize(
    ("text", "mode", "regime"),
    [
        ("gpu: l4", "gce", "both"),
        ("gpu: t4", "gce", "both"),
        ("gpu: l4", "embedded", "burst"),
        ("gpu: cpu", "gce", "burst"),
        ("gpu: cpu\nmeasure: {regime: both}", "embedded", "both"),
        ("gpu: l4\nmeasure: {regime: graph}", "gce", "graph"),
        ("gpu: h100", "host", "both"),
        ("gpu: cpu", "host", "burst"),
    ],
)
def test_a_gpu_is_measured_in_bursts_and_at_length_and_a_processor_in_one_regime(
    text: str, mode: str, regime: str
) -> None:
    config = asked(text)
    assert harness_settings(config, effective_grids(config, mode), mode)["regime"] == regime
    assert count_measurements(config, mode) == (100 if regime == "both" else 50)


def test_a_warm_up_lasts_until_steady_unless_calls_are_counted() -> None:
    for text, told in (("gpu: l4", "steady"), ("gpu: l4\nmeasure: {warmup: 0}", 0)):
        config = asked(text)
        assert harness_settings(config, effective_grids(config, "gce"), "gce")["warmup"] == told
