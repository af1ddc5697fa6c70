"""The source compiles for the chips people have, without spills, to the instructions it was written for. Needs no GPU.

A kernel is compiled here if it would spill with 16 registers fewer (docs/measured.md), or if no other kernel of its kind
is. All others are compiled by COMPILE_ALL_KERNELS, and pass the same gates wherever they are built.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from kernels.attention.cuda.backward.ampere import SummingKernel, shapes_of
from kernels.attention.cuda.backward.few import FewBackwardKernel
from kernels.attention.cuda.backward.kernels import (
    HopperBackwardKernel,
    dropping_pair_kernel,
    every_backward_kernel,
    every_dropping_backward_kernel,
    every_shaped_backward_kernel,
    pair_kernel,
)
from kernels.attention.cuda.backward.turing import SHAPES as TURING_SHAPES
from kernels.attention.cuda.backward.wide import WideBackwardKernel
from kernels.attention.cuda.compile.build import Built, Cache, build_all, build_one
from kernels.attention.cuda.compile.compiler import Compiler, Target, find_compiler
from kernels.attention.cuda.plan.variants import CHIPS, Chip, Combine, Entry, Kernel, chip_of, kernel_table
from kernels.attention.cuda.ways import decode, general
from kernels.attention.cuda.ways.hopper_kernels import (
    NARROW_SHAPES,
    NARROW_SPLIT_SHAPES,
    PACKED_SHAPES,
    PAGED_SHAPES,
    SPLIT_SHAPES,
    STAGED_SHAPES,
    HopperKernel,
    bias_shapes,
    staged_shapes,
)
from kernels.attention.cuda.ways.small import SmallKernel, in_registers, in_shared
from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape
from kernels.attention.interface import BuildFailed
from tests.kernels.cuda.every_kernel import (
    every_ampere_kernel,
    every_dropping_kernel,
    every_few_kernel,
    every_general_kernel,
    every_shaped_kernel,
    every_small_backward_kernel,
    every_small_forward_kernel,
    every_small_hopper_kernel,
    every_turing_kernel,
    every_wide_kernel,
)
from tests.kernels.cuda.lean import Lean, lean

TURING, AMPERE, ADA, HOPPER = CHIPS
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


def few_keys(chip: Chip, dtype: str) -> Entry:
    return [entry for entry in every_small_backward_kernel(chip) if entry.dtype == dtype and entry.shape.groups == 4][
        -1
    ]


def of_features(chip: Chip, mask: str | None, head_dim: int) -> list[general.GeneralKernel]:
    every = every_general_kernel(chip)
    return [entry for entry in every if entry.vector and (entry.mask, entry.head_dim) == (mask, head_dim)]


def joining(chip: Chip) -> list[Entry]:
    return [entry for entry in kernel_table(chip) if isinstance(entry, Combine) or not entry.vector]


def largest(kernels: Iterable[general.GeneralKernel]) -> Entry:
    return max(kernels, key=lambda entry: (entry.dtype == "bfloat16", entry.tile.rows * entry.tile.keys))


STAGED = HopperKernel("bfloat16", 64, True, False, STAGED_SHAPES[64, False][0], "bfloat16")
BIASES = ((64, True, False, "float32"), (256, False, False, "bfloat16"), (256, True, False, "float32"))
SAMPLES: dict[str, tuple[str, Callable[[], Sequence[Entry]]]] = {
    **{f"large {name}": (name, functools.partial(lambda name: [sample(name)], name)) for name in ARCHITECTURES},
    "decoding on Turing": ("sm_75", lambda: [list(decode.every_kernel(TURING))[1]]),
    "masks and decoding on Ada": ("sm_89", lambda: [of_features(ADA, "float32", 128)[0], list(decode.every_kernel(ADA))[1]]),
    "a mask of the widest shaped scores on Ada": ("sm_89", lambda: [
        pair_kernel(ADA, "float16", 512, keys=False, vector=False, mask="bool", shaped=True)
    ]),
    "features of the widest heads": ("sm_90a", lambda: [largest(of_features(HOPPER, None, 256))]),
    "pages": ("sm_90a", lambda: [
        HopperKernel("bfloat16", 64, True, True, PAGED_SHAPES[64], packed=True, paged=True, ahead=True),
        HopperKernel("bfloat16", 128, True, False, SPLIT_SHAPES[128], split=True),
    ]),
    "pages on Turing": ("sm_75", lambda: of_features(TURING, general.PAGED, 128)[:1]),
    "shaped scores": ("sm_90a", lambda: [
        general.shaped_kernel(HOPPER, "bfloat16", (576, 512), vector=True, mask=None),
        pair_kernel(HOPPER, "bfloat16", 512, keys=True, shaped=True),
    ]),
    "packed with a left limit": ("sm_90a", lambda: [
        HopperKernel("bfloat16", 256, right, True, PACKED_SHAPES[256, right][0], packed=True) for right in (False, True)
    ]),
    "a narrower V": ("sm_90a", lambda: [
        *(HopperKernel("bfloat16", 192, right, False, NARROW_SHAPES[192, 128, right][0], narrow=128) for right in (False, True)),
        *(
            HopperKernel("bfloat16", 192, right, True, NARROW_SHAPES[192, 128, right][0], packed=True, narrow=128)
            for right in (False, True)
        ),
        HopperKernel("bfloat16", 192, True, False, NARROW_SPLIT_SHAPES[192], split=True, narrow=128),
    ]),
    "staged masks": ("sm_90a", lambda: [
        STAGED,
        HopperKernel("bfloat16", 64, True, False, STAGED_SHAPES[64, True][0], "float32"),
        HopperKernel("float16", 64, False, True, STAGED.shape, "float16"),
        *(HopperKernel("bfloat16", 256, True, True, staged_shapes(256, mask)[0], mask) for mask in ("bool", "float32")),
    ]),
    "masks of one row": ("sm_90a", lambda: [
        HopperKernel("bfloat16", head_dim, right, left, bias_shapes(head_dim, right, left)[0], mask)
        for head_dim, right, left, mask in (*BIASES, (256, True, True, "float32"))
    ]),
    "backward on Turing": ("sm_75", lambda: [
        pair_kernel(TURING, "float16", 128, keys=True),
        *(SummingKernel("float16", size, shape) for size, shapes in TURING_SHAPES.items() for shape in shapes),
    ]),
    "backward": ("sm_90a", lambda: [
        *(HopperBackwardKernel("bfloat16", head_dim, True) for head_dim in (64, 128)),
        HopperBackwardKernel("bfloat16", 128, True, window=True),
        FewBackwardKernel("bfloat16", 128, 128, True), WideBackwardKernel("bfloat16", 256, 256), few_keys(HOPPER, "bfloat16"), five_products(HOPPER, 64),
    ]),
    "dropout": ("sm_90a", lambda: [
        dropping_pair_kernel(pair_kernel(HOPPER, "bfloat16", 128, keys=True)),
        general.dropping_kernel(
            general.shaped_kernel(HOPPER, "bfloat16", (128, 128), vector=True, mask="float32"), shaping=False
        ),
    ]),
    "gradients of two widths": ("sm_90a", lambda: [
        SummingKernel("bfloat16", 256, shapes_of(256, HOPPER)[0], 128),
        SummingKernel("bfloat16", 128, shapes_of(128, HOPPER)[0], 64),
    ]),
    "backward on Ampere": ("sm_80", lambda: [
        few_keys(AMPERE, "float16"), five_products(AMPERE, 64), five_products(AMPERE, 128)
    ]),
    "backward on Ada": ("sm_89", lambda: [five_products(ADA, 64)]),
    "backward on a later chip": ("sm_120", lambda: [five_products(ADA, 64), five_products(ADA, 128)]),
    "a scalar and the joining kernel": ("sm_75", lambda: joining(TURING)[:2]),
    "few keys on Ampere": ("sm_80", lambda: [
        SmallKernel("float16", 64, True, in_registers(32, 4, 64)),
        SmallKernel("bfloat16", 128, True, in_registers(16, 4, 32)),
        SmallKernel("bfloat16", 128, True, in_shared(2, 4, 64)),
    ]),
    "few keys on Ada": ("sm_89", lambda: [SmallKernel("bfloat16", 64, True, in_shared(2, 4, 64))]),
    "few keys": ("sm_90a", lambda: [
        SmallKernel("bfloat16", 64, True, in_registers(16, 4, 16), dependent=True),
        GroupKernel("bfloat16", 64, True, GroupShape(1, 2, 128, 4, 4), dependent=True),
        GroupKernel("float16", 64, True, GroupShape(2, 1, 64, 4)),
        GroupKernel("float16", 64, True, GroupShape(1, 2, 128, 4, ahead=False)),
    ]),
}  # fmt: skip
"""By what they stand for: the kernels with the fewest registers to spare, and what they are compiled for."""


def five_products(chip: Chip, size: int) -> Entry:
    return SummingKernel("bfloat16", size, shapes_of(size, chip)[0])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_kernels_with_the_fewest_registers_to_spare_do_not_spill(
    name: str, compiler: Compiler, cache: Cache
) -> None:
    architecture, made = SAMPLES[name]
    entries, target = list(made()), Target(architecture)
    for entry, built in zip(entries, build_all(entries, target, compiler, cache, 2), strict=True):
        assert built.resources is not None
        assert built.resources.spill_bytes == 0
        assert 0 < built.resources.registers <= 255
        if name.startswith(("few keys", "a narrower V")):  # nor is wgmma serialised
            log = cache.path(entry, target, compiler).with_suffix(".json").read_text()
            assert "C75" not in log
            assert "serialized" not in log


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
    not os.environ.get("COMPILE_ALL_KERNELS"), reason="takes minutes: set COMPILE_ALL_KERNELS=1 to run it"
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_passes_its_gates(architecture: str, compiler: Compiler, cache: Cache) -> None:
    chip = chip_of(Target(architecture).capability)
    assert chip is not None
    entries: list[Entry] = [
        *kernel_table(chip),
        *every_general_kernel(chip),
        *decode.every_kernel(chip),
        *every_backward_kernel(chip),
    ]
    entries += [*every_small_backward_kernel(chip), *every_ampere_kernel(chip), *every_turing_kernel(chip)]
    entries += [*every_shaped_kernel(chip), *every_shaped_backward_kernel(chip)]
    entries += [*every_dropping_kernel(chip), *every_dropping_backward_kernel(chip)]
    assert len(build_all(entries, Target(architecture), compiler, cache)) == len(entries)
    entries += [] if architecture == "sm_75" else every_small_forward_kernel(chip)
    few = (
        [*every_few_kernel(), *every_wide_kernel(), *every_small_hopper_kernel(chip)] if architecture == "sm_90" else []
    )
    assert len(build_all(few, Target("sm_90a"), compiler, cache)) == len(few)
