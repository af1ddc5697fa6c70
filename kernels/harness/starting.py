"""Starts processes for a user's own workload, and asks one of them for the description of the workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernels.harness import environment, processes
from kernels.harness.hands import AnswerLimits, Hand
from kernels.harness.own import OwnWorkload
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.reading import BadSpec

READING_LIMIT_S = 120.0


def worker_starter(workload: OwnWorkload, device: torch.device, threads: int) -> Callable[[], Worker]:
    """A function that starts processes for a workload."""
    processes.prepare_workers(Path(workload.path))
    settings = {"device": str(device), "threads": threads, "form": workload.form, "path": workload.path}
    return lambda: Worker(settings)


def describe_workload(workload: OwnWorkload) -> Mapping[str, Any]:
    """The description of a workload. Raises `BadSpec`, with file and line, where it cannot be read."""
    reader = Hand("", worker_starter(workload, environment.default_device(), 1), AnswerLimits(READING_LIMIT_S))
    try:
        return reader.ask("describe")
    except (Lost, Answered) as exc:
        raise BadSpec(exc.reason(f"while {workload.path} was read")) from exc
    finally:
        reader.end()
