"""Q, K and V of eight bits: by Hopper's kernel, which reads V transposed, or by decoding, for which Q is widened."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Divisor, Parameters
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, Float8, Layout, Machine, Problem, check_kind
from kernels.attention.cuda.plan.variants import C_TYPE, SHORT, entry_point
from kernels.attention.cuda.run.driver import TensorMap, cuda_driver
from kernels.attention.cuda.run.launching import Buffers, Step, Way
from kernels.attention.cuda.ways.decode import FEW_ROWS, Decode, plan_decode
from kernels.attention.cuda.ways.decode import why_not as why_not_decode
from kernels.attention.cuda.ways.hopper import HopperWay, map_of, maps_describe, sizes_of
from kernels.attention.cuda.ways.hopper_kernels import CHUNK_BYTES, FLOAT8_SHAPES, FLOAT8_WIDTHS, HopperKernel
from kernels.attention.cuda.ways.portable import parameters_but_launch

THREADS, AT_ONCE = 256, 16
"""Threads of a block of the kernels here, and how many keys one of them transposes."""
LEAST_MULTIPLE = 16
"""Rows of eight bits begin on 16 bytes, so widths are multiples of it."""


@dataclass(frozen=True, slots=True)
class PreparingKernel:
    """A kernel that makes of Q or V of eight bits what the next launch reads. `function` is one of
    `source/float8.cuh`, a template of the number of threads and of `elements`, the type that it writes if there are
    several."""

    name: str
    function: str
    elements: str = ""
    threads: int = THREADS
    shared_bytes: int = 0

    @property
    def source(self) -> str:
        """The text of a translation unit with this kernel as its only entry point."""
        arguments = f"{self.threads}, {self.elements}" if self.elements else str(self.threads)
        return entry_point(self.name, self.threads, f"{self.function}<{arguments}>(p)", header="float8.cuh")


TRANSPOSE_VALUES = PreparingKernel("transpose_values_float8", "attention_transpose_values")
"""The kernel that transposes V."""


def widen_queries(dtype: str) -> PreparingKernel:
    """Return the kernel that makes a Q of this element type, which has 16 bits."""
    return PreparingKernel(f"widen_queries_{SHORT[dtype]}", "attention_widen_queries", C_TYPE[dtype])


@dataclass(frozen=True, slots=True)
class Float8Way:
    """Hopper's kernel for Q, K and V of eight bits, and before it the launch that transposes V."""

    machine: Machine
    sinks: bool = False

    @property
    def name(self) -> str:
        return f"float8{'+sinks' if self.sinks else ''}"

    def with_sinks(self) -> Float8Way:
        """The way whose kernel takes sinks too."""
        return replace(self, sinks=True)

    def kernel(self, problem: Problem, has_sums: bool) -> HopperKernel:
        """The kernel: with a log-sum-exp if that is wanted, or needed for sinks."""
        width, ones = next(width for width in FLOAT8_WIDTHS if problem.head_dim <= width), not (has_sums or self.sinks)
        limits, shape = (problem.causal, problem.window_offset is not None), FLOAT8_SHAPES[width, ones]
        return HopperKernel(problem.dtype, width, *limits, shape, sinks=self.sinks, float8=True, ones=ones)

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return both launches."""
        assert problem.float8
        kernel, of = self.kernel(problem, bool(buffers.lse)), problem.float8
        heads, keys = problem.batch * problem.kv_heads, -(-problem.seq_k // AT_ONCE) * AT_ONCE
        before = parameters_but_launch(problem, scale)
        before.partial_out, before.packs = buffers.scratch(heads * problem.width * keys), Divisor.of(problem.kv_heads)
        parameters = HopperWay(kernel, self.machine).parameters(problem, scale, buffers)
        parameters.q_scale, parameters.k_scale, parameters.v_scale = of.q_scale, of.k_scale, of.v_scale
        sizes, strides = (keys, problem.width, problem.kv_heads, problem.batch), (keys, keys * problem.width)
        values = cuda_driver().tensor_map(
            "float8",
            before.partial_out,
            sizes,
            (*strides, strides[1] * problem.kv_heads),
            (CHUNK_BYTES, kernel.head_dim, 1, 1),
        )
        values.tensor = TensorMap.SCRATCH
        maps = (map_of(problem, "q", kernel.shape.rows), map_of(problem, "k", kernel.shape.keys), values)
        blocks = min(parameters.tiles, self.machine.sm_count)
        first = preparing_step(TRANSPOSE_VALUES, before, heads, keys // AT_ONCE * problem.width // 4)
        return [first, Step(kernel, (blocks, 1, 1), (*maps, parameters))]


def preparing_step(kernel: PreparingKernel, parameters: Parameters, heads: int, threads: int) -> Step:
    """Return the launch of a kernel with so many threads for each head."""
    blocks = -(-threads // THREADS)
    parameters.row_tiles = Divisor.of(blocks)
    return Step(kernel, (heads * blocks, 1, 1), (parameters,))


@dataclass(frozen=True, slots=True)
class WidenThenDecode:
    """Decoding of a Q of eight bits, which a launch before it widens."""

    machine: Machine

    @property
    def name(self) -> str:
        return "widened"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launch that widens Q, and those of decoding."""
        assert problem.float8
        rows = problem.lengths.total_q if problem.lengths else problem.seq_q
        batch = 1 if problem.lengths else problem.batch
        before, width = parameters_but_launch(problem, scale), problem.head_dim
        before.packs = Divisor.of(problem.kv_heads)
        before.partial_out = buffers.scratch(batch * problem.heads * rows * width * ELEMENT_BYTES)
        before.partial_lse = buffers.scratch(problem.kv_heads * 4)
        threads = max(rows * width // 4, problem.kv_heads)
        first = preparing_step(widen_queries(problem.dtype), before, batch * problem.heads, threads)
        layout = Layout(rows * width * problem.heads, rows * width, width, before.partial_out)
        wide = replace(problem, q=layout, float8=Float8(before.partial_lse, problem.float8.v_scale))
        decode = Decode(plan_decode(wide, self.machine))
        return [first, *decode.steps(wide, scale, buffers)]


def float8_refusal(problem: Problem, machine: Machine) -> str | None:
    """Return why Hopper's kernel does not compute a problem whose Q, K and V have eight bits; None if it does."""
    if not machine.hopper:
        return "only Hopper multiplies elements of eight bits here"
    if problem.pages or problem.lengths or problem.mask or problem.shapes_scores or problem.dropout:
        return "pages, packed sequences, masks, shaped scores and dropout are not supported"
    if problem.sign != 1:
        return "the scale must be positive"
    widest = FLOAT8_WIDTHS[-1]
    if problem.head_dim != problem.width or problem.head_dim % LEAST_MULTIPLE or problem.head_dim > widest:
        return f"K and V need one head dimension, a multiple of {LEAST_MULTIPLE} up to {widest}"
    if not problem.is_vector:
        return "rows must start on 16-byte boundaries"
    if not all(maps_describe(getattr(problem, name), sizes_of(problem, name)) for name in "qk"):
        return "a tensor map cannot describe these strides"
    return None


def float8_ways(problem: Problem, machine: Machine) -> list[Way]:
    """Return the ways for keys and values of eight bits, the preferred one first. Raises `Unsupported`.

    Few queries are decoded, because that reads K and V once for a group of heads.
    """
    check_kind(problem, machine)
    has_q = problem.float8 is not None and bool(problem.float8.q_scale)
    refusal = float8_refusal(problem, machine) if has_q else "Q has sixteen"
    of_hopper: list[Way] = [] if refusal else [Float8Way(machine)]
    reason = why_not_decode(problem)
    if reason and refusal:
        if has_q:
            raise Unsupported(f"elements of eight bits are neither decoded ({reason}) nor multiplied ({refusal})")
        raise Unsupported(f"keys and values of eight bits are computed by decoding alone: {reason}")
    decoding: list[Way] = []
    if not reason:
        decoding = [WidenThenDecode(machine) if has_q else Decode(plan_decode(problem, machine))]
    few = problem.seq_q * problem.group <= FEW_ROWS
    return [*decoding, *of_hopper] if few else [*of_hopper, *decoding]
