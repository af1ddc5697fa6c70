"""What the user asked for is read in full."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.bundled import IMPLEMENTATIONS
from orchestrator.core.config.model import PHASE_LIMITS_S, Config, baseline_only, effective_grids
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.yamltext import dotted_path, read_scalar, read_yaml
from tests.unit.core.asked import CONFIGS, asked, shipped


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
    filled = least.machine.model_copy(
        update={
            "type": least.machine_type,
            "image_project": least.image_source[0],
            "image_family": least.image_source[1],
        }
    )
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
