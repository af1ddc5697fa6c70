"""What the user asked for is read in full."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.attention.workload import WORKLOAD
from orchestrator.core.bundled import IMPLEMENTATIONS, Shape, of_case, with_named_axes
from orchestrator.core.config.model import (
    DTYPES,
    PHASE_LIMITS_S,
    Config,
    Grid,
    baseline_only,
    case_ids,
    count_measurements,
    effective_grids,
    harness_settings,
    harness_shapes,
    resolve_grid,
)
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.yamltext import dotted_path, read_scalar, read_yaml
from startup.agent.agent import CASE
from tests.unit.core.asked import CONFIGS, GRIDS, asked, planned, shipped


@pytest.mark.parametrize("name", GPU_NAMES)
def test_every_shipped_config_is_good(name: str) -> None:
    config = shipped(name)
    assert config.gpu == name
    for mode in ("gce", "embedded"):
        grids = effective_grids(config, mode)
        assert grids.measure.dtypes
        assert grids.correctness.dtypes
        assert grids.left_out == ()


def test_the_complete_example_has_every_key() -> None:
    text = (CONFIGS / "l4.yaml").read_text(encoding="utf-8")
    keys = [name for name, field in Config.model_fields.items() if name not in ("zones", "regions")]
    missing = [name for name in keys if f"\n{name}:" not in f"\n{text}"]
    for section in (Config.model_fields[name].annotation for name in keys):
        names = getattr(section, "model_fields", {})
        missing += [name for name in names if f"\n  {name}:" not in text and "dtypes" not in name]
    assert missing == []


def test_the_handbook_explains_every_key() -> None:
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    for name, field in Config.model_fields.items():
        nested = getattr(field.annotation, "model_fields", {})
        for key in [f"{name}.{inner}" for inner in nested] or [name]:
            assert f"`{key}`" in text, key


def test_the_complete_example_says_what_the_defaults_are() -> None:
    written, least = shipped("l4"), asked("gpu: l4")
    image = dict(zip(("image_project", "image_family"), least.image_source, strict=True))
    filled = least.machine.model_copy(update={"type": least.machine_type, **image})
    assert written == least.model_copy(update={"machine": filled})


def test_a_gpu_is_all_that_has_to_be_said() -> None:
    config = asked("gpu: L4")
    assert config.gpu == "l4"
    assert config.machine_type == "g2-standard-4"
    assert config.image_source == ("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")
    assert config.allowed_zones() == config.gpu_spec.zones
    assert config.budget.caps().day == Decimal("5.00")
    assert config.measure.grid.name == "standard"
    assert config.measure.embedded_grid == asked("gpu: l4\nmeasure:").measure.embedded_grid


def test_money_is_exact() -> None:
    config = asked("gpu: l4\nbudget: {per_run_usd: 0.1, per_day_usd: '0.20', per_month_usd: 3, total_usd: null}")
    caps = config.budget.caps()
    assert (caps.run, caps.day, caps.month, caps.total) == (Decimal("0.1"), Decimal("0.20"), Decimal(3), None)


def test_overrides_win_over_the_file_and_are_yaml() -> None:
    config = asked(
        "gpu: l4\nrun: {max_minutes: 5}",
        "gpu=t4",
        "run.max_minutes=7",
        "machine.external_ip=false",
        "measure.dtypes=[float16]",
        "machine.service_account=a@b",
        "alerts.command=",
    )
    assert (config.gpu, config.run.max_minutes, config.machine.external_ip) == ("t4", 7, False)
    assert config.measure.dtypes == ("float16",)
    assert config.machine.service_account == "a@b"
    assert config.alerts.command == ""


def test_zones_or_regions_narrow_the_search() -> None:
    assert asked("gpu: l4\nzones: [us-east4-c]").allowed_zones() == ("us-east4-c",)
    assert asked("gpu: l4\nregions: [us-east4]").allowed_zones() == ("us-east4-a", "us-east4-c")


def test_limits_of_phases_are_the_defaults_with_what_was_asked_over_them() -> None:
    limits = asked("gpu: l4\nrun: {phase_limits_s: {build: 7}}").run.limits()
    assert limits == PHASE_LIMITS_S | {"build": 7}
    assert tuple(limits) == tuple(PHASE_LIMITS_S)


def test_without_the_kernel_only_the_baselines_are_left() -> None:
    assert baseline_only(asked("gpu: l4")).measure.implementations == IMPLEMENTATIONS[1:]
    alone = asked("gpu: l4\nmeasure: {implementations: [bench]}")
    assert baseline_only(alone).measure.implementations == ("sdpa:default",)


# YAML that remembers where everything was written.


def test_every_key_and_entry_knows_its_line() -> None:
    document = read_yaml("a: 1\nb:\n  c: [x,\n      y]\n  d: {e: 2}\n")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"], "d": {"e": 2}}}
    lines = {dotted_path(path): line for path, line in document.lines.items()}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c[0]": 3, "b.c[1]": 4, "b.d": 5, "b.d.e": 5}


def test_what_was_not_written_has_the_line_of_what_should_hold_it() -> None:
    document = read_yaml("a:\n  b: {}")
    assert document.line(("a", "b", "c")) == 2
    assert document.line(("z",)) == 0


def test_a_key_given_twice_is_reported_with_both_lines() -> None:
    assert read_yaml("a: 1\nb: 2\na: 3").problems == ((3, "a", "given twice, first on line 1"),)


def test_what_is_not_yaml_is_a_problem_and_not_an_error() -> None:
    for text in ("a: [", "\x00", "a: !!python/object:os.system {}", "a: 2026-99-99", "? {x: 1}\n: 2", "[" * 40):
        document = read_yaml(text)
        assert document.data is None
        (problem,) = document.problems
        assert problem[2].startswith("not YAML: ")


def test_nothing_is_nothing() -> None:
    assert read_yaml("").data is None
    assert read_yaml("# only a comment").problems == ()


def test_a_single_value_is_yaml_where_it_can_be() -> None:
    assert read_scalar("12") == 12
    assert read_scalar("[a, b]") == ["a", "b"]
    assert read_scalar("null") is None
    assert read_scalar("") == ""
    assert read_scalar("[a") == "[a"
    assert read_scalar("https://example.com/a?b=c") == "https://example.com/a?b=c"


# What cannot be meant is refused with every reason at once.


def read_or_refused(text: str, *overrides: str) -> bool:
    """Whether there is either a whole config or a complaint about this file or these overrides; nothing else leaves."""
    try:
        return asked(text, *overrides).gpu in GPU_NAMES
    except ConfigError as error:
        return "my.yaml" in str(error) or "--set" in str(error)


def complaints(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        asked(text, *overrides)
    assert caught.value.hint
    return str(caught.value).splitlines()


WRONG = """\
gpu: l4
machine:
  typ: n1-standard-4
  type: n1-standard-4
  disk_gb: 20
  provisioning: preemptible
zones: [us-central1-q, us-central1-a]
run: {max_minutes: yes, attempts: 0, phase_limits_s: {prefligth: 3, build: 0}}
budget: {per_run_usd: -1, per_day_usd: lots}
measure:
  grid: standart
  implementations: [bench, "sdpa:flsh"]
  dtypes: [float8]
  seed: 1
  seed: 2
correctness:
  max_abs_error: 0
  grid:
    shapes:
      - {batch: 1, heads: 3, kv_heads: 2, seq: 4, head_dim: 4}
      - {batch: 0, heads: 3, sq: 4, head_dim: 4}
alerts: {webhook: "hooks.example.com", command: 3}
environment: {allow_install: perhaps, min_free_gb: much, torch: null}
payload: 3
"""
MACHINE_KEYS = (
    "type, disk_gb, disk_type, image_project, image_family, prepared, container, provisioning, external_ip, service_account,"
    " network"
)
COMPLAINTS = f"""\
--set machine.provisionin=spot: machine.provisionin: unknown key; did you mean 'provisioning'? valid: {MACHINE_KEYS}
my.yaml:3: machine.typ: unknown key; did you mean 'type'? valid: {MACHINE_KEYS}
my.yaml:4: machine.type: n1-standard-4 carries NVIDIA T4; machine types for l4: g2-standard-4, g2-standard-8, g2-standard-12, g2-standard-16, g2-standard-32
my.yaml:5: machine.disk_gb: 20 GB is smaller than the image of common-cu129-ubuntu-2404-nvidia-580; use at least 50
my.yaml:6: machine.provisioning: 'preemptible' is not a choice; valid: spot, flex-start, standard
my.yaml:7: zones[0]: l4 is not offered in 'us-central1-q'; did you mean 'us-central1-c'? valid: us-central1-a, us-central1-b, us-central1-c
my.yaml:8: run.attempts: must be at least 1, not 0
my.yaml:8: run.max_minutes: expected a whole number, got true
my.yaml:8: run.phase_limits_s.build: must be at least 1, not 0
my.yaml:8: run.phase_limits_s.prefligth: 'prefligth' is not a choice; did you mean 'preflight'? valid: preflight, environment, build, correctness, measure, finish
my.yaml:9: budget.per_day_usd: expected an amount of dollars, got 'lots'
my.yaml:9: budget.per_run_usd: must be at least 0, not -1
--set measure.warmup=-1: measure.warmup: must be at least 0, not -1
my.yaml:11: measure.grid: no grid called 'standart'; did you mean 'standard'? valid: {", ".join(sorted(GRIDS))}
my.yaml:12: measure.implementations[1]: 'sdpa:flsh' is not a choice; did you mean 'sdpa:flash'? valid: bench, sdpa:default, sdpa:flash, sdpa:efficient, sdpa:cudnn, sdpa:math, bench:lse, bench@sm_80, fa4, fa4:split, fa3, flex, cudnn-frontend, flashinfer
my.yaml:13: measure.dtypes[0]: 'float8' is not a choice; did you mean 'float32'? valid: float16, bfloat16, float32
my.yaml:15: measure.seed: given twice, first on line 14
my.yaml:17: correctness.max_abs_error: must be more than 0.0, not 0
my.yaml:20: correctness.grid.shapes[0]: heads (3) is not a multiple of kv_heads (2)
my.yaml:21: correctness.grid.shapes[1].batch: must be at least 1, not 0
my.yaml:21: correctness.grid.shapes[1].seq_k: required
my.yaml:21: correctness.grid.shapes[1].seq_q: required
my.yaml:21: correctness.grid.shapes[1].sq: unknown key; did you mean 'seq_q'? valid: batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, pass, value_dim, window, sinks, dropout
my.yaml:22: alerts.command: expected text, got 3
my.yaml:22: alerts.webhook: 'hooks.example.com' is not valid; expected ^https?://
my.yaml:23: environment.allow_install: expected true or false, got 'perhaps'
my.yaml:23: environment.min_free_gb: expected a number, got 'much'
my.yaml:23: environment.torch: expected text, got nothing
my.yaml:24: payload: expected a section with keys of its own, got 3
--set gpu.name=l4: gpu is not a section
--set max_minutes: expected key.path=value, such as run.max_minutes=20
"""


def test_every_problem_is_listed_with_its_file_line_key_and_remedy() -> None:
    found = complaints(WRONG, "machine.provisionin=spot", "max_minutes", "gpu.name=l4", "measure.warmup=-1")
    assert found == COMPLAINTS.splitlines()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "my.yaml: gpu: required; one of: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"),
        ("gpu: 4", "my.yaml:1: gpu: expected one of l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"),
        ("gpu: h10", "my.yaml:1: gpu: unknown GPU 'h10'; did you mean 'h100'? valid: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"),
        ("- gpu: l4", "my.yaml: expected keys and values, such as `gpu: l4`"),
        ("gpu: [l4", "my.yaml:1: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("gpu: l4\nmeasure: fast", "my.yaml:2: measure: expected a section with keys of its own"),
        ("gpu: l4\nmeasure: {grid: 7}", "my.yaml:2: measure.grid: expected the name of a grid, or a grid written out"),
        (
            "gpu: l4\nmeasure: {implementations: []}",
            "my.yaml:2: measure.implementations: must not be empty",
        ),
        (
            "gpu: l4\nmeasure: {dtypes: [float16, float16]}",
            "my.yaml:2: measure.dtypes: entry 2 is a duplicate: float16",
        ),
        (
            "gpu: t4\nmeasure: {dtypes: [float16, bfloat16]}",
            "my.yaml:2: measure.dtypes: t4 has no bfloat16 arithmetic; valid: float16, float32",
        ),
        (
            "gpu: t4\nmeasure:\n  grid: hopper",
            "my.yaml:3: measure.grid: grid 'hopper' asks for bfloat16 only; t4 has: float16, float32",
        ),
        (
            "gpu: l4\nmachine: {type: z9-mega}",
            "my.yaml:2: machine.type: z9-mega is not known to carry NVIDIA L4; machine types for l4: g2-standard-4, g2-standard-8, g2-standard-12, g2-standard-16, g2-standard-32",
        ),
        (
            "gpu: h100\nmachine:\n  provisioning: standard",
            "my.yaml:3: machine.provisioning: a3-highgpu-1g is not sold on demand; use spot",
        ),
        ("gpu: a100\nzones: [us-east1-b]\nregions: [us-east1]", "my.yaml:3: regions: zones and regions are both given: give only one of them"),
        (
            "gpu: h100\nzones:\n  - us-central1-a\n  - asia-east9-a",
            "my.yaml:4: zones[1]: h100 is not offered in 'asia-east9-a'; did you mean 'us-east4-a'? valid: us-central1, us-east4, europe-west4",
        ),
        (
            "gpu: h100\nregions: [us-east9]",
            "my.yaml:2: regions[0]: h100 is not offered in 'us-east9'; did you mean 'us-east4'? valid: us-central1, us-east4, europe-west4",
        ),
        ("gpu: h100\nregions: [mars]", "my.yaml:2: regions[0]: h100 is not offered in 'mars'; valid: us-central1, us-east4, europe-west4"),
        ("gpu: l4\nrun: {max_minutes: 10081}", "my.yaml:2: run.max_minutes: must be at most 10080, not 10081"),
        ("gpu: l4\nmeasure: {seed: 9223372036854775808}", "my.yaml:2: measure.seed: must be less than 9223372036854775808, not 9223372036854775808"),
        ("gpu: l4\nbudgets: {}", "my.yaml:2: budgets: unknown key; did you mean 'budget'? valid: gpu, machine, zones, regions, run, placement, budget, alerts, measure, correctness, environment, host, payload, profile, workload"),
        (
            "gpu: h100\ncorrectness: {sanitizer: memcheck}",
            "my.yaml:2: correctness.sanitizer: is for a workload of your own: the bundled kernels are not called under compute-sanitizer. Leave it out",
        ),
        ("gpu: l4\nzones: us-central1-a", "my.yaml:2: zones: expected a list, got 'us-central1-a'"),
    ],
)  # fmt: skip
def test_what_no_machine_can_do_is_refused_with_what_would_be_right(text: str, complaint: str) -> None:
    assert complaints(text) == [complaint]


@pytest.mark.parametrize("version", ["", "2.13.0", "2.9", "2.14.0.dev20261101", "2.8.0rc1", "2.9.1+cu129"])
def test_a_torch_is_asked_for_by_its_version(version: str) -> None:
    assert asked(f"gpu: l4\nenvironment: {{torch: '{version}'}}").environment.torch == version


@pytest.mark.parametrize(
    "text",
    ["newest", "2", "2.*", "2.13.0 --index-url=http://x", "2.13.0;id", "$(id).1", "2.1\\n", "٢.١", "9" * 50 + ".1"],
)
def test_what_is_no_version_of_torch_is_refused_since_it_becomes_part_of_commands(text: str) -> None:
    (found,) = complaints(f'gpu: l4\nenvironment: {{torch: "{text}"}}')
    assert found.startswith(
        "my.yaml:2: environment.torch: expected a version such as 2.13.0, or '' for the newest, not "
    )


def test_a_long_value_is_cut_short_in_the_complaint() -> None:
    assert complaints(f"gpu: l4\nzones: {'x' * 99}") == [f"my.yaml:2: zones: expected a list, got '{'x' * 56}..."]


def test_an_image_of_ones_own_may_fit_a_smaller_disk() -> None:
    assert asked("gpu: l4\nmachine: {disk_gb: 20, image_family: mine}").machine.disk_gb == 20


def test_a_config_made_by_hand_cannot_name_a_gpu_that_is_not_there() -> None:
    config = asked().model_copy(update={"gpu": "z9"})
    with pytest.raises(ConfigError, match="unknown GPU 'z9'"):
        _ = config.gpu_spec


def test_a_key_that_no_encoding_can_hold_is_refused() -> None:
    assert complaints('{"gpu": "l4", "measure": {"\\ud910": 1}}')


@given(st.text(max_size=200), st.lists(st.text(max_size=30), max_size=3))
def test_whatever_is_written_is_read_or_refused(text: str, overrides: list[str]) -> None:
    assert read_or_refused(text, *overrides)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.sampled_from([f"{name}.{key}" for name, field in Config.model_fields.items()
                     for key in getattr(field.annotation, "model_fields", {"x": 0})] + list(Config.model_fields)),
    _values,
)  # fmt: skip
def test_any_value_under_any_key_is_read_or_refused(key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    document = {"gpu": "l4"} | ({section: {name: value}} if name else {section: value})
    assert read_or_refused(json.dumps(document))


def test_a_substitute_that_is_no_gpu_is_refused_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"placement.fallback_gpus: unknown GPU 't44'; did you mean 't4'"):
        asked("gpu: l4", "placement.fallback_gpus=[t4, t44]")


# Which grids, data types and modes a configuration measures.


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
    assert spec.pop("implementations") == [*IMPLEMENTATIONS, "bench:aa"]
    assert spec.pop("measure") == {"shapes": [shape], "dtypes": ["float32"]}
    counts = {"repeats": 3, "warmup": 1, "seed": 5, "threads": 2}
    assert spec == {**counts, "regime": "sustained", "cache": "cold", "skip_cases": []}
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


# Problems, spelt out in full.


size = st.integers(1, 9)
shapes = st.builds(
    lambda batch, kv, group, q, k, d, causal, direction, more: Shape.model_validate(
        {
            "batch": batch,
            "heads": kv * group,
            "kv_heads": kv,
            "seq_q": q,
            "seq_k": k,
            "head_dim": d,
            "causal": causal,
            "pass": direction,
            **{key: value for key, value in more.items() if causal or key != "window"},
        }
    ),
    *[size] * 6,
    st.booleans(),
    st.sampled_from(("forward", "backward", "both")),
    st.fixed_dictionaries(
        {}, optional={"value_dim": size, "window": size, "sinks": st.booleans(), "dropout": st.floats(0.0001, 0.9999)}
    ),
)
grids = st.builds(
    Grid,
    shapes=st.lists(shapes, min_size=1, max_size=5, unique=True).map(tuple),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, unique=True).map(tuple),
)


@given(grids)
def test_every_case_has_a_name_of_its_own(grid: Grid) -> None:
    ids = case_ids(grid)
    assert len(set(ids)) == len(ids) == len(grid.shapes) * len(grid.dtypes)


@given(grids)
def test_the_harness_is_told_shapes_that_mean_the_same(grid: Grid) -> None:
    assert tuple(Shape.model_validate(shape) for shape in harness_shapes(grid)) == grid.shapes
    unset = {name for name, field in Shape.model_fields.items() if not field.is_required()} - {"causal"}
    for shape, told in zip(grid.shapes, harness_shapes(grid), strict=True):
        given = {"pass" if name == "direction" else name for name in unset if getattr(shape, name) not in (None, False)}
        given -= {"pass"} if shape.direction == "forward" else set()
        assert set(told) == set(Shape.model_fields) - unset | given


@given(grids)
def test_the_machine_knows_every_case_by_the_name_that_it_has_here(grid: Grid) -> None:
    cases = WORKLOAD.cases({"shapes": harness_shapes(grid), "dtypes": list(grid.dtypes)}, "measure")
    assert tuple(case.id for case in cases) == case_ids(grid)
    assert all(WORKLOAD.is_case(name) and CASE.match(f"cases/{name}.csv") for name in case_ids(grid))
    told = [with_named_axes(name, {}).get("pass", "forward") for name in case_ids(grid)]
    assert told == [case.direction for case in cases]


@given(grids)
def test_the_machine_and_the_report_count_the_same_operations(grid: Grid) -> None:
    for case in WORKLOAD.cases({"shapes": harness_shapes(grid), "dtypes": list(grid.dtypes)}, "measure"):
        counted = of_case(with_named_axes(case.id, case.axes))
        assert counted is not None
        half = (
            case.shape.causal and not case.shape.window
        )  # which the harness, that compares sizes alone, does not take
        assert counted[0] == case.flops * (0.5 if half else 1.0)


def test_a_window_counts_the_keys_that_are_seen() -> None:
    shape = {"batch": 1, "heads": 1, "seq_q": 5, "seq_k": 4, "head_dim": 1, "causal": True, "window": 2}
    seen = sum(key <= query and key > query - 2 for query in range(5) for key in range(4))
    (case,) = WORKLOAD.cases({"shapes": [Shape.model_validate(shape).model_dump()], "dtypes": ["float16"]}, "measure")
    assert case.flops == 4 * seen
    assert case.id == "b1-h1-kv1-q5-k4-d1-causal-w2-float16"


PRESETS = ("deepseek-v3", "gpt-oss", "gpt-oss-sinks", "llama3.1", "llama3.1-8b")


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_a_preset_of_nvidias_is_planned_and_explained(gpu: str, name: str) -> None:
    config = asked((CONFIGS / f"{gpu}.yaml").read_text(encoding="utf-8"), f"measure.grid={name}")
    plan = planned(config)
    assert isinstance(plan, LaunchPlan), plan
    assert set(plan.cases) == set(case_ids(resolve_grid(name, GRIDS)))
    assert {id_.endswith("backward") for id_ in plan.cases} == {True, False}
    assert f"| `{name}` |" in (CONFIGS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"window": 5}, "window is the last keys that a row sees of a causal shape: set causal to true"),
        ({"window": 0, "causal": True}, "window: must be at least 1, not 0"),
        ({"value_dim": 0}, "value_dim: must be at least 1, not 0"),
        ({"sinks": 2}, "sinks: expected true or false"),
        ({"dropout": 1.0}, "dropout: must be at most 0.9999, not 1.0"),
        ({"dropout": 1e-5}, "dropout: must be at least 0.0001, not 1e-05"),
    ],
)
def test_what_a_shape_cannot_have_is_refused_with_its_key(changes: dict[str, Any], refusal: str) -> None:
    shape = {"batch": 1, "heads": 1, "seq": 8, "head_dim": 8, **changes}
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        asked(f"gpu: l4\nmeasure: {{grid: {{shapes: [{json.dumps(shape)}]}}}}")


def test_a_pass_other_than_forward_is_told_to_the_harness_and_is_part_of_the_name() -> None:
    shape = {"batch": 2, "heads": 8, "seq": 512, "head_dim": 64, "pass": "backward"}
    grid = resolve_grid({"shapes": [shape], "dtypes": ["float16"]}, {})
    assert case_ids(grid) == ("b2-h8-kv8-q512-k512-d64-full-float16-backward",)
    assert harness_shapes(grid)[0]["pass"] == "backward"


def test_a_case_is_named_after_its_shape_and_dtype() -> None:
    shape = {"batch": 2, "heads": 8, "seq": 512, "head_dim": 64}
    grid = resolve_grid({"shapes": [shape], "dtypes": ["float16"]}, {})
    assert case_ids(grid) == ("b2-h8-kv8-q512-k512-d64-full-float16",)
    causal = {"batch": 1, "heads": 8, "kv_heads": 2, "seq_q": 3, "seq_k": 5, "head_dim": 80, "causal": True}
    assert Shape.model_validate(causal).case_id("bfloat16") == "b1-h8-kv2-q3-k5-d80-causal-bfloat16"


def test_cases_go_by_shape_and_then_by_dtype() -> None:
    grid = resolve_grid("cpu", GRIDS)
    assert case_ids(grid)[:3] == (
        "b2-h8-kv8-q16-k16-d64-full-float32",
        "b2-h8-kv8-q16-k16-d64-full-bfloat16",
        "b2-h8-kv8-q32-k32-d64-full-float32",
    )


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_every_named_grid_can_be_resolved(name: str) -> None:
    grid = resolve_grid(name, GRIDS)
    assert grid.name == name
    assert grid.description
    assert resolve_grid(grid, {}) is grid
    assert resolve_grid(name, {name: grid}) is grid


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"batch": 1, "heads": 3, "kv_heads": 2, "seq": 4, "head_dim": 4}, "not a multiple of kv_heads"),
        ({"batch": 1, "heads": 3, "seq": 4, "seq_q": 4, "head_dim": 4}, "give either seq, or seq_q and seq_k"),
        ({"batch": 1, "heads": 0, "seq": 4, "head_dim": 4}, "greater than or equal to 1"),
        ("b2-h8", "valid dictionary"),
        ({"batch": 1, "heads": 3, "seq": 4, "head_dim": 4, "pass": "sideways"}, "'forward', 'backward' or 'both'"),
        ({"batch": 1, "heads": 3, "seq": 4, "head_dim": 4, "direction": "both"}, "Extra inputs"),
        ({}, "Field required"),
    ],
)
def test_a_shape_that_is_not_a_problem_is_refused(wrong: object, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Shape.model_validate(wrong)


def test_a_problem_given_twice_is_refused() -> None:
    shape = {"batch": 1, "heads": 1, "seq": 4, "head_dim": 4}
    with pytest.raises(ValidationError, match="entry 2 is a duplicate"):
        Grid.model_validate({"shapes": [shape, shape | {"kv_heads": 1}]})
    with pytest.raises(ValidationError, match="entry 3 is a duplicate: float16"):
        Grid.model_validate({"shapes": [shape], "dtypes": ["float16", "float32", "float16"]})
    with pytest.raises(ValidationError, match="unknown dtype 'float8'"):
        Grid.model_validate({"shapes": [shape], "dtypes": ["float8"]})
