"""Ways for few keys on Hopper: tensor copies bring all K and V of a head into shared memory, warpgroups multiply."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Machine, Problem
from kernels.attention.cuda.plan.variants import C_TYPE
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways import hopper
from kernels.attention.cuda.ways.hopper import map_of
from kernels.attention.cuda.ways.small import (
    MAX_GRID_YZ,
    Entry,
    SmallParameters,
    exchange_bytes,
    parameters_of,
    small_padded_head_dim,
)

GROUP_ROWS, GROUP_THREADS = 64, 128
OWN_PLACE_BYTES = 226 * 1024
"""Up to this many bytes, the exchange between warpgroups gets memory that nothing else uses. Barriers take the rest of
a block's 227 KB."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """How a block works: its warpgroups compute 64 rows, each for every `key_groups`-th of `blocks` blocks of `keys`
    keys.

    `cluster` thread blocks of the same head load K and V together. With `ahead`, a warpgroup holds the scores of two
    blocks of keys at a time; without, of one, and all of K is loaded before V.
    """

    row_groups: int
    key_groups: int
    keys: int
    blocks: int
    cluster: int = 1
    ahead: bool = True

    @property
    def name(self) -> str:
        """The name of the shape, e.g. `w64k2x128b4`: 64 rows, 2 warpgroups for the keys, 4 blocks of 128 keys.

        `c4` stands for clusters of four, `s` for the scores of a single block of keys at a time.
        """
        clusters, single = f"c{self.cluster}" if self.cluster > 1 else "", "" if self.ahead else "s"
        return f"w{self.rows}k{self.key_groups}x{self.keys}b{self.blocks}{clusters}{single}"

    @property
    def rows(self) -> int:
        return self.row_groups * GROUP_ROWS

    @property
    def all_keys(self) -> int:
        return self.keys * self.blocks

    @property
    def threads(self) -> int:
        return self.row_groups * self.key_groups * GROUP_THREADS

    def shared_bytes(self, head_dim: int) -> int:
        """Return the bytes of dynamic shared memory for a padded head dimension."""
        tiles = (self.rows + 2 * self.all_keys) * head_dim * ELEMENT_BYTES
        exchange = 0 if self.key_groups == 1 else exchange_bytes(self.rows, head_dim, self.key_groups)
        return tiles + exchange if tiles + exchange <= OWN_PLACE_BYTES else max(tiles, exchange)


GROUP_NUMBERS: dict[int, tuple[tuple[int, int, int, int, int, bool], ...]] = {
    64: (
        (1, 1, 128, 1, 1, True), (1, 2, 64, 2, 1, True), (1, 2, 128, 2, 1, True), (1, 4, 64, 4, 1, True),
        (1, 2, 64, 4, 1, True), (2, 1, 128, 2, 1, True), (1, 2, 128, 2, 2, True), (1, 2, 128, 2, 4, True),
        (2, 1, 64, 4, 1, True), (2, 1, 64, 4, 2, True), (1, 2, 128, 4, 1, True), (1, 2, 64, 8, 1, True),
        (1, 2, 128, 4, 1, False), (1, 4, 128, 4, 1, True), (1, 2, 128, 4, 2, True), (1, 2, 128, 4, 4, True),
        (1, 2, 128, 4, 8, True), (1, 2, 128, 4, 4, False), (1, 2, 64, 8, 2, True), (1, 2, 64, 8, 4, True),
        (1, 4, 128, 4, 4, True), (2, 1, 64, 8, 1, True), (2, 1, 128, 4, 1, False), (2, 1, 128, 4, 2, False),
        (2, 1, 128, 4, 4, False),
    ),
    128: (
        (1, 1, 128, 1, 1, True), (1, 2, 64, 2, 1, True), (1, 2, 128, 2, 1, True), (1, 2, 64, 4, 1, True),
        (1, 4, 64, 4, 1, True), (2, 1, 64, 4, 1, True), (1, 2, 128, 2, 2, True), (1, 2, 64, 4, 2, True),
        (1, 2, 64, 4, 4, True), (2, 1, 64, 4, 2, True),
    ),
}  # fmt: skip
"""The fields of each shape in their order, by padded head dimension."""
GROUP_SHAPES = {size: tuple(GroupShape(*shape) for shape in shapes) for size, shapes in GROUP_NUMBERS.items()}
"""The same as shapes. Measurements decide between those that fit a problem."""


@dataclass(frozen=True)
class GroupKernel(Entry[GroupShape]):
    """One specialisation of `source/small/warpgroups.cuh`."""

    @property
    def source(self) -> str:
        s = self.shape
        numbers = (self.head_dim, s.row_groups, s.key_groups, s.keys, s.blocks, s.cluster)
        flags = (str(flag).lower() for flag in (s.ahead, self.causal, self.dependent))
        config = ", ".join([C_TYPE[self.dtype], *map(str, numbers), *flags])
        maps = ", ".join(f"const __grid_constant__ TensorMap {name}" for name in "qkv")
        cluster = f" __cluster_dims__({s.cluster}, 1, 1)" if s.cluster > 1 else ""
        return (
            f'#include "small/warpgroups.cuh"\n'
            f'extern "C" __global__ void{cluster} __launch_bounds__({self.threads}, 1)\n'
            f"{self.name}({maps}, const __grid_constant__ SmallParams p) {{\n"
            f"  attention_in_warpgroups<InWarpgroups<{config}>>(q, k, v, p);\n}}\n"
            f'static_assert(sizeof(SmallParams) == {ctypes.sizeof(SmallParameters)}, "parameters differ");\n'
            f'static_assert(sizeof(TensorMap) == {ctypes.sizeof(TensorMap)}, "tensor maps differ");\n'
        )


@dataclass(frozen=True, slots=True)
class SmallHopper:
    """A way: one kernel, with one block for each row tile."""

    kernel: GroupKernel

    @property
    def name(self) -> str:
        """The name of the way, e.g. `small-w64k2x128b4`."""
        return f"small-{self.kernel.shape.name}{'-dependent' if self.kernel.dependent else ''}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the only launch."""
        shape = self.kernel.shape
        parameters = parameters_of(problem, shape.rows, scale)
        parameters.row_tiles = -(-parameters.row_tiles // shape.cluster) * shape.cluster
        parameters.lse = buffers.lse
        q = map_of(problem, "q", GROUP_ROWS)
        k, v = (map_of(problem, name, shape.keys // shape.cluster) for name in "kv")
        grid = (parameters.row_tiles, problem.heads, problem.batch)
        return [Step(self.kernel, grid, (q, k, v, parameters), self.kernel.dependent)]


def group_shape_fits(shape: GroupShape, problem: Problem) -> bool:
    """Return whether a block of this shape reads all keys, more than half of it is busy, and its cluster is full at
    least once."""
    enough = shape.all_keys // 2 < problem.seq_k <= shape.all_keys
    tiles = -(-problem.seq_q // shape.rows)
    return enough and (shape.cluster == 1 or tiles >= shape.cluster)


def small_hopper_ways(problem: Problem, machine: Machine, *, dependent: bool = False) -> list[SmallHopper]:
    """Return every way of this kind that computes a problem; there may be none."""
    size = small_padded_head_dim(problem.head_dim)
    if (
        size is None
        or hopper.hopper_refusal(problem, machine) is not None
        or max(problem.heads, problem.batch) > MAX_GRID_YZ
        or problem.seq_k > max(shape.all_keys for shape in GROUP_SHAPES[size])
    ):
        return []
    return [
        SmallHopper(GroupKernel(problem.dtype, size, problem.causal, shape, dependent))
        for shape in GROUP_SHAPES[size]
        if group_shape_fits(shape, problem)
    ]
