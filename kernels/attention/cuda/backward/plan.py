"""The backward pass of one call: which kernels, what grids, what memory."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass, fields

from kernels.attention.cuda.backward.kernels import (
    HOPPER_KEYS,
    HOPPER_QUERIES,
    MAPS,
    SHARES_OF_BLOCK,
    SUMS_OF_BLOCK,
    BackwardParameters,
    ConvertKernel,
    DroppingBackwardParameters,
    HopperBackwardKernel,
    Order,
    PairKernel,
    PrepareKernel,
    Strides,
    dropping_pair_kernel,
    has_bias_with_dropout,
    pair_kernel,
)
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import UNLIMITED, Divisor
from kernels.attention.cuda.plan.planning import (
    ELEMENT_BYTES,
    LOG2_E,
    MAX_BLOCKS,
    Layout,
    Machine,
    Problem,
    check_kind,
    visible_keys,
)
from kernels.attention.cuda.plan.variants import padded_head_dim, wide_padded
from kernels.attention.cuda.run.driver import TensorMap, cuda_driver
from kernels.attention.cuda.run.launching import Buffers, Step
from kernels.attention.cuda.ways.hopper import L2_SHARE, maps_describe
from kernels.attention.cuda.ways.hopper_kernels import CHUNK_COLUMNS

MOST_ROWS = 2**31 - 1
MAX_COLUMNS = 65535
"""The second dimension of a grid."""
WIDEST_PAIR = 512
"""The widest head dimension that two passes have tiles for."""
FEW_ROUNDS = 4
"""Tiles of keys for each SM up to which a problem is small: one order goes over all heads, launches overlap."""
CAUSAL_ROWS, CAUSAL_PART, FULL_ROWS, FULL_PART = 2048, 4, 4096, 2
"""In an order, of each head: rows that are to fit the L2 cache, and if it is more, what part of all. Under a causal
mask, and without one: nearly the fastest of one, two and four times the heads that fit whole (H100, 2026-11-23,
`BACKWARD.md`)."""
PARTS = (1, 2, 4, 8)
"""The numbers of parts in which Hopper's kernel may take the heads of a group."""
GROUP_OF_LONG, ROWS_OF_LONG, WIDTH_OF_LONG, PARTS_OF_LONG, PARTS_AT_A_TIME = 4, 2048, 128, 4, 8
"""Under a causal mask groups of so many heads or more, with so many queries and keys or more of this padded head
dimension, are in parts of two heads, at most four parts, and a section has eight parts: the fastest or within 4 % of it
in ten problems of 2,048 to 32,768 queries and keys (H100, 2026-11-28, `BACKWARD.md`)."""
MOST_BYTES_OF_PARTS = 1 << 30
"""For the sums that parts leave, unless a number of parts is asked for: the most in a problem that was measured, 64
heads on 8 with 32,768 keys in four parts."""
WARPS_WITH_SUMS = 8
"""Of a block: each counts by itself which parts of a group have left their sums."""
SUMS_OF_PART = {size: 2 * HOPPER_KEYS * size for size in HOPPER_QUERIES}
"""How many floats of dK and dV a part leaves for each tile of keys, by padded head dimension."""
LONG_ROWS, LONG_SHARE = 4096, 0.5
"""From so many rows on, heads under a causal mask, in any order, are to fit this share of what they otherwise fit
(H200, 2026-11-26, `BACKWARD.md`)."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The layouts of the gradients: that of the output, which is given, and those of Q, K and V, which are written."""

    dout: Layout
    dq: Layout
    dk: Layout
    dv: Layout

    @property
    def is_vector(self) -> bool:
        return all(getattr(self, field.name).is_vector for field in fields(self))


@dataclass(frozen=True, slots=True)
class BackwardProblem:
    """A forward problem, whose `out` is its result, with its gradients. `lse`, `dlse`: addresses; dlse may be 0."""

    forward: Problem
    gradients: Gradients
    scale: float
    lse: int
    dlse: int = 0

    @property
    def is_vector(self) -> bool:
        return self.forward.is_vector and self.gradients.is_vector

    @property
    def heads(self) -> int:
        """The heads of Q over all batches of a tensor; a packed tensor is one batch."""
        return self.forward.heads * (1 if self.forward.lengths else self.forward.batch)

    @property
    def widest(self) -> int:
        """The head dimension of K or V, whichever is greater."""
        return max(self.forward.head_dim, self.forward.width)

    @property
    def rows(self) -> int:
        """The rows of a head in a tensor."""
        return self.forward.lengths.total_q if self.forward.lengths else self.forward.seq_q


WIDEST = max(HOPPER_QUERIES)
PLAIN_LAYOUT = (
    "needs a head dimension that is a multiple of 8 and at most {}, and rows that start on 16-byte boundaries"
)


def windowless_refusal(problem: BackwardProblem, machine: Machine, widest: int = WIDEST) -> str | None:
    """Why a kernel for Hopper that has no windows does not compute the problem; None if it does."""
    if problem.forward.window_offset is not None:
        return "windows with a left limit are not supported"
    return hopper_refusal(problem, machine, widest)


def hopper_refusal(problem: BackwardProblem, machine: Machine, widest: int = WIDEST) -> str | None:
    """Why Hopper's kernel for head dimensions up to `widest` does not compute the problem; None if it does."""
    f, g = problem.forward, problem.gradients
    if not machine.hopper:
        return "needs tensor copies and wgmma, which only code compiled for sm_90a (H100, H200) has"
    if f.mask is not None or f.lengths is not None:
        return "masks and packed sequences are not supported"
    if problem.scale <= 0.0:
        return "the scale must be positive"
    if problem.widest > widest or not problem.is_vector:
        return PLAIN_LAYOUT.format(widest)
    q, kv = (f.batch, f.heads, f.seq_q), (f.batch, f.kv_heads, f.seq_k)
    if not (maps_describe(f.q, q) and maps_describe(f.k, kv) and maps_describe(f.v, kv) and maps_describe(g.dout, q)):
        return "a tensor map cannot describe these strides"
    if problem.heads * (f.seq_q + max(HOPPER_QUERIES.values())) > MOST_ROWS:
        return "too many rows: this kernel counts them in 32 bits"
    return None


def cyclic_refusal(problem: BackwardProblem, machine: Machine) -> str | None:
    """Why Hopper's kernel does not add up dQ in a cyclic order; None if it does."""
    f = problem.forward
    if f.causal:
        return "under a causal mask tiles of keys are not seen by the same queries"
    if not cyclic_blocks(problem, machine):
        return f"a head has more than {machine.sm_count} tiles of {HOPPER_KEYS} keys, one for each SM"
    return windowless_refusal(problem, machine)


def cyclic_blocks(problem: BackwardProblem, machine: Machine) -> int:
    """As many blocks as have an SM, and together keep the keys of whole heads; 0 if one head has more."""
    tiles = max(1, -(-problem.forward.seq_k // HOPPER_KEYS))
    return machine.sm_count // tiles * tiles


def portable_refusal(problem: BackwardProblem, machine: Machine, widest: int = WIDEST) -> str | None:
    """Why kernels of mma.sync with asynchronous copies do not compute the problem; None if these reasons do not
    apply."""
    if machine.chip.name == "turing":
        return "needs asynchronous copies (cp.async), which this chip does not have"
    return plain_refusal(problem, widest)


def plain_refusal(problem: BackwardProblem, widest: int = WIDEST) -> str | None:
    """Why kernels for head dimensions up to `widest` do not compute the problem on any chip; None if these reasons do
    not apply."""
    f = problem.forward
    if f.mask is not None or f.lengths is not None:
        return "masks and packed sequences are not supported"
    if f.shapes_scores or f.dropout:
        return "softcap, slopes and dropout are not supported"
    if problem.widest > widest or not problem.is_vector:
        return PLAIN_LAYOUT.format(widest)
    return None


def parameters_of(problem: BackwardProblem) -> BackwardParameters:
    """The parameters that all kernels share: all but the grids and the memory for the numbers of rows."""
    f, g = problem.forward, problem.gradients
    places = {"q": f.q, "k": f.k, "v": f.v, "out": f.out, "dout": g.dout, "dq": g.dq, "dk": g.dk, "dv": g.dv}
    made = BackwardParameters(
        **{name: layout.address for name, layout in places.items()},
        **{f"at_{name}": layout_strides(layout) for name, layout in places.items()},
        lse=problem.lse,
        dlse=problem.dlse,
        heads=Divisor.of(f.heads),
        kv_heads=Divisor.of(f.kv_heads),
        group=Divisor.of(f.group),
        tiles=Divisor.of(1),
        section=Divisor.of(1),
        section_tiles=Divisor.of(1),
        stat_rows=Divisor.of(1),
        all_heads=problem.heads,
        all_kv_heads=problem.heads // f.group,
        seq_q=problem.rows,
        seq_k=f.seq_k,
        head_dim=f.head_dim,
        above=f.causal_offset if f.causal else UNLIMITED,
        below=-UNLIMITED if f.window_offset is None else f.window_offset,
        scale=problem.scale,
        scale_log2=problem.scale * LOG2_E,
        cap=f.softcap,
        value_dim=f.width,
    )
    if f.slopes:
        made.slopes, made.slopes_batch, made.level = f.slopes.address, f.slopes.batch, f.slopes.level
    if f.lengths:
        made.q_starts, made.k_starts, made.align_ends = f.lengths.q_starts, f.lengths.k_starts, f.lengths.align_ends
    if f.mask:
        made.mask, made.mask_key = f.mask.address, f.mask.key
        made.at_mask = Strides(f.mask.batch, f.mask.head, f.mask.row)
    return made


def with_numbers(problem: BackwardProblem, stat_rows: int, buffers: Buffers) -> BackwardParameters:
    """The parameters, with memory for the numbers of rows."""
    made, size = parameters_of(problem), problem.heads * stat_rows * 4
    made.shift, made.delta, made.stat_rows = buffers.scratch(size), buffers.scratch(size), Divisor.of(stat_rows)
    return made


def layout_strides(layout: Layout) -> Strides:
    return Strides(*(step * ELEMENT_BYTES for step in (layout.batch, layout.head, layout.row)))


def copy_parameters(parameters: BackwardParameters) -> BackwardParameters:
    """A copy of the parameters, for another launch."""
    return BackwardParameters.from_buffer_copy(parameters)


def with_dropout(parameters: BackwardParameters, problem: Problem) -> BackwardParameters:
    """The parameters as the kernels with dropout take them; others as they are."""
    if problem.dropout is None:
        return parameters
    size = ctypes.sizeof(DroppingBackwardParameters)
    made = DroppingBackwardParameters.from_buffer_copy(bytes(parameters).ljust(size, b"\0"))
    made.seed, made.least, made.keep_scale = astuple(problem.dropout)
    return made


def preparing_step(
    kernel: PrepareKernel, problem: BackwardProblem, stat_rows: int, parameters: BackwardParameters
) -> Step:
    blocks = -(-problem.heads * stat_rows // kernel.rows)
    return Step(kernel, (blocks, 1, 1), (parameters,))


@dataclass(frozen=True, slots=True)
class PairBackward:
    """Two passes, one over queries and one over keys: any problem, on any chip; every run gives the same bits."""

    machine: Machine

    name = "backward-pair"
    same_bits = True

    def kernel(self, problem: BackwardProblem, *, keys: bool) -> PairKernel:
        f = problem.forward
        mask, chip = f.mask.dtype if f.mask else None, self.machine.chip
        size = wide_padded(problem.widest)
        kinds = {"keys": keys, "vector": problem.is_vector, "shaped": f.needs_shaping}
        kernel = pair_kernel(chip, f.dtype, size, mask=mask, **kinds)
        kernel = dropping_pair_kernel(kernel) if f.dropout is not None else kernel
        if size > WIDEST_PAIR or kernel.shared_bytes > chip.shared_bytes_per_block:
            wanted = f"gradients with head dimensions {f.head_dim} of K and {f.width} of V"
            raise Unsupported(f"{wanted} need more shared memory than a block on {chip.name} chips has")
        return kernel

    def numbers(self, problem: BackwardProblem, buffers: Buffers) -> tuple[BackwardParameters, Step]:
        """The parameters, and the launch that computes the numbers of rows."""
        prepare = PrepareKernel(problem.forward.dtype, wide_padded(problem.forward.width), problem.is_vector, False)
        parameters = with_numbers(problem, problem.rows, buffers)
        of_values = copy_parameters(parameters)
        of_values.head_dim = problem.forward.width
        return parameters, preparing_step(prepare, problem, problem.rows, of_values)

    def bias_steps(self, problem: BackwardProblem, layout: Layout, buffers: Buffers) -> list[Step]:
        """The launches for the gradient of an added mask, float32 of this layout over rows and keys; a stride of 0 is
        that of a batch or head that shares the mask. Raises `Unsupported`."""
        f = problem.forward
        parameters, first = self.numbers(problem, buffers)
        kernel = self.kernel(problem, keys=False).of_bias()
        if kernel.drops and not has_bias_with_dropout(kernel):
            wanted = f"the gradient of a mask with dropout and {f.head_dim} columns off 16-byte boundaries"
            raise Unsupported(f"{wanted} needs more registers than a thread has")
        parameters.dq, tiles = layout.address, -(-f.seq_q // kernel.rows)
        parameters.at_dq = Strides(layout.batch * 4, layout.head * 4, layout.row * 4)
        parameters.tiles = Divisor.of(tiles)
        masks = (f.batch if layout.batch else 1) * (f.heads if layout.head else 1)
        columns = -(-f.seq_k // kernel.columns)
        if columns > MAX_COLUMNS or masks * tiles > MAX_BLOCKS:
            raise Unsupported(f"the gradient of {masks} masks over {f.seq_q} rows and {f.seq_k} keys: split the call")
        return [first, Step(kernel, (masks * tiles, columns, 1), (with_dropout(parameters, f),))]

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The three launches: the numbers of rows; dK and dV; dQ. Raises `Unsupported`."""
        f = problem.forward
        check_kind(f, self.machine)
        parameters, first = self.numbers(problem, buffers)
        steps = [first]
        passes = ((True, f.kv_heads, f.seq_k, problem.widest), (False, f.heads, f.seq_q, f.head_dim))
        for keys, heads, length, width in passes:
            kernel, kernel_parameters = self.kernel(problem, keys=keys), with_dropout(copy_parameters(parameters), f)
            tiles = -(-length // kernel.rows)
            kernel_parameters.tiles = Divisor.of(tiles)
            blocks = f.batch * heads * tiles
            if blocks > MAX_BLOCKS:
                raise Unsupported(f"{blocks} blocks do not fit a grid of {MAX_BLOCKS}: split the batch")
            steps.append(Step(kernel, (blocks, -(-width // kernel.out_columns), 1), (kernel_parameters,)))
        return steps


@dataclass(frozen=True, slots=True)
class HopperBackward:
    """One pass over keys, with dQ summed in float32 in an `order`. `section`: its heads, where not as many as fit the
    L2 cache. `parts`: among so many blocks the heads of a group are divided; None where they are not."""

    machine: Machine
    section: int | None = None
    order: Order = Order.ANY
    parts: int | None = None

    @property
    def name(self) -> str:
        kind = self.order or (f"parts{self.parts}" if self.parts else "")
        return f"backward90-{kind}" if kind else "backward90"

    @property
    def same_bits(self) -> bool:
        return self.order is not Order.ANY

    def kernel(self, problem: BackwardProblem) -> HopperBackwardKernel:
        f, window = problem.forward, problem.forward.window_offset is not None
        causal = f.causal or window
        return HopperBackwardKernel(f.dtype, padded_head_dim(f.head_dim), causal, self.order, self.divides, window)

    @property
    def divides(self) -> bool:
        """Whether a block has only some of the heads of a group."""
        return (self.parts or 1) > 1

    def parameters(
        self, problem: BackwardProblem, kernel: HopperBackwardKernel, buffers: Buffers
    ) -> BackwardParameters:
        """The parameters of all three launches, but for the counter. Each part of a group counts as a group."""
        f, parts = problem.forward, self.parts or 1
        query_tiles, key_tiles = -(-f.seq_q // kernel.queries), -(-f.seq_k // HOPPER_KEYS)
        made = with_numbers(problem, query_tiles * kernel.queries, buffers)
        kv_heads, all_tiles = f.batch * f.kv_heads * parts, problem.heads * query_tiles
        made.sums = buffers.scratch(all_tiles * SUMS_OF_BLOCK * 4 + bytes_of_parts(problem, parts))
        numbers = (kv_heads + self.heads_with_arrivals(problem)) * key_tiles + all_tiles * SHARES_OF_BLOCK
        made.progress = buffers.scratch(numbers * 4)
        heads = min((self.section or self.heads_of_section(problem)) * parts, kv_heads)
        made.part_bits, made.all_kv_heads = parts.bit_length() - 1, kv_heads
        made.kv_heads, made.group = Divisor.of(f.kv_heads * parts), Divisor.of(f.group // parts)
        made.query_tiles, made.items = query_tiles, -(-kv_heads // heads) * heads * key_tiles
        made.tiles, made.section, made.section_tiles = map(Divisor.of, (key_tiles, heads, heads * key_tiles))
        return made

    def heads_with_arrivals(self, problem: BackwardProblem) -> int:
        """How many heads of K would have as many numbers as count the parts that have arrived: the first launch clears
        those of so many more heads."""
        return WARPS_WITH_SUMS * problem.forward.batch * problem.forward.kv_heads if self.divides else 0

    def steps(self, problem: BackwardProblem, buffers: Buffers) -> list[Step]:
        """The three launches: the numbers of rows and zeros; the main kernel; dQ from its sums."""
        f, size, kernel = problem.forward, padded_head_dim(problem.forward.head_dim), self.kernel(problem)
        parameters = self.parameters(problem, kernel, buffers)
        clearing = copy_parameters(parameters)
        clearing.all_kv_heads += self.heads_with_arrivals(problem)
        keeps_sums = (kernel.causal or self.same_bits) and all_see_keys(problem)
        prepare = PrepareKernel(f.dtype, size, True, True, keeps_sums)
        steps = [preparing_step(prepare, problem, parameters.query_tiles * kernel.queries, clearing)]
        cooperative = self.order is Order.CYCLIC
        dependent = is_small(problem, self.machine, HOPPER_KEYS) and not cooperative
        main = copy_parameters(parameters)
        main.counter = buffers.counter()
        most = cyclic_blocks(problem, self.machine) if cooperative else self.machine.sm_count
        blocks = min(main.items, most)
        maps = [map_of(problem, name, HOPPER_KEYS if name in "kv" else kernel.queries) for name in MAPS]
        steps.append(Step(kernel, (blocks, 1, 1), (*maps, main), dependent, cooperative))
        convert = ConvertKernel(f.dtype, size, self.same_bits, kernel.window)
        blocks = main.items // main.tiles.divisor * main.group.divisor * main.query_tiles
        steps.append(Step(convert, (blocks, 1, 1), (copy_parameters(parameters),), not cooperative))
        return steps

    def heads_of_section(self, problem: BackwardProblem) -> int:
        """The number of heads in a section: all tiles of a section are taken before those of the next one."""
        if problem.forward.window_offset is not None:
            return heads_under_window(problem, self.machine)
        if self.order is Order.KEYS:
            return heads_in_order(problem, self.machine)
        if self.divides and has_long_groups(problem):
            return in_equal_sections(problem, PARTS_AT_A_TIME // (self.parts or 1))
        return heads_under_mask(problem, self.machine) if problem.forward.causal else 1


def is_small(problem: BackwardProblem, machine: Machine, keys: int, rounds: int = FEW_ROUNDS) -> bool:
    """Whether each SM has only a few tiles of `keys` keys."""
    f = problem.forward
    return f.batch * f.kv_heads * -(-f.seq_k // keys) <= rounds * machine.sm_count


def all_see_keys(problem: BackwardProblem) -> bool:
    """Whether some tile of keys contributes to dQ of every query: the first one, unless there is a window."""
    f = problem.forward
    reaches_keys = f.window_offset is None or f.seq_q + f.window_offset <= f.seq_k
    return reaches_keys and (not f.causal or f.causal_offset >= 0)


def heads_of_section(problem: BackwardProblem, machine: Machine, keys: int) -> int:
    """Heads of K whose Q, dO and sums fit the L2 cache, in equal sections; all of them in problems with few tiles of
    `keys`, where the longest must not begin late; one where all tiles are equally long, so that they follow each
    other."""
    if not problem.forward.causal:
        return 1
    if is_small(problem, machine, keys):
        return problem.forward.batch * problem.forward.kv_heads
    return in_equal_sections(problem, fitting_heads(problem, machine, problem.forward.seq_q) // problem.forward.group)


def bytes_of_parts(problem: BackwardProblem, parts: int) -> int:
    """The bytes of the sums of dK and dV that so many parts of each group leave; a single one leaves none."""
    f = problem.forward
    tiles = f.batch * f.kv_heads * -(-f.seq_k // HOPPER_KEYS)
    return tiles * parts * SUMS_OF_PART[padded_head_dim(f.head_dim)] * 4 if parts > 1 else 0


def has_long_groups(problem: BackwardProblem) -> bool:
    """Whether a group is so large, and queries and keys are so many, that it is divided whatever the model expects."""
    f = problem.forward
    plain = f.causal and f.window_offset is None and padded_head_dim(f.head_dim) == WIDTH_OF_LONG
    return plain and f.group >= GROUP_OF_LONG and min(f.seq_q, f.seq_k) >= ROWS_OF_LONG


def heads_under_mask(problem: BackwardProblem, machine: Machine) -> int:
    """The same for Hopper's kernel under a causal mask, with sums in any order. A block has one head of a group at a
    time, so the others need not fit the cache. One order goes over all heads where there are fewer tiles."""
    f = problem.forward
    if is_small(problem, machine, HOPPER_KEYS, FEW_ROUNDS if f.group > 1 else FEW_ROUNDS // 2):
        return f.batch * f.kv_heads
    share = LONG_SHARE if f.seq_q >= LONG_ROWS else 1.0
    return in_equal_sections(problem, int(fitting_heads(problem, machine, f.seq_q) * share))


def heads_in_order(problem: BackwardProblem, machine: Machine) -> int:
    """The same where sums have an order: tiles of one head wait for each other, so with either mask those of many go
    side by side. They are at much the same queries of a head, so that less than all of it need fit the cache."""
    f = problem.forward
    if f.causal and is_small(problem, machine, HOPPER_KEYS):
        return f.batch * f.kv_heads
    rows, part = (CAUSAL_ROWS, CAUSAL_PART) if f.causal else (FULL_ROWS, FULL_PART)
    return in_equal_sections(problem, fitting_heads(problem, machine, min(f.seq_q, max(rows, f.seq_q // part))))


def heads_under_window(problem: BackwardProblem, machine: Machine) -> int:
    """The same for queries with a window, with sums in any order or one: neighbouring tiles of keys share only the
    queries that see both, so that no more rows of the group's heads are to fit the cache."""
    f = problem.forward
    if is_small(problem, machine, HOPPER_KEYS):
        return f.batch * f.kv_heads
    rows = min(f.seq_q, HOPPER_KEYS + visible_keys(f, HOPPER_KEYS))
    return in_equal_sections(problem, fitting_heads(problem, machine, rows) // f.group)


def fitting_heads(problem: BackwardProblem, machine: Machine, rows: int) -> int:
    """The number of heads of Q whose Q, dO and sums of `rows` rows fit the L2 cache."""
    return int(machine.l2_bytes * L2_SHARE) // (
        rows * padded_head_dim(problem.forward.head_dim) * (2 * ELEMENT_BYTES + 4)
    )


def in_equal_sections(problem: BackwardProblem, fitting: int) -> int:
    """The number of heads of K in sections of about equal size, of at most `fitting` heads and at least one."""
    heads = problem.forward.batch * problem.forward.kv_heads
    return -(-heads // -(-heads // max(1, fitting)))


def map_of(problem: BackwardProblem, name: str, box_rows: int) -> TensorMap:
    """The tensor map of q, k, v or dout, with copies of `box_rows` rows of 64 columns."""
    f = problem.forward
    layout: Layout = problem.gradients.dout if name == "dout" else getattr(f, name)
    heads, rows = (f.kv_heads, f.seq_k) if name in "kv" else (f.heads, f.seq_q)
    width = f.width if name in ("v", "dout") else f.head_dim
    row = layout.row or width
    sizes, steps = (width, rows, heads, f.batch), (row, layout.head or row, layout.batch or row)
    made = cuda_driver().tensor_map(
        f.dtype, layout.address, sizes, [s * ELEMENT_BYTES for s in steps], (CHUNK_COLUMNS, box_rows, 1, 1)
    )
    made.tensor = name
    return made
