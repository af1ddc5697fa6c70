"""Imports Triton with all that a first compilation imports, and computes the part of its cache's keys that is the same
for every kernel: a hash over all of Triton's own files. What forks of this process compile begins sooner so."""

from __future__ import annotations

import contextlib
import importlib


def prepare_triton() -> None:
    """Prepares Triton where there is one, and makes no context. The workload's own import reports what fails."""
    with contextlib.suppress(Exception):
        for name in ("triton", "triton.experimental.gluon", "triton.compiler.compiler", "triton.runtime.cache"):
            module = importlib.import_module(name)
        module.triton_key()


prepare_triton()
