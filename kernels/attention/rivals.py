"""Attention of others: FlashAttention-4 and FlexAttention, where they are installed and support the device."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from kernels.attention import correctness, passes
from kernels.attention.case import VALUE_WIDTH, Case, refuse_features
from kernels.attention.interface import Unavailable
from kernels.attention.problem import Inputs
from kernels.harness.workload import Call, Implementation, Site


class FlashAttention4:
    """`fa4`: flash-attn-4's forward pass, in its own layout [B, S, H, D]. The inputs are converted to it before
    timing."""

    def __init__(self) -> None:
        self.forward: Any = None

    def build(self, site: Site) -> None:
        """Does nothing: it compiles itself when it is first called."""

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A call on these inputs. Raises `Unavailable` where it cannot be imported, or does not support the case."""
        if inputs.q.device.type != "cuda":
            raise Unavailable("flash-attn-4 needs a CUDA device")
        refusal = refuse_features(case, "flash-attn-4", (VALUE_WIDTH,))
        if refusal is not None:
            raise Unavailable(refusal)
        if case.direction != "forward":
            return passes.flash_attention_4(case, inputs)
        try:
            forward = self.forward or importlib.import_module("flash_attn.cute.interface")._flash_attn_fwd
        except Exception as exc:  # it is a compiler in Python, whose import may raise anything
            raise Unavailable(f"flash-attn-4 does not import: {type(exc).__name__}: {exc}"[:200]) from exc
        self.forward = forward
        q, k, v = (one.transpose(1, 2).contiguous() for one in (inputs.q, inputs.k, inputs.v))
        out = q.new_full((*q.shape[:-1], v.shape[-1]), torch.nan)
        call = partial(forward, q, k, v, causal=case.shape.causal, out=out)
        return Call("flash-attn-4", try_call(call, "flash-attn-4"), output=lambda _: out.transpose(1, 2))


class FlexAttention:
    """`flex`: PyTorch's FlexAttention, compiled for each case."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def build(self, site: Site) -> None:
        """Does nothing: it is compiled when it is first called."""

    def bind(self, case: Case, inputs: Inputs) -> Call:
        """A call on these inputs. Raises `Unavailable` where torch.compile or the case does not work."""
        if inputs.q.device.type != "cuda":
            raise Unavailable("FlexAttention is measured on CUDA devices only")
        if case.direction != "forward":
            raise Unavailable("FlexAttention is measured forward only")
        refusal = refuse_features(case, "FlexAttention", (VALUE_WIDTH,))
        if refusal is not None:
            raise Unavailable(refusal)
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if case.id not in self.compiled:
            torch._dynamo.config.recompile_limit = 64
            mask = None
            if case.shape.causal:
                mask = create_block_mask(
                    is_seen, None, None, case.shape.seq_q, case.shape.seq_k, device=str(inputs.q.device)
                )
            shared = case.shape.heads != case.shape.kv_heads
            compiled = torch.compile(flex_attention, dynamic=False)
            self.compiled[case.id] = partial(compiled, block_mask=mask, enable_gqa=shared)
        call = partial(self.compiled[case.id], inputs.q, inputs.k, inputs.v)
        poisoned = partial(correctness.poison_memory, inputs.q, through_torch=False)
        return Call("flex", try_call(call, "FlexAttention"), poisoned=poisoned)


def is_seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    """The causal mask in the form that FlexAttention expects."""
    return query >= key


def try_call(call: Any, name: str) -> Any:
    """Makes the call once and returns it. Raises `Unavailable` where it does not work."""
    try:
        call()
        torch.cuda.synchronize()
    except Exception as exc:  # compilers in Python may raise anything
        error_text = (str(exc).strip() or type(exc).__name__).splitlines()[0]
        raise Unavailable(f"{name}: {error_text}"[:200]) from exc
    return call


def fa4_implementation(_name: str, _site: Site) -> Implementation:
    """FlashAttention-4."""
    return FlashAttention4()


def flex_implementation(_name: str, _site: Site) -> Implementation:
    """FlexAttention."""
    return FlexAttention()
