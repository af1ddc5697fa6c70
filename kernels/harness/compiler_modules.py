"""Imports torch.compile and its default backend, which takes a worker several seconds, before the workers fork.

The backend asks at its import whether there is a GPU (`torch._inductor.runtime.benchmarking`). By default that question
initialises CUDA, which no fork could use from then on; through NVML it does not.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

import torch

from kernels.harness.ending import fork_process, wait_for_fork

ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def prepare_compiler() -> None:
    """Imports the backend where forks can use CUDA afterwards. A workload's own import reports what fails."""
    before = os.environ.get(ASKS_NVML)
    os.environ[ASKS_NVML] = "1"
    try:
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")
            if torch.version.cuda is None or wait_for_fork(fork_process(ask_and_fork)) == 0:
                importlib.import_module("torch._inductor.compile_fx")
    finally:
        os.environ.pop(ASKS_NVML)
        if before is not None:
            os.environ[ASKS_NVML] = before


def ask_and_fork() -> int:
    """0 if a fork can initialise CUDA after this process has asked whether there is a GPU."""
    if not torch.cuda.is_available():
        return 1

    def initialise() -> int:
        try:
            torch.cuda.init()
        except RuntimeError:
            return 1
        return 0

    return wait_for_fork(fork_process(initialise))


def keep_own_headers() -> None:
    """Moves the folder for precompiled headers, which PyTorch names at its import after the user of that time, to the
    caches of the user that this process is now."""
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is not None and hasattr(codecache, "_HEADER_LOCK_DIR"):
        folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "precompiled_headers"
        vars(codecache).update(_HEADER_DIR=str(folder), _HEADER_LOCK_DIR=str(folder / "locks"))


prepare_compiler()
