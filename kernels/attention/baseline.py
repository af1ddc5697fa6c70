"""PyTorch's scaled dot-product attention, pinned to one backend: what the bundled kernels are compared with."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.attention.interface import Plan, Unavailable

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
NAMES = ("default", *BACKENDS)
OPERATORS = {
    "flash": "aten::_scaled_dot_product_flash_attention",
    "efficient": "aten::_scaled_dot_product_efficient_attention",
    "cudnn": "aten::_scaled_dot_product_cudnn_attention",
    "math": "aten::_scaled_dot_product_attention_math",
}
"""How each backend's operator is called, on every kind of device. Outside inference mode that of `math` is taken apart
before it can be seen, into products of matrices."""
HEADINGS = {"flash": "flash attention kernel", "efficient": "efficient", "cudnn": "cudnn"}
"""What the headings of PyTorch's explanations call the backends."""
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
                words = reason(self.pinned, str(exc), [str(w.message) for w in told])
                raise Unavailable(f"{self.pinned}: {words}") from exc
        return plan

    def resolved(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> str:
        """What stands in the `backend` column: the pinned name, or the default with what it ran, as `default:flash`."""
        if self.pinned != "default":
            return self.pinned
        name = dispatched(lambda: self.prepare(q, k, v, causal, scale)) or chosen(q, k, v, causal, scale)
        return f"default:{name}" if name else "default"


class Witness(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Writes down which operators run: attention is one that hands over to the operator of its backend."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: what it watches is not compiled, and to be skipped imports the compiler, two seconds of a processor."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operators.append(str(func.name()))
        if func is torch.ops.aten.scaled_dot_product_attention.default:
            # In inference mode it arrives whole; taken apart, it makes the very choice it would have made.
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)


def dispatched(call: Callable[[], object]) -> str:
    """The backend that the one attention within `call` ran on, by the operators seen; empty where they do not tell."""
    try:
        with Witness() as witness:
            call()
    except (AttributeError, RuntimeError, TypeError, Unavailable):  # what it stands on is not public
        return ""
    names = [name for operator in witness.operators for name, ran in OPERATORS.items() if operator.startswith(ran)]
    if names:
        return names[0] if len(set(names)) == 1 else ""
    plain = ("aten::bmm", "aten::matmul", "aten::_safe_softmax")
    return "math" if any(operator.startswith(plain) for operator in witness.operators) else ""


def chosen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> str:
    """The backend that PyTorch says it would choose, or nothing: not public, and another PyTorch may not have it."""
    try:
        choice = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    except (AttributeError, RuntimeError, TypeError):
        return ""
    known = {int(getattr(backend, "value", -2)): name for name, backend in BACKENDS.items()}
    return known.get(int(choice), "")


def causes_by_backend(told: list[str]) -> dict[str, list[str]]:
    """PyTorch explains itself in warnings, backend by backend, in an order of its own: "X kernel not used because:",
    then X's causes. Those before any heading are under the empty name. That a backend is disabled at run time is our
    own doing, by pinning another."""
    found: dict[str, list[str]] = {}
    about = ""
    for words in told:
        if "not used because" in words:
            about = next((name for name, heading in HEADINGS.items() if heading in words.lower()), "another")
        elif "deprecated" not in words.lower() and "runtime disabled" not in words.lower():
            found.setdefault(about, []).append(words)
    return found


def reason(backend: str, error: str, told: list[str]) -> str:
    """PyTorch's words for why this very backend cannot run, shortened to one line for a result row."""
    causes = causes_by_backend(told)
    own = causes.get(backend) or causes.get("")
    words = own[0] if own else error.split(". ")[0]
    words = re.sub(r"\(Triggered internally at .*?\)", "", words, flags=re.DOTALL)
    words = " ".join(words.split())
    if len(words) > LONGEST_REASON:
        whole_sentences = words[: words.rfind(". ", 0, LONGEST_REASON) + 1]
        words = whole_sentences or words[:LONGEST_REASON]
    return words.rstrip(". ") or "not available"
