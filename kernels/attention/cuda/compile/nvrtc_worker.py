"""A process that compiles with NVRTC: a JSON job on standard input, a JSON answer on standard output.

A process of its own, because NVRTC mixes up the resource reports of programs compiled at the same time in one.
It is run by its path, not as a module, and imports only the standard library, so that it starts in a few hundredths
of a second.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
import time
from typing import Any


def load_nvrtc(job: dict[str, Any]) -> ctypes.CDLL:
    """The library. It opens its builtins by bare name and has no rpath: they are found only if loaded already."""
    for builtins in job["builtins"]:
        ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(job["library"])


def program_result(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """One of a program's results: `ProgramLog`, `PTX` or `CUBIN`; empty when it has none."""
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        return b""
    buffer = ctypes.create_string_buffer(max(1, size.value))
    return buffer.raw[: size.value] if getattr(library, f"nvrtcGet{what}")(program, buffer) == 0 else b""


def compile_one(library: ctypes.CDLL, source: str, job: dict[str, Any]) -> dict[str, Any]:
    """Compile one source; `code` is NVRTC's result code."""
    started, headers, options = time.perf_counter(), job["headers"], job["options"]
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
    texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names)
    if code:
        return {"code": code, "log": "NVRTC could not create a program", "image": "", "seconds": 0.0}
    code = library.nvrtcCompileProgram(program, len(options), given)
    log = program_result(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
    image = b"" if code else program_result(library, program, job["kind"])
    library.nvrtcDestroyProgram(ctypes.byref(program))
    seconds = time.perf_counter() - started
    return {"code": code, "log": log, "image": base64.b64encode(image).decode(), "seconds": seconds}


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["CUDA_CACHE_DISABLE"] = "1"  # what NVRTC takes from its own cache comes without a resource report
    library = load_nvrtc(job)
    json.dump([compile_one(library, source, job) for source in job["sources"]], sys.stdout)


if __name__ == "__main__":
    main()
