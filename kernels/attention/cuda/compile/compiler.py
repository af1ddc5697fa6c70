"""Turns CUDA source into a cubin or PTX: by NVRTC, which PyTorch's wheels bring along, or by nvcc.

Neither needs a header of CUDA, of Python or of PyTorch, so there is no ABI to mismatch.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from kernels import LINE_INFO
from kernels.attention.interface import BuildFailed

LANGUAGE = "-std=c++17"
NO_COMPILER_REMEDY = "install a CUDA build of PyTorch (its wheels contain NVRTC), or put nvcc on PATH"
COMPILE_TIMEOUT_S = 300.0
WORKER = Path(__file__).with_name("nvrtc_worker.py")


def compiler_flags() -> tuple[str, ...]:
    """The options with which every kernel is compiled, beside the target."""
    return (LANGUAGE, "--ptxas-options=-v", *(("-lineinfo",) if os.environ.get(LINE_INFO) else ()))


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for: `sm_89` gives machine code, `compute_89` PTX that the driver translates when loading."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"(sm|compute)_\d{2,3}a?", self.name):
            raise ValueError(f"no such target: {self.name!r}; expected sm_NN, sm_NNa or compute_NN")

    @classmethod
    def native(cls, capability: int) -> Target:
        """The target with all instructions of a device: `sm_90a` has those of Hopper's that no later chip has."""
        return cls("sm_90a" if capability == 90 else f"sm_{capability}")

    @property
    def has_hopper_instructions(self) -> bool:
        """wgmma, setmaxnreg and tensor copies."""
        return self.name == "sm_90a"

    @property
    def capability(self) -> int:
        """Compute capability as one number: 75, 80, 90, 120."""
        return int(self.name.rpartition("_")[2].rstrip("a"))

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
    """Compiles source texts with the headers they name, in order. Raises `BuildFailed` with the compiler's message.

    Calls from several threads run at the same time.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def compile(self, sources: Sequence[str], headers: Mapping[str, str], target: Target) -> list[Compiled]: ...


class Nvrtc:
    """The runtime compiler in the shared library at `path`; each call runs in a process of its own."""

    name = "nvrtc"

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        ctypes.CDLL(str(self.path)).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, sources: Sequence[str], headers: Mapping[str, str], target: Target) -> list[Compiled]:
        folder = self.path.parent
        job = {
            "library": str(self.path),
            "builtins": [str(p) for p in sorted(folder.glob("libnvrtc-builtins.so.*")) if ".alt." not in p.name],
            "headers": dict(headers),
            "sources": list(sources),
            "options": [f"-arch={target.name}", *((LANGUAGE,) if target.is_ptx else compiler_flags())],
            "kind": "PTX" if target.is_ptx else "CUBIN",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-I", str(WORKER)],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as exc:
            raise BuildFailed(f"NVRTC took more than {COMPILE_TIMEOUT_S:.0f} s for {target.name}") from exc
        if done.returncode:
            error_text = f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
            raise BuildFailed(f"NVRTC {self.version} ended with {error_text}")
        compiled = []
        for answer in json.loads(done.stdout):
            if answer["code"] or not answer["image"]:
                error_text = f"error {answer['code']}\n{answer['log'].strip()}"
                raise BuildFailed(f"NVRTC {self.version} could not compile the source for {target.name}: {error_text}")
            compiled.append(Compiled(base64.b64decode(answer["image"]), answer["log"], answer["seconds"]))
        return compiled


class Nvcc:
    """The offline compiler at `path`; it needs a C++ compiler beside it to preprocess."""

    name = "nvcc"

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def version(self) -> str:
        text = subprocess.run([str(self.path), "--version"], capture_output=True, text=True, timeout=60).stdout
        match = re.search(r"release (\d+\.\d+)", text)
        return match.group(1) if match else "unknown"

    def compile(self, sources: Sequence[str], headers: Mapping[str, str], target: Target) -> list[Compiled]:
        return [self.compile_one(source, headers, target) for source in sources]

    def compile_one(self, source: str, headers: Mapping[str, str], target: Target) -> Compiled:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="attention-nvcc-") as scratch:
            folder = Path(scratch)
            for name, text in {**headers, "kernel.cu": source}.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
            kind = "ptx" if target.is_ptx else "cubin"
            command = [
                str(self.path),
                "-I.",
                f"-{kind}",
                f"-arch={target.name}",
                *compiler_flags(),
                "-o",
                f"kernel.{kind}",
                "kernel.cu",
            ]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
            except subprocess.TimeoutExpired as exc:
                raise BuildFailed(f"nvcc took more than {COMPILE_TIMEOUT_S:.0f} s for {target.name}") from exc
            log = done.stdout + done.stderr
            if done.returncode:
                raise BuildFailed(f"nvcc {self.version} could not compile the source for {target.name}:\n{log.strip()}")
            image = (folder / f"kernel.{kind}").read_bytes()
        # The driver wants PTX as a C string; NVRTC's ends in NUL, nvcc's file does not.
        return Compiled(image + b"\0" if target.is_ptx else image, log, time.perf_counter() - started)


def nvrtc_candidates() -> list[Path]:
    """The paths of all NVRTC libraries that are found; those that came with PyTorch come first."""
    roots = [Path(entry) / "nvidia" for entry in sys.path if entry]
    candidates = [path for root in roots for path in sorted(root.glob("*/lib/libnvrtc.so.*"))]
    candidates += sorted(Path("/usr/local").glob("cuda*/lib64/libnvrtc.so.*"))
    return [path for path in candidates if ".alt." not in path.name]


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
        tried.append("nvcc needs a C++ compiler, and there is no gcc or cc on PATH" if nvcc else "no nvcc on PATH")
    raise BuildFailed(f"no CUDA compiler: {'; '.join(tried)}", cause="no_compiler", remedy=NO_COMPILER_REMEDY)
