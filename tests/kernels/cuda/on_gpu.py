"""What the tests on a GPU share that try every architecture's code: native, and the PTX of a T4, an A100 and an L4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import torch

from kernels.attention.cuda.compiler import Target
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.errors import Unsupported

ON_GPU: Final = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FROBENIUS: Final = {torch.float16: 1.2e-3, torch.bfloat16: 8e-3}
"""Relative errors of a whole output."""
DEV: Final = "cuda"
DTYPES: Final = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", params=("native", "compute_75", "compute_80", "compute_89"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    target = None if request.param == "native" else Target(request.param)
    try:
        yield Engine(torch.device(DEV), target=target)
    except Unsupported as exc:
        pytest.skip(str(exc))


def dtypes_of(engine: Engine) -> list[torch.dtype]:
    return [getattr(torch, name) for name in engine.chip.dtypes]
