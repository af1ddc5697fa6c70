"""What is launched on the CPU in a driver's place, for the tests that count and look at launches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.attention.cuda.calls import native
from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.quick import Quick
from kernels.attention.cuda.calls.registered import as_operator
from tests.kernels.cuda.compiled import alone, hasty, place_of
from tests.kernels.cuda.counted import Counted
from tests.kernels.cuda.stub_driver import OnCpu, Stub, stub_libcuda


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_libcuda(tmp_path_factory.mktemp("stub")) as one:
        yield one


@pytest.fixture
def engine(stub: Stub) -> OnCpu:
    return OnCpu(hopper=True)


@pytest.fixture
def quick(engine: OnCpu) -> Quick:
    return Quick(bind_call, lambda device: engine, as_operator)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The compiled function of autograd, which a process can load once: of one build for all of a session's workers."""
    folder = place_of(tmp_path_factory.getbasetemp()) / "native"
    with alone(folder):
        native.load_native(native.build_native(folder, str(hasty(tmp_path_factory.mktemp("compiler")))))


@pytest.fixture
def compiled(stub: Stub, library: None) -> Iterator[Counted]:
    one = Counted(OnCpu(hopper=True), compiled=True)
    yield one
    assert one.native is not None
    one.native.close()
