"""The portable kernel as a way of computing a problem: a planned launch, and what it passes to the device."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.attention.cuda.launching import Buffers, Step
from kernels.attention.cuda.parameters import Divisor, Parameters
from kernels.attention.cuda.planning import ELEMENT_BYTES, LOG2_E, Launch, Problem


@dataclass(frozen=True, slots=True)
class Portable:
    """`fa2`, as `planning.plan` decided."""

    launch: Launch

    @property
    def name(self) -> str:
        """E.g. `fa2-128x64w4s2`; with the keys split in 4 parts, `fa2-128x64w4s2-4`."""
        tile, parts = self.launch.kernel.tile, self.launch.splits
        shape = (
            f"fa2-{tile.rows}x{tile.keys}w{tile.warps}s{tile.stages}{'' if self.launch.kernel.vector else '-scalar'}"
        )
        return shape if parts == 1 else f"{shape}-{parts}"

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """The kernel, and the one that joins the parts if there are several."""
        launch = self.launch
        parameters = parameters_of(problem, launch, scale)
        parameters.lse = buffers.lse
        rows = problem.batch * problem.heads * problem.seq_q
        if launch.splits > 1:
            partial = buffers.scratch(launch.splits * rows * (problem.head_dim + 1) * 4)
            parameters.partial_out = partial
            parameters.partial_lse = partial + launch.splits * rows * problem.head_dim * 4
        steps = [Step(launch.kernel, (launch.blocks, launch.splits, 1), (parameters,))]
        combine = launch.combine
        if combine is not None:
            steps.append(Step(combine, (-(-rows // combine.rows_per_block), 1, 1), (parameters,)))
        return steps


def parameters_of(problem: Problem, launch: Launch, scale: float) -> Parameters:
    """The launch's parameters but for the pointers to what the kernel writes beside `out`."""
    q, k, v, out = problem.q, problem.k, problem.v, problem.out
    steps = {
        f"{name}_{axis}": getattr(of, axis) * ELEMENT_BYTES
        for name, of in (("q", q), ("k", k), ("v", v), ("out", out))
        for axis in ("batch", "head", "row")
    }
    return Parameters(
        q=q.address,
        k=k.address,
        v=v.address,
        out=out.address,
        **steps,
        heads=Divisor.of(problem.heads),
        group=Divisor.of(problem.heads // problem.kv_heads),
        all_heads=problem.batch * problem.heads,
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
        head_dim=problem.head_dim,
        causal_offset=problem.causal_offset,
        row_tiles=Divisor.of(launch.row_tiles),
        section=Divisor.of(launch.section),
        section_tiles=Divisor.of(launch.section * launch.row_tiles),
        splits=launch.splits,
        tiles_per_split=launch.tiles_per_split,
        scale_log2=scale * LOG2_E,
    )
