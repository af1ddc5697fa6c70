"""Programs that run kernels on the CPU: each is compiled once in a test session, whichever worker needs it first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernels.attention.cuda.variants import SOURCE
from tests.support.compiler_cache import MARK

SHIM = Path(__file__).parent / "simt"


TRACED = ("-DSIMT_RACES", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1", "-Wno-tsan")
"""Every access through a pointer calls a function of the thread sanitizer's, of which simt_races.cc has its own."""


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
    """The program that g++ makes of `main` below simt/ for the code path `arch`, such as 800; `kernels` is the text of
    its kernels and `source` where they include from. It lies in `folder` where the session has no place of its own.

    With `races` it ends with code 3 where accesses to shared memory are in no order (simt_races.h).
    """
    flags = [*flags, *(TRACED if races else ())]
    command = ["g++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-Wno-unknown-pragmas", "-DSIMT_SHIM"]
    command += [f"-DSIMT_ARCH={arch}", f"-I{SHIM}", f"-I{source}", *flags, str(SHIM / main)]
    place = Path(os.environ.get(MARK, folder))
    name = hashlib.sha256(repr((kernels, command)).encode()).hexdigest()[:16]
    program, header, part = place / f"simt-{name}", place / f"simt-{name}.h", place / f"simt-{name}.part"
    with (place / f"simt-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            header.write_text(kernels)
            command += [f'-DKERNELS="{header}"', "-o", str(part)]
            steps = with_rules(command, part) if races else [command]
            for step in steps:
                done = subprocess.run(step, capture_output=True, text=True, timeout=600)
                assert done.returncode == 0, done.stderr[:4000]
            part.rename(program)
    return program


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


def with_rules(command: Sequence[str], part: Path) -> list[list[str]]:
    """The same program with the rules about races, which are not compiled as it is, and without the sanitizer's library."""
    own, rules = f"{part}.o", f"{part}.rules.o"
    compiling = [*command[:-1], own, "-c"]
    plain = ["g++", "-std=c++17", "-O2", "-DSIMT_RACES", "-c", str(SHIM / "simt_races.cc"), "-o", rules]
    return [compiling, plain, ["g++", "-pthread", own, rules, "-o", str(part)]]
