"""The C++ under sanitizers and for narrower vectors than this machine's, on threads of its own."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from kernels.attention.cpu.compile import NATIVE, SOURCE_DIR, find_compiler

MAIN = Path(__file__).with_name("sanitized_main.cpp")
X86 = platform.machine() in {"x86_64", "AMD64"}

BUILDS = [
    pytest.param((NATIVE, "-O1", "-fsanitize=address,undefined"), id="memory-and-undefined-behaviour"),
    pytest.param((NATIVE, "-O1", "-fsanitize=thread"), id="data-races"),
    pytest.param(
        ("-march=x86-64-v3", "-O2"),
        id="vectors-of-8",
        marks=pytest.mark.skipif(
            not X86 or " avx2 " not in Path("/proc/cpuinfo").read_text(), reason="this CPU has no AVX2"
        ),
    ),
    pytest.param(
        ("-march=x86-64", "-O1", "-fsanitize=address,undefined"),
        id="vectors-of-4",
        marks=pytest.mark.skipif(not X86, reason="the flag is for x86"),
    ),
]


@pytest.mark.parametrize("flags", BUILDS)
def test_the_kernel_is_clean_and_right_as(flags: tuple[str, ...], tmp_path: Path) -> None:
    program = tmp_path / "sanitized"
    command = [*find_compiler().command, "-std=c++17", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-math-errno"]
    command += [*flags, "-fno-sanitize-recover=all", "-pthread", f"-I{SOURCE_DIR}", str(MAIN), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=600)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("this compiler's thread sanitizer cannot run under this kernel's address layout")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0 failures\n", "")
