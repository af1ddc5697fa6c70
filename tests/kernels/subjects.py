"""What the tests of timers on a GPU share: a subject bound to a case, in the mode in which the harness calls it."""

from __future__ import annotations

from typing import Final

import pytest

from kernels.harness.workload import Unavailable
from tests.kernels.cuda.on_gpu import ON_GPU
from tests.kernels.instruments import Subject, case, subject

AS_THE_HARNESS_DOES: Final = [*ON_GPU, pytest.mark.usefixtures("inference_mode")]
"""The marks of a module whose tests run on a GPU, without a graph for gradients."""


def made(seq: int, dtype: str, name: str) -> Subject:
    """An implementation on one case. Skips the test where the case is not its."""
    try:
        return subject(case(seq, dtype), name)
    except Unavailable as exc:
        pytest.skip(str(exc))
