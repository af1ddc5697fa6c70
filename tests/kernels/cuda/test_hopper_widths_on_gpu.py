"""K and V of two widths by Hopper's kernels, on a GPU, against float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernels.attention.cuda import attention, attention_varlen
from kernels.attention.cuda.compile.build import build_all
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.posing import output_like, problem_of
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.ways import hopper, hopper_kernels
from kernels.attention.cuda.ways.dispatch import choose_way
from tests.kernels.cuda.exactly import Tensors, exact, limits
from tests.kernels.cuda.on_gpu import DEV, DTYPES, FROBENIUS, ON_GPU, Poisoned, assert_replays_alike, randn
from tests.kernels.cuda.shaped import Shaped, relative

pytestmark = ON_GPU

DIMS = ((192, 128), (184, 104), (136, 8), (64, 128), (128, 64), (40, 192), (256, 128), (24, 72))
SIZES = (
    *((2, 4, 2, seq, seq) for seq in (1, 65, 128, 129, 1000)),
    *((1, 4, 2, 100, 333), (1, 4, 1, 333, 100), (1, 20, 4, 700, 700), (1, 2, 1, 200, 5000)),
)
KINDS: tuple[dict[str, object], ...] = (
    {},
    {"causal": True},
    {"causal": True, "causal_alignment": "bottom-right"},
    {"window": (70, 9)},
    {"causal": True, "window": (200, None), "causal_alignment": "bottom-right"},
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine(torch.device(DEV))
    if not engine.machine.hopper:
        pytest.skip("not a Hopper chip")
    build_all(list(hopper_kernels.hopper_table()), engine.target, engine.find_compiler(), engine.cache)
    return engine


def drawn(sizes: tuple[int, ...], dims: tuple[int, int], dtype: torch.dtype, seed: int) -> Tensors:
    batch, heads, kv_heads, seq_q, seq_k = sizes
    q = randn(batch, heads, seq_q, dims[0], dtype=dtype, seed=seed, bshd=seed % 2 == 0)
    k, v = (
        randn(batch, kv_heads, seq_k, width, dtype=dtype, seed=seed + i, bshd=seed % 3 == 0)
        for i, width in enumerate(dims, 91)
    )
    return q, k, v


def ways_of(engine: Engine, tensors: Tensors, kind: dict[str, object]) -> list[str]:
    """The Hopper ways that compute a problem."""
    q, k, v = tensors
    problem = problem_of(
        q, k, v, output_like(q, v), causal=bool(kind.get("causal")), window=kind.get("window"),  # type: ignore[arg-type]
        alignment=str(kind.get("causal_alignment", "top-left")),
    )  # fmt: skip
    return [way.name for way in hopper.hopper_ways(problem, engine.machine)]


def wrong(
    engine: Engine, way: str | None, tensors: Tensors, kind: dict[str, object], mask: torch.Tensor | None = None
) -> str | None:
    """What is wrong with a way's answer, in poisoned memory between canaries, twice; None if nothing is."""
    q, k, v = tensors
    made = Poisoned(q, v.shape[-1])
    call = bind_attention(q, k, v, made.out, attn_mask=mask, lse=made.lse, way=way, engine=engine, **kind)  # type: ignore[arg-type]
    alignment, window = kind.get("causal_alignment", "top-left"), kind.get("window")
    ends = limits(q, k, causal=bool(kind.get("causal")), alignment=alignment, window=window)  # type: ignore[arg-type]
    return made.complaint(call) or made.wrong(*exact(q, k, v, *ends, mask=mask), 2e-3)


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_way_of_two_widths_agrees_with_float64(engine: Engine, dtype: torch.dtype, dims: tuple[int, int]) -> None:
    complaints = []
    for number, (sizes, kind) in enumerate(itertools.product(SIZES, KINDS)):
        tensors = drawn(sizes, dims, dtype, number)
        for way in ways_of(engine, tensors, kind):
            complaint = wrong(engine, way, tensors, kind)
            if complaint:
                complaints.append(f"{way} {sizes} {kind}: {complaint}")
    assert not complaints, "\n".join(complaints[:20])


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_two_widths_agree_with_float64(dtype: torch.dtype, dims: tuple[int, int]) -> None:
    for causal, sizes in itertools.product((False, True), ((2, 8, 2, 500, 700), (1, 2, 2, 65, 63))):
        case = Shaped((*sizes, *dims), dtype, causal=causal, alignment="bottom-right", device=DEV)
        given = case.draw()
        dout = case.slope(given)
        *_, exact_gradients = case.exact(given, dout)
        leaves = [given[name].requires_grad_() for name in "qkv"]
        for _ in range(3):  # bound; from a plan; and again
            out = attention(**given, causal=causal, causal_alignment="bottom-right")
            for name, gradient in zip("qkv", torch.autograd.grad(out, leaves, dout), strict=True):
                assert relative(gradient, exact_gradients[name]) <= FROBENIUS[dtype], (name, sizes)


@pytest.mark.parametrize("shape", [(1, 4, 200, 704), (1, 1, 200, 704), (2, 4, 200, 704), (2, 1, 1, 704)], ids=str)
@pytest.mark.parametrize("mask", [torch.bool, torch.bfloat16, torch.float32], ids=str)
def test_masks_beside_two_widths_agree_with_float64(engine: Engine, mask: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = drawn((2, 4, 2, 200, 704), (192, 128), torch.bfloat16, 7)
    hidden = torch.rand(shape, device=DEV, generator=torch.Generator(DEV).manual_seed(1)) < 0.3
    numbers = ~hidden if mask == torch.bool else torch.randn(shape, device=DEV).masked_fill(hidden, -math.inf).to(mask)
    for kind in KINDS:
        assert wrong(engine, "fa90", tensors, kind, numbers) is None
        assert wrong(engine, None, tensors, kind, numbers) is None


def test_long_sequences_of_two_widths_go_to_hoppers_kernel_and_replay_alike(engine: Engine) -> None:
    for causal in (False, True):
        q, k, v = drawn((1, 2, 2, 8192, 8192), (192, 128), torch.bfloat16, 3)
        out = output_like(q, v)
        problem = problem_of(q, k, v, out, causal=causal, alignment="top-left")
        assert choose_way(problem, engine.machine)[0].name.startswith("fa90-")
        assert wrong(engine, None, (q, k, v), {"causal": causal}) is None
        assert_replays_alike(bind_attention(q, k, v, out, causal=causal, engine=engine), out)
    parts = bind_attention(q[:, :, :128], k, v, out[:, :, :128], engine=engine)
    assert "split" in parts.way
    assert_replays_alike(parts, out[:, :, :128])


def test_packed_sequences_of_two_widths_agree_with_float64_despite_their_neighbours(engine: Engine) -> None:
    lengths = (1, 0, 700, 129, 128, 1000)
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEV)
    tensors = drawn((1, 8, 4, int(starts[-1]), int(starts[-1])), (192, 128), torch.bfloat16, 5)
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in tensors)
    v[1:701] = math.nan  # the next sequence begins in the same tile as this one ends
    out = attention_varlen(q, k, v, starts, starts, 1000, 1000, causal=True)
    assert isinstance(out, torch.Tensor)
    assert bool(out[1:701].isnan().all())
    for begin, end in itertools.pairwise(starts.tolist()):
        if begin == end or begin == 1:
            continue
        x, y, z = (one[begin:end].transpose(0, 1)[None] for one in (q, k, v))
        want, _ = exact(x, y, z, *limits(x, y, causal=True, alignment="bottom-right"))
        assert relative(out[begin:end].transpose(0, 1)[None], want) <= FROBENIUS[torch.bfloat16]


def test_the_public_call_uses_hoppers_kernel_with_the_same_bits_every_time(engine: Engine) -> None:
    q, k, v = drawn((2, 8, 4, 1024, 1024), (192, 128), torch.bfloat16, 9)
    out = output_like(q, v)
    bind_attention(q, k, v, out, causal=True, way="fa90", engine=engine)()
    for _ in range(3):  # bound; from a plan; and again
        assert torch.equal(attention(q, k, v, causal=True), out)
    assert torch.equal(attention(q, k, v, causal=True, batch_invariant=True), out)
