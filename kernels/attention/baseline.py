"""PyTorch's scaled dot-product attention, pinned to one backend, with which the bundled kernels are compared."""

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
"""The names of each backend's operators, on every kind of device. Outside inference mode the operator of `math` is
split into matrix products before it can be seen."""
HEADINGS = {"flash": "flash attention kernel", "efficient": "efficient", "cudnn": "cudnn"}
"""The names of the backends in the headings of PyTorch's explanations."""
LONGEST_REASON = 160


@dataclass(frozen=True, slots=True)
class Sdpa:
    """One baseline. `pinned` is the backend's name, or `default` for PyTorch's own choice."""

    pinned: str

    def __post_init__(self) -> None:
        if self.pinned not in NAMES:
            raise ValueError(f"no backend {self.pinned!r}; there are {', '.join(NAMES)}")

    def scope(self) -> AbstractContextManager[object]:
        """The context in which calls use the pinned backend. Entering it takes microseconds, so it must not be
        timed."""
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
                refusal_words = refusal_reason(self.pinned, str(exc), [str(w.message) for w in told])
                raise Unavailable(f"{self.pinned}: {refusal_words}") from exc
        return plan

    def resolved(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> str:
        """The value of the `backend` column: the pinned name, or the default with the backend that ran, as
        `default:flash`."""
        if self.pinned != "default":
            return self.pinned
        name = dispatched_backend(lambda: self.prepare(q, k, v, causal, scale)) or chosen_backend(
            q, k, v, causal, scale
        )
        return f"default:{name}" if name else "default"


class Witness(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Records which operators run. The attention operator calls the operator of its backend."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: the watched code is not compiled, and True would import the compiler, which takes two seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operators.append(str(func.name()))
        if func is torch.ops.aten.scaled_dot_product_attention.default:
            # In inference mode the operator arrives whole. Split here, it makes the same choice as otherwise.
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)


def dispatched_backend(call: Callable[[], object]) -> str:
    """The backend of the single attention within `call`, judged by the operators that ran; empty where they do not show
    it."""
    try:
        with Witness() as witness:
            call()
    except (AttributeError, RuntimeError, TypeError, Unavailable):  # it uses functions of PyTorch that are not public
        return ""
    names = [name for operator in witness.operators for name, ran in OPERATORS.items() if operator.startswith(ran)]
    if names:
        return names[0] if len(set(names)) == 1 else ""
    plain = ("aten::bmm", "aten::matmul", "aten::_safe_softmax")
    return "math" if any(operator.startswith(plain) for operator in witness.operators) else ""


def chosen_backend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None) -> str:
    """The backend that PyTorch says it would choose; empty where it does not say. This uses a function that is not
    public and that another PyTorch may lack."""
    try:
        choice = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    except (AttributeError, RuntimeError, TypeError):
        return ""
    backend_names = {int(getattr(backend, "value", -2)): name for name, backend in BACKENDS.items()}
    return backend_names.get(int(choice), "")


def causes_by_backend(told: list[str]) -> dict[str, list[str]]:
    """The causes for which PyTorch did not use each backend. PyTorch explains them in warnings, backend by backend, in
    any order: "X kernel not used because:", then the causes of X. Causes before any heading are under the empty name.
    That a backend is disabled at run time is left out, as we disable it by pinning another."""
    calls: dict[str, list[str]] = {}
    about = ""
    for words in told:
        if "not used because" in words:
            about = next((name for name, heading in HEADINGS.items() if heading in words.lower()), "another")
        elif "deprecated" not in words.lower() and "runtime disabled" not in words.lower():
            calls.setdefault(about, []).append(words)
    return calls


def refusal_reason(backend: str, error: str, told: list[str]) -> str:
    """PyTorch's words for why this very backend cannot run, shortened to one line for a result row."""
    causes = causes_by_backend(told)
    own_causes = causes.get(backend) or causes.get("")
    reason_text = own_causes[0] if own_causes else error.split(". ")[0]
    reason_text = re.sub(r"\(Triggered internally at .*?\)", "", reason_text, flags=re.DOTALL)
    reason_text = " ".join(reason_text.split())
    if len(reason_text) > LONGEST_REASON:
        whole_sentences = reason_text[: reason_text.rfind(". ", 0, LONGEST_REASON) + 1]
        reason_text = whole_sentences or reason_text[:LONGEST_REASON]
    return reason_text.rstrip(". ") or "not available"
