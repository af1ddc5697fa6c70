"""PyTorch's scaled dot-product attention, pinned to one backend: what the bundled kernels are compared with."""

from __future__ import annotations

import re
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention.interface import Plan, Unavailable

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
NAMES = ("default", *BACKENDS)
LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One baseline. `pinned` is the backend's name, or `default` for PyTorch's own choice."""

    pinned: str

    def __post_init__(self) -> None:
        if self.pinned not in NAMES:
            raise ValueError(f"no backend {self.pinned!r}; there are {', '.join(NAMES)}")

    def scope(self) -> AbstractContextManager[object]:
        """Within this, calls go to the pinned backend. Entering costs microseconds: keep it out of what is timed."""
        if self.pinned == "default":
            return nullcontext()
        scope: AbstractContextManager[object] = sdpa_kernel(BACKENDS[self.pinned])
        return scope

    def prepare(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> Plan:
        """A plan bound to these tensors, to be called within `scope`. Raises `Unavailable` with PyTorch's reason."""
        attention = torch.nn.functional.scaled_dot_product_attention
        shared = q.shape[1] != k.shape[1]

        def plan() -> torch.Tensor:
            return attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=shared)

        with self.scope(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                plan()
            except torch.OutOfMemoryError as exc:
                raise Unavailable(f"{self.pinned}: out of memory") from exc
            except (RuntimeError, NotImplementedError) as exc:
                raise Unavailable(f"{self.pinned}: {reason(str(exc), [str(w.message) for w in told])}") from exc
        return plan

    def resolved(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> str:
        """What stands in the `backend` column: the pinned name, or the default with its choice, as `default:flash`."""
        if self.pinned != "default":
            return self.pinned
        try:
            choice = torch._fused_sdp_choice(
                q, k, v, None, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        except (AttributeError, RuntimeError, TypeError):  # not public: another PyTorch may not have it
            return "default"
        known = {int(getattr(backend, "value", -2)): name for name, backend in BACKENDS.items()}
        name = known.get(int(choice))
        return f"default:{name}" if name else "default"


def reason(error: str, told: list[str]) -> str:
    """PyTorch's words for why a backend cannot run, shortened to one line for a result row.

    It explains itself in warnings, backend by backend: "X not used because:", then the cause, with source positions.
    """
    causes = [w for w in told if "because" not in w and "not used" not in w and "deprecated" not in w.lower()]
    words = causes[0] if causes else error.split(". ")[0]
    words = re.sub(r"\(Triggered internally at .*?\)", "", words, flags=re.DOTALL)
    words = " ".join(words.split())
    if len(words) > LONGEST_REASON:
        whole_sentences = words[: words.rfind(". ", 0, LONGEST_REASON) + 1]
        words = whole_sentences or words[:LONGEST_REASON]
    return words.rstrip(". ") or "not available"
