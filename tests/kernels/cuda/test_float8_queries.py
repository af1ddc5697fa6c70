"""Q, K and V of eight bits on the CPU: the kernels' own source and plans, against float64 of what they mean."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.quick import Options, Quick
from kernels.attention.cuda.calls.registered import as_operator
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import attention
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import Shaping, output_like, problem_of
from kernels.attention.cuda.plan.variants import CHIPS, SOURCE, Combine, Entry
from kernels.attention.cuda.ways.decode import FLOAT8_TILES, DecodeKernel
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.float8 import TRANSPOSE_VALUES, Float8Way, WidenThenDecode, widen_queries
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.exactly import assert_agree, beside_sinks, exact, limits
from tests.kernels.cuda.float8_cases import EVERY_BYTE, draw_float8, widened
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program
from tests.kernels.cuda.stub_driver import WITH_STUB, Map, OnCpu, Stub, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

FLOAT8 = torch.float8_e4m3fn
ERROR = 0.035
"""A weight of eight bits is off by up to a sixteenth, by 0.026 of it in the mean square."""
SUM_ERROR = 2e-3
"""Of a log-sum-exp: scores are sums of products that are cut off."""
CHIP = {chip.name: chip for chip in CHIPS}
WINDOWS: dict[str, dict[str, Any]] = {
    "full": {}, "causal": {"causal": True}, "window": {"window": (70, 5)}, "tail": {"window": (70, -1)},
}  # fmt: skip


def machine(blocks: int = 3, chip: str = "hopper") -> Machine:
    return Machine(CHIP[chip], blocks, 1 << 20, hopper=chip == "hopper")


@dataclass(frozen=True)
class Call:
    """Tensors of eight bits, their scales, and what a row sees."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    causal: bool = False
    alignment: str = "top-left"
    window: tuple[int, int] | None = None
    sinks: torch.Tensor | None = None

    def problem(self, out: torch.Tensor) -> Problem:
        scales = dict(zip(("q_scale", "k_scale", "v_scale"), self.scales, strict=True))
        shaping = Shaping(sinks=self.sinks, **scales)
        terms = {"causal": self.causal, "alignment": self.alignment, "window": self.window, "shaping": shaping}
        return problem_of(self.q, self.k, self.v, out, **terms)  # type: ignore[arg-type]

    def wanted(self) -> tuple[torch.Tensor, torch.Tensor]:
        q_scale, k_scale, v_scale = self.scales
        q = widened(self.q, q_scale.repeat_interleave(self.q.shape[1] // self.k.shape[1]))
        window = None if self.window is None else tuple(None if side < 0 else side for side in self.window)
        ends = limits(self.q, self.k, causal=self.causal, alignment=self.alignment, window=window)  # type: ignore[arg-type]
        out, lse = exact(q, widened(self.k, k_scale), widened(self.v, v_scale), *ends)
        return (out, lse) if self.sinks is None else beside_sinks(out, lse, self.sinks)


def draw_call(batch: int, kv_heads: int, group: int, seq_q: int, seq_k: int, head_dim: int, **terms: Any) -> Call:
    q, k, v, scales = draw_float8(torch.float32, batch, kv_heads, group, seq_q, seq_k, head_dim)
    return Call(q.to(FLOAT8), k, v, (torch.linspace(0.7, 1.4, kv_heads), *scales), **terms)


def kernels() -> list[Entry]:
    """Those of Hopper, of each width, with each limit, with and without a log-sum-exp, and with sinks."""
    found = {}
    for head_dim, dtype in ((64, torch.bfloat16), (128, torch.float16)):
        for terms in WINDOWS.values():
            call = draw_call(1, 1, 1, 1, 1, head_dim, **terms)
            problem = call.problem(torch.empty(1, 1, 1, head_dim, dtype=dtype))
            for sinks, sums in ((False, False), (False, True), (True, True)):
                kernel = Float8Way(machine(), sinks).kernel(problem, sums)
                found[kernel.name] = kernel
    return list(found.values())


def compile_all(folder: Path) -> dict[str, Any]:
    decode = [DecodeKernel("float16", width, FLOAT8_TILES["turing"][width], False, True) for width in (64, 128, 256)]
    plain = [TRANSPOSE_VALUES, widen_queries("float16"), *decode, Combine("float16")]
    return {"hopper": compile_hopper(kernels(), "HopperParams", folder), "plain": compile_program(plain, 750, folder)}


Programs = Mapping[str, Any]
programs = program_with_stub(compile_all)


def answer(
    programs: Programs,
    call: Call,
    way: Float8Way | WidenThenDecode,
    scratch: Path,
    schedule: Schedule = SHUFFLED,
    *,
    sums: bool = True,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and log-sum-exp by the way's own launches, NaN where nothing was written."""
    dtype = dtype or (torch.bfloat16 if call.q.shape[-1] <= 64 and isinstance(way, Float8Way) else torch.float16)
    out = output_like(call.q, call.v).to(dtype).fill_(math.nan)
    lse = torch.full(call.q.shape[:3], math.nan)
    buffers = HostBuffers(lse.data_ptr() if sums else 0)
    steps = way.steps(call.problem(out), call.q.shape[-1] ** -0.5, buffers)  # type: ignore[arg-type]
    tensors = [*(x.view(torch.uint8) for x in (call.q, call.k, call.v)), *call.scales, out, lse, *buffers.memory]
    tensors += [] if call.sinks is None else [call.sinks]
    plain: Program = programs["plain"]
    if isinstance(way, WidenThenDecode):
        plain.run(steps, tensors, scratch)
    else:
        plain.run(steps[:1], tensors, scratch)
        hopper: HopperProgram = programs["hopper"]
        hopper.run(steps[1], tensors, scratch, schedule)
        counter = buffers.memory[-1] if len(buffers.memory) > 1 else buffers.memory[0]
        assert not counter.any(), "a counter is not zero after the launch"
    return out, lse


@pytest.mark.parametrize("schedule", [Schedule(), WAITING, RELEASING, SHUFFLED], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("sums", [True, False], ids=["lse", "ones"])
@pytest.mark.parametrize("terms", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_of_eight_bits_agree_with_float64_however_they_are_timed(
    programs: Programs, tmp_path: Path, head_dim: int, terms: dict[str, Any], sums: bool, schedule: Schedule
) -> None:
    call = draw_call(2, 2, 2, 150, 300, head_dim, **terms)
    out, lse = answer(programs, call, Float8Way(machine()), tmp_path, schedule, sums=sums)
    want, want_lse = call.wanted()
    if not sums:
        assert lse.isnan().all(), "a log-sum-exp that nobody wants"
        lse = want_lse
    assert_agree(out, lse.float(), want, want_lse, SUM_ERROR, error=ERROR)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "head_dim", "alignment"),
    [(1, 1, 64, "top-left"), (65, 129, 48, "bottom-right"), (200, 97, 16, "bottom-right"), (100, 385, 112, "top-left"),
     (129, 16, 80, "bottom-right"), (64, 193, 128, "bottom-right")],
)  # fmt: skip
def test_edges_of_tiles_and_any_width_are_right_and_rows_without_keys_zero(
    programs: Programs, tmp_path: Path, seq_q: int, seq_k: int, head_dim: int, alignment: str
) -> None:
    call = draw_call(1, 2, 2, seq_q, seq_k, head_dim, causal=True, alignment=alignment)
    for sums in (True, False):
        out, lse = answer(
            programs, call, Float8Way(machine()), tmp_path, sums=sums,
            dtype=torch.bfloat16 if head_dim <= 64 else torch.float16,
        )  # fmt: skip
        want, want_lse = call.wanted()
        assert_agree(out, lse if sums else want_lse.float(), want, want_lse, SUM_ERROR, error=ERROR)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_sinks_take_their_share_of_rows_of_eight_bits(programs: Programs, tmp_path: Path, head_dim: int) -> None:
    call = draw_call(1, 1, 2, 90, 150, head_dim, causal=True, sinks=torch.tensor([0.5, 3.0]))
    got = answer(programs, call, Float8Way(machine(), sinks=True), tmp_path)
    assert_agree(*got, *call.wanted(), SUM_ERROR, error=ERROR)


@pytest.mark.parametrize("sums", [True, False], ids=["lse", "ones"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_values_far_from_zero_are_not_lost_over_many_keys(
    programs: Programs, tmp_path: Path, head_dim: int, sums: bool
) -> None:
    """What is added to an accumulator of eight-bit products is cut off 13 bits below the largest of it."""
    call = draw_call(1, 1, 1, 64, 3000, head_dim)
    call = replace(call, v=(call.v.float() + 3.0).to(FLOAT8))
    out, _ = answer(programs, call, Float8Way(machine()), tmp_path, sums=sums)
    want = call.wanted()[0]
    assert (out.double() - want).norm() <= 0.005 * want.norm()


def test_transposed_values_are_in_the_order_of_a_threads_weights(programs: Programs, tmp_path: Path) -> None:
    """Of 16 keys, the first four are those of a quad's first thread: 0, 1, 8, 9. What is missing of 16 is zero."""
    call = draw_call(2, 3, 1, 5, 75, 48)
    out, buffers = torch.empty(call.q.shape, dtype=torch.bfloat16), HostBuffers()
    first = Float8Way(machine()).steps(call.problem(out), 1.0, buffers)[0]  # type: ignore[arg-type]
    programs["plain"].run([first], [call.q.view(torch.uint8), call.k.view(torch.uint8), call.v.view(torch.uint8),
                                    *call.scales, out, *buffers.memory], tmp_path)  # fmt: skip
    keys = torch.zeros(2, 3, 80, 48, dtype=torch.uint8)
    keys[:, :, :75] = call.v.view(torch.uint8)
    order = [t + e for t in (0, 2, 4, 6) for e in (0, 1, 8, 9)]
    wanted = keys.view(2, 3, 5, 16, 48)[:, :, :, order].reshape(2, 3, 80, 48).transpose(2, 3)
    assert torch.equal(buffers.memory[0].view(2, 3, 48, 80), wanted)


@pytest.mark.parametrize(("head_dim", "group", "seq_q"), [(64, 4, 3), (128, 1, 1), (208, 2, 20)])
def test_a_widened_q_is_exact_and_decoded_on_any_chip(
    programs: Programs, tmp_path: Path, head_dim: int, group: int, seq_q: int
) -> None:
    call = draw_call(2, 2, group, seq_q, 300, head_dim, causal=True, alignment="bottom-right")
    got = answer(programs, call, WidenThenDecode(machine(chip="turing")), tmp_path)
    assert_agree(*got, *call.wanted())


def test_every_byte_of_q_means_what_pytorch_says(programs: Programs, tmp_path: Path) -> None:
    """Its first column is the score of one key of two; the log-sum-exp has no other."""
    q = torch.zeros(1, 1, 256, 64, dtype=torch.uint8)
    q[0, 0, :, 0] = EVERY_BYTE
    k = torch.zeros(1, 1, 1, 64)
    k[..., 0] = 1.0
    call = Call(q.view(FLOAT8), k.to(FLOAT8), k.to(FLOAT8), (torch.ones(1),) * 3)
    for way in (Float8Way(machine()), WidenThenDecode(machine(chip="turing"))):
        _, lse = answer(programs, call, way, tmp_path)
        assert torch.allclose(lse[0, 0], call.q[0, 0, :, 0].float() / 8, equal_nan=True, atol=1e-5), way.name


MISTAKES = {
    "keys in the order of the tensor": ("w[8], w[9]", "w[2], w[3]"),
    "keys that there are not": ("sixteen * 16 + i < p.seq_k ? ", "true ? "),
    "the weights of the other row": ("i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 2", "i / 4 * 16 + i % 2 * 8 + i / 2 % 2 * 2"),
    "one accumulator for all keys": ("v, step > 0);", "v, 1);"),
    "the correction of the next tile": ("fused(out[i], earlier[i / 2 % 2], part[i])", "fused(out[i], correction[i / 2 % 2], part[i])"),
    "a power of two in the log-sum-exp": ("return log2_approx(total) - C::WEIGHTS_LOG2;", "return log2_approx(total);"),
    "no scale of Q": ("p.scale_log2 * p.q_scale[kv_head] * p.k_scale[kv_head]", "p.scale_log2 * p.k_scale[kv_head]"),
    "the scale of another head": ("inverse *= p.v_scale[divide(tile.head, p.group)];", "inverse *= p.v_scale[0];"),
    "bytes that never come": ("C::KEY_CHUNKS * C::VALUE_DIM * C::CHUNK_ROW_BYTES)", "C::V_BYTES + 16)"),
    "ones where values go": ("- (i % PIECES + 1) * 16, Chunk{ONES", "- (i % PIECES + 65) * 16, Chunk{ONES"),
}  # fmt: skip


def compile_mistake(folder: Path, mistake: str) -> dict[str, Any]:
    """The kernels that the law below needs, from a copy of the sources with a mistake in it."""
    old, new = MISTAKES[mistake]
    source = folder / "source"
    shutil.copytree(SOURCE, source)
    [path] = [path for path in source.rglob("*.cuh") if old in path.read_text()]
    path.write_text(path.read_text().replace(old, new))
    some = [kernel for kernel in kernels() if kernel.name.startswith("fa90_bf16_d64_full")]
    return {
        "hopper": compile_hopper(some, "HopperParams", folder, source=source),
        "plain": compile_program([TRANSPOSE_VALUES], 750, folder, source=source),
    }


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_kernels_of_eight_bits_are_found(programs: Programs, tmp_path: Path, mistake: str) -> None:
    """The law that holds without them, of a call with three tiles of keys and heads of two scales."""
    call, sums = draw_call(1, 2, 1, 70, 395, 64), mistake != "ones where values go"
    call = replace(call, v=(call.v.float() + 1.0).to(FLOAT8))
    complaints = []
    for those in (programs, compile_mistake(tmp_path, mistake)):
        try:
            out, lse = answer(those, call, Float8Way(machine()), tmp_path, WAITING, sums=sums)
            want, want_lse = call.wanted()
            assert_agree(out, lse if sums else want_lse.float(), want, want_lse, SUM_ERROR, error=0.02)
            complaints.append(False)
        except (Failed, AssertionError):
            complaints.append(True)
    assert complaints == [False, True]


def test_a_remembered_call_takes_other_tensors_and_binds_no_kernel_again(stub: Stub) -> None:
    """Its transposed V, and its widened Q, lie in memory of the plan, and are not looked for among the tensors."""
    engine, bound = OnCpu(), []

    def counting(*args: Any, **kwargs: Any) -> Any:
        bound.append(1)
        return bind_call(*args, **kwargs)

    quick = Quick(counting, lambda device: engine, as_operator)
    for seq_q in (1, 300):
        for _ in range(3):
            call = draw_call(1, 2, 4, seq_q, 300, 128)
            tensors = (call.q, call.k, call.v, *call.scales)
            out = quick.call(tensors, Options(names=("q", "k", "v", "q_scale", "k_scale", "v_scale")))
            assert isinstance(out, torch.Tensor)
            assert (out.dtype, out.shape) == (torch.bfloat16, call.q.shape)
            if seq_q == 300:
                given = stub.launch().argument(3, HopperParameters)
                scales = tuple(x.data_ptr() for x in call.scales)
                assert (given.q_scale, given.k_scale, given.v_scale, given.out) == (*scales, out.data_ptr())
                assert stub.launch().argument(0, Map).address == call.q.data_ptr()
    assert len(bound) == 2


def test_which_way_is_chosen_and_what_a_q_of_eight_bits_cannot_be() -> None:
    def way(chip: str, seq_q: int, head_dim: int, **terms: Any) -> str:
        call = draw_call(1, 2, 4, seq_q, 300, head_dim, **terms)
        return choose_way(call.problem(torch.empty(call.q.shape, dtype=torch.float16)), machine(132, chip))[0].name

    chosen = [
        way(*given) for given in (("hopper", 300, 128), ("hopper", 1, 128), ("hopper", 300, 256), ("ada", 300, 64))
    ]
    assert chosen == ["float8", "widened", "widened", "widened"]
    call = draw_call(1, 2, 4, 20, 30, 64)
    out = torch.empty(call.q.shape, dtype=torch.bfloat16)

    def refusal(**change: Any) -> str:
        given = {
            **dict(zip(("q_scale", "k_scale", "v_scale"), call.scales, strict=True)),
            "q": call.q,
            "out": out,
            **change,
        }
        tensors = given.pop("q"), given.pop("k", call.k), given.pop("v", call.v), given.pop("out")

        def choose() -> None:
            problem = problem_of(*tensors, causal=False, alignment="top-left", shaping=Shaping(**given))
            choose_way(problem, machine())

        with pytest.raises((Unsupported, ValueError)) as caught:
            choose()
        return str(caught.value)

    wide = call.q.to(torch.bfloat16)
    assert "q_scale is missing, float32 [2]" in refusal(q_scale=None)
    assert "q_scale must be contiguous float32 [2]" in refusal(q_scale=torch.ones(8))
    assert "q_scale is for a q of float8_e4m3fn, not of torch.bfloat16" in refusal(q=wide)
    assert "must have one dtype" in refusal(k=call.k.to(torch.bfloat16), v=call.v.to(torch.bfloat16))
    assert "out must be" in refusal(out=torch.empty(call.q.shape))
    assert "no shaped scores) nor multiplied (pages" in refusal(softcap=2.0)


def test_the_compiler_sees_an_output_of_sixteen_bits() -> None:
    q, k = (torch.empty(2, heads, 70, 64, device="meta").to(FLOAT8) for heads in (8, 2))
    scales = {name: torch.ones(2, device="meta") for name in ("q_scale", "k_scale", "v_scale")}
    compiled = torch.compile(lambda: attention(q, k, k, **scales), backend="eager", fullgraph=True)
    assert (compiled().dtype, compiled().shape) == (torch.bfloat16, q.shape)
