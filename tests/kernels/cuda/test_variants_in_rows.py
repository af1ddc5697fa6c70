"""What rows say of the code of another chip, translated for the one at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.attention.case import PASSES, Case, Shape
from kernels.attention.implementations import CudaVariant
from kernels.attention.problem import AttentionProblem
from kernels.harness.workload import Site
from tests.kernels.cuda.stub_driver import WITH_STUB, OnCpu, Stub

pytestmark = WITH_STUB


@pytest.mark.parametrize("direction", PASSES)
def test_a_row_names_the_chip_whose_code_ran_in_every_pass(direction: str, stub: Stub, tmp_path: Path) -> None:
    variant = CudaVariant("bench@sm_80", Site(torch.device("cuda", 0), 1, tmp_path, tmp_path))
    case = Case(Shape(batch=1, heads=2, kv_heads=2, seq_q=64, seq_k=64, head_dim=64, causal=True), "float16", direction)
    variant.engine = OnCpu(hopper=False)
    call = variant.bind(case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1)))
    call.plan()
    assert stub.launches > 0
    assert call.backend.endswith("@sm_80")
