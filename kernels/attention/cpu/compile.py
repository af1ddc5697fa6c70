"""Builds the CPU kernel with the host's C++ compiler, once for each source, compiler, set of flags and processor."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels import owned
from kernels.attention.interface import BuildFailed, BuildRecord

SOURCE_DIR = Path(__file__).resolve().parent
SOURCES = ("attention.cpp", "pool.h", "simd.h")
LIMIT_S = 240

NATIVE = "-mcpu=native" if platform.machine() in {"aarch64", "arm64"} else "-march=native"
# No -ffast-math: masked scores are minus infinity, and a NaN in the input must reach the output.
FLAGS = ("-std=c++17", "-O3", NATIVE, "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-pthread")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that works: its command and the first line of `--version`."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A shared library on disk, and how it was made."""

    library: Path
    record: BuildRecord


def find_compiler(environ: Mapping[str, str] = os.environ) -> Compiler:
    """$CXX if set, else g++ or c++ on PATH. Raises `BuildFailed` with cause `no_compiler`."""
    named = environ.get("CXX", "").strip()
    candidates = [tuple(shlex.split(named))] if named else [("g++",), ("c++",)]
    for program, *options in candidates:
        program_path = shutil.which(program, path=environ.get("PATH"))
        if program_path is None:
            continue
        command = (program_path, *options)
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
        if answer.returncode == 0 and answer.stdout:
            return Compiler(command, answer.stdout.splitlines()[0].strip())
    tried = f"CXX={named}" if named else "g++ and c++ on PATH"
    raise BuildFailed(
        f"no C++ compiler: tried {tried}",
        cause="no_compiler",
        remedy="install g++ 9 or newer (apt-get install g++), or set CXX to its path",
    )


def processor_features() -> str:
    """The features of the processor, as the kernel lists them. Native code that was built on another one may not run
    here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(("flags", "Features"))), "")


def source_sha256() -> str:
    """One hash over the names and bytes of all source files."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(name.encode() + b"\0" + (SOURCE_DIR / name).read_bytes() + b"\0")
    return digest.hexdigest()


def build_library(
    out_dir: Path, cache_dir: Path, *, fresh: bool = False, environ: Mapping[str, str] = os.environ
) -> Artifact:
    """The library for this source on this machine: from `cache_dir`, or compiled (always, when `fresh`).

    The compiler's words go to `out_dir`/build-cpu.log. Raises `BuildFailed`.
    """
    started = time.perf_counter()
    compiler = find_compiler(environ)
    source = source_sha256()
    identity = "\n".join([source, *compiler.command, compiler.version, *FLAGS, processor_features()])
    key = hashlib.sha256(identity.encode()).hexdigest()
    library = cache_dir / f"attention-cpu-{key[:32]}.so"
    seal = library.with_suffix(".sha256")
    cached = not fresh and owned.is_sealed(library, seal)
    if not cached:
        compile_to(library, seal, compiler, out_dir, environ)
    record = BuildRecord(
        implementation="bench",
        compiler=Path(compiler.command[0]).name,
        compiler_version=compiler.version,
        flags=FLAGS,
        seconds=time.perf_counter() - started,
        cached=cached,
        source_sha256=source,
        artifact_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
    )
    return Artifact(library, record)


def compile_to(library: Path, seal: Path, compiler: Compiler, out_dir: Path, environ: Mapping[str, str]) -> None:
    """Compile into place atomically, so that an interrupted or concurrent build never leaves half a library."""
    try:
        if not owned.make_private_folder(library.parent):
            raise BuildFailed(f"{library.parent} belongs to another user: it is not used", remedy=owned.REMEDY)
        out_dir.mkdir(parents=True, exist_ok=True)
        with owned.open_build_folder(library.parent) as scratch:
            fresh = scratch / library.name
            command = [*compiler.command, *FLAGS, "-o", str(fresh), str(SOURCE_DIR / SOURCES[0])]
            try:
                answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=dict(environ))
            except subprocess.TimeoutExpired as exc:
                raise BuildFailed(
                    f"{compiler.command[0]} did not finish in {LIMIT_S} s",
                    remedy="use a machine with more than one core, or prebuild into $BENCH_KERNEL_CACHE",
                ) from exc
            build_log = shlex.join(command) + "\n" + answer.stdout + answer.stderr
            (out_dir / "build-cpu.log").write_text(build_log, encoding="utf-8")
            if answer.returncode != 0 or not fresh.exists():
                raise BuildFailed(
                    f"{compiler.version} exited with {answer.returncode}:\n{answer.stderr.strip()[-4000:]}",
                    remedy="the full text is in build-cpu.log; the source needs g++ 9 or newer (CXX names another)",
                )
            owned.seal_file(fresh, library, seal)
    except OSError as exc:
        raise BuildFailed(
            f"could not write the build to {library.parent} or {out_dir}: {exc}",
            remedy="point $BENCH_KERNEL_CACHE at a directory with a few free MB",
        ) from exc
