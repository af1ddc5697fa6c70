"""A spec is obeyed to the letter or refused with the key that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.case import CASE_ID, DTYPE_NAMES, Case, Shape
from kernels.attention.registry import REGISTRY
from kernels.harness.reading import BadSpec
from kernels.harness.registry import Entry, Registry
from kernels.harness.spec import parse_spec
from tests.kernels.harness_process import ROOT, shape, spec

SIZE = st.integers(1, 10**6)
SHAPES = st.builds(
    lambda group, kv, b, q, k, d, c: Shape(b, group * kv, kv, q, k, d, c),
    st.integers(1, 8), SIZE, SIZE, SIZE, SIZE, SIZE, st.booleans(),
)  # fmt: skip


def refusal(data: Any) -> str:
    with pytest.raises(BadSpec) as told:
        parse_spec(json.dumps(data))
    return str(told.value)


@given(SHAPES, st.sampled_from(DTYPE_NAMES))
def test_a_case_id_names_its_case_and_no_other(problem: Shape, dtype: str) -> None:
    case_id = Case(problem, dtype).id
    assert CASE_ID.fullmatch(case_id)
    b, h, kv, q, k, d, mask, named = case_id.split("-")
    sizes = [int(part.lstrip("bhkvqd")) for part in (b, h, kv, q, k, d)]
    assert Case(Shape(*sizes, causal=mask == "causal"), named) == Case(problem, dtype)


def test_the_contracts_own_example_of_a_case_id_is_what_a_case_is_called() -> None:
    assert Case(Shape(2, 8, 8, 512, 512, 64, False), "float16").id == "b2-h8-kv8-q512-k512-d64-full-float16"


def test_cases_come_shape_by_shape_and_those_done_are_left_out() -> None:
    asked = spec(measure={"shapes": [shape(4), shape(5)], "dtypes": ["float32", "float16"]})
    ids = [case.id for case in parse_spec(json.dumps(asked)).measure]
    assert [case_id.split("-")[3] + case_id.rsplit("-", 1)[1] for case_id in ids] == [
        "q4float32", "q4float16", "q5float32", "q5float16",
    ]  # fmt: skip
    resumed = parse_spec(json.dumps(asked | {"skip_cases": [ids[1], "b9-h9-kv9-q9-k9-d9-full-float32"]}))
    assert [case.id for case in resumed.planned] == [ids[0], ids[2], ids[3]]


def test_what_the_agent_adds_may_be_absent_when_run_by_hand() -> None:
    by_hand = {key: value for key, value in spec().items() if key not in ("run_id", "vm", "threads", "skip_cases")}
    parsed = parse_spec(json.dumps(by_hand))
    assert (parsed.run_id, parsed.vm, parsed.threads, parsed.planned) == ("", "", 0, parsed.measure)


def test_a_control_stands_for_an_implementation_that_is_there_too() -> None:
    assert parse_spec(json.dumps(spec(implementations=["bench", "bench:aa"]))).implementations == ("bench", "bench:aa")
    assert "bench:aa is the control of bench" in refusal(spec(implementations=["sdpa:math", "bench:aa"]))
    assert "is none of" in refusal(spec(implementations=["bench", "bench:aa:aa"]))


def test_the_stopping_rule_is_off_unless_it_is_asked_for() -> None:
    assert parse_spec(json.dumps(spec())).stop_at_relative_ci is None
    assert parse_spec(json.dumps(spec(stop_at_relative_ci=0.02))).stop_at_relative_ci == 0.02
    assert "stop_at_relative_ci must be a positive number" in refusal(spec(stop_at_relative_ci=0))


def test_a_case_has_as_much_time_as_its_dollars_buy() -> None:
    assert parse_spec(json.dumps(spec())).case_budget_s is None
    assert parse_spec(json.dumps(spec(usd_per_hour=0.36))).case_budget_s is None
    assert parse_spec(json.dumps(spec(usd_per_hour=0.36, case_budget_usd=0.002))).case_budget_s == pytest.approx(20.0)
    assert "case_budget_usd needs usd_per_hour" in refusal(spec(case_budget_usd=0.01))
    assert "usd_per_hour must be a positive number" in refusal(spec(case_budget_usd=0.01, usd_per_hour=0))


def test_caches_are_cold_and_warm_ups_counted_unless_it_is_said_otherwise() -> None:
    unsaid = {key: value for key, value in spec().items() if key != "cache"}
    assert parse_spec(json.dumps(unsaid)).cache == "cold"
    assert parse_spec(json.dumps(spec())).warmup == 1
    assert parse_spec(json.dumps(spec(warmup="steady"))).warmup == "steady"


def test_what_the_agent_knows_of_the_machine_is_kept_as_it_says_it() -> None:
    assert parse_spec(json.dumps(spec(machine={"zone": "us-east4-a", "image": "x"}))).machine == {
        "zone": "us-east4-a",
        "image": "x",
    }
    assert parse_spec(json.dumps(spec())).machine == {}
    assert "machine has unknown colour" in refusal(spec(machine={"colour": "red"}))
    assert "machine.zone must be a string" in refusal(spec(machine={"zone": 1}))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"implementations": []}, "implementations must be a list with at least one of bench"),
    ({"implementations": ["bench", "bench"]}, "implementations repeats a name"),
    ({"implementations": ["sdpa:fast"]}, '"sdpa:fast" is none of bench, bench:lse'),
    ({"repeats": 0}, "repeats must be an integer >= 1, not 0"),
    ({"repeats": True}, "repeats must be an integer >= 1, not true"),
    ({"repeats": 1.0}, "repeats must be an integer >= 1, not 1.0"),
    ({"warmup": -1}, "warmup must be an integer >= 0, not -1"),
    ({"warmup": "hot"}, 'warmup must be an integer >= 0 or "steady", not "hot"'),
    ({"cache": "lukewarm"}, 'cache: "lukewarm" is none of cold, warm'),
    ({"seed": "x"}, 'seed must be an integer >= 0, not "x"'),
    ({"threads": -1}, "threads must be an integer >= 0"),
    ({"regime": "hot"}, '"hot" is none of burst, sustained, graph'),
    ({"run_id": 5}, "run_id must be a string, not 5"),
    ({"skip_cases": "all"}, "skip_cases must be a list of case ids"),
    ({"skip_cases": ["../../etc"]}, "skip_cases must be a list of case ids"),
    ({"colour": "red", "speed": 1}, "the spec has unknown colour, speed"),
    ({"measure": {"shapes": [shape(4)], "dtypes": ["int8"]}}, "measure.dtypes"),
    ({"measure": {"shapes": {}, "dtypes": ["float32"]}}, "measure.shapes must be a list, not {}"),
    ({"measure": {"shapes": [shape(4), shape(4)], "dtypes": ["float32"]}}, "measure has a case twice: b1-h2"),
    ({"measure": {"shapes": [shape(0)], "dtypes": ["float32"]}}, "measure.shapes[0].seq_q must be an integer >= 1"),
    ({"measure": {"shapes": [shape(4, causal=1)], "dtypes": ["float32"]}}, "causal must be true or false, not 1"),
    ({"measure": {"shapes": [shape(4, heads=3)], "dtypes": ["float32"]}}, "heads 3 is not a multiple of kv_heads 2"),
    ({"measure": {"shapes": [{"seq": 4}], "dtypes": ["float32"]}}, "lacks batch, heads, kv_heads, seq_q, seq_k"),
    ({"correctness": {"shapes": [], "dtypes": ["float32"]}}, "correctness lacks max_abs_error"),
    (
        {"correctness": {"shapes": [], "dtypes": ["float32"], "max_abs_error": 0}},
        "max_abs_error must be a positive number, not 0",
    ),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_spec_is_refused_with_the_key_and_what_was_found(change: dict[str, Any], words: str) -> None:
    assert words in refusal(spec(**change))


@pytest.mark.parametrize("key", ["implementations", "measure", "correctness", "repeats", "warmup", "regime", "seed"])
def test_nothing_that_decides_a_measurement_is_defaulted(key: str) -> None:
    assert f"the spec lacks {key}" in refusal({k: v for k, v in spec().items() if k != key})


def test_every_implementation_that_is_shown_is_known() -> None:
    shown = REGISTRY.shown()
    assert {"bench", "sdpa:default", "sdpa:math", "fa4", "flex"} <= set(shown)
    assert parse_spec(json.dumps(spec(implementations=list(shown)))).implementations == shown


@pytest.mark.parametrize("name", ["bench@sm_80", "bench:lse", "bench@sm_75:lse", "bench@sm_80:aa"])
def test_variants_are_implementations_of_their_own(name: str) -> None:
    asked = [name.removesuffix(":aa"), *([name] if name.endswith(":aa") else [])]
    assert parse_spec(json.dumps(spec(implementations=asked))).implementations == tuple(asked)


@pytest.mark.parametrize(
    "name", ["bench@sm_8", "bench:fast", "sdpa", "fa4:lse", "Bench", "", "bench\n", "bench@sm_80@sm_90"]
)
def test_what_no_entry_gives_is_refused(name: str) -> None:
    assert "is none of bench" in refusal(spec(implementations=[name]))


def test_the_registry_is_open_and_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.add(Entry("mine", "math:sqrt", variants="(:fast)?"))
    assert registry.find("mine:fast") is registry.find("mine") is not None
    assert registry.find("mine:slow") is registry.find("yours") is None
    with pytest.raises(ValueError, match="already in use"):
        registry.add(Entry("mine", "math:sin"))
    with pytest.raises(ValueError, match="is not a valid name"):
        registry.add(Entry("a:b", "math:sin"))


def test_a_workload_that_is_not_there_is_refused_by_name() -> None:
    assert "there is no conv in the payload" in refusal(spec(workload="conv"))
    assert "is not the name of a workload" in refusal(spec(workload="../x"))
    assert parse_spec(json.dumps(spec(workload="attention"))).workload.name == "attention"


def grids() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "configs" / "grids.yaml").read_text())
    return loaded


def filled_in(given: dict[str, Any]) -> dict[str, Any]:
    """A shape of a grid as the harness receives it."""
    seq = {"seq_q": given["seq"], "seq_k": given["seq"]} if "seq" in given else {}
    rest = {key: value for key, value in given.items() if key != "seq"}
    return {"kv_heads": given["heads"], "causal": False} | seq | rest


@pytest.mark.parametrize("name", grids())
def test_every_named_grid_is_one_that_the_harness_accepts(name: str) -> None:
    grid = grids()[name]
    assert set(grid) <= {"description", "shapes", "dtypes"}
    assert grid["description"]
    shapes = [filled_in(one) for one in grid["shapes"]]
    parsed = parse_spec(json.dumps(spec(measure={"shapes": shapes, "dtypes": grid.get("dtypes", ["float16"])})))
    assert len(parsed.measure) == len(shapes) * len(grid.get("dtypes", ["float16"]))


def test_the_standard_and_the_cpu_grid_have_six_shapes_and_the_classic_suite_seven() -> None:
    sizes = {name: len(grid["shapes"]) for name, grid in grids().items()}
    assert (sizes["standard"], sizes["cpu"], sizes["correctness-classic"], sizes["smoke"]) == (6, 6, 7, 1)
