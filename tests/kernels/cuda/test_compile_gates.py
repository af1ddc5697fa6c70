"""The source compiles for the chips people have, without spills, to the instructions it was written for. Needs no GPU.

A kernel is compiled here if it would spill with 16 registers fewer (docs/measured.md), or if no other kernel of its kind
is. All others are compiled by COMPILE_ALL_KERNELS, and pass the same gates wherever they are built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels.attention.cuda.backward.ampere import SummingKernel, every_ampere_kernel, shapes_of
from kernels.attention.cuda.backward.few import FewBackwardKernel, every_few_kernel
from kernels.attention.cuda.backward.kernels import (
    HopperBackwardKernel,
    every_backward_kernel,
    every_shaped_backward_kernel,
    pair_kernel,
)
from kernels.attention.cuda.backward.small import every_small_kernel
from kernels.attention.cuda.backward.turing import SHAPES as TURING_SHAPES
from kernels.attention.cuda.backward.turing import every_turing_kernel
from kernels.attention.cuda.compile.build import Built, Cache, build_all, build_one
from kernels.attention.cuda.compile.compiler import Compiler, Target, find_compiler
from kernels.attention.cuda.plan.variants import Combine, Kernel, chip_of, kernel_table
from kernels.attention.cuda.ways import decode, general
from kernels.attention.cuda.ways.hopper_kernels import (
    PACKED_SHAPES,
    PAGED_SHAPES,
    SPLIT_SHAPES,
    STAGED_SHAPES,
    HopperKernel,
    bias_shapes,
    staged_shapes,
)
from kernels.attention.interface import BuildFailed
from tests.kernels.cuda.lean import Lean, lean

ARCHITECTURES = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return lean(find_compiler())
    except BuildFailed as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cubins"))


def disassembler() -> str | None:
    places = [shutil.which("nvdisasm"), *map(str, Path("/usr/local").glob("cuda*/bin/nvdisasm"))]
    return next((place for place in places if place), None)


def sample(architecture: str) -> Kernel:
    """The large causal kernel in fp16: what each architecture is most likely to spill in."""
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    return Kernel("float16", 64, True, True, chip.large[64, True])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_large_kernels_compile_without_spills(architecture: str, compiler: Compiler, cache: Cache) -> None:
    built = build_one(sample(architecture), Target(architecture), compiler, cache)
    assert built.resources is not None
    assert built.resources.spill_bytes == 0
    assert 0 < built.resources.registers <= 255


def test_a_masked_and_a_decoding_kernel_compile_without_spills(compiler: Compiler, cache: Cache) -> None:
    turing, ada = chip_of(75), chip_of(89)
    assert turing is not None
    assert ada is not None
    assert build_one(list(decode.every_kernel(turing))[1], Target("sm_75"), compiler, cache).resources
    widest = pair_kernel(ada, "float16", 512, keys=False, vector=False, mask="bool", shaped=True)
    assert build_one(widest, Target("sm_89"), compiler, cache).resources
    masked = [entry for entry in general.every_kernel(ada) if entry.mask == "float32" and entry.vector]
    entries = [masked[1], list(decode.every_kernel(ada))[1]]
    assert all(built.resources for built in build_all(entries, Target("sm_89"), compiler, cache, 2))


def test_the_widest_kernel_with_features_compiles_for_hopper_without_spills(compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(90)
    assert chip is not None
    every = [entry for entry in general.every_kernel(chip) if entry.dtype == "bfloat16" and entry.vector]
    widest = [entry for entry in every if entry.mask is None and entry.head_dim == 256]
    largest = max(widest, key=lambda entry: entry.tile.rows * entry.tile.keys)
    assert build_one(largest, Target("sm_90a"), compiler, cache).resources


def test_the_kernels_over_pages_with_the_fewest_registers_do_not_spill(compiler: Compiler, cache: Cache) -> None:
    turing = chip_of(75)
    assert turing is not None
    ahead = HopperKernel("bfloat16", 64, True, True, PAGED_SHAPES[64], packed=True, paged=True, ahead=True)
    split = HopperKernel("bfloat16", 128, True, False, SPLIT_SHAPES[128], split=True)
    entries = [ahead, split]
    assert all(built.resources for built in build_all(entries, Target("sm_90a"), compiler, cache, 2))
    staged = next(
        entry
        for entry in general.every_kernel(turing)
        if entry.mask == general.PAGED and entry.head_dim == 128 and entry.vector
    )
    assert build_one(staged, Target("sm_75"), compiler, cache).resources


def test_the_widest_kernels_that_shape_scores_compile_without_spills(compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(90)
    assert chip is not None
    absorbed = general.shaped_kernel(chip, "bfloat16", (576, 512), vector=True, mask=None)
    keys = pair_kernel(chip, "bfloat16", 512, keys=True, shaped=True)
    assert all(built.resources for built in build_all([absorbed, keys], Target("sm_90a"), compiler, cache, 2))


def test_the_widest_packed_kernels_with_a_left_limit_do_not_spill(compiler: Compiler, cache: Cache) -> None:
    entries = [
        HopperKernel("bfloat16", 256, right, True, PACKED_SHAPES[256, right][0], packed=True) for right in (False, True)
    ]
    assert all(built.resources for built in build_all(entries, Target("sm_90a"), compiler, cache, 2))


def test_the_staged_mask_kernels_with_the_fewest_registers_do_not_spill(compiler: Compiler, cache: Cache) -> None:
    causal, shared = (
        HopperKernel("bfloat16", 64, True, False, STAGED_SHAPES[64, wide][0], mask)
        for wide, mask in ((False, "bfloat16"), (True, "float32"))
    )
    tail = HopperKernel("float16", 64, False, True, causal.shape, "float16")
    widest = [
        HopperKernel("bfloat16", 256, True, True, staged_shapes(256, mask)[0], mask) for mask in ("bool", "float32")
    ]
    entries = [causal, shared, tail, *widest]
    assert all(built.resources for built in build_all(entries, Target("sm_90a"), compiler, cache, 2))


def test_the_one_row_mask_kernels_with_the_fewest_registers_do_not_spill(compiler: Compiler, cache: Cache) -> None:
    entries = [
        HopperKernel("bfloat16", head_dim, right, left, bias_shapes(head_dim, right, left)[0], mask)
        for head_dim, right, left, mask in (
            (64, True, False, "float32"),
            (256, False, False, "bfloat16"),
            (256, True, False, "float32"),
            (256, True, True, "float32"),
        )
    ]
    assert all(built.resources for built in build_all(entries, Target("sm_90a"), compiler, cache, 2))


def test_the_backward_kernels_with_the_most_registers_compile_without_spills(compiler: Compiler, cache: Cache) -> None:
    turing = chip_of(75)
    assert turing is not None
    kept = pair_kernel(turing, "float16", 128, keys=True)
    assert build_one(kept, Target("sm_75"), compiler, cache).resources
    hopper = [HopperBackwardKernel("bfloat16", head_dim, True) for head_dim in (64, 128)]
    few = FewBackwardKernel("bfloat16", 128, 128, True)
    for built in build_all([*hopper, few], Target("sm_90a"), compiler, cache, 2):
        assert built.resources is not None
        assert built.resources.spill_bytes == 0


@pytest.mark.parametrize(("architecture", "dtype"), [("sm_80", "float16"), ("sm_90a", "bfloat16")])
def test_the_backward_kernels_for_few_keys_compile_without_spills(
    architecture: str, dtype: str, compiler: Compiler, cache: Cache
) -> None:
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    entries = [entry for entry in every_small_kernel(chip) if entry.dtype == dtype and entry.shape.groups == 4]
    built = build_one(entries[-1], Target(architecture), compiler, cache)
    assert built.resources is not None
    assert built.resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("architecture", "sizes"), [("sm_80", (64, 128)), ("sm_89", (64,)), ("sm_90a", (64,)), ("sm_120", (64, 128))]
)
def test_the_backward_kernels_with_five_products_compile_without_spills(
    architecture: str, sizes: tuple[int, ...], compiler: Compiler, cache: Cache
) -> None:
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    entries = [SummingKernel("bfloat16", size, shapes_of(size, chip)[0]) for size in sizes]
    for built in build_all(entries, Target(architecture), compiler, cache, 2):
        assert built.resources is not None
        assert built.resources.spill_bytes == 0


def test_turings_backward_kernels_with_five_products_compile_without_spills(compiler: Compiler, cache: Cache) -> None:
    entries = [SummingKernel("float16", size, shape) for size, shapes in TURING_SHAPES.items() for shape in shapes]
    for built in build_all(entries, Target("sm_75"), compiler, cache, 2):
        assert built.resources is not None
        assert built.resources.spill_bytes == 0


def test_a_scalar_and_the_joining_kernel_compile_without_spills(compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(75)
    assert chip is not None
    entries = [entry for entry in kernel_table(chip) if isinstance(entry, Combine) or not entry.vector][:2]
    assert all(built.resources for built in build_all(entries, Target("sm_75"), compiler, cache, 2))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80"])
def test_the_machine_code_multiplies_on_tensor_cores_and_keeps_to_registers(
    architecture: str, compiler: Compiler, cache: Cache, tmp_path: Path
) -> None:
    tool = disassembler()
    if tool is None:
        pytest.skip("no nvdisasm to read the machine code with")
    kernel = sample(architecture)
    built: Built = build_one(kernel, Target(architecture), compiler, cache)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(built.image)
    code = subprocess.run([tool, "-c", str(cubin)], capture_output=True, text=True, timeout=600, check=True).stdout
    assert len(re.findall(r"\bHMMA\.", code)) >= 64
    assert re.search(r"\bLDSM\.", code)
    assert not re.search(r"\b(LDL|STL)\b", code)
    assert bool(re.search(r"\bLDGSTS\.", code)) == (architecture != "sm_75")


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90a"])
def test_what_is_asked_here_is_asked_of_what_is_shipped(
    architecture: str, compiler: Compiler, cache: Cache, tmp_path: Path
) -> None:
    if not isinstance(compiler, Lean):
        pytest.skip("this compiler has no headers of its own to do without")
    entry = HopperBackwardKernel("bfloat16", 64, True) if architecture == "sm_90a" else sample(architecture)
    target = Target(architecture)
    plain = build_one(entry, target, compiler.inner, Cache(tmp_path))
    assert plain.image == build_one(entry, target, compiler, cache).image


def test_ptx_for_a_driver_to_translate_is_made_too(compiler: Compiler, cache: Cache) -> None:
    built = build_one(Combine("float16"), Target("compute_75"), compiler, cache)
    assert b".target sm_75" in built.image
    assert built.image.endswith(b"\0")
    assert built.resources is None


def test_bfloat16_does_not_compile_for_turing(compiler: Compiler, cache: Cache) -> None:
    with pytest.raises(BuildFailed, match="could not compile the source"):
        build_one(Combine("bfloat16"), Target("sm_75"), compiler, cache)


@pytest.mark.skipif(
    not os.environ.get("COMPILE_ALL_KERNELS"), reason="takes a minute: set COMPILE_ALL_KERNELS=1 to run it"
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_shipped_kernel_passes_its_gates(architecture: str, compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    entries = list(kernel_table(chip))
    assert len(build_all(entries, Target(architecture), compiler, cache)) == len(entries)


@pytest.mark.skipif(
    not os.environ.get("COMPILE_ALL_KERNELS"), reason="takes a minute: set COMPILE_ALL_KERNELS=1 to run it"
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_made_on_demand_passes_its_gates(architecture: str, compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    entries = [*general.every_kernel(chip), *decode.every_kernel(chip), *every_backward_kernel(chip)]
    entries += [*every_small_kernel(chip), *every_ampere_kernel(chip), *every_turing_kernel(chip)]
    entries += [*general.every_shaped_kernel(chip), *every_shaped_backward_kernel(chip)]
    assert len(build_all(entries, Target(architecture), compiler, cache)) == len(entries)
    few = list(every_few_kernel()) if architecture == "sm_90" else []
    assert len(build_all(few, Target("sm_90a"), compiler, cache)) == len(few)
