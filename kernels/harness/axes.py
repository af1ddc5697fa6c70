"""From a case to tensors: the same seed and case always give the same inputs and the same order of blocks."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

import torch

from kernels.attention.case import Case
from kernels.attention.interface import DTYPES


@dataclass(frozen=True, slots=True)
class Inputs:
    """q [B, H, S_q, D], k and v [B, H_kv, S_k, D], in the dtype of the case."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def case_seed(case: Case, seed: int, purpose: str) -> int:
    """63 bits that depend on the run's seed, the case and what they are for, and on nothing else."""
    digest = hashlib.sha256(f"{seed}/{case.id}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def inputs(case: Case, device: torch.device, seed: int) -> Inputs:
    """Fresh draws from N(0, 1), never zeros: on zeros a GPU draws less power, and runs faster than at work."""
    generator = torch.Generator(device=device)
    generator.manual_seed(case_seed(case, seed, "inputs"))
    s = case.shape

    def draw(heads: int, seq: int) -> torch.Tensor:
        drawn = torch.randn((s.batch, heads, seq, s.head_dim), generator=generator, device=device, dtype=torch.float32)
        return drawn.to(DTYPES[case.dtype])

    return Inputs(q=draw(s.heads, s.seq_q), k=draw(s.kv_heads, s.seq_k), v=draw(s.kv_heads, s.seq_k))


def order(case: Case, seed: int) -> random.Random:
    """The generator that shuffles the implementations within each block."""
    return random.Random(case_seed(case, seed, "order"))
