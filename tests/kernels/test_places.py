"""Where a worker is can be asked at any time, and asking breaks nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.harness.processes import Worker, prepare_workers
from kernels.harness.settings import FRAMES_SIGNAL
from tests.support.patience import PATIENCE_S

WORKLOAD = """
import ctypes
import threading
import time

axes = {"n": [16]}
def inputs(n, device, generator):
    import torch
    return torch.rand(n, device=device, generator=generator)
def reference(x):
    return x
def kernel_in_threads(x):
    def descend(depth):
        return depth and descend(depth - 1)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        thread = threading.Thread(target=descend, args=(20,))
        thread.start()
        thread.join()
    return x
def kernel_in_native_code(x):
    ctypes.PyDLL(None).sleep(4)  # keeps the lock of the interpreter
    return x
"""


@pytest.fixture
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    """A worker that calls the kernel of this name."""
    file = tmp_path / "mine.py"
    file.write_text(WORKLOAD)
    prepare_workers(file)
    worker = Worker({"device": "cpu", "threads": 1, "form": "file", "path": str(file)})
    try:
        worker.ask("load", PATIENCE_S, form="file", name=request.param)
        worker.ask("bind", PATIENCE_S, case={"n": 16}, seed=1)
        worker.send("call", at=0)
        yield worker
    finally:
        worker.end()


@pytest.mark.parametrize("worker", ["in_threads"], indirect=True)
def test_a_kernel_that_starts_threads_survives_questions_where_it_is(worker: Worker) -> None:
    assert worker.process.pid is not None
    asked = 0
    while not worker.pipe.poll(0.001):
        os.kill(worker.process.pid, FRAMES_SIGNAL)
        asked += 1
    worker.receive("call", PATIENCE_S)
    assert asked > 100


@pytest.mark.parametrize("worker", ["in_threads", "in_native_code"], indirect=True)
def test_the_function_of_the_workload_is_named_in_python_and_in_native_code(worker: Worker) -> None:
    places = []
    while not worker.pipe.poll(0.001):
        places.append(worker.current_place())
    worker.receive("call", PATIENCE_S)
    assert any(re.fullmatch(r"kernel_in_\w+ \(mine\.py:\d+\)", place) for place in places), places
