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
    """In as many parts as are joined at once, and in more."""
    for eager, splits in ((False, 2), (True, 2), (False, 40)):
        assert_right(program, DECODE, draw(DECODE, 1, 2, 11, 1, 1300, 64), scratch, splits=splits, eager=eager)


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


RACE, WRONG = "a race: ", ""
MISTAKES = {
    "warps that others still multiply with": ("  sync_block();  // every warp has left Q\n", "", RACE),
    "sums of warps that are not stored": ("of.warp.sum[i][r]});\n  sync_block();\n", "of.warp.sum[i][r]});\n", RACE),
    "a part that is not written when its ticket is taken": (
        "  sync_block();  // every thread's part is written before the ticket is taken\n", "", RACE,
    ),
    "a ticket that is not taken": (
        "take_ticket(p.tickets + item, last));\n  sync_block();\n", "take_ticket(p.tickets + item, last));\n", RACE,
    ),
    "parts before the last ticket": (
        "  if (load_shared_word(q_tile) != last) return;\n", "", "a part is read that no block has written",
    ),
    "the weight of another part": ("exp2_approx(lse[m][i] - top_of(most))", "exp2_approx(lse[m][0] - top_of(most))", WRONG),
    "parts that keep an older maximum": ("x[m][e] *= factor", "x[m][e] *= 1.0f", WRONG),
    "a sum that keeps an older maximum": ("total[m] *= factor", "total[m] *= 1.0f", WRONG),
    "one warp's sum": ("for (int w = 1; w < C::WARPS; w++) sum.y", "for (int w = 2; w < C::WARPS; w++) sum.y", WRONG),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_joining_warps_or_parts_is_found(tmp_path: Path, mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    source = mistaken(tmp_path, "decode.cuh", old, new)
    program = compile_program((DECODE, Combine("bfloat16")), 800, tmp_path, source=source, races=message == RACE)
    with pytest.raises(AssertionError, match=message or None):
        decodes(program, tmp_path)
