"""Which inputs a case has."""

from __future__ import annotations

import torch

from kernels.attention.case import Case
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.harness import axes
from tests.kernels.measured import CASE, CPU


def drawn(case: Case, seed: int) -> Inputs:
    return AttentionProblem().inputs(case, axes.case_generator(case, CPU, seed))


def test_inputs_depend_on_seed_and_case_alone_and_are_never_zeros() -> None:
    first, again = drawn(CASE, 5), drawn(CASE, 5)
    assert torch.equal(first.q, again.q)
    assert torch.equal(first.k, again.k)
    assert not torch.equal(first.q, drawn(CASE, 6).q)
    assert (first.q.shape, first.k.shape, first.v.shape) == ((2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8))
    assert first.q.dtype == torch.bfloat16
    assert not torch.equal(first.k, first.v)
    assert 0.5 < first.q.float().std().item() < 1.5


def test_a_resumed_case_has_the_inputs_it_would_have_had() -> None:
    torch.manual_seed(1)
    alone = drawn(CASE, 5).q
    drawn(Case(CASE.shape, "float32"), 5)
    assert torch.equal(drawn(CASE, 5).q, alone)
