"""Random numbers from seeds: the same seed and case always give the same inputs and the same order of blocks."""

from __future__ import annotations

import hashlib
import random

import torch

from kernels.harness.workload import Case


def case_seed(case: Case, seed: int, purpose: str) -> int:
    """A seed of 63 bits that depends only on the run's seed, the case and the purpose."""
    digest = hashlib.sha256(f"{seed}/{case.id}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def case_generator(case: Case, device: torch.device, seed: int) -> torch.Generator:
    """The random generator for the inputs of a case."""
    generator = torch.Generator(device=device)
    generator.manual_seed(case_seed(case, seed, "inputs"))
    return generator


def shuffle_generator(case: Case, seed: int) -> random.Random:
    """The generator that shuffles the implementations within each block."""
    return random.Random(case_seed(case, seed, "order"))
