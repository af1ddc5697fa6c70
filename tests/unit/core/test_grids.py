"""Problems, spelt out in full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kernels.attention.workload import WORKLOAD
from orchestrator.core.bundled import Shape, with_pass
from orchestrator.core.config.model import DTYPES, Grid, case_ids, harness_shapes, resolve_grid
from startup.agent.agent import CASE
from tests.unit.core.asked import GRIDS

size = st.integers(1, 9)
shapes = st.builds(
    lambda batch, kv, group, q, k, d, causal, direction: Shape.model_validate(
        {
            "batch": batch,
            "heads": kv * group,
            "kv_heads": kv,
            "seq_q": q,
            "seq_k": k,
            "head_dim": d,
            "causal": causal,
            "pass": direction,
        }
    ),
    *[size] * 6,
    st.booleans(),
    st.sampled_from(("forward", "backward", "both")),
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
    axes = set(Shape.model_fields) - {"direction"}
    for shape, told in zip(grid.shapes, harness_shapes(grid), strict=True):
        assert set(told) == axes | ({"pass"} if shape.direction != "forward" else set())


@given(grids)
def test_the_machine_knows_every_case_by_the_name_that_it_has_here(grid: Grid) -> None:
    cases = WORKLOAD.cases({"shapes": harness_shapes(grid), "dtypes": list(grid.dtypes)}, "measure")
    assert tuple(case.id for case in cases) == case_ids(grid)
    assert all(WORKLOAD.is_case(name) and CASE.match(f"cases/{name}.csv") for name in case_ids(grid))
    told = [with_pass(name, {}).get("pass", "forward") for name in case_ids(grid)]
    assert told == [case.direction for case in cases]


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
