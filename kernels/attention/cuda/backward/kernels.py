"""The kernels of the backward pass, and their parameters."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kernels.attention.cuda.plan.parameters import DROPOUT_FIELDS, Divisor
from kernels.attention.cuda.plan.variants import C_TYPE, PADDED_HEAD_DIMS, SHORT, WIDE_HEAD_DIMS, Chip
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.ways.general import MASK_SHORT, MASK_TYPES

HOPPER_KEYS = 128
HOPPER_QUERIES = {64: 128, 128: 64}
"""How many queries the Hopper kernel takes at a time, by padded head dimension."""
SUMS_OF_BLOCK = 64 * 128
"""How many floats of dQ a block adds at a time."""
SHARES_OF_BLOCK = 2
"""In so many shares, one for each warpgroup."""


class Order(StrEnum):
    """The order in which Hopper's kernel adds up dQ; the value follows in the names of ways and kernels."""

    ANY = ""
    """As the blocks come: dQ's last bits may differ from run to run."""
    KEYS = "ordered"
    """In the order of the keys."""
    CYCLIC = "cyclic"
    """Each tile of keys starts at a different tile of queries and goes round, so that all can start at once. All tiles
    of a head must run at the same time."""


C_ORDER = {Order.ANY: "ANY_ORDER", Order.KEYS: "ORDER_OF_KEYS", Order.CYCLIC: "CYCLIC_ORDER"}


class Strides(ctypes.Structure):
    """`Strides` of `source/backward/problem.cuh`: in bytes."""

    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "head", "row")]


POINTERS = (
    *("q", "k", "v", "out", "dout", "dq", "dk", "dv", "lse", "dlse", "shift", "delta", "sums", "progress"),
    *("counter", "q_starts", "k_starts", "mask", "slopes", "sinks", "dsinks"),
)
PACK_POINTERS = struct.Struct(f"={len(POINTERS)}Q").pack_into
PLACES = ("q", "k", "v", "out", "dout", "dq", "dk", "dv", "mask")


class BackwardParameters(ctypes.Structure):
    """`BackwardParams` of `source/backward/problem.cuh`, field for field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((f"at_{name}", Strides) for name in PLACES),
        ("mask_key", ctypes.c_int64),
        *((name, Divisor) for name in ("heads", "kv_heads", "group", "tiles", "section", "section_tiles", "stat_rows")),
        *((name, ctypes.c_int32) for name in ("all_heads", "all_kv_heads", "items", "seq_q", "seq_k", "head_dim")),
        *((name, ctypes.c_int32) for name in ("query_tiles", "above", "below", "align_ends")),
        *((name, ctypes.c_float) for name in ("scale", "scale_log2")),
        ("slopes_batch", ctypes.c_int64),
        ("cap", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("value_dim", "level", "part_bits")),
    ]


class DroppingBackwardParameters(BackwardParameters):
    """`DroppingBackwardParams` of `source/backward/pair.cuh`."""

    _fields_ = DROPOUT_FIELDS


def entry_point(header: str, name: str, threads: int, call: str, *, blocks: int = 1, drops: bool = False) -> str:
    """A translation unit with one kernel, which refuses to compile if the two sides disagree about the parameters.
    `blocks`: how many of them an SM is to have registers for at least. `drops`: the parameters are those with
    dropout."""
    kind, size = ("BackwardParams", BackwardParameters)
    if drops:
        kind, size = ("DroppingBackwardParams", DroppingBackwardParameters)
    return (
        f'#include "backward/{header}.cuh"\n'
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks})\n'
        f"{name}(const __grid_constant__ {kind} p) {{\n  {call}(p);\n}}\n"
        f'static_assert(sizeof({kind}) == {ctypes.sizeof(size)}, "parameters differ");\n'
    )


def mapped_entry_point(
    header: str, name: str, threads: int, maps: Sequence[str], config: str, shared_bytes: int, cluster: int = 0
) -> str:
    """The same for a kernel with tensor maps, which calls `backward_HEADER`, in clusters of so many blocks if not 0. It
    refuses to compile if it needs other shared memory than the host requests."""
    given = ", ".join(f"const __grid_constant__ TensorMap {one}" for one in maps)
    clusters = f"__cluster_dims__({cluster}, 1, 1) " if cluster else ""
    return (
        f'#include "backward/{header}.cuh"\n'
        f'extern "C" __global__ void {clusters}__launch_bounds__({threads}, 1)\n'
        f"{name}({given}, const __grid_constant__ BackwardParams p) {{\n"
        f"  backward_{header}<{config}>({', '.join(maps)}, p);\n}}\n"
        f'static_assert({config}::BYTES == {shared_bytes}, "shared memory differs");\n'
        f'static_assert(sizeof(BackwardParams) == {ctypes.sizeof(BackwardParameters)}, "parameters differ");\n'
        f'static_assert(sizeof(TensorMap) == {ctypes.sizeof(TensorMap)}, "tensor maps differ");\n'
    )


def cpp_flag(value: bool) -> str:
    return str(value).lower()


@dataclass(frozen=True, slots=True)
class PrepareKernel:
    """A specialisation of `source/backward/prepare.cuh`; `turned` for what Hopper's kernel reads, `keeps_sums` where
    that one needs none that are zero."""

    dtype: str
    head_dim: int
    vector: bool
    turned: bool
    keeps_sums: bool = False

    threads = 256
    shared_bytes = 0

    @property
    def name(self) -> str:
        kind = "turned" if self.turned else "vector" if self.vector else "scalar"
        kind += "_keeps" if self.keeps_sums else ""
        return f"backward_prepare_{SHORT[self.dtype]}_d{self.head_dim}_{kind}"

    @property
    def rows(self) -> int:
        """The rows of Q for a block."""
        return self.threads // self.lanes

    @property
    def lanes(self) -> int:
        """The lanes that process a row: at most a warp, which takes wider rows in two steps."""
        return min(32, self.head_dim // 8)

    @property
    def source(self) -> str:
        flags = ", ".join(map(cpp_flag, (self.vector, self.turned, self.keeps_sums)))
        config = f"{C_TYPE[self.dtype]}, {self.lanes}, {flags}"
        return entry_point("prepare", self.name, self.threads, f"backward_prepare<Prepare<{config}>>")


@dataclass(frozen=True, slots=True)
class PairKernel:
    """A specialisation of `source/backward/pair.cuh`. `keys`: it keeps keys, for dK and dV; else queries, for dQ."""

    dtype: str
    head_dim: int
    keys: bool
    vector: bool
    mask: str | None
    rows: int
    columns: int
    out_columns: int
    shaped: bool = False
    bias: bool = False
    """It computes the gradient of the mask instead."""
    drops: bool = False
    """It has dropout."""

    def of_bias(self) -> PairKernel:
        """Return the kernel with this tile for the gradient of the mask, which has fewer registers for wide rows that
        are read element by element, or with dropout."""
        wide = self.head_dim >= 256 and (self.drops or not self.vector)
        return replace(self, bias=True, columns=min(self.columns, 16) if wide else self.columns)

    @property
    def name(self) -> str:
        """E.g. `backward_keys_bf16_d128_free_vector_64x16o128`: 64 rows, 16 columns; results of 128 columns a block."""
        what = "bias" if self.bias else "keys" if self.keys else "queries"
        kind = "vector" if self.vector else "scalar"
        kind += ("_shaped" if self.shaped else "") + ("_drops" if self.drops else "")
        mask, tile = MASK_SHORT[self.mask], f"{self.rows}x{self.columns}o{self.out_columns}"
        return f"backward_{what}_{SHORT[self.dtype]}_d{self.head_dim}_{mask}_{kind}_{tile}"

    @property
    def threads(self) -> int:
        return self.rows * 2

    @property
    def shared_bytes(self) -> int:
        return 2 * (self.rows + self.columns) * self.head_dim * 2

    @property
    def source(self) -> str:
        numbers = f"{self.head_dim}, {self.rows}, {self.columns}, {self.out_columns}, {cpp_flag(self.vector)}"
        config = (
            f"{C_TYPE[self.dtype]}, {numbers}, {MASK_TYPES[self.mask]}, {cpp_flag(self.keys)}, {cpp_flag(self.shaped)}"
        )
        config += f", {cpp_flag(self.bias)}, true" if self.drops else ", true" if self.bias else ""
        function = "backward_bias" if self.bias else "backward_pair"
        return entry_point("pair", self.name, self.threads, f"{function}<BackwardPair<{config}>>", drops=self.drops)


@dataclass(frozen=True, slots=True)
class SinksBackwardKernel:
    """The kernel for the gradient of sinks: a block for each head of Q. `head_dim` is that of V, padded."""

    dtype: str
    head_dim: int
    vector: bool

    threads = 1024
    shared_bytes = 128

    @property
    def name(self) -> str:
        return f"backward_sinks_{SHORT[self.dtype]}_d{self.head_dim}_{'vector' if self.vector else 'scalar'}"

    @property
    def source(self) -> str:
        config = f"{C_TYPE[self.dtype]}, {self.head_dim}, {cpp_flag(self.vector)}"
        return entry_point("prepare", self.name, self.threads, f"backward_sinks<Sinks<{config}>>")


MAPS = ("q", "k", "v", "dout")
"""The tensors that Hopper's kernels of three launches copy by tensor maps."""


@dataclass(frozen=True, slots=True)
class HopperBackwardKernel:
    """A specialisation of `source/backward/hopper.cuh`. Except in any order, dQ has the same bits in every run."""

    dtype: str
    head_dim: int
    causal: bool
    order: Order = Order.ANY
    parts: bool = False
    """It takes the heads of a group in parts."""
    window: bool = False
    """Queries see no keys before a window; then it is causal too."""

    threads = 384

    @property
    def name(self) -> str:
        mask = "window" if self.window else "causal" if self.causal else "full"
        tile = f"{self.queries}x{HOPPER_KEYS}{self.order and f'_{self.order}'}{'_parts' if self.parts else ''}"
        return f"backward90_{SHORT[self.dtype]}_d{self.head_dim}_{mask}_{tile}"

    @property
    def queries(self) -> int:
        """The queries of a tile."""
        return HOPPER_QUERIES[self.head_dim]

    @property
    def shared_bytes(self) -> int:
        kept, passing = 2 * HOPPER_KEYS * self.head_dim * 2, 4 * self.queries * self.head_dim * 2
        return kept + passing + 2 * self.queries * HOPPER_KEYS * 2 + SUMS_OF_BLOCK * 4 + 4 * self.queries * 4

    @property
    def source(self) -> str:
        flags = f"{cpp_flag(self.causal)}, {C_ORDER[self.order]}{', true' if self.parts else ''}"
        config = f"Backward<{C_TYPE[self.dtype]}, {self.head_dim}, {self.queries}, {flags}>"
        config = f"Windowed<{config}>" if self.window else config
        return mapped_entry_point("hopper", self.name, self.threads, MAPS, config, self.shared_bytes)


@dataclass(frozen=True, slots=True)
class ConvertKernel:
    """A specialisation of `source/backward/convert.cuh`; `ordered` for sums that are made in an order, `window` for
    those of queries that see no keys before a window."""

    dtype: str
    head_dim: int
    ordered: bool = False
    window: bool = False

    threads = 256
    shared_bytes = 0

    @property
    def name(self) -> str:
        kind = f"{'_ordered' if self.ordered else ''}{'_window' if self.window else ''}"
        return f"backward_convert_{SHORT[self.dtype]}_d{self.head_dim}{kind}"

    @property
    def source(self) -> str:
        flags = f"{cpp_flag(self.ordered)}{', true' if self.window else ''}"
        config = f"{C_TYPE[self.dtype]}, {self.head_dim}, {HOPPER_QUERIES[self.head_dim]}, {flags}"
        return entry_point("convert", self.name, self.threads, f"backward_convert<Convert<{config}>>")


def pair_kernel(
    chip: Chip,
    dtype: str,
    head_dim: int,
    *,
    keys: bool,
    vector: bool = True,
    mask: str | None = None,
    shaped: bool = False,
) -> PairKernel:
    """The kernel of a chip for a padded head dimension, with tiles that fit its registers and its shared memory."""
    turing = chip.name == "turing"
    tight = turing or mask is not None or not vector or shaped
    rows = 32 if (turing and head_dim == 256) or (chip.name == "ada" and head_dim > 256) else 64
    columns = (32 if tight else 64) if head_dim == 64 else 16 if keys or head_dim > 256 else 32
    narrow = (turing and head_dim == 256) or (chip.name == "ada" and head_dim > 256 and not vector)
    out = min(head_dim, 64 if (tight and keys) or narrow else 128)
    return PairKernel(dtype, head_dim, keys, vector, mask, rows, columns, out, shaped)


def dropping_pair_kernel(kernel: PairKernel) -> PairKernel:
    """The kernel with dropout, which has fewer registers for heads of 256: for the results of a block of 64 rows, and
    for the columns of one of 32, which Turing has."""
    out_columns, columns = kernel.out_columns, kernel.columns
    if kernel.head_dim == PADDED_HEAD_DIMS[-1] and not kernel.shaped:
        out_columns = min(out_columns, 64) if kernel.keys else out_columns
        columns = min(columns, 16) if kernel.rows == 32 else columns
    return replace(kernel, drops=True, out_columns=out_columns, columns=columns)


def every_backward_kernel(chip: Chip) -> Iterator[PairKernel | PrepareKernel]:
    """All kernels that a plan can choose on a chip, without those that only Hopper has."""
    for dtype, size, vector in itertools.product(chip.dtypes, PADDED_HEAD_DIMS, (True, False)):
        yield PrepareKernel(dtype, size, vector, False)
        for keys, mask in itertools.product((True, False), (None, "bool", dtype, "float32")):
            kernel = pair_kernel(chip, dtype, size, keys=keys, vector=vector, mask=mask)
            yield kernel
            if not keys and mask in (dtype, "float32"):
                yield kernel.of_bias()


def every_shaped_backward_kernel(chip: Chip) -> Iterator[PairKernel | SinksBackwardKernel]:
    """The kernels for shaped scores that fit a chip."""
    for dtype, vector in itertools.product(chip.dtypes, (True, False)):
        yield from (SinksBackwardKernel(dtype, size, vector) for size in WIDE_HEAD_DIMS[:-1])
        for size, keys, mask in itertools.product(WIDE_HEAD_DIMS[:-1], (True, False), (None, "bool", dtype, "float32")):
            kernel = pair_kernel(chip, dtype, size, keys=keys, vector=vector, mask=mask, shaped=True)
            if kernel.shared_bytes <= chip.shared_bytes_per_block:
                yield kernel
                if not keys and mask in (dtype, "float32"):
                    yield kernel.of_bias()


def has_bias_with_dropout(kernel: PairKernel) -> bool:
    """Whether a thread has registers for the gradient of the mask with dropout: not for the widest heads read element
    by element."""
    return kernel.vector or kernel.head_dim <= PADDED_HEAD_DIMS[-1]


def every_dropping_backward_kernel(chip: Chip) -> Iterator[PairKernel]:
    """The kernels with dropout that fit a chip."""
    kernels = [kernel for kernel in every_shaped_backward_kernel(chip) if isinstance(kernel, PairKernel)]
    for of, shaped in itertools.product(kernels, (True, False)):
        if of.bias or (not shaped and of.head_dim > PADDED_HEAD_DIMS[-1]):
            continue
        kinds = {"keys": of.keys, "vector": of.vector, "shaped": shaped}
        kernel = dropping_pair_kernel(pair_kernel(chip, of.dtype, of.head_dim, mask=of.mask, **kinds))
        yield kernel
        if not kernel.keys and kernel.mask in (kernel.dtype, "float32") and has_bias_with_dropout(kernel):
            yield kernel.of_bias()


def every_hopper_kernel() -> Iterator[HopperBackwardKernel | PrepareKernel | ConvertKernel]:
    """The kernels that only Hopper has."""
    for dtype, size in itertools.product(C_TYPE, HOPPER_QUERIES):
        yield PrepareKernel(dtype, size, True, True)
        yield PrepareKernel(dtype, size, True, True, keeps_sums=True)
        yield from (ConvertKernel(dtype, size, *flags) for flags in itertools.product((False, True), repeat=2))
        for causal, order in itertools.product((False, True), Order):
            if not (causal and order is Order.CYCLIC):
                yield HopperBackwardKernel(dtype, size, causal, order)
        for causal in (False, True):
            yield HopperBackwardKernel(dtype, size, causal, parts=True)
        for order, parts in ((Order.ANY, False), (Order.KEYS, False), (Order.ANY, True)):
            yield HopperBackwardKernel(dtype, size, True, order, parts, window=True)
