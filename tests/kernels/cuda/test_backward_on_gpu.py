"""The backward pass on a GPU: native code against float64, through autograd, captured, and the code of older chips."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.attention.cuda import attention, attention_varlen
from kernels.attention.cuda.backward.ampere import ampere_ways
from kernels.attention.cuda.backward.costs import possible_parts
from kernels.attention.cuda.backward.few import few_ways
from kernels.attention.cuda.backward.small import small_ways
from kernels.attention.cuda.backward.turing import turing_ways
from kernels.attention.cuda.backward.wide import wide_ways
from kernels.attention.cuda.calls.backward import bind_backward
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.compile.compiler import Target
from kernels.attention.cuda.run.engine import Engine, engine_of
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, errors, pose
from tests.kernels.cuda.on_gpu import ON_GPU

pytestmark = ON_GPU
DEV = torch.device("cuda", 0)
BF16, FP16 = torch.bfloat16, torch.float16


def on_gpu(posed: Posed) -> Posed:
    def moved(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 4:
            return x.to(DEV)
        return x.transpose(1, 2).to(DEV).transpose(1, 2)

    tensors = {name: moved(x) for name, x in posed.tensors.items()}
    exact = tuple(x.to(DEV) for x in posed.exact)
    assert len(exact) == 3
    dlse = None if posed.dlse is None else posed.dlse.to(DEV)
    return Posed(tensors, posed.options, moved(posed.out), posed.lse.to(DEV), moved(posed.dout), exact, dlse)


def gradients(posed: Posed, **how: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = posed.gradients()
    bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options, dlse=posed.dlse, **how)()
    return found


SHAPES = [
    (1, 2, 2, 256, 256, 64),
    (2, 4, 2, 977, 1024, 64),
    (2, 4, 1, 130, 515, 128),
    (1, 4, 4, 515, 300, 96),
    (1, 2, 1, 64, 70, 40),
    (1, 2, 2, 300, 200, 256),
    (2, 6, 2, 1029, 1100, 256),
    (1, 4, 1, 515, 700, 160),
    (1, 2, 1, 100, 99, 33),
]


@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_is_as_close_to_float64_as_the_element_type_allows(
    shape: tuple[int, int, int, int, int, int], dtype: torch.dtype, causal: str | None
) -> None:
    posed = on_gpu(pose(dtype, *shape, Options(causal is not None, alignment=causal or "top-left")))
    every: list[dict[str, Any]] = [{}, {"deterministic": True}, {"way": "backward-pair"}]
    problem, machine = posed.problem(posed.gradients()), engine_of(DEV).machine
    if machine.hopper and shape[5] in (40, 64, 96, 128):
        every += [{"way": "backward90"}, {"way": "backward90-ordered"}]
        every += [{"way": f"backward90-parts{parts}"} for parts in possible_parts(problem) if shape[1] > shape[2]]
        every += [{"way": "backward90-cyclic"}] if causal is None else []
    every += [{"way": way.name} for way in (*wide_ways(problem, machine), *ampere_ways(problem, machine))]
    for how in every:
        found = errors(gradients(posed, **how), posed.exact)
        assert max(found) <= RELATIVE[dtype], (found, how)


@pytest.mark.parametrize("target", ["compute_75", "compute_80"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_code_of_older_chips_has_the_same_gradients(target: str, head_dim: int) -> None:
    engine = Engine(DEV, target=Target(target))
    posed = on_gpu(pose(FP16, 1, 4, 2, 200, 150, head_dim, Options(True)))
    problem = posed.problem(posed.gradients())
    summing = [way.name for way in (*ampere_ways(problem, engine.machine), *turing_ways(problem, engine.machine))]
    assert bool(summing) == (head_dim <= 128 or target != "compute_75")
    for way in (None, "backward-pair", *summing):
        assert max(errors(gradients(posed, engine=engine, way=way), posed.exact)) <= RELATIVE[FP16]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(192, 128), (136, 8), (192, 256), (256, 128), (256, 184), (184, 184)]
)
def test_hoppers_kernel_for_wide_heads_takes_k_and_v_of_two_widths(head_dim: int, value_dim: int, causal: bool) -> None:
    options = Options(causal, alignment="bottom-right")
    posed = on_gpu(pose(BF16, 2, 4, 2, 1000, 1300, head_dim, options, value_dim=value_dim, with_dlse=True))
    for way in wide_ways(posed.problem(posed.gradients()), engine_of(DEV).machine):
        for _ in range(20):
            assert max(errors(gradients(posed, way=way.name), posed.exact)) <= RELATIVE[BF16]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_windows_and_scales_below_zero_have_gradients_by_five_products(head_dim: int) -> None:
    for options in (Options(window=(100, 20), alignment="bottom-right"), Options(True, scale=-0.1)):
        posed = on_gpu(pose(BF16, 2, 40, 40, 500, 600, head_dim, options))
        found = posed.gradients()
        run = bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options)
        run()
        has_kernel = engine_of(DEV).machine.hopper and head_dim <= 128 and options.window is not None
        assert run.way.startswith("backward90" if has_kernel else "backward80")
        assert max(errors(found, posed.exact)) <= 1.5 * RELATIVE[BF16]


WINDOWS = [(0, 3), (127, 0), (128, 0), (300, 20), (64, -1), (5000, 0)]


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("dtype", "shape"), [
    (BF16, (2, 8, 1, 1000, 1000, 64)),
    (FP16, (1, 8, 2, 515, 1100, 128)),
    (BF16, (2, 2, 2, 1500, 600, 96)),
    (FP16, (3, 4, 2, 40, 700, 40)),
    (BF16, (1, 16, 4, 1500, 1500, 64)),
])  # fmt: skip
def test_windows_have_the_right_gradients_by_each_of_hoppers_kernels(
    dtype: torch.dtype, shape: tuple[int, int, int, int, int, int], alignment: str
) -> None:
    """Also those of queries that see no key and of keys that no query sees. In an order all bits are the same."""
    if not engine_of(DEV).machine.hopper:
        pytest.skip("Hopper's")
    for window in WINDOWS:
        posed = on_gpu(pose(dtype, *shape, Options(window=window, alignment=alignment)))
        possible = possible_parts(posed.problem(posed.gradients()))
        ways = [f"backward90-parts{parts}" for parts in possible] if len(possible) > 1 else ["backward90"]
        for way in (*ways, "backward90-ordered"):
            found = [gradients(posed, way=way) for _ in range(10)]
            assert max(errors(found[0], posed.exact)) <= 1.5 * RELATIVE[dtype], (way, window)
            kept = slice(0 if way.endswith("ordered") else 1, 3)
            for other in found[1:]:
                assert all(torch.equal(a, b) for a, b in zip(other[kept], found[0][kept], strict=True)), (way, window)
                assert max(errors(other, posed.exact)) <= 1.5 * RELATIVE[dtype], (way, window)


@pytest.mark.parametrize("rows", [200, 600, 1500])  # in one launch of either kind, and by the pair
def test_the_deterministic_mode_gives_the_same_bits_a_thousand_times(rows: int) -> None:
    posed = on_gpu(pose(BF16, 2, 4, 2, rows, rows, 64, Options(True)))
    first = gradients(posed, deterministic=True)
    found = posed.gradients()
    run = bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options, deterministic=True)
    for _ in range(1000):
        run()
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))


@pytest.mark.parametrize(("order", "causal"), [("ordered", False), ("ordered", True), ("cyclic", False)])
@pytest.mark.parametrize("shape", [(2, 8, 2, 1000, 1000, 64), (1, 4, 4, 2048, 2048, 128), (3, 16, 16, 300, 700, 64)])
def test_sums_in_an_order_have_the_same_bits_also_beside_other_launches(
    shape: tuple[int, int, int, int, int, int], order: str, causal: bool
) -> None:
    """In a cyclic order, two launches that each had some of their blocks running would wait forever."""
    if not engine_of(DEV).machine.hopper:
        pytest.skip("Hopper's")
    posed, way = on_gpu(pose(BF16, *shape, Options(causal))), f"backward90-{order}"
    first = gradients(posed, way=way)
    runs = []
    for _ in range(2):
        with torch.cuda.stream(torch.cuda.Stream(DEV)):
            found = posed.gradients()
            given = (posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options)
            runs.append((torch.cuda.current_stream(), bind_backward(*given, way=way), found))
    for _ in range(500):
        for stream, run, _ in runs:
            with torch.cuda.stream(stream):
                run()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for _, _, found in runs for a, b in zip(found, first, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 2, 1000, 1000, 64), (1, 32, 4, 1024, 1024, 128), (3, 16, 2, 300, 700, 128)])
def test_parts_of_a_group_give_keys_and_values_the_same_bits(
    shape: tuple[int, int, int, int, int, int], causal: bool
) -> None:
    """Whichever part is the last, also when launches share the GPU."""
    if not engine_of(DEV).machine.hopper:
        pytest.skip("Hopper's")
    posed = on_gpu(pose(BF16, *shape, Options(causal)))
    for parts in possible_parts(posed.problem(posed.gradients())):
        first, runs = gradients(posed, way=f"backward90-parts{parts}"), []
        assert max(errors(first, posed.exact)) <= RELATIVE[BF16]
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream(DEV)):
                found = posed.gradients()
                given = (posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options)
                runs.append((torch.cuda.current_stream(), bind_backward(*given, way=f"backward90-parts{parts}"), found))
        for _ in range(20):
            for stream, run, _ in runs:
                with torch.cuda.stream(stream):
                    run()
            torch.cuda.synchronize()
            for _, _, found in runs:
                assert all(torch.equal(a, b) for a, b in zip(found[1:], first[1:], strict=True))
                assert max(errors(found, posed.exact)) <= RELATIVE[BF16]


def sdpa_gradients(tensors: list[torch.Tensor], dout: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    own = [x.detach().double().requires_grad_() for x in tensors]
    out = torch.nn.functional.scaled_dot_product_attention(*own, enable_gqa=True, **options)
    return list(torch.autograd.grad(out, own, dout.double()))


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "expanded", "summed"])
def test_autograd_gives_the_gradients_that_pytorch_gives(kind: str) -> None:
    generator = torch.Generator(DEV).manual_seed(1)
    q, k, v, dout = (torch.randn(2, h, 300, 64, device=DEV, generator=generator).to(BF16) for h in (8, 2, 2, 8))
    mask = torch.rand(300, 300, device=DEV, generator=generator) > 0.3
    if kind == "expanded":
        k, v = (x[:, :1].expand(2, 2, 300, 64) for x in (k, v))
    if kind == "summed":
        dout = torch.ones((), device=DEV, dtype=BF16).expand(q.shape)
    options = {"causal": {"is_causal": True}, "mask": {"attn_mask": mask}}.get(kind, {})
    ours = {"causal": {"causal": True}, "mask": {"attn_mask": mask}}.get(kind, {})
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention(own[0], own[1], own[2], **ours)  # type: ignore[arg-type]
    assert isinstance(out, torch.Tensor)
    found = torch.autograd.grad(out, own, dout)
    for one, wanted in zip(found, sdpa_gradients([q, k, v], dout, **options), strict=True):
        assert float((one.double() - wanted).norm() / wanted.norm()) < 6e-3  # the output is rounded too


def test_packed_sequences_have_the_gradients_of_each() -> None:
    lengths, generator = (100, 1, 0, 250), torch.Generator(DEV).manual_seed(2)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=DEV)
    q, k, v, dout = (torch.randn(sum(lengths), h, 64, device=DEV, generator=generator).to(BF16) for h in (4, 2, 2, 4))
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    out = attention_varlen(own[0], own[1], own[2], starts, starts, 250, 250, causal=True)
    assert isinstance(out, torch.Tensor)
    found = torch.autograd.grad(out, own, dout)
    at = 0
    for length in lengths:
        rows, at = slice(at, at + length), at + length
        if not length:
            continue
        parts = [x[rows].transpose(0, 1)[None] for x in (q, k, v)]
        wanted = sdpa_gradients(parts, dout[rows].transpose(0, 1)[None], is_causal=True)
        for one, other in zip(found, wanted, strict=True):
            exact = other[0].transpose(0, 1)
            assert float((one[rows].double() - exact).norm()) <= 6e-3 * max(float(exact.norm()), 1.0)


def test_captured_backward_passes_may_be_replayed_in_any_order_beside_eager_ones() -> None:
    posed = on_gpu(pose(BF16, 1, 4, 4, 640, 640, 64, Options(True)))
    graphs, results = [], []
    for _ in range(3):
        found = posed.gradients()
        run = bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                run()
        graphs.append(graph)
        results.append((run, found))
    for number in (2, 0, 1, 1, 2, 0):
        for gradient in results[number][1]:
            gradient.fill_(math.nan)
        graphs[number].replay()
        assert max(errors(gradients(posed), posed.exact)) <= RELATIVE[BF16]
        assert max(errors(results[number][1], posed.exact)) <= RELATIVE[BF16]


def test_streams_may_run_backward_passes_at_the_same_time() -> None:
    posed = on_gpu(pose(BF16, 1, 4, 4, 640, 640, 128, Options()))
    torch.cuda.synchronize()
    made = []
    for _ in range(4):
        with torch.cuda.stream(torch.cuda.Stream()):
            made += [gradients(posed) for _ in range(5)]
    torch.cuda.synchronize()
    assert all(max(errors(found, posed.exact)) <= RELATIVE[BF16] for found in made)


FEW = [
    (2, 8, 8, 128, 128, 64),
    (2, 8, 8, 64, 64, 64),
    (1, 8, 2, 32, 100, 128),
    (2, 4, 4, 197, 197, 64),
    (1, 6, 2, 130, 256, 96),
    (2, 8, 8, 512, 512, 64),
    (1, 4, 4, 500, 512, 128),
    (1, 2, 1, 1, 1, 40),
]


@pytest.mark.parametrize("causal", [None, "top-left", "bottom-right"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("shape", FEW)
def test_every_way_over_few_keys_is_as_close_to_float64_as_the_element_type_allows(
    shape: tuple[int, int, int, int, int, int], dtype: torch.dtype, causal: str | None
) -> None:
    posed = on_gpu(pose(dtype, *shape, Options(causal is not None, alignment=causal or "top-left")))
    problem, allowed = posed.problem(posed.gradients()), RELATIVE[dtype]
    machine = engine_of(DEV).machine
    ways = [*small_ways(problem, machine), *few_ways(problem, machine)]
    assert ways
    for way in ways:
        found = gradients(posed, way=way.name)
        assert all(x.isfinite().all() for x in found)
        assert shape[4] == 1 or max(errors(found, posed.exact)) <= allowed, (way.name, errors(found, posed.exact))


@pytest.mark.parametrize(
    ("way", "rows"), [("backward-small", 128), ("backward-few90-64", 256), ("backward-few90-128", 500)]
)
def test_one_launch_gives_the_same_bits_ten_thousand_times_and_in_graphs(way: str, rows: int) -> None:
    if "90" in way and not engine_of(DEV).machine.hopper:
        pytest.skip("a kernel of Hopper's")
    posed = on_gpu(pose(BF16, 2, 8, 8, rows, rows, 64, Options(True)))
    first, found = gradients(posed, way=way), posed.gradients()
    run = bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options, way=way)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            run()
    differing = torch.zeros((), dtype=torch.int64, device=DEV)
    for number in range(100):
        for gradient in found:
            gradient.fill_(math.nan)
        graph.replay()
        if number % 10 == 0:
            run()
        for one, other in zip(found, first, strict=True):
            differing += (one != other).sum()
    assert int(differing) == 0


@pytest.mark.parametrize("target", ["compute_80"])
def test_the_code_of_ampere_has_the_same_gradients_over_few_keys(target: str) -> None:
    engine = Engine(DEV, target=Target(target))
    for head_dim in (64, 128):
        posed = on_gpu(pose(FP16, 1, 4, 2, 100, 120, head_dim, Options(True)))
        found = gradients(posed, engine=engine, way="backward-small")
        assert max(errors(found, posed.exact)) <= RELATIVE[FP16]


def test_the_engine_of_the_device_has_a_way_for_plain_problems() -> None:
    for heads, rows, hopper, other in (
        (2, 600, "backward-few90", "backward80"),
        (40, 600, "backward90", "backward80"),
        (2, 128, "backward-small", "backward-small"),
    ):
        posed = on_gpu(pose(BF16, 1, heads, heads, rows, rows, 128, Options()))
        found = posed.gradients()
        run = bind_backward(posed.tensors, posed.out, posed.lse, posed.dout, found, posed.options)
        assert run.way.startswith(hopper if engine_of(DEV).machine.hopper else other)
