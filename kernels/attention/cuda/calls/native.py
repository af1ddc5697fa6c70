"""Attention with gradients by a function of autograd in C++, for those who have compiled it:

    python -m kernels.attention.cuda.compile_gradients

It takes a C++ compiler ten to twenty seconds, once for each PyTorch; the library is kept with the kernels, and is taken
from there by whoever computes gradients. Where it is not, `direct` does the same in Python.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import subprocess
from pathlib import Path

import torch

from kernels import owned
from kernels.attention.cuda.errors import BuildFailed
from kernels.attention.cuda.plan.variants import SOURCE

FILE = SOURCE / "host" / "gradients.cpp"
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-Wall")
LIMIT_S = 300


def path_in(folder: Path) -> Path:
    """Where the library for this source and this PyTorch is kept."""
    made_of = (FILE.read_text(), *FLAGS, torch.__version__, str(torch.version.git_version), platform.machine())
    return folder / f"gradients-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:32]}.so"


def is_sealed(library: Path) -> bool:
    """Whether the library exists, can only have been made by a trusted user, and is what the compiler wrote."""
    return owned.is_sealed(library, library.with_suffix(".sha256"))


def build_native(folder: Path, compiler: str = "g++") -> Path:
    """The library, compiled unless it is there. Raises `BuildFailed`."""
    library = path_in(folder)
    if is_sealed(library):
        return library
    torch_at = Path(torch.__file__).parent
    headers = (torch_at / "include", torch_at / "include" / "torch" / "csrc" / "api" / "include")
    libraries = (f"-L{torch_at / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10")
    try:
        if not owned.make_private_folder(folder):
            raise BuildFailed(f"{folder} belongs to another user: it is not used", remedy=owned.REMEDY)
        with owned.open_build_folder(folder) as scratch:
            fresh = scratch / library.name
            options = (*FLAGS, *(f"-I{one}" for one in headers), "-o", str(fresh), str(FILE), *libraries)
            done = subprocess.run([compiler, *options], capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                raise BuildFailed(
                    f"{compiler} does not compile {FILE.name} for PyTorch {torch.__version__}:\n{done.stderr[-4000:]}",
                    remedy="install g++ 11 or newer; without this library Python computes the gradients",
                )
            owned.seal_file(fresh, library, library.with_suffix(".sha256"))
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise BuildFailed(
            f"{FILE.name} could not be compiled: {exc}",
            cause="no_compiler",
            remedy="install g++ (apt-get install g++); without this library Python computes the gradients",
        ) from exc
    return library


loaded: list[Path] = []


def load_native(library: Path) -> None:
    """Registers the operators of the library with PyTorch, unless it has them already: a second library of this kind
    would end the process."""
    if not loaded:
        torch.ops.load_library(str(library))
        loaded.append(library)


def address_of(function: object) -> int:
    """The address of a function of a library, which ctypes has loaded."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def stream_function() -> int | None:
    """The address of PyTorch's C function for the current stream of a device; None where there is none."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        return address_of(library.aoti_torch_get_current_cuda_stream)
    except (OSError, AttributeError):
        return None
