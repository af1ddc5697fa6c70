"""Dropout on a GPU by the public calls: the Python mask bit for bit in both passes, graphs, packed sequences, the compiler.

`test_shaped_on_gpu.py` compares outputs and gradients of cases with dropout with float64.
"""

from __future__ import annotations

import pytest
import torch

from kernels.attention.case import Case, Shape
from kernels.attention.cuda import attention, attention_varlen
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.dropout import Dropout
from kernels.attention.implementations import CudaVariant
from kernels.attention.problem import AttentionProblem
from kernels.harness.workload import Site
from tests.kernels.cuda.on_gpu import DEV, ON_GPU, dtypes_of, engine  # noqa: F401 - a fixture
from tests.kernels.cuda.shaped import Shaped, relative

pytestmark = ON_GPU

SEEDS = [(0, 0), (2**63 - 1, -1), (-(2**63), 1 << 40)]
BATCH, HEADS, KEYS = 2, 4, 65


def mask(p: float, seed: tuple[int, int], rows: int = KEYS) -> torch.Tensor:
    dropout = Dropout(p, *seed)
    at, keys = torch.arange(rows, device=DEV), torch.arange(KEYS, device=DEV)
    return torch.stack([dropout.kept(head, at, keys) for head in range(BATCH * HEADS)]).unflatten(0, (BATCH, HEADS))


def one_hot(width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.eye(KEYS, width, device=DEV, dtype=dtype).expand(BATCH, HEADS, KEYS, width).contiguous()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [91, 128, 256, 512])
def test_every_architectures_code_drops_the_weights_of_the_python_mask(
    engine: Engine,  # noqa: F811
    width: int,
    seed: tuple[int, int],
) -> None:
    if width == 512 and engine.chip.name == "turing":
        pytest.skip("a block on Turing has no shared memory for it")
    dtype = dtypes_of(engine)[0]
    v, given = one_hot(width, dtype), torch.tensor(seed, device=DEV)
    for splits in (1, 2):
        out = torch.full_like(v, torch.nan)
        dropout = {"dropout_p": 0.37, "dropout_seed": given}
        bind_attention(torch.zeros_like(v), v, v, out, splits=splits, engine=engine, **dropout)()  # type: ignore[arg-type]
        assert torch.equal(out[..., :KEYS] != 0, mask(0.37, seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [91, 128, 256])
def test_both_backward_passes_drop_what_the_forward_pass_dropped(width: int, seed: tuple[int, int]) -> None:
    k = one_hot(width, torch.float16).requires_grad_()
    q = torch.zeros_like(k).requires_grad_()
    v = torch.zeros_like(k)
    v[..., 0] = 1.0
    v.requires_grad_()
    dout = one_hot(width, torch.float16)
    dout[..., 0] = 1.0
    out = attention(q, k, v, scale=1.0, dropout_p=0.37, dropout_seed=torch.tensor(seed, device=DEV))
    assert isinstance(out, torch.Tensor)
    dq, _, dv = torch.autograd.grad(out, (q, k, v), dout)
    want = mask(0.37, seed)
    assert torch.equal(dv[..., 1:KEYS].mT != 0, want[..., 1:, :])
    assert torch.equal(dq[..., :KEYS] > 0, want)


def test_a_graph_reads_the_present_seed_in_each_replay() -> None:
    case = Shaped((2, 8, 2, 300, 500, 128, 128), causal=True, dropout=0.2, device=DEV)
    given = case.draw()
    attention(**given, **case.options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = attention(**given, **case.options)
    assert isinstance(made, torch.Tensor)
    answers = []
    for offset in (0, 1, 0, 2**40):
        given["dropout_seed"].copy_(torch.tensor([5, offset]))
        graph.replay()
        eager = attention(**given, **case.options)
        assert isinstance(eager, torch.Tensor)
        assert torch.equal(made, eager)
        answers.append(made.clone())
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])


def test_gradients_have_the_same_bits_in_every_run() -> None:
    case = Shaped((2, 8, 2, 500, 700, 64, 64), causal=True, dropout=0.2, device=DEV)
    given = case.draw()
    leaves = [given[name].requires_grad_() for name in "qkv"]
    runs = [torch.autograd.grad(attention(**given, **case.options), leaves, case.slope(given)) for _ in range(3)]
    for again in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(runs[0], again, strict=True))


def test_packed_sequences_have_the_masks_of_their_own_numbers() -> None:
    case = Shaped((1, 4, 2, 300, 300, 64, 64), causal=True, alignment="bottom-right", dropout=0.3, device=DEV)
    given, lengths = case.draw(), (100, 0, 37, 163)
    starts = torch.tensor([0, 100, 100, 137, 300], dtype=torch.int32, device=DEV)
    q, k, v = leaves = [given[name][0].transpose(0, 1).contiguous().requires_grad_() for name in "qkv"]
    seed = {"dropout_p": 0.3, "dropout_seed": given["dropout_seed"]}
    out = attention_varlen(q, k, v, starts, starts, 163, 163, causal=True, **seed)  # type: ignore[arg-type]
    assert isinstance(out, torch.Tensor)
    dout = torch.randn(out.shape, device=DEV).to(out.dtype)
    gradients = torch.autograd.grad(out, leaves, dout)
    for number, length in enumerate(lengths):
        own = slice(int(starts[number]), int(starts[number]) + length)
        if length == 0:
            continue
        # A batch in which this sequence has the same number.
        one = {
            name: x.detach()[own].transpose(0, 1)[None].repeat(number + 1, 1, 1, 1)
            for name, x in zip("qkv", leaves, strict=True)
        }
        one["dropout_seed"] = given["dropout_seed"]
        slope = dout[own].transpose(0, 1)[None].repeat(number + 1, 1, 1, 1)
        want, _, exact = case.exact(one, slope)
        for found, right in zip((out, *gradients), (want, exact["q"], exact["k"], exact["v"]), strict=True):
            assert relative(found[own].transpose(0, 1), right[number]) <= 8e-3


def test_the_compiler_sees_one_operator_with_gradients() -> None:
    case = Shaped((2, 8, 2, 100, 200, 64, 64), dropout=0.4, mask="float32", device=DEV)
    given = case.draw()
    leaves = [given[name].requires_grad_() for name in ("q", "k", "v", "attn_mask")]
    plain = attention(**given, **case.options)
    compiled = torch.compile(lambda: attention(**given, **case.options), backend="aot_eager", fullgraph=True)()
    assert isinstance(plain, torch.Tensor)
    assert torch.equal(plain, compiled)
    for one, other in zip(*(torch.autograd.grad(x, leaves, case.slope(given)) for x in (plain, compiled)), strict=True):
        assert torch.equal(one, other)


def test_a_call_that_drops_nothing_launches_what_a_call_without_dropout_does() -> None:
    q = torch.randn(2, 8, 1024, 128, device=DEV).bfloat16()
    seed = torch.tensor([1, 2], device=DEV)
    names = {bind_attention(q, q, q, torch.empty_like(q), **more).kernels for more in ({}, {"dropout_seed": seed})}
    assert len(names) == 1
    assert "drops" not in names.pop()
    assert torch.equal(attention(q, q, q), attention(q, q, q, dropout_p=0.0, dropout_seed=seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("sinks", [False, True])
def test_the_harness_judges_cases_with_dropout_right(direction: str, sinks: bool, tmp_path: object) -> None:
    case = Case(Shape(2, 8, 2, 300, 300, 64, True, window=100, sinks=sinks, dropout=0.1), "bfloat16", direction)
    given = AttentionProblem().inputs(case, torch.Generator(DEV).manual_seed(1))
    site = Site(torch.device(DEV, 0), 1, tmp_path, tmp_path)  # type: ignore[arg-type]
    variant = CudaVariant("bench:lse", site)
    variant.build(site)
    call = variant.bind(case, given)
    verdict = AttentionProblem().yardstick(case, given, 0.02).judge(call.output(call.plan()))
    assert verdict.passed, verdict.reason
