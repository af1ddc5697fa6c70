"""PyTorch's FlexAttention, compiled for each case."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernels.attention.case import DTYPE_NAMES, VALUE_WIDTH, WINDOW, Case
from kernels.attention.problem import Inputs
from kernels.attention.rivals.package import Package, Rival
from kernels.harness.workload import Call, Implementation, Site

FLEX_ATTENTION = Package(
    name="FlexAttention",
    module="torch.nn.attention.flex_attention",
    distribution="torch",
    install="pip install --upgrade torch",
    names=("create_block_mask", "flex_attention"),
    features=(VALUE_WIDTH, WINDOW),
    passes=("forward",),
    dtypes=DTYPE_NAMES,
    oldest=(7, 0),
    aligns_top_left=True,
)


class FlexAttention(Rival):
    """`flex`: its mask is a function of positions, in blocks."""

    package = FLEX_ATTENTION

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """Its compiled forward pass."""
        s = case.shape
        if case.id not in self.compiled:
            torch._dynamo.config.recompile_limit = 64
            mask = None
            if s.causal:
                seen, device = make_mask(s.window), str(inputs.q.device)
                mask = module.create_block_mask(seen, None, None, s.seq_q, s.seq_k, device=device)
            compiled = torch.compile(module.flex_attention, dynamic=False)
            self.compiled[case.id] = partial(compiled, block_mask=mask, enable_gqa=s.heads != s.kv_heads)
        plan = partial(self.compiled[case.id], inputs.q, inputs.k, inputs.v)
        return Call("", plan)


def is_seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    """The causal mask in the form that FlexAttention expects."""
    return query >= key


def make_mask(window: int) -> Callable[[Any, Any, Any, Any], Any]:
    """The causal mask with a window of so many keys, 0 for all."""

    def is_within(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (query - key < window)

    return is_within if window else is_seen


def flex_implementation(_name: str, _site: Site) -> Implementation:
    """FlexAttention."""
    return FlexAttention()
