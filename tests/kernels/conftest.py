"""One build of the CPU kernel for all tests of a session, in a cache of the session's own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cpu.kernel import CpuAttention


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the workers of one parallel session; a build moves into place in one step, so they may race."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernel-cache"


@pytest.fixture(scope="session")
def kernel(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuAttention:
    """The CPU kernel, built, on one thread: teams that wait for each other crawl on a machine that is busy elsewhere."""
    built = CpuAttention(threads=1)
    built.build(tmp_path_factory.mktemp("build"), kernel_cache)
    return built


@pytest.fixture(scope="session")
def threaded(kernel: CpuAttention) -> CpuAttention:
    """The same library on three threads."""
    team = CpuAttention(threads=3)
    team.forward, team.name = kernel.loaded(), kernel.name
    return team


@pytest.fixture(scope="session", autouse=True)
def _torch_alone() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which every user may write: where the harness is root, a kernel's process has a user of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-notes-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def own_imports() -> Iterator[None]:
    """What a workload does to the path and to the modules ends with its test."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20261121)


@pytest.fixture(autouse=True)
def _memory_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """What PyTorch's allocator keeps of a GPU is given to the other workers of the session: a graph that one of them
    instantiates takes its memory past the allocator, which then is not asked to give any back."""
    yield
    if request.node.get_closest_marker("gpu") is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
