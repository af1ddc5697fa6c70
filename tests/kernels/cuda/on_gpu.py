"""What the tests on a GPU share that try every architecture's code: native, and the PTX of a T4, an A100 and an L4."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest
import torch

from kernels.attention.cuda.compile.compiler import Target
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.run.engine import Engine

ON_GPU: Final = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FROBENIUS: Final = {torch.float16: 1.2e-3, torch.bfloat16: 8e-3}
"""Relative errors of a whole output."""
DEV: Final = "cuda"
DTYPES: Final = (torch.float16, torch.bfloat16)
GUARD: Final = 4096
"""Elements before and after what is written."""


@pytest.fixture(scope="module", params=("native", "compute_75", "compute_80", "compute_89"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    target = None if request.param == "native" else Target(request.param)
    try:
        yield Engine(torch.device(DEV), target=target)
    except Unsupported as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def hopper_engine() -> Engine:
    engine = Engine(torch.device(DEV))
    if not engine.machine.hopper:
        pytest.skip("not a Hopper chip")
    return engine


def dtypes_of(engine: Engine) -> list[torch.dtype]:
    return [getattr(torch, name) for name in engine.chip.dtypes]


def randn(*shape: int, dtype: torch.dtype, seed: int, bshd: bool = False) -> torch.Tensor:
    """[B, H, S, D] from N(0, 1); with `bshd` a view of a [B, S, H, D] tensor."""
    generator = torch.Generator(DEV).manual_seed(seed)
    b, h, s, d = shape
    if bshd:
        return torch.randn(b, s, h, d, device=DEV, generator=generator).to(dtype).transpose(1, 2)
    return torch.randn(b, h, s, d, device=DEV, generator=generator).to(dtype)


class Poisoned:
    """An output like `q`, or of another width, and its log-sum-exp: NaN until they are written, with canaries
    around."""

    def __init__(self, q: torch.Tensor, width: int | None = None) -> None:
        self.canaries: list[torch.Tensor] = []
        self.out = self._poisoned(torch.Size((*q.shape[:3], width or q.shape[3])), q)
        self.lse = self._poisoned(q.shape[:3], q.new_empty(0).float())

    def _poisoned(self, shape: torch.Size, like: torch.Tensor) -> torch.Tensor:
        whole = torch.full((math.prod(shape) + 2 * GUARD,), math.nan, device=like.device, dtype=like.dtype)
        self.canaries += [whole[:GUARD].fill_(7), whole[-GUARD:].fill_(7)]
        return whole[GUARD:-GUARD].view(shape)

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside them."""
        return all(bool((one == 7).all()) for one in self.canaries)

    def complaint(self, call: Callable[[], object]) -> str | None:
        """What is wrong with what `call` does, twice, whatever it computes; None if nothing is."""
        call()
        first = self.out.clone()
        call()
        if not torch.equal(self.out, first):
            return "two launches differ, or something is no number"
        return None if self.intact else "wrote beside the output"

    def wrong(self, want: torch.Tensor, want_lse: torch.Tensor, lse_error: float = 2e-4) -> str | None:
        """What is wrong with what was written; None if nothing is."""
        frobenius = ((self.out.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
        if not frobenius <= FROBENIUS[self.out.dtype]:
            return f"relative Frobenius error {frobenius:.3g}"
        if bool((want_lse.isinf() != self.lse.isinf()).any()):
            return "a row without keys has a finite log-sum-exp, or the other way round"
        off = (self.lse.double() - want_lse).nan_to_num(0.0, posinf=1.0, neginf=1.0).abs().max().item()
        return None if off <= lse_error else f"log-sum-exp off by {off:.3g}"


def assert_replays_alike(call: Callable[[], object], out: torch.Tensor) -> None:
    """What a graph of two launches leaves in `out`, time after time, is what one launch does."""
    call()
    want, graph = out.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
        call()
    for _ in range(5):
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, want)


def failures(cases: Sequence[tuple[str, str | None]]) -> list[str]:
    return [f"{name}: {words}" for name, words in cases if words]
