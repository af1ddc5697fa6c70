"""The same of kernels that run on every chip: what their threads share is in an order that barriers give."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kernels.attention.cuda.backward.kernels import PrepareKernel, pair_kernel
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.variants import SOURCE, Combine
from kernels.attention.cuda.ways.decode import DecodeKernel, DecodeTile
from tests.kernels.cuda.backward_runner import compile_backward, pose, run_pair
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import Program, compile_program
from tests.kernels.cuda.test_backward_simt import AMPERE, BRAIN
from tests.kernels.cuda.test_decode import assert_right, draw

pytestmark = WITH_COMPILER

PAIR = (
    *(pair_kernel(AMPERE, "bfloat16", 64, keys=keys) for keys in (True, False)),
    PrepareKernel("bfloat16", 64, True, False),
)
DECODE = DecodeKernel("bfloat16", 64, DecodeTile(16, 32, 4, 2))


def mistaken(folder: Path, name: str, old: str, new: str) -> Path:
    """A copy of the kernels' source with one mistake."""
    source = folder / "source"
    shutil.copytree(SOURCE, source)
    text = (source / name).read_text()
    assert text.count(old) == 1
    (source / name).write_text(text.replace(old, new))
    return source


def passes(program: Program, scratch: Path) -> None:
    posed = pose(BRAIN, 1, 2, 1, 100, 130, 64, Options(True))
    for eager in (False, True):
        run_pair(program, posed, AMPERE, scratch, eager=eager)


def decodes(program: Program, scratch: Path) -> None:
    for eager in (False, True):
        assert_right(program, DECODE, draw(DECODE, 1, 2, 4, 1, 700, 64), scratch, splits=2, eager=eager)


def test_the_pair_of_backward_passes_has_no_race(tmp_path: Path) -> None:
    passes(compile_backward(PAIR, 800, tmp_path, races=True), tmp_path)


def test_decoding_has_no_race(tmp_path: Path) -> None:
    decodes(compile_program((DECODE, Combine("bfloat16")), 800, tmp_path, races=True), tmp_path)


def test_a_tile_that_is_copied_over_while_others_read_it_is_found(tmp_path: Path) -> None:
    old = "      sync_block();\n      copy<C::BN>(passing, y1"
    source = mistaken(tmp_path, "backward/pair.cuh", old, old.replace("      sync_block();\n", ""))
    program = compile_backward(PAIR, 800, tmp_path, source=source, races=True)
    with pytest.raises(AssertionError, match="a race: "):
        passes(program, tmp_path)


def test_a_copy_that_only_its_own_lane_waited_for_is_found(tmp_path: Path) -> None:
    old = "      sync_warp();\n      warp.scores(q_lane, k_lane() + stage);"
    source = mistaken(tmp_path, "decode.cuh", old, old.replace("      sync_warp();\n", ""))
    program = compile_program((DECODE, Combine("bfloat16")), 800, tmp_path, source=source, races=True)
    with pytest.raises(AssertionError, match="a race: "):
        decodes(program, tmp_path)
