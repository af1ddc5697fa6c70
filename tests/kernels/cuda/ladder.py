"""Three kernels for one problem, each one idea further, behind one function type: `void(AttentionParams)`.

naive   the definition: a warp a row, everything from global memory
tiled   64 rows share each tile of K and V through shared memory; single-precision FMAs
fa2     tensor cores; scores and probabilities stay in registers; copies overlap arithmetic
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.planning import plan_problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, entry_point, padded_head_dim
from kernels.attention.cuda.run.driver import cuda_driver
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound, Buffers, Step
from kernels.attention.cuda.ways.portable import parameters_of

LADDER = ("naive", "tiled", "fa2")
RUNGS = Path(__file__).parent / "rungs"
"""The kernels of the two lower rungs."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One of the two lower rungs, specialised. Stands wherever an entry of the kernel table does."""

    rung: str
    dtype: str
    head_dim: int
    causal: bool
    threads: int = 128

    @property
    def name(self) -> str:
        return f"{self.rung}_{SHORT[self.dtype]}_d{self.head_dim}_{'causal' if self.causal else 'full'}"

    @property
    def rows(self) -> int:
        """Rows of the output a block computes; the rows of all heads together are dealt out for `naive`."""
        return 4 if self.rung == "naive" else 64

    @property
    def shared_bytes(self) -> int:
        return 0 if self.rung == "naive" else (96 * (self.head_dim + 1) + 64 * 33) * 4

    @property
    def source(self) -> str:
        arguments = f"{C_TYPE[self.dtype]}, {self.head_dim}, {str(self.causal).lower()}"
        call = f"attention_{self.rung}<{arguments}>(p)"
        kernel = (RUNGS / f"{self.rung}.cuh").read_text()
        return kernel + entry_point(self.name, self.threads, call, header="params.cuh")


def bind_rung(
    rung: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool,
    engine: Engine,
) -> Bound:
    """A rung of the ladder with its tensors bound. Raises `Unsupported` as `bind` does; head dimensions up to 128."""
    if rung == "fa2":
        return bind_attention(q, k, v, out, causal=causal, engine=engine)
    if q.shape[3] > 128:
        raise Unsupported(f"the naive and the tiled kernel support head dimensions up to 128, not {q.shape[3]}")
    problem = problem_of(q, k, v, out, causal=causal, alignment="top-left")
    launch = plan_problem(problem, engine.machine, splits=1)
    cuda_driver().enter(engine.device.index)
    entry = Rung(rung, problem.dtype, padded_head_dim(problem.head_dim), causal)
    parameters = parameters_of(problem, launch, 1.0 / math.sqrt(problem.head_dim))
    all_heads = problem.batch * problem.heads
    blocks = (
        -(-all_heads * problem.seq_q // entry.rows) if rung == "naive" else all_heads * -(-problem.seq_q // entry.rows)
    )
    steps = [Step(entry, (blocks, 1, 1), (parameters,))]
    return Bound(entry.name, lambda _: steps, Buffers.now(engine), (q, k, v, out))
