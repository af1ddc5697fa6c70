"""The kernels of one device: compiled when first needed, loaded once, launched on PyTorch's current stream."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch

from kernels.attention.cuda.build import Built, Cache, build_all, build_one
from kernels.attention.cuda.compiler import Compiler, Target, find_compiler
from kernels.attention.cuda.driver import DEVICE_L2_BYTES, DEVICE_SM_COUNT, Function, driver
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unsupported
from kernels.attention.cuda.host import Host, TorchHost
from kernels.attention.cuda.planning import Machine
from kernels.attention.cuda.variants import Chip, Entry, chip_of, table


def default_cache() -> Path:
    """Where kernels are kept that nobody named a place for."""
    return Path(os.environ.get("BENCH_KERNEL_CACHE", "~/.cache/bench-kernels")).expanduser()


class Counters:
    """Zeroed device memory for kernels that hand out their own work: a slot for each bound call.

    A kernel leaves its slot zeroed. Two launches may share one only if the second cannot start before the first ends,
    and nobody knows whether the launches of a slot given back have ended. So slots are used again only when a good many
    have come back, and after waiting for the device.
    """

    SLOT_BYTES, POOL_BYTES, ENOUGH_BYTES = 32, 32 * 1024, 4 * 1024 * 1024

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pools: list[torch.Tensor] = []
        self.free: dict[int, list[int]] = {}
        self.returned: dict[int, list[int]] = {}
        self.lock = threading.RLock()  # a slot may be given back by a collector that runs while one is taken

    def size_of(self, size: int) -> int:
        """What a slot for `size` bytes takes: the next power of two, at least 32 bytes."""
        return max(self.SLOT_BYTES, 1 << (size - 1).bit_length())

    def take(self, size: int = SLOT_BYTES) -> int:
        """The device address of a slot of at least `size` bytes."""
        size = self.size_of(size)
        with self.lock:
            free = self.free.setdefault(size, [])
            if not free:
                free.extend(self.used_again(size) or self.made(size))
            return free.pop()

    def used_again(self, size: int) -> list[int]:
        """Slots that came back, if there are enough to be worth a wait and nothing forbids one."""
        returned = self.returned.get(size, [])
        if len(returned) * size < self.ENOUGH_BYTES or self.capturing():
            return []
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.returned[size] = []
        return returned

    def made(self, size: int) -> list[int]:
        """New slots."""
        count = max(1, self.POOL_BYTES // size)
        pool = torch.zeros(count * size, dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda" and not self.capturing():
            torch.cuda.current_stream(self.device).synchronize()  # zero for launches on every stream
        self.pools.append(pool)
        return [pool.data_ptr() + i * size for i in range(count - 1, -1, -1)]

    def capturing(self) -> bool:
        return self.device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())

    def give_back(self, slot: int, size: int = SLOT_BYTES) -> None:
        """For a call that will not be launched again; its launches may be still under way."""
        with self.lock:
            self.returned.setdefault(self.size_of(size), []).append(slot)


class Engine:
    """The kernels of one device: compiled when first needed, loaded once, launched on PyTorch's current stream.

    `target` overrides what is compiled for: with `compute_75` the driver translates the very code that a T4 runs.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        cache_dir: Path | None = None,
        target: Target | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        self.host: Host = TorchHost()
        major, minor = torch.cuda.get_device_capability(self.device)
        self.target = target or Target.native(major * 10 + minor)
        chip = chip_of(self.target.capability)
        if chip is None:
            raise Unsupported(f"no kernels for compute capability {major}.{minor}: the oldest is 7.5")
        if self.target.capability > major * 10 + minor:
            raise Unsupported(f"a device of compute capability {major}.{minor} cannot run {self.target.name}")
        self.chip: Chip = chip
        self.cache = Cache(cache_dir or default_cache())
        self.compiler = compiler
        self.functions: dict[str, Function] = {}
        self.built: dict[str, Built] = {}
        self.lock = threading.Lock()
        torch.cuda.init()
        with torch.cuda.device(self.device):
            torch.empty(1, device=self.device)  # creates PyTorch's context
        driver_ = driver()
        driver_.enter(index)
        self.machine = Machine(
            chip=self.chip,
            sm_count=driver_.device_attribute(DEVICE_SM_COUNT, index),
            l2_bytes=driver_.device_attribute(DEVICE_L2_BYTES, index),
            hopper=self.target.has_hopper_instructions,
        )
        self.counters = Counters(self.device)

    def entries(self) -> list[Entry]:
        """Every kernel there is for this engine's chip."""
        return [*table(self.chip)]  # what the native instructions of one chip add is compiled on demand

    def build_all(self, workers: int | None = None) -> list[Built]:
        """Compile and load all kernels. Raises `BuildFailed`."""
        entries = self.entries()
        built = build_all(entries, self.target, self.find_compiler(), self.cache, workers)
        for entry, one in zip(entries, built, strict=True):
            self.load(entry, one)
        return built

    def find_compiler(self) -> Compiler:
        if self.compiler is None:
            self.compiler = find_compiler()
        return self.compiler

    def function(self, entry: Entry) -> Function:
        """The loaded kernel, compiled now if need be. Do this before capturing a graph: loading breaks a capture."""
        found = self.functions.get(entry.name)
        if found is not None:
            return found
        with self.lock:
            if entry.name not in self.functions:
                self.load(entry, build_one(entry, self.target, self.find_compiler(), self.cache))
            return self.functions[entry.name]

    def load(self, entry: Entry, built: Built) -> None:
        driver().enter(self.device.index)
        try:
            function = driver().load(built.image, entry.name, entry.shared_bytes)
        except CudaError as exc:
            raise BuildFailed(str(exc), remedy="a cubin must be built for the device's own architecture") from exc
        if function.local_bytes and not self.target.is_ptx:  # PTX is given registers by the driver, for another chip
            raise BuildFailed(f"{entry.name} spills {function.local_bytes} bytes a thread once loaded")
        self.built[entry.name], self.functions[entry.name] = built, function


engines: dict[int, Engine] = {}
engines_lock = threading.Lock()


def engine_of(device: torch.device) -> Engine:
    """The process's engine for a CUDA device, made when first asked for. Raises `Unsupported` for any other device."""
    if device.type != "cuda":
        raise Unsupported(f"the CUDA kernel needs tensors on a CUDA device, not on {device}")
    index = device.index if device.index is not None else torch.cuda.current_device()
    found = engines.get(index)
    if found is None:
        with engines_lock:
            found = engines.setdefault(index, Engine(torch.device("cuda", index)))
    return found
