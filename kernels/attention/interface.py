"""The one interface behind which the CPU kernel and the CUDA kernels stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from kernels.attention.case import Case

DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
"""The element types a case can have, by the name used in case ids and result files."""

Plan = Callable[[], torch.Tensor]
"""One call on fixed inputs, with all that can be decided beforehand decided; returns [B, H, S_q, D]."""


class BuildFailed(Exception):
    """A kernel could not be built or loaded.

    `cause` is `no_compiler` or `build_failed`; the message carries the compiler's own words; `remedy` says what to do.
    """

    def __init__(self, message: str, *, cause: str = "build_failed", remedy: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class Unavailable(Exception):
    """An implementation cannot run here, or cannot run this case. The message is a reason fit for a result row."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What was built, by what, and whether it came from the cache; becomes build.json. `seconds` is wall time."""

    implementation: str
    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    seconds: float
    cached: bool
    source_sha256: str
    artifact_sha256: str
    details: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The record as the mapping that build.json holds."""
        return {"schema": 1, **asdict(self), "flags": list(self.flags), "details": dict(self.details)}


class AttentionKernel(Protocol):
    """Forward attention, softmax(scale * Q K^T) V, on one kind of device.

    Tensors are [B, H, S, D] with any batch, head and sequence strides. K and V may have fewer heads than Q (grouped
    queries): query head h reads KV head h // (H / H_kv). `run` and `prepare` may be called only after `build`.
    """

    @property
    def name(self) -> str:
        """What stands in the `backend` column, e.g. `cpu-avx512`."""
        ...

    def build(self, out_dir: Path, cache_dir: Path) -> BuildRecord:
        """Compile or take from `cache_dir`, then load; logs go to `out_dir`. Raises `BuildFailed`."""
        ...

    def supports(self, case: Case) -> str | None:
        """None when the case can run, else the reason why it cannot."""
        ...

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None = None
    ) -> torch.Tensor:
        """The output, shape [B, H, S_q, D], as `q` is. `scale` defaults to 1/sqrt(D). Raises `Unavailable`."""
        ...

    def prepare(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> Plan:
        """A plan bound to these tensors: the same result as `run`, with the least work left for each call."""
        ...
