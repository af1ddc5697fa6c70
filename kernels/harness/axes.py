"""Chance by seed: the same seed and case always give the same inputs and the same order of blocks."""

from __future__ import annotations

import hashlib
import random

import torch

from kernels.harness.workload import Case


def case_seed(case: Case, seed: int, purpose: str) -> int:
    """63 bits that depend on the run's seed, the case and what they are for, and on nothing else."""
    digest = hashlib.sha256(f"{seed}/{case.id}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(case: Case, device: torch.device, seed: int) -> torch.Generator:
    """What the inputs of a case are drawn from."""
    generator = torch.Generator(device=device)
    generator.manual_seed(case_seed(case, seed, "inputs"))
    return generator


def order(case: Case, seed: int) -> random.Random:
    """The generator that shuffles the implementations within each block."""
    return random.Random(case_seed(case, seed, "order"))
