"""A `__global__` function in a `.cu` file as an implementation: compiled by NVRTC, launched as its workload says."""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernels.forms.definition import Arguments
from kernels.forms.expressions import evaluate
from kernels.harness.workload import BuildFailed, Unavailable

SCALARS: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
SCALAR = re.compile(rf"({'|'.join(SCALARS)})\((.*)\)", re.DOTALL)


class CudaEntry:
    """Described by a mapping: `cuda` (the file), `entry`, `grid` and `block` (an expression or up to three), `smem`
    (bytes), `args` (names of inputs and outputs; `int32(rows)` and the like for numbers), `only` (axis values that it
    is for), `macros` (parameters of `tune` that the source has as macros). Expressions are over axes and macros.
    Raises `Unavailable` without a CUDA device, `BuildFailed` with the compiler's words."""

    def __init__(
        self, described: Mapping[str, Any], folder: Path, device: torch.device, names: tuple[str, ...]
    ) -> None:
        if device.type != "cuda":
            raise Unavailable(f"a CUDA kernel needs a CUDA device, and this one is a {device.type}")
        from kernels.device_code import BuildFailed as Refused
        from kernels.device_code import CudaError, cuda_driver, resources_in

        self.described, self.device, self.names = described, device, names
        self.defines: Mapping[str, Any] = described.get("defines", {})
        try:
            source, compiler, compiled, compile_s = compile_described(described, folder, device)
        except Refused as exc:
            raise BuildFailed(f"{described['cuda']}: {exc}", remedy=getattr(exc, "remedy", "")) from exc
        began = time.perf_counter()
        torch.cuda.init()
        self.driver, self.index = cuda_driver(), device.index or 0
        self.driver.enter(self.index)
        try:
            self.function = self.driver.load(compiled.image, str(described["entry"]), 0)
        except CudaError as exc:
            raise BuildFailed(f"{described['cuda']}: {exc}") from exc
        try:
            resources = resources_in(compiled.log)
            used: dict[str, object] = {"registers": resources.registers, "spill_bytes": resources.spill_bytes}
        except ValueError:
            used = {"registers": self.function.registers, "spill_bytes": self.function.local_bytes}
        self.record: dict[str, object] = {
            "entry": described["entry"],
            "compiler": compiler.name,
            "compiler_version": compiler.version,
            "seconds": round(compile_s + time.perf_counter() - began, 4),
            "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
            "artifact_sha256": hashlib.sha256(compiled.image).hexdigest(),
            **used,
        }
        self.shared = 0

    def refusal(self, case: Mapping[str, Any]) -> str:
        """Why the entry cannot run a case; empty where it can."""
        for axis, values in dict(self.described.get("only", {})).items():
            if case.get(axis) not in values:
                return f"it is for {axis} {', '.join(map(str, values))} only"
        return ""

    def bound(self, case: Mapping[str, Any], outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A launch with all expressions evaluated. Raises `BuildFailed` for an expression that cannot be evaluated."""
        from kernels.device_code import LaunchConfig

        numbers = {name: one for name, one in {**case, **self.defines}.items() if isinstance(one, (int, float))}
        tensors = dict(zip(self.names, arguments.args, strict=False)) | dict(arguments.kwargs)
        tensors |= {"out": outs[0]} if len(outs) == 1 else {f"out{n}": one for n, one in enumerate(outs)}
        try:
            grid, block = (launch_dimensions(self.described[key], numbers) for key in ("grid", "block"))
            shared = int(evaluate(self.described.get("smem", 0), numbers))
            held = [launch_argument(str(text), numbers, tensors) for text in self.described["args"]]
        except ValueError as exc:
            raise BuildFailed(f"{self.described['entry']}: {exc}") from exc
        if math.prod(block) > 1024 or min(*grid, *block) < 1:
            raise BuildFailed(
                f"{self.described['entry']}: a grid of {grid} blocks of {block} threads cannot be launched"
            )
        if shared > self.shared:
            code = self.driver.library.cuFuncSetAttribute(ctypes.c_void_p(self.function.handle), 8, shared)
            self.driver.check(code, f"asking for {shared} bytes of shared memory")
            self.shared = shared
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
        config = LaunchConfig(*grid, *block, shared, None, None, 0)
        library, handle = self.driver.library, self.function.handle
        answer = outs[0] if len(outs) == 1 else outs

        def launch(_alive: object = (held, outs, arguments)) -> Any:
            self.driver.enter(self.index)
            config.stream = torch.cuda.current_stream(self.device).cuda_stream
            code = library.cuLaunchKernelEx(ctypes.addressof(config), handle, ctypes.addressof(pointers), None)
            if code:
                self.driver.check(code, f"launching {self.described['entry']}")
            return answer

        return launch


def compile_described(described: Mapping[str, Any], folder: Path, device: torch.device) -> tuple[str, Any, Any, float]:
    """The source of an entry, the compiler, what it made of it for a device, and the seconds that it took. It needs no
    context on the device. Raises `BuildFailed` of `kernels.device_code`."""
    source = with_macros((folder / str(described["cuda"])).read_text(encoding="utf-8"), described.get("defines", {}))
    headers = tuple((one.name, one.read_text(encoding="utf-8")) for one in sorted(folder.glob("*.cuh")))
    return source, *compile_source(source, headers, torch.cuda.get_device_capability(device))


@cache
def compile_source(
    source: str, headers: tuple[tuple[str, str], ...], capability: tuple[int, int]
) -> tuple[Any, Any, float]:
    """The compiler, what it made of a source, and the seconds that it took. A process compiles the same once."""
    from kernels.device_code import Target, find_compiler

    began = time.perf_counter()
    compiler = find_compiler()
    (compiled,) = compiler.compile([source], dict(headers), Target.native(capability[0] * 10 + capability[1]))
    return compiler, compiled, time.perf_counter() - began


def with_macros(source: str, defines: Mapping[str, Any]) -> str:
    """The source with a macro for each parameter; the compiler's line numbers remain those of the file."""
    lines = [f"#define {name} {int(value) if isinstance(value, bool) else value}\n" for name, value in defines.items()]
    return "".join([*lines, "#line 1\n", source]) if lines else source


def launch_dimensions(size: Any, numbers: Mapping[str, Any]) -> tuple[int, int, int]:
    """A grid or a block: one expression, or up to three. Raises `ValueError`."""
    parts = list(size) if isinstance(size, (list, tuple)) else [size]
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"{size!r} must be one expression, or up to three")
    made = [int(evaluate(one, numbers)) for one in parts] + [1, 1]
    return made[0], made[1], made[2]


def launch_argument(text: str, numbers: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """A pointer to a tensor, or a number of the type that is named. Raises `ValueError`."""
    typed = SCALAR.fullmatch(text.strip())
    if typed:
        number = evaluate(typed.group(2), numbers)
        return SCALARS[typed.group(1)](number if "float" in typed.group(1) else int(number))
    tensor = tensors.get(text)
    if not isinstance(tensor, torch.Tensor):
        there = ", ".join((*tensors, *(f"{kind}(…)" for kind in SCALARS)))
        raise ValueError(f"args: {text!r} is neither a tensor nor a number with its type; there are {there}")
    return ctypes.c_void_p(tensor.data_ptr())
