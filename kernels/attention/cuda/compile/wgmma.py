"""Writes `source/hopper/wgmma.cuh`. It is generated because wgmma lists each register of its accumulators.

python -m kernels.attention.cuda.compile.wgmma          # rewrite the header
python -m kernels.attention.cuda.compile.wgmma --check  # exit 1 if the header is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

HEADER = Path(__file__).parents[1] / "source" / "hopper" / "wgmma.cuh"
SCORE_WIDTHS = (48, 64, 80, 96, 112, 128, 176)
OUTPUT_WIDTHS = (32, 64, 96, 128, 160, 192, 256)
TYPES = (("Half", "f16"), ("BFloat16", "bf16"))
REGISTERS_A_LINE = 32

OPENING = """\
// Written by kernels/attention/cuda/compile/wgmma.py; do not edit.
//
// One warpgroup multiplies A (64x16) by B (16xN) and gets C (64xN). PTX defines, for wgmma.m64nNk16, which thread and
// register hold an element of C. B is in shared memory. A is in shared memory too (`wgmma_shared`), or in registers
// (`wgmma_registers`).
// The rows of K are the columns of B, so K is read as it is stored. The rows of V are the rows of B, so V is read
// transposed.
#pragma once
#include "hopper/instructions.cuh"

// d = a b, or d += a b if `accumulate` is not 0. It is asynchronous: see warpgroup_commit and warpgroup_wait.
template <class T, int N>
DEVICE void wgmma_shared(float (&d)[N / 2], u64 a, u64 b, int accumulate);
template <class T, int N>
DEVICE void wgmma_registers(float (&d)[N / 2], const u32* a, u64 b, int accumulate);

#ifndef SIMT_SHIM  // the tests on a CPU have one definition for all widths
"""
CLOSING = "#endif  // SIMT_SHIM\n"


def lines_of(words: list[str], indent: str, quote: bool) -> str:
    """The words separated by commas, with REGISTERS_A_LINE of them in a line."""
    starts = range(0, len(words), REGISTERS_A_LINE)
    lines = [", ".join(words[start : start + REGISTERS_A_LINE]) for start in starts]
    if quote:
        return "\n".join(f'{indent}"{line}{", " if i + 1 < len(lines) else ""}"' for i, line in enumerate(lines))
    return f",\n{indent}".join(lines)


def wgmma_wrapper(struct: str, ptx: str, width: int, a_in_registers: bool) -> str:
    """The text of one specialisation."""
    count = width // 2
    operands = [f"%{count + i}" for i in range(4 if a_in_registers else 1)]
    a = "{" + ", ".join(operands) + "}" if a_in_registers else operands[0]
    b, accumulate = f"%{count + len(operands)}", f"%{count + len(operands) + 1}"
    layout = "p, 1, 1, 1" if a_in_registers else "p, 1, 1, 0, 0"
    a_inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) if a_in_registers else '"l"(a)'
    a_type = "const u32* a" if a_in_registers else "u64 a"
    name = "wgmma_registers" if a_in_registers else "wgmma_shared"
    outputs = [f'"+f"(d[{i}])' for i in range(count)]
    return (
        f"SPECIALISED void {name}<{struct}, {width}>(float (&d)[{count}], {a_type}, u64 b, int accumulate) {{\n"
        f"  asm volatile(\n"
        f'      "{{ .reg .pred p; setp.ne.b32 p, {accumulate}, 0; "\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{ptx}.{ptx} {{"\n'
        f"{lines_of([f'%{i}' for i in range(count)], '      ', True)}\n"
        f'      "}}, {a}, {b}, {layout}; }}"\n'
        f"      : {lines_of(outputs, '        ', False)}\n"
        f'      : {a_inputs}, "l"(b), "r"(accumulate));\n'
        f"}}\n"
    )


def header_text() -> str:
    """The whole header."""
    parts = [OPENING]
    for struct, ptx in TYPES:
        parts += [wgmma_wrapper(struct, ptx, width, False) for width in SCORE_WIDTHS]
        parts += [wgmma_wrapper(struct, ptx, width, True) for width in OUTPUT_WIDTHS]
    return "\n".join([*parts, CLOSING])


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        current = HEADER.read_text() if HEADER.exists() else ""
        if current != header_text():
            sys.stderr.write(f"{HEADER.name} is out of date: run python -m kernels.attention.cuda.compile.wgmma\n")
            return 1
        return 0
    HEADER.write_text(header_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
