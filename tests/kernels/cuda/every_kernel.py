"""Every kernel that the plans of a module can choose: what tests compile, and hold plans against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from kernels.attention.cuda.backward import ampere, few, turing, wide
from kernels.attention.cuda.backward import small as backward_small
from kernels.attention.cuda.backward.ampere import AmpereConvertKernel, SummingKernel
from kernels.attention.cuda.backward.few import FewBackwardKernel
from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.backward.small import SmallBackwardKernel
from kernels.attention.cuda.backward.wide import WideBackwardKernel
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.variants import C_TYPE, PADDED_HEAD_DIMS, Chip
from kernels.attention.cuda.ways import small, small_hopper
from kernels.attention.cuda.ways.general import (
    NARROW_256,
    PAGED,
    WIDE_64,
    GeneralKernel,
    base_tile,
    dropping_kernel,
    has_room,
    shaped_kernel,
)
from kernels.attention.cuda.ways.small import SmallKernel
from kernels.attention.cuda.ways.small_hopper import GroupKernel


def every_ampere_kernel(chip: Chip) -> Iterator[SummingKernel | AmpereConvertKernel]:
    """All kernels that a plan can choose on a chip, without the preparing kernels, which Hopper has too."""
    if chip.name == "turing":
        return
    for dtype, size in itertools.product(chip.dtypes, ampere.SHAPES):
        yield from ampere.kernels_of(dtype, size, ampere.shapes_of(size, chip))
        values = [value_dim for value_dim in ampere.SHAPES if value_dim <= size]
        pairs = itertools.product(ampere.shapes_of(size, chip), values)
        yield from (SummingKernel(dtype, size, shape, value_dim) for shape, value_dim in pairs)


def every_few_kernel() -> Iterator[FewBackwardKernel]:
    """All kernels that a plan can choose on Hopper."""
    for dtype, size, rows, causal in itertools.product(C_TYPE, (64, 128), few.ROWS, (False, True)):
        yield FewBackwardKernel(dtype, size, rows, causal)


def every_small_backward_kernel(chip: Chip) -> Iterator[SmallBackwardKernel]:
    """All kernels that a plan can choose on a chip."""
    for dtype in chip.dtypes:
        for size, shapes in backward_small.SHAPES.items():
            for shape in shapes:
                stages = shape.stages(size, chip)
                if stages > 1 and chip.name != "turing":
                    yield SmallBackwardKernel(dtype, size, shape, stages)


def every_turing_kernel(chip: Chip) -> Iterator[PrepareKernel | SummingKernel | AmpereConvertKernel]:
    """All kernels that a plan can choose on a chip."""
    if chip.name != "turing":
        return
    for dtype, size in itertools.product(chip.dtypes, turing.SHAPES):
        yield PrepareKernel(dtype, size, True, True)
        yield from ampere.kernels_of(dtype, size, turing.SHAPES[size])


def every_wide_kernel() -> Iterator[WideBackwardKernel | AmpereConvertKernel]:
    """All kernels that a plan can choose, without those that others have too."""
    for dtype, size in itertools.product(C_TYPE, wide.WIDTHS):
        yield from (WideBackwardKernel(dtype, size, width) for width in wide.VALUE_WIDTHS)
        if size not in ampere.SHAPES:
            yield AmpereConvertKernel(dtype, size, wide.QUERIES, size // 32)


def every_shaped_kernel(chip: Chip) -> Iterator[GeneralKernel]:
    """The kernels that shape scores, without masks and with each kind, for the usual widths that fit the chip."""
    pairs = ((64, 64), (128, 128), (256, 256), (192, 128), (512, 512), (576, 512))
    for dtype, dims, vector in itertools.product(chip.dtypes, pairs, (True, False)):
        for mask in (None, "bool", dtype, "float32", PAGED):
            with suppress(Unsupported):
                yield shaped_kernel(chip, dtype, dims, vector=vector, mask=mask)


def every_dropping_kernel(chip: Chip) -> Iterator[GeneralKernel]:
    """The kernels with dropout, for the usual widths that fit the chip."""
    kernels = [kernel for kernel in every_shaped_kernel(chip) if kernel.mask != PAGED]
    pairs = itertools.product(kernels, (True, False))
    yield from dict.fromkeys(dropping_kernel(kernel, shaping=shaping) for kernel, shaping in pairs)


def every_general_kernel(chip: Chip) -> Iterator[GeneralKernel]:
    """All kernels that a plan can choose on a chip."""
    for dtype, size, vector in itertools.product(chip.dtypes, PADDED_HEAD_DIMS, (True, False)):
        unmasked = base_tile(chip, size, vector=vector, masked=False)
        narrow = size == 256 and unmasked.keys > NARROW_256.keys
        for mask in (None, "bool", dtype, "float32"):
            yield GeneralKernel(
                dtype, size, vector, mask, base_tile(chip, size, vector=vector, masked=mask is not None)
            )
        yield GeneralKernel(dtype, size, vector, PAGED, NARROW_256 if narrow else unmasked)
        if narrow:
            yield GeneralKernel(dtype, size, vector, None, NARROW_256)
        if has_room(chip, size, vector=vector, masked=False):
            yield GeneralKernel(dtype, size, vector, None, WIDE_64)
            yield GeneralKernel(dtype, size, vector, PAGED, WIDE_64)


def every_small_forward_kernel(chip: Chip) -> Iterator[SmallKernel]:
    """Every kernel of a chip that is not dependent."""
    if min(chip.capabilities) < 80:
        return
    for dtype in chip.dtypes:
        for size, shapes in small.SHAPES.items():
            for shape in shapes:
                if shape.shared_bytes(size) <= chip.shared_bytes_per_block:
                    for causal in (False, True):
                        yield SmallKernel(dtype, size, causal, shape)


def every_small_hopper_kernel(chip: Chip) -> Iterator[GroupKernel]:
    """Every kernel of this kind that is not dependent."""
    for dtype in chip.dtypes:
        for size in small.SHAPES:
            for shape in small_hopper.GROUP_SHAPES[size]:
                for causal in (False, True):
                    yield GroupKernel(dtype, size, causal, shape)
