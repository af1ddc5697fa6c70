"""Turns CUDA source into a cubin or PTX: by NVRTC, which PyTorch's wheels bring along, or by nvcc.

Neither needs a header of CUDA, of Python or of PyTorch, so there is no ABI to mismatch.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from kernels.attention.interface import BuildFailed

FLAGS = ("-std=c++17", "--ptxas-options=-v")
NO_COMPILER_REMEDY = "install a CUDA build of PyTorch (its wheels contain NVRTC), or put nvcc on PATH"
COMPILE_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for: `sm_89` gives machine code, `compute_89` PTX that the driver translates when loading."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(sm|compute)_\d{2,3}", self.name):
            raise ValueError(f"no such target: {self.name!r}; expected sm_NN or compute_NN")

    @property
    def capability(self) -> int:
        """Compute capability as one number: 75, 80, 90, 120."""
        return int(self.name.rpartition("_")[2])

    @property
    def is_ptx(self) -> bool:
        return self.name.startswith("compute_")


@dataclass(frozen=True, slots=True)
class Compiled:
    """`image` is what the driver loads; `log` holds ptxas's resource report (empty for PTX)."""

    image: bytes
    log: str
    seconds: float


class Compiler(Protocol):
    """Compiles one source text with the headers it names. Raises `BuildFailed` with the compiler's own words."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def compile(self, source: str, headers: Mapping[str, str], target: Target) -> Compiled: ...


class Nvrtc:
    """The runtime compiler, loaded from the shared library at `path`."""

    name = "nvrtc"

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def library(self) -> ctypes.CDLL:
        # The library opens its builtins by bare name and has no rpath: they are found only if loaded already.
        for builtins in sorted(self.path.parent.glob("libnvrtc-builtins.so.*")):
            if ".alt." not in builtins.name:
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(self.path))

    @cached_property
    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source: str, headers: Mapping[str, str], target: Target) -> Compiled:
        library, started = self.library, time.perf_counter()
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        program = ctypes.c_void_p()
        code = library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names
        )
        if code:
            raise BuildFailed(f"NVRTC {self.version} could not start a program (error {code})")
        try:
            options = [f"-arch={target.name}", *(FLAGS[:1] if target.is_ptx else FLAGS)]
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            code = library.nvrtcCompileProgram(program, len(options), given)
            log = self.read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if code:
                raise BuildFailed(f"NVRTC {self.version} refused the source for {target.name}:\n{log.strip()}")
            image = self.read(program, "PTX" if target.is_ptx else "CUBIN")
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(image, log, time.perf_counter() - started)

    def read(self, program: ctypes.c_void_p, what: str) -> bytes:
        """One of the program's results: `ProgramLog`, `PTX` or `CUBIN`."""
        size = ctypes.c_size_t()
        code = getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        code = code or getattr(self.library, f"nvrtcGet{what}")(program, buffer)
        if code:
            raise BuildFailed(f"NVRTC {self.version} compiled but gave no {what} (error {code})")
        return buffer.raw[: size.value]


class Nvcc:
    """The offline compiler at `path`; it needs a C++ compiler beside it to preprocess."""

    name = "nvcc"

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def version(self) -> str:
        text = subprocess.run([str(self.path), "--version"], capture_output=True, text=True, timeout=60).stdout
        found = re.search(r"release (\d+\.\d+)", text)
        return found.group(1) if found else "unknown"

    def compile(self, source: str, headers: Mapping[str, str], target: Target) -> Compiled:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="attention-nvcc-") as scratch:
            folder = Path(scratch)
            for name, text in {**headers, "kernel.cu": source}.items():
                (folder / name).write_text(text)
            kind = "ptx" if target.is_ptx else "cubin"
            command = [str(self.path), f"-{kind}", f"-arch={target.name}", *FLAGS, "-o", f"kernel.{kind}", "kernel.cu"]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
            except subprocess.TimeoutExpired as exc:
                raise BuildFailed(f"nvcc took more than {COMPILE_TIMEOUT_S:.0f} s for {target.name}") from exc
            log = done.stdout + done.stderr
            if done.returncode:
                raise BuildFailed(f"nvcc {self.version} refused the source for {target.name}:\n{log.strip()}")
            image = (folder / f"kernel.{kind}").read_bytes()
        # The driver wants PTX as a C string; NVRTC's ends in NUL, nvcc's file does not.
        return Compiled(image + b"\0" if target.is_ptx else image, log, time.perf_counter() - started)


def nvrtc_candidates() -> list[Path]:
    """Every NVRTC in sight, the ones that came with PyTorch first."""
    roots = [Path(entry) / "nvidia" for entry in sys.path if entry]
    found = [path for root in roots for path in sorted(root.glob("*/lib/libnvrtc.so.*"))]
    found += sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so.*"))
    return [path for path in found if ".alt." not in path.name]


def find_compiler(prefer: str | None = None) -> Compiler:
    """NVRTC if there is one that loads, else nvcc. `prefer` (`nvrtc` or `nvcc`) excludes the other.

    Raises `BuildFailed` with cause `no_compiler`.
    """
    tried: list[str] = []
    if prefer != "nvcc":
        for path in nvrtc_candidates():
            compiler = Nvrtc(path)
            try:
                compiler.version  # noqa: B018  (loads the library)
            except OSError as exc:
                tried.append(f"{path}: {exc}")
                continue
            return compiler
        tried.append("no libnvrtc.so beside PyTorch or under /usr/local/cuda*")
    if prefer != "nvrtc":
        nvcc = shutil.which("nvcc") or next((str(p) for p in Path("/usr/local").glob("cuda*/bin/nvcc")), None)
        if nvcc and (shutil.which("gcc") or shutil.which("cc")):
            return Nvcc(Path(nvcc))
        tried.append("nvcc needs a C++ compiler, and there is none" if nvcc else "no nvcc on PATH")
    raise BuildFailed(f"no CUDA compiler: {'; '.join(tried)}", cause="no_compiler", remedy=NO_COMPILER_REMEDY)
