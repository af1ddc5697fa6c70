"""The portable kernel as a way of computing a problem: its planned launch, and the parameters for the device."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass, replace

from kernels.attention.cuda.plan.parameters import UNLIMITED, Divisor, DroppingParameters, Parameters
from kernels.attention.cuda.plan.planning import ELEMENT_BYTES, LOG2_E, Launch, Problem
from kernels.attention.cuda.plan.variants import Combine, SinksKernel
from kernels.attention.cuda.run.launching import Buffers, Step, Way

ALL_BITS, SIGN_BITS = 0xFFFFFFFF, 0x80008000
"""Bit masks for two 16-bit floats in one word."""


@dataclass(frozen=True, slots=True)
class Portable:
    """The way `fa2`, with a launch that `planning.plan` planned."""

    launch: Launch

    @property
    def name(self) -> str:
        """The name of the way, e.g. `fa2-128x64w4s2`; `fa2-128x64w4s2-4` if the keys are cut into 4 parts."""
        tile, parts = self.launch.kernel.tile, self.launch.splits
        shape = (
            f"fa2-{tile.rows}x{tile.keys}w{tile.warps}s{tile.stages}{'' if self.launch.kernel.vector else '-scalar'}"
        )
        return shape if parts == 1 else f"{shape}-{parts}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the launch of the kernel, and of the kernel that joins the parts if there are several."""
        launch = self.launch
        parameters = parameters_of(problem, launch, scale)
        parameters.lse = buffers.lse
        make_room_for_parts(problem, parameters, buffers)
        steps = [Step(launch.kernel, (launch.blocks, launch.splits, 1), (parameters,))]
        return steps if launch.splits == 1 else [*steps, joining_step(problem, parameters)]


def make_room_for_parts(problem: Problem, parameters: Parameters, buffers: Buffers) -> None:
    """Allocate memory for the float32 output and log-sum-exp of each part, and set its addresses in `parameters`. Does
    nothing if the keys are not cut."""
    values = parameters.splits * problem.out_rows * problem.width
    if parameters.splits > 1:
        parameters.partial_out = buffers.scratch((values + parameters.splits * problem.out_rows) * 4)
        parameters.partial_lse = parameters.partial_out + values * 4


def with_dropout(parameters: Parameters, problem: Problem) -> Parameters:
    """The parameters as the kernels with dropout take them; others as they are."""
    if problem.dropout is None:
        return parameters
    made = DroppingParameters.from_buffer_copy(bytes(parameters).ljust(ctypes.sizeof(DroppingParameters), b"\0"))
    made.seed, made.least, made.keep_scale = astuple(problem.dropout)
    return made


def joining_step(problem: Problem, parameters: Parameters) -> Step:
    """Return the launch that joins the parts. It takes the rows of all heads as one sequence of rows."""
    combine, join_parameters = Combine(problem.dtype), Parameters.from_buffer_copy(parameters)
    join_parameters.all_heads, join_parameters.head_dim = problem.out_rows // join_parameters.seq_q, problem.width
    return Step(combine, (-(-problem.out_rows // combine.rows_per_block), 1, 1), (join_parameters,))


@dataclass(frozen=True, slots=True)
class WithSinks:
    """A way whose kernel takes no sinks, and the launch that adds them. The output is rounded twice."""

    way: Way

    @property
    def name(self) -> str:
        return f"{self.way.name}+sinks"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """Return the way's launches and this one."""
        if not buffers.lse:
            buffers = replace(buffers, lse=buffers.scratch(problem.out_rows * 4))
        steps, kernel = self.way.steps(problem, scale, buffers), SinksKernel(problem.dtype)
        way_parameters = parameters_but_launch(problem, scale)
        way_parameters.lse, way_parameters.all_heads = buffers.lse, problem.out_rows // way_parameters.seq_q
        return [*steps, Step(kernel, (-(-problem.out_rows // kernel.rows_per_block), 1, 1), (way_parameters,))]


def parameters_of(problem: Problem, launch: Launch, scale: float) -> Parameters:
    """Return the parameters of a launch. The caller adds the addresses of all outputs but `out`."""
    parameters = parameters_but_launch(problem, scale)
    parameters.row_tiles = Divisor.of(launch.row_tiles)
    parameters.section = Divisor.of(launch.section)
    parameters.section_tiles = Divisor.of(launch.section * launch.row_tiles)
    parameters.splits = launch.splits
    parameters.tiles_per_split = launch.tiles_per_split
    return parameters


def parameters_but_launch(problem: Problem, scale: float) -> Parameters:
    """Return the parameters that depend on the problem alone. A packed tensor counts as one batch, as long as all its
    sequences together."""
    q, k, v, out, mask, lengths = problem.q, problem.k, problem.v, problem.out, problem.mask, problem.lengths
    steps = {
        f"{name}_{axis}": getattr(of, axis) * ELEMENT_BYTES
        for name, of in (("q", q), ("k", k), ("v", v), ("out", out))
        for axis in ("batch", "head", "row")
    }
    parameters = Parameters(
        q=q.address,
        k=k.address,
        v=v.address,
        out=out.address,
        **steps,
        heads=Divisor.of(problem.heads),
        group=Divisor.of(problem.group),
        all_heads=problem.batch * problem.heads,
        all_rows=problem.out_rows,
        seq_q=lengths.total_q if lengths else problem.seq_q,
        seq_k=problem.seq_k,
        head_dim=problem.head_dim,
        causal_offset=problem.causal_offset if problem.causal else UNLIMITED,
        window_offset=-UNLIMITED if problem.window_offset is None else problem.window_offset,
        scale_log2=scale * LOG2_E,
        q_keep=0 if problem.sign == 0 else ALL_BITS,
        q_flip=SIGN_BITS if problem.sign < 0 else 0,
        sinks=problem.sinks,
        cap=problem.softcap,
        value_dim=problem.width,
    )
    if mask:
        parameters.mask = mask.address
        parameters.mask_batch, parameters.mask_head, parameters.mask_row = mask.batch, mask.head, mask.row
        parameters.mask_key = mask.key
    if problem.slopes:
        parameters.slopes, parameters.slopes_batch = problem.slopes.address, problem.slopes.batch
        parameters.level = problem.slopes.level
    if problem.float8:
        parameters.k_scale, parameters.v_scale = problem.float8.k_scale, problem.float8.v_scale
        parameters.q_scale = problem.float8.q_scale
    if lengths:
        parameters.q_starts, parameters.k_starts = lengths.q_starts, lengths.k_starts
        parameters.align_ends = lengths.align_ends
    if problem.pages:
        pages = problem.pages
        parameters.block_table, parameters.k_lengths = pages.table, pages.lengths
        parameters.table_row, parameters.page = pages.row, Divisor.of(pages.size)
        parameters.seq_k, parameters.align_ends = pages.most, pages.align_ends
    return parameters
