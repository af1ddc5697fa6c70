"""The `backend` column names the kernels that a call launches, as the driver is asked for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.case import PASSES, Case, Shape
from kernels.attention.cuda.kernel import CudaKernel
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.run.launching import Buffers
from kernels.attention.implementations import CudaVariant
from kernels.attention.problem import AttentionProblem
from kernels.harness.workload import Site
from tests.kernels.cuda.stub_driver import WITH_STUB, OnCpu, Stub, stub_libcuda

pytestmark = WITH_STUB


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_libcuda(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq_q", "seq_k", "kind"),
    [(8, 8, 128, 128, "small_"), (8, 8, 4096, 4096, "fa90_"), (64, 8, 1, 32768, "decode_")],
)
@pytest.mark.parametrize("hopper", [True, False])
def test_the_name_of_what_ran_is_that_of_what_was_launched(
    stub: Stub, hopper: bool, heads: int, kv_heads: int, seq_q: int, seq_k: int, kind: str
) -> None:
    q = torch.zeros(2, heads, seq_q, 128 if kind == "decode_" else 64, dtype=torch.bfloat16)
    k = torch.zeros(2, kv_heads, seq_k, q.shape[3], dtype=torch.bfloat16)
    engine = OnCpu(hopper=hopper)
    bound = bind_attention(q, k, k, torch.empty_like(q), causal=False, engine=engine, buffers=Buffers(engine))
    before = stub.launches
    bound()
    launched = dict.fromkeys(stub.launch(number).name.decode() for number in range(before, stub.launches))
    assert bound.kernels == "+".join(launched)
    assert hopper is False or bound.kernels.startswith(kind)


def test_a_plan_of_the_kernel_tells_what_it_runs(stub: Stub) -> None:
    del stub
    kernel = CudaKernel(torch.device("cpu", 0))
    kernel.engine = OnCpu()
    names = set()
    for seq in (64, 4096):
        q = torch.zeros(2, 8, seq, 64, dtype=torch.float16)
        names.add(kernel.prepare(q, q, q, True).runs)  # type: ignore[attr-defined]
    assert len(names) == 2
    assert not any(name.startswith("cuda-") for name in names)


# What rows say of the code of another chip, translated for the one at hand.


@pytest.mark.parametrize("direction", PASSES)
def test_a_row_names_the_chip_whose_code_ran_in_every_pass(direction: str, stub: Stub, tmp_path: Path) -> None:
    variant = CudaVariant("bench@sm_80", Site(torch.device("cuda", 0), 1, tmp_path, tmp_path))
    case = Case(Shape(batch=1, heads=2, kv_heads=2, seq_q=64, seq_k=64, head_dim=64, causal=True), "float16", direction)
    variant.engine = OnCpu(hopper=False)
    call = variant.bind(case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1)))
    call.plan()
    assert stub.launches > 0
    assert call.backend.endswith("@sm_80")
