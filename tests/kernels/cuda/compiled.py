"""Programs that run kernels on the CPU: each is compiled once in a test session, whichever worker needs it first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.cuda.plan.variants import SOURCE
from tests.support import SESSION

WITH_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None or platform.system() != "Linux", reason="needs g++ on Linux to compile the kernels"
)
"""Of tests that run kernels on the CPU."""
SHIM = Path(__file__).parent / "simt"
COMMON = ("g++", "-std=c++17", "-pthread", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-ffp-contract=off")
"""Products and sums are rounded each by itself, whatever the processor can do at once."""
COMPILER = (*COMMON, "-Og")
NATIVE = ("-march=native",) if platform.machine() in ("x86_64", "aarch64") else ()
"""A program runs where it is compiled, and converts numbers of 16 bits by the processor's own instructions."""
HOPPER = ("hopper", "backward90")
"""Mains whose blocks take turns, on Hopper's machine."""
STANDARD = ("algorithm", "cmath", "cstddef", "cstdint", "cstdio", "cstdlib", "cstring")
LINKER = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
"""It links a program in half the time."""

TRACED = ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-Wno-tsan")
"""Every access through a pointer calls a function of the thread sanitizer's, of which simt_races.cc has its own."""
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
"""One set for all programs that are checked so: they share the machine below them."""


def compiled(
    kernels: str,
    main: str,
    arch: int,
    folder: Path,
    *,
    source: Path = SOURCE,
    flags: Sequence[str] = (),
    races: bool = False,
) -> Path:
    """The program that g++ makes of kernels for the code path `arch`, such as 800, and of `main` below simt/, which runs
    them. `kernels` is their text, with the `table` that it ends with, and `source` where they include from. It lies in
    `folder` where the session has no place of its own.

    With `races` it ends with code 3 where accesses to shared memory are in no order (simt_races.h).
    """
    flags = [*flags, *(TRACED if races else ())]
    place = place_of(folder)
    command = [*COMPILER, *level_of(flags), *flags, *headers(flags, place), "-DSIMT_SHIM", f"-DSIMT_ARCH={arch}"]
    command += [f"-I{SHIM}", f"-I{source}"]
    halves = ("simt_engine", *(["hopper_engine"] if main in HOPPER else []), main)
    parts = [machine(part, flags, place) for part in halves]
    parts.append(rules("simt_races" if races else "simt_unwatched", place))
    name = named(kernels, main, *command)
    text = place / f"simt-{name}.cc"

    def make(program: Path) -> None:
        text.write_text(kernels)
        if not races:
            run([*command, *LINKER, str(text), *map(str, parts), "-o", str(program)])
            return
        own = f"{program}.o"
        run([*command, "-c", str(text), "-o", own])
        run(["g++", "-pthread", *LINKER, own, *map(str, parts), "-o", str(program)])

    return once(place / f"simt-{name}", make)


def table(parameters: str, rows: Iterable[tuple[str, int]]) -> str:
    """What the text of kernels ends with (simt_table.h): a call of each, with `map_at` for the tensor maps that it
    takes and `p` for its structure, of this type; and its threads."""
    begins = f"[](const void* maps, const void* given) {{ const auto& p = *(const {parameters}*)given; (void)maps;"
    lines = "".join(f"  {{{begins} {call}; }}, {threads}}},\n" for call, threads in rows)
    size = f"const size_t simt::given_bytes = sizeof({parameters});\n"
    return f'#include "simt_table.h"\n{size}const simt::Entry simt::entries[] = {{\n{lines}}};\n'


def map_at(place: int) -> str:
    """C++ for one of the tensor maps in a row of a table."""
    return f"((const TensorMap*)maps)[{place}]"


def level_of(flags: Sequence[str]) -> tuple[str, ...]:
    """How much g++ optimises a program with these flags: few launches take less than to optimise them would."""
    if is_sanitized(flags):
        return ("-O0",)
    return () if flags else NATIVE


def headers(flags: Sequence[str], place: Path) -> list[str]:
    """What makes g++ read the standard library's headers as it has compiled them before: half a second of each program.
    Where it cannot use that, it reads the headers."""
    text = "".join(f"#include <{name}>\n" for name in STANDARD)
    header = place / f"standard-{named(text, *flags)}.h"

    def make(part: Path) -> None:
        header.write_text(text)
        run([*COMPILER, *level_of(flags), *flags, "-x", "c++-header", str(header), "-o", str(part)])

    once(header.with_suffix(".h.gch"), make)
    return ["-include", str(header)]


def machine(part: str, flags: Sequence[str], place: Path) -> Path:
    """A part of what a kernel's program runs on, which is the same for all and is not traced. It is compiled once, and
    most of the time of all programs is its own: optimised for a second longer, it runs in half the time."""
    own = [flag for flag in flags if flag not in TRACED]
    level = ("-O1",) if is_sanitized(own) else ("-O3", *NATIVE)  # sanitized, it takes twice as long
    command = [*COMMON, *level, *own, "-DSIMT_SHIM", "-DSIMT_ARCH=900", f"-I{SHIM}", f"-I{SOURCE}"]
    command += ["-c", str(SHIM / f"{part}.cc"), "-o"]
    return once(place / f"{part}-{named(*command)}.o", lambda made: run([*command, str(made)]))


def is_sanitized(flags: Sequence[str]) -> bool:
    """By the sanitizers' own libraries."""
    return any(flag.startswith("-fsanitize") and flag not in TRACED for flag in flags)


def rules(name: str, place: Path) -> Path:
    """The rules about races, which are not traced themselves, and stand in for the sanitizer's library; or none."""
    command = ["g++", "-std=c++17", "-O3", *NATIVE, "-c", str(SHIM / f"{name}.cc"), "-o"]
    return once(place / f"rules-{named(*command)}.o", lambda part: run([*command, str(part)]))


def once(made: Path, make: Callable[[Path], None]) -> Path:
    """The file `made`, which `make` writes to a path that it is given, unless somebody has."""
    with alone(made):
        if not made.exists():
            part = made.with_name(f"{made.name}.part")
            make(part)
            part.rename(made)
    return made


@contextmanager
def alone(made: Path) -> Iterator[None]:
    """While no other worker makes it."""
    with made.with_name(f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def place_of(folder: Path) -> Path:
    """Where what is compiled once lies: `folder` where the session has no place of its own."""
    return Path(os.environ.get(SESSION, folder))


def program_of(make: Callable[[Path], Any]) -> Any:
    """A fixture of a module: what `make` compiles in a folder."""

    @pytest.fixture(scope="module")
    def program(tmp_path_factory: pytest.TempPathFactory) -> Any:
        return make(tmp_path_factory.mktemp("program"))

    return program


def hasty(folder: Path) -> Path:
    """A `g++` in `folder` that optimizes nothing, whatever it is told, for what runs for less time than it compiles; it
    collects no garbage below 2 GB either."""
    made = folder / "g++"
    made.write_text('#!/bin/sh\nexec g++ "$@" -O0 --param ggc-min-expand=1000 --param ggc-min-heapsize=2000000\n')
    made.chmod(0o755)
    return made


def named(*texts: str) -> str:
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]


class Failed(AssertionError):
    """A program that ended with another code than 0, and what it said."""


def answered(program: Path, given: bytes, scratch: Path) -> bytearray:
    """What the program writes when it is given these bytes, both in files of `scratch`. Raises Failed."""
    asked, made = scratch / "in.bin", scratch / "out.bin"
    asked.write_bytes(given)
    done = subprocess.run([str(program), str(asked), str(made)], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise Failed(f"exit {done.returncode}: {done.stderr[:4000]}")
    return bytearray(made.read_bytes())
