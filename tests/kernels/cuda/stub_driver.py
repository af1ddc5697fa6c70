"""A libcuda of our own, compiled by gcc: what the host does can be tested where there is no GPU.

While it is in place, `driver()` finds it as libcuda.so.1; it checks what it is given and records what is launched.
"""

from __future__ import annotations

import _ctypes
import ctypes
import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention.cuda.backward.ampere import AmpereConvertKernel, SummingKernel
from kernels.attention.cuda.backward.few import MAPS, FewBackwardKernel
from kernels.attention.cuda.backward.kernels import (
    BackwardParameters,
    ConvertKernel,
    DroppingBackwardParameters,
    HopperBackwardKernel,
    PairKernel,
    PrepareKernel,
)
from kernels.attention.cuda.backward.small import SmallBackwardKernel
from kernels.attention.cuda.backward.wide import WideBackwardKernel
from kernels.attention.cuda.plan.parameters import DroppingParameters, Parameters
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import CHIPS, Entry
from kernels.attention.cuda.run.counters import Counters
from kernels.attention.cuda.run.driver import Function, TensorMap, cuda_driver
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.ways.hopper_kernels import HopperKernel, HopperParameters
from kernels.attention.cuda.ways.small import SmallKernel, SmallParameters
from kernels.attention.cuda.ways.small_hopper import GroupKernel
from tests.kernels.cuda.compiled import named, once, place_of, run

WITH_STUB = pytest.mark.skipif(
    shutil.which("gcc") is None or torch.cuda.is_available(),
    reason="needs gcc, and a machine whose libcuda is not in use",
)
"""Of tests that launch, or describe tensors, with the stub in place."""
SOURCE = Path(__file__).parent / "stub" / "libcuda.c"
HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
MAX_ARGUMENTS, MAX_ARGUMENT_BYTES = 8, 512


class Launch(ctypes.Structure):
    """One launch as the stub recorded it."""

    _fields_ = [
        ("name", ctypes.c_char * 128),
        ("grid", ctypes.c_int32 * 3),
        *((name, ctypes.c_int32) for name in ("threads", "shared", "dependent", "cooperative", "count")),
        ("sizes", ctypes.c_int32 * MAX_ARGUMENTS),
        ("stream", ctypes.c_uint64),
        ("arguments", ctypes.c_char * (MAX_ARGUMENTS * MAX_ARGUMENT_BYTES)),
    ]

    def argument(self, number: int, kind: type[Any]) -> Any:
        """Argument `number`, read as a structure."""
        assert self.sizes[number] == ctypes.sizeof(kind)
        offset = Launch.arguments.offset + number * MAX_ARGUMENT_BYTES
        return kind.from_buffer_copy(bytes(self), offset)


class Map(ctypes.Structure):
    """A tensor map as the stub encodes it."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("magic", "address", "dtype", "rank")),
        *((name, ctypes.c_uint64 * size) for name, size in (("sizes", 4), ("strides", 3), ("box", 4))),
        ("swizzle", ctypes.c_uint64),
    ]


@dataclasses.dataclass(frozen=True)
class Stub:
    """The library in place."""

    library: Any

    @property
    def launches(self) -> int:
        return int(self.library.stub_launches())

    @contextmanager
    def capture(self, host: OneHost) -> Iterator[None]:
        """A capture of the host's stream, as strict as PyTorch's own; broken if anything in it is forbidden."""
        before = self.library.stub_broken_captures()
        self.library.stub_capturing(1)
        host.is_capturing = True
        try:
            yield
        finally:
            host.is_capturing = False
            self.library.stub_capturing(0)
        assert self.library.stub_broken_captures() == before, "something that breaks a capture was done in it"

    def is_zero(self, address: int, size: int) -> bool:
        """Whether so many bytes of the driver's own memory are zero; False where it is not the driver's."""
        return bool(self.library.stub_is_zero(address, size))

    def launch(self, number: int = -1) -> Launch:
        """A recorded launch; the latest by default."""
        number = self.launches + number if number < 0 else number
        return Launch.from_buffer_copy(ctypes.string_at(self.library.stub_launch(number), ctypes.sizeof(Launch)))


PRESENT: list[Stub] = []
"""The stub that is in libcuda's place now, if any."""


@contextmanager
def stub_libcuda(folder: Path) -> Iterator[Stub]:
    """Put the stub in libcuda's place for this process, and take it away again. Within another, that one is used: there
    is one libcuda in a process."""
    if PRESENT:
        yield PRESENT[-1]
        return
    command = [
        *["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    ]
    made = place_of(folder) / f"libcuda-{named(*command, SOURCE.read_text())}.so"
    path = once(made, lambda part: run([*command, "-o", str(part), str(SOURCE)]))
    cuda_driver.cache_clear()
    library = ctypes.CDLL(str(path))  # from now on the loader knows a libcuda.so.1
    library.stub_launch.restype = ctypes.c_void_p
    library.stub_launch.argtypes = [ctypes.c_long]
    library.stub_is_zero.argtypes = [ctypes.c_uint64, ctypes.c_long]
    for name in ("stub_launches", "stub_maps", "stub_replaced", "stub_open_streams", "stub_allocations"):
        getattr(library, name).restype = ctypes.c_long
    try:
        assert cuda_driver().library.stub_launches() == 0
        PRESENT.append(Stub(library))
        yield PRESENT[-1]
    finally:
        PRESENT.clear()
        cuda_driver.cache_clear()
        while str(path) in Path("/proc/self/maps").read_text():  # every driver that was made of it holds it once
            _ctypes.dlclose(library._handle)


def program_with_stub(make: Callable[[Path], Any]) -> Any:
    """A fixture of a module: what `make` compiles in a folder, and the stub in libcuda's place for as long."""

    @pytest.fixture(scope="module")
    def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        folder = tmp_path_factory.mktemp("program")
        with stub_libcuda(folder):
            yield make(folder)

    return program


def sizes_of(entry: Entry) -> list[int]:
    """The sizes of a kernel's arguments."""
    if isinstance(entry, SmallKernel):
        return [ctypes.sizeof(SmallParameters)]
    if isinstance(entry, GroupKernel):
        return [ctypes.sizeof(TensorMap)] * 3 + [ctypes.sizeof(SmallParameters)]
    if isinstance(entry, HopperKernel):
        return [ctypes.sizeof(TensorMap)] * (4 if entry.shape.masks else 3) + [ctypes.sizeof(HopperParameters)]
    if isinstance(entry, HopperBackwardKernel | WideBackwardKernel):
        return [ctypes.sizeof(TensorMap)] * 4 + [ctypes.sizeof(BackwardParameters)]
    if isinstance(entry, FewBackwardKernel):
        return [ctypes.sizeof(TensorMap)] * len(MAPS) + [ctypes.sizeof(BackwardParameters)]
    if getattr(entry, "drops", False):
        backward = isinstance(entry, PairKernel)
        return [ctypes.sizeof(DroppingBackwardParameters if backward else DroppingParameters)]
    portable = PairKernel | PrepareKernel | SmallBackwardKernel | SummingKernel
    if isinstance(entry, portable | ConvertKernel | AmpereConvertKernel):
        return [ctypes.sizeof(BackwardParameters)]
    return [ctypes.sizeof(Parameters)]


class OnCpu(Engine):
    """An engine whose device is the CPU: its kernels are only names, loaded through the driver all the same."""

    def __init__(self, *, hopper: bool = True) -> None:
        self.device = torch.device("cpu", 0)
        self.host = OneHost()
        self.chip = HOPPER
        self.machine = Machine(chip=HOPPER, sm_count=132, l2_bytes=50 << 20, hopper=hopper)
        self.functions: dict[str, Function] = {}
        self.lock = threading.Lock()
        self.counters = Counters(self.zeroed_memory)

    def function(self, entry: Entry) -> Function:
        found = self.functions.get(entry.name)
        if found is None:
            image = " ".join([entry.name, str(entry.threads), *map(str, sizes_of(entry))]).encode()
            cuda_driver().enter(0)
            found = self.functions[entry.name] = cuda_driver().load(image, entry.name, entry.shared_bytes)
        return found


class OneHost:
    """What PyTorch would say about its device: set by a test."""

    def __init__(self) -> None:
        self.device, self.stream, self.is_capturing = 0, 0x1000, False

    def current_device(self) -> int:
        return self.device

    def current_stream(self, device: int) -> int:
        assert device == self.device
        return self.stream

    def capturing(self) -> bool:
        return self.is_capturing
