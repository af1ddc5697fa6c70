"""The backward pass for Hopper and head dimensions over 128: two blocks of a cluster share each tile of keys."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention.cuda.backward.ampere import AmpereConvertKernel, steps_around_sums
from kernels.attention.cuda.backward.kernels import HOPPER_KEYS, MAPS, mapped_entry_point
from kernels.attention.cuda.backward.plan import (
    WIDEST,
    BackwardProblem,
    heads_of_section,
    is_small,
    map_of,
    windowless_refusal,
)
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Machine
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT
from kernels.attention.cuda.run.launching import Buffers, Step

WIDTHS = (192, 256)
"""The padded widths of K."""
VALUE_WIDTHS = (128, 192, 256)
"""The padded widths of V."""
QUERIES = 64
"""The queries of a tile, and the keys that each block of a cluster keeps."""
MOST_DOUBLED = 384
"""The widths of K and V, added up, to which there is room for two tiles of dO."""
TILE_BYTES = QUERIES * QUERIES * ELEMENT_BYTES
"""64 rows of 64 columns."""


@dataclass(frozen=True, slots=True)
class WideBackwardKernel:
    """A specialisation of `source/backward/wide.cuh`, by the padded widths of K and of V."""

    dtype: str
    head_dim: int
    value_dim: int

    threads = 384

    @property
    def name(self) -> str:
        """E.g. `backward_wide90_bf16_d192v128`."""
        return f"backward_wide90_{SHORT[self.dtype]}_d{self.head_dim}v{self.value_dim}"

    @property
    def shared_bytes(self) -> int:
        columns, values = self.head_dim // QUERIES, self.value_dim // QUERIES
        douts = 1 if self.head_dim + self.value_dim > MOST_DOUBLED else 2
        tiles = columns + 2 + values + 2 * columns + douts * values + 2 * 2
        weights, numbers, waits = QUERIES * QUERIES * 4, 4 * QUERIES * 4, 15 * 8
        return tiles * TILE_BYTES + weights + numbers + waits

    @property
    def source(self) -> str:
        config = f"BackwardWide<{C_TYPE[self.dtype]}, {self.head_dim}, {self.value_dim}>"
        return mapped_entry_point("wide", self.name, self.threads, MAPS, config, self.shared_bytes, 2)


@dataclass(frozen=True, slots=True)
class WideBackward:
    """One pass over keys by clusters of two blocks, with dQ summed in float32: its last bits may differ from run to
    run."""

    machine: Machine

    name = "backward-wide90"
    same_bits = False

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The three launches: the numbers of rows and zeros; the main kernel; dQ from its sums. Raises
        `Unsupported`."""
        f, key_tiles = problem.forward, -(-problem.forward.seq_k // HOPPER_KEYS)
        size, width = least_width(f.head_dim, WIDTHS), least_width(f.width, VALUE_WIDTHS)
        heads = heads_of_section(problem, self.machine, HOPPER_KEYS)
        convert = AmpereConvertKernel(f.dtype, size, QUERIES, size // 32)
        prepare, main, end = steps_around_sums(problem, buffers, key_tiles, heads, convert)
        main.tiles = Divisor.of(key_tiles)
        maps = [map_of(problem, name, QUERIES) for name in MAPS]
        dependent = is_small(problem, self.machine, HOPPER_KEYS)
        kernel = WideBackwardKernel(f.dtype, size, width)
        return [prepare, Step(kernel, (2 * main.items, 1, 1), (*maps, main), dependent), end]


def least_width(width: int, widths: tuple[int, ...]) -> int:
    """The least of the widths that is not smaller."""
    return next(wide for wide in widths if wide >= width)


def wide_ways(problem: BackwardProblem, machine: Machine) -> list[WideBackward]:
    """This way, where it computes the problem."""
    f = problem.forward
    shaped = f.shapes_scores or f.dropout is not None
    if shaped or f.head_dim <= WIDEST or windowless_refusal(problem, machine, WIDTHS[-1]) is not None:
        return []
    return [WideBackward(machine)]
