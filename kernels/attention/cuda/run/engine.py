"""The kernels of one device: compiled when first needed, loaded once, launched on PyTorch's current stream."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import torch

from kernels.attention.cuda.compile.build import Built, Cache, build_all, build_one
from kernels.attention.cuda.compile.compiler import Compiler, Target, find_compiler
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unsupported
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import Chip, Entry, chip_of, kernel_table
from kernels.attention.cuda.run.counters import Counters
from kernels.attention.cuda.run.driver import DEVICE_L2_BYTES, DEVICE_SM_COUNT, OUT_OF_MEMORY, Function, cuda_driver
from kernels.attention.cuda.run.host import Host, TorchHost


def default_cache() -> Path:
    """The default folder for compiled kernels."""
    return Path(os.environ.get("BENCH_KERNEL_CACHE", "~/.cache/bench-kernels")).expanduser()


class Engine:
    """The kernels of one device: compiled when first needed, loaded once, launched on PyTorch's current stream.

    `target` overrides the target of the compiler: with `compute_75` the driver translates the same code that a T4 runs.
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
            raise Unsupported(f"no kernels for compute capability {major}.{minor}: they need 7.5 or newer")
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
        driver_ = cuda_driver()
        driver_.enter(index)
        self.machine = Machine(
            chip=self.chip,
            sm_count=driver_.device_attribute(DEVICE_SM_COUNT, index),
            l2_bytes=driver_.device_attribute(DEVICE_L2_BYTES, index),
            hopper=self.target.has_hopper_instructions,
        )
        self.counters = Counters(self.zeroed_memory)

    def entries(self) -> list[Entry]:
        """Every kernel there is for this engine's chip."""
        return [*kernel_table(self.chip)]  # what the native instructions of one chip add is compiled on demand

    def build_all(self, workers: int | None = None) -> list[Built]:
        """Compiles and loads all kernels. Raises `BuildFailed`."""
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
        """The loaded kernel, which is compiled now if needed. This takes as long during a capture, so it is better done
        before."""
        function = self.functions.get(entry.name)
        if function is not None:
            return function
        with self.lock:
            if entry.name not in self.functions:
                self.load(entry, build_one(entry, self.target, self.find_compiler(), self.cache))
            return self.functions[entry.name]

    def zeroed_memory(self, size: int) -> int:
        """The address of `size` zero bytes that are never freed. Raises `CudaError`."""
        driver_ = cuda_driver()
        driver_.enter(self.device.index)
        try:
            return driver_.zeroed_memory(size)
        except CudaError as exc:
            if exc.code != OUT_OF_MEMORY or self.host.capturing():
                raise
            torch.cuda.empty_cache()  # PyTorch may hold memory that nothing uses
            return driver_.zeroed_memory(size)

    def load(self, entry: Entry, built: Built) -> None:
        cuda_driver().enter(self.device.index)
        try:
            function = cuda_driver().load(built.image, entry.name, entry.shared_bytes)
        except CudaError as exc:
            raise BuildFailed(str(exc), remedy="a cubin must be built for the device's own architecture") from exc
        if function.local_bytes and not self.target.is_ptx:  # PTX is given registers by the driver, for another chip
            raise BuildFailed(f"{entry.name} spills {function.local_bytes} bytes per thread after loading")
        self.built[entry.name], self.functions[entry.name] = built, function


engines: dict[int, Engine] = {}
engines_lock = threading.Lock()


def engine_of(device: torch.device) -> Engine:
    """The process's engine for a CUDA device, made at the first call. Raises `Unsupported` for any other device."""
    if device.type != "cuda":
        raise Unsupported(f"the CUDA kernel needs tensors on a CUDA device, not on {device}")
    index = device.index if device.index is not None else torch.cuda.current_device()
    engine = engines.get(index)
    if engine is None:
        with engines_lock:
            engine = engines.setdefault(index, Engine(torch.device("cuda", index)))
    return engine
