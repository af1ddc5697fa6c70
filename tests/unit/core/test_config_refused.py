"""What cannot be meant is refused with every reason at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import GPU_NAMES
from tests.unit.core.asked import GRIDS, asked


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
my.yaml:6: machine.provisioning: 'preemptible' is not a choice; valid: spot, standard
my.yaml:7: zones[0]: l4 is not offered in 'us-central1-q'; did you mean 'us-central1-c'? valid: us-central1-a, us-central1-b, us-central1-c
my.yaml:8: run.attempts: must be at least 1, not 0
my.yaml:8: run.max_minutes: expected a whole number, got true
my.yaml:8: run.phase_limits_s.build: must be at least 1, not 0
my.yaml:8: run.phase_limits_s.prefligth: 'prefligth' is not a choice; did you mean 'preflight'? valid: preflight, environment, build, correctness, measure, finish
my.yaml:9: budget.per_day_usd: expected an amount of dollars, got 'lots'
my.yaml:9: budget.per_run_usd: must be at least 0, not -1
--set measure.warmup=-1: measure.warmup: must be at least 0, not -1
my.yaml:11: measure.grid: no grid called 'standart'; did you mean 'standard'? valid: {", ".join(sorted(GRIDS))}
my.yaml:12: measure.implementations[1]: 'sdpa:flsh' is not a choice; did you mean 'sdpa:flash'? valid: bench, sdpa:default, sdpa:flash, sdpa:efficient, sdpa:cudnn, sdpa:math, bench:lse, bench@sm_80, fa4, flex
my.yaml:13: measure.dtypes[0]: 'float8' is not a choice; did you mean 'float32'? valid: float16, bfloat16, float32
my.yaml:15: measure.seed: given twice, first on line 14
my.yaml:17: correctness.max_abs_error: must be more than 0.0, not 0
my.yaml:20: correctness.grid.shapes[0]: heads (3) is not a multiple of kv_heads (2)
my.yaml:21: correctness.grid.shapes[1].batch: must be at least 1, not 0
my.yaml:21: correctness.grid.shapes[1].seq_k: required
my.yaml:21: correctness.grid.shapes[1].seq_q: required
my.yaml:21: correctness.grid.shapes[1].sq: unknown key; did you mean 'seq_q'? valid: batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, pass
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
        ("gpu: 4", "my.yaml:1: gpu: required; one of: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"),
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
