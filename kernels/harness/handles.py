"""References to the functions on which a measurement depends, taken before any code of a user is imported. So code that
replaces one of them is detected."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

WATCHED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "sleep")),
    (torch, ("equal", "allclose", "empty", "empty_like", "empty_strided", "isfinite", "from_file", "zeros")),
    (torch.testing, ("assert_close",)),
    (torch.Tensor, ("copy_", "clone", "double", "__eq__", "__sub__", "data_ptr", "abs", "max", "to")),
    (torch.cuda, ("Event", "synchronize", "current_stream", "Stream", "stream", "CUDAGraph", "graph", "is_available")),
    (torch.cuda.Event, ("record", "elapsed_time", "synchronize", "query", "wait")),
    (torch.cuda.Stream, ("synchronize", "wait_stream", "record_event", "query")),
    (torch.Generator, ("manual_seed", "seed")),
    (json, ("dumps", "loads")),
    (os, ("write", "read", "_exit", "kill")),
    (gc, ("disable", "enable", "collect")),
)  # fmt: skip

OWN = tuple(
    f"kernels.harness.{name}" for name in ("timers", "handles", "worker", "bench", "answers", "judge", "criterion")
)


class Handles:
    """The functions as they were when this was made."""

    def __init__(self) -> None:
        self.before = dict(current_handles())
        self.compared: Callable[[], list[str]] = self.look

    def look(self) -> list[str]:
        """The names of the functions that were replaced."""
        return [name for name, now in current_handles() if self.before.get(name) is not now]


def current_handles() -> Iterator[tuple[str, object]]:
    """Each watched function by name, and every function of the harness. Inherited functions of a class are watched
    too."""
    for owner, names in WATCHED:
        for name in names:
            yield f"{owner.__name__}.{name}", getattr(owner, "__dict__", {}).get(name, getattr(owner, name, None))
    for module in OWN:
        for name, value in vars(sys.modules[module]).items():
            if isinstance(value, FunctionType):
                yield f"{module}.{name}", value
            elif isinstance(value, type) and value.__module__ == module:
                for member, inner in vars(value).items():
                    if isinstance(inner, FunctionType):
                        yield f"{module}.{name}.{member}", inner
