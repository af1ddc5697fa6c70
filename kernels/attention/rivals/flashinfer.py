"""FlashInfer's attention, as servers call it: planned for the lengths of a batch, then run. It has no backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels.attention.case import SINKS, VALUE_WIDTH, WINDOW, Case
from kernels.attention.interface import DTYPES
from kernels.attention.problem import Inputs
from kernels.attention.rivals.package import Chip, Package, Rival
from kernels.harness.workload import Call, Implementation, Site

PAGE_KEYS = 16
"""The keys of a page, where keys are kept in pages."""
WORKSPACE_BYTES = 384 << 20
"""Three times what FlashInfer's documentation recommends, because it refuses a plan that needs more."""
LEAST_SHARED = 4
"""So many heads that share a K are decoded by tensor cores."""


@dataclass(frozen=True, slots=True)
class Planned:
    """FlashInfer's wrapper, planned for a case; `in_pages` says that it takes K and V in pages."""

    wrapper: Any
    in_pages: bool


class FlashInferPackage(Package):
    """FlashInfer keeps K and V in the same pages in decoding and with sinks, so there V is as wide as K."""

    __slots__ = ()

    def refuse(self, case: Case, chip: Chip | None) -> str | None:
        """As for every package; besides, pages have one width."""
        refusal = super().refuse(case, chip)
        if refusal is None and keeps_pages(case) and case.shape.width != case.shape.head_dim:
            return f"{self.name} keeps K and V of this case in pages of one width"
        return refusal


FLASHINFER = FlashInferPackage(
    name="FlashInfer",
    module="flashinfer",
    distribution="flashinfer-python",
    install="pip install flashinfer-python",
    names=(
        "BatchPrefillWithRaggedKVCacheWrapper",
        "BatchDecodeWithPagedKVCacheWrapper",
        "BatchAttentionWithAttentionSinkWrapper",
    ),
    features=(VALUE_WIDTH, WINDOW, SINKS),
    passes=("forward",),
    oldest=(7, 5),
)


class FlashInfer(Rival):
    """`flashinfer`: many queries by its ragged prefill, single ones and sinks by its wrappers of a paged cache. A case
    is planned once, for all copies of its inputs."""

    package = FLASHINFER

    def __init__(self) -> None:
        self.case_id = ""
        self.planned: Planned | None = None
        self.workspace: torch.Tensor | None = None

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """Its forward pass on copies of the inputs in its layout, [tokens, H, D] or pages of it."""
        s, device = case.shape, inputs.q.device
        if self.workspace is None:
            self.workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        if self.planned is None or self.case_id != case.id:
            self.planned, self.case_id = plan_case(module, case, self.workspace), case.id
        q, out = to_tokens(inputs.q), inputs.q.new_full((s.batch * s.seq_q, s.heads, s.width), torch.nan)
        if self.planned.in_pages:
            arguments: tuple[Any, ...] = (q, (to_pages(inputs.k), to_pages(inputs.v)))
        else:
            arguments = (q, to_tokens(inputs.k), to_tokens(inputs.v))
        if inputs.sinks is not None:
            arguments = (*arguments, inputs.sinks, s.head_dim**-0.5)
        plan = partial(self.planned.wrapper.run, *arguments, out=out)
        return Call(" pages" if self.planned.in_pages else "", plan, output=partial(to_heads, s.batch))


def keeps_pages(case: Case) -> bool:
    """Whether K and V of a case are given in pages."""
    return case.shape.seq_q == 1 or case.shape.sinks


def plan_case(module: Any, case: Case, workspace: torch.Tensor) -> Planned:
    """The wrapper for a case, planned."""
    s, device, dtype = case.shape, workspace.device, DTYPES[case.dtype]
    window = s.window - 1 if s.window else -1
    heads = {"num_qo_heads": s.heads, "num_kv_heads": s.kv_heads}
    options = {"window_left": window, "q_data_type": dtype, "kv_data_type": dtype, "sm_scale": s.head_dim**-0.5}
    queries = start_offsets(s.batch, s.seq_q, device)
    if not keeps_pages(case):
        wrapper = module.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        sizes = {"head_dim_qk": s.head_dim, "head_dim_vo": s.width, "causal": s.causal}
        wrapper.plan(queries, start_offsets(s.batch, s.seq_k, device), **heads, **sizes, **options)
        return Planned(wrapper, in_pages=False)
    pages = -(-s.seq_k // PAGE_KEYS)
    last = torch.full((s.batch,), s.seq_k - (pages - 1) * PAGE_KEYS, dtype=torch.int32, device=device)
    indices = torch.arange(s.batch * pages, dtype=torch.int32, device=device)
    cache = (start_offsets(s.batch, pages, device), indices, last)
    if not s.sinks:
        shared = s.heads // s.kv_heads >= LEAST_SHARED
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=shared)
        wrapper.plan(*cache, **heads, head_dim=s.head_dim, page_size=PAGE_KEYS, **options)
        return Planned(wrapper, in_pages=True)
    types = {"q_data_type": dtype, "kv_data_type": dtype, "head_dim_qk": s.head_dim, "head_dim_vo": s.width}
    wrapper = module.BatchAttentionWithAttentionSinkWrapper(workspace, "NHD", window_left=window, **types)
    sizes = {"head_dim_qk": s.head_dim, "page_size": PAGE_KEYS, "causal": s.causal}
    wrapper.plan(queries, *cache, **heads, **sizes, **options)
    return Planned(wrapper, in_pages=True)


def start_offsets(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """Where each sequence of a batch begins, and where the last one ends."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * length


def to_tokens(x: torch.Tensor) -> torch.Tensor:
    """[B, H, S, D] as [B * S, H, D], in new memory."""
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]).contiguous()


def to_pages(x: torch.Tensor) -> torch.Tensor:
    """[B, H, S, D] as pages [B * pages, PAGE_KEYS, H, D]; the end of a last page is zero."""
    padded = torch.nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, -x.shape[2] % PAGE_KEYS))
    return padded.reshape(-1, PAGE_KEYS, x.shape[1], x.shape[3]).contiguous()


def to_heads(batch: int, tokens: torch.Tensor) -> torch.Tensor:
    """[B * S, H, D] as [B, H, S, D]."""
    return tokens.reshape(batch, -1, *tokens.shape[1:]).transpose(1, 2)


def flashinfer_implementation(_name: str, _site: Site) -> Implementation:
    """FlashInfer."""
    return FlashInfer()
