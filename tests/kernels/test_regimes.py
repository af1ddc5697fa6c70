"""In which regimes a case is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.case import DTYPE_NAMES, Case, Shape
from kernels.harness.regimes import case_regimes
from kernels.harness.spec import REGIMES

SIZES = st.integers(1, 20_000)


@given(SIZES, SIZES, SIZES, st.sampled_from([64, 128]), st.booleans(), st.sampled_from(REGIMES))
def test_the_element_type_and_the_mask_never_choose_a_regime(
    heads: int, seq_q: int, seq_k: int, head_dim: int, causal: bool, asked: str
) -> None:
    case = Case(Shape(2, heads, heads, seq_q, seq_k, head_dim, causal), "float16")
    found = case_regimes(asked, "cuda", case)
    assert all(case_regimes(asked, "cuda", replace(case, dtype=other)) == found for other in DTYPE_NAMES)
    assert case_regimes(asked, "cuda", replace(case, shape=replace(case.shape, causal=not causal))) == found


@given(SIZES, SIZES)
def test_a_gpu_case_has_burst_and_graph_and_a_processors_burst_and_sustained(seq_q: int, seq_k: int) -> None:
    case = Case(Shape(2, 8, 8, seq_q, seq_k, 64, False), "float16")
    assert case_regimes("both", "cuda", case)[:2] == ("burst", "graph")
    assert case_regimes("both", "cpu", case) == ("burst", "sustained")
    assert case_regimes("burst+graph", "cuda", case) == ("burst", "graph")


@pytest.mark.parametrize(("seq", "heavy"), [(512, False), (1024, False), (4096, True), (16384, True)])
def test_what_a_power_limit_can_hold_back_is_also_measured_back_to_back(seq: int, heavy: bool) -> None:
    case = Case(Shape(2, 8, 8, seq, seq, 64, False), "float16")
    assert ("sustained" in case_regimes("both", "cuda", case)) == heavy
    assert case_regimes("sustained", "cuda", case) == ("sustained",)
