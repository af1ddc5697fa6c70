"""Calls over paged caches without a GPU: what is launched, remembered, seen by PyTorch's compiler, and refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.cuda import attention_paged, bind_paged
from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.quick import Options, Quick
from kernels.attention.cuda.calls.registered import as_operator, kernels_of
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Parameters
from kernels.attention.cuda.plan.planning import Layout, Machine, Pages, Problem
from kernels.attention.cuda.plan.variants import CHIPS, Chip
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.ways.decode import Decode
from kernels.attention.cuda.ways.dispatch import choose_way, list_ways
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from tests.kernels.cuda.every_kernel import every_general_kernel
from tests.kernels.cuda.paged_cases import Cache, draw_cache
from tests.kernels.cuda.stub_driver import WITH_STUB, Map, OnCpu, Stub

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")


@pytest.fixture
def registered(quick: Quick) -> Iterator[Quick]:
    """The operator has a kernel for the CPU: what `quick` launches on its stub."""
    library = torch.library.Library("spotbench", "IMPL")
    library.impl("attention_paged", kernels_of(quick.launch)["attention_paged"], "CPU")
    yield quick
    library._destroy()


def given_of(cache: Cache) -> dict[str, torch.Tensor]:
    """A call's tensors by the names that plans know them by."""
    given = {"q": cache.q, "k": cache.k, "v": cache.v, "block_table": cache.table, "k_lengths": cache.lengths}
    return given | ({} if cache.starts is None else {"q_starts": cache.starts})


def call(quick: Quick, cache: Cache, **rest: Any) -> Any:
    given = given_of(cache)
    return quick.call(tuple(given.values()), Options(names=tuple(given), longest=(-1, -1), **rest))


def launched(stub: Stub, number: int = -1) -> Parameters:
    return stub.launch(number).argument(0, Parameters)


def problem(*, seq_q: int = 1, group: int = 4, head_dim: int = 128, seq_k: int = 4096, page: int = 16) -> Problem:
    kv = Layout(page * 8 * head_dim, head_dim, 8 * head_dim)
    heads = 8 * group
    q = Layout(seq_q * heads * head_dim, head_dim, heads * head_dim)
    pages = Pages(16, 16, 1000, page, 1000 * page, True, 5000)
    return Problem("bfloat16", 4, heads, 8, seq_q, seq_k, head_dim, True, 0, q, kv, kv, q, pages=pages)


def test_few_queries_are_decoded_and_many_are_not() -> None:
    machine = Machine(HOPPER, 132, 50 << 20, hopper=True)
    assert isinstance(choose_way(problem(), machine)[0], Decode)
    assert isinstance(choose_way(problem(seq_q=512), machine)[0], HopperWay)
    assert isinstance(choose_way(problem(seq_q=512, page=24), machine)[0], General)
    assert isinstance(choose_way(problem(seq_q=512), dataclasses.replace(machine, hopper=False))[0], General)
    assert [way.name.split("-")[0] for way in list_ways(problem(), machine)] == ["general", "decode"]
    assert [way.name.split("-")[0] for way in list_ways(problem(seq_q=512), machine)] == [*["fa90"] * 2, "general"]


@given(
    chip=st.sampled_from(CHIPS),
    seq_q=st.integers(1, 2000),
    group=st.integers(1, 8),
    head_dim=st.integers(1, 256),
    page=st.sampled_from((1, 16, 64, 100)),
)
def test_every_paged_problem_gets_a_kernel_that_a_gate_has_seen(
    chip: Chip, seq_q: int, group: int, head_dim: int, page: int
) -> None:
    wanted = dataclasses.replace(problem(seq_q=seq_q, group=group, head_dim=head_dim, page=page), dtype=chip.dtypes[-1])
    launch = plan_general(wanted, Machine(chip, 132, 50 << 20))
    assert launch.kernel in list(every_general_kernel(chip))
    assert "paged" in launch.kernel.name


@WITH_STUB
def test_a_remembered_call_writes_its_own_tensors_addresses(stub: Stub, quick: Quick) -> None:
    seen = set()
    for queries in (1, 70, (3, 1), (70, 80)):
        for seed in range(3):
            cache = draw_cache((600, 130), queries, page=16, heads=8, head_dim=128, seed=seed)
            before = stub.launches
            out, lse = call(quick, cache, causal=True, return_lse=True, alignment="bottom-right")
            first = launched(stub, before)
            assert (first.q, first.k, first.v) == (cache.q.data_ptr(), cache.k.data_ptr(), cache.v.data_ptr())
            assert (first.block_table, first.k_lengths) == (cache.table.data_ptr(), cache.lengths.data_ptr())
            assert first.q_starts == (None if cache.starts is None else cache.starts.data_ptr())
            assert (first.table_row, first.page.divisor, first.align_ends) == (cache.table.stride(0), 16, 1)
            assert first.seq_k == cache.table.shape[1] * 16
            assert (launched(stub).out, launched(stub).lse) == (out.data_ptr(), lse.data_ptr())
            wanted = (2, 8, queries) if isinstance(queries, int) else (8, sum(queries))
            assert (out.shape, tuple(lse.shape)) == (cache.q.shape, wanted)
            seen.add(stub.launch(before).name)
    assert any(name.startswith(b"decode_paged_fp16_d128") for name in seen)
    assert any(name.startswith(b"general_fp16_d128_paged_vector") for name in seen)


@WITH_STUB
@pytest.mark.parametrize("queries", [140, (140, 130)])
def test_hopper_is_given_a_map_of_the_pages(stub: Stub, quick: Quick, queries: int | tuple[int, ...]) -> None:
    for seed in range(3):
        cache = draw_cache((600, 130), queries, page=32, heads=8, head_dim=128, seed=seed)
        out, lse = call(quick, cache, causal=True, return_lse=True, alignment="bottom-right")
        launch = stub.launch()
        assert launch.name.startswith(b"fa90_fp16_d128_causal_ahead")
        maps = [Map.from_buffer_copy(bytes(launch.argument(number, TensorMap))) for number in range(3)]
        assert [one.address for one in maps] == [x.data_ptr() for x in (cache.q, cache.k, cache.v)]
        assert list(maps[0].sizes) == [128, cache.q.numel() // 8 // 128, 8, 1]
        assert list(maps[1].sizes) == [128, 32, 2, cache.k.shape[0]]
        assert list(maps[1].box) == [64, 32, 1, 1]
        given = launch.argument(3, HopperParameters)
        assert (given.block_table, given.k_lengths) == (cache.table.data_ptr(), cache.lengths.data_ptr())
        assert (given.out, given.lse) == (out.data_ptr(), lse.data_ptr())
        assert (given.piece, given.pages, given.page.divisor) == (32, cache.k.shape[0], 32)


@WITH_STUB
def test_a_call_like_the_one_before_is_not_bound_again(engine: OnCpu) -> None:
    bound = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        bound.append(1)
        return bind_call(*args, **kwargs)

    quick = Quick(counting, lambda device: engine, as_operator)
    for seed in range(4):
        call(quick, draw_cache((600, 130), 1, page=16, seed=seed))
        call(quick, draw_cache((600, 130), 1, page=32, seed=seed))
    assert len(bound) == 2


@WITH_STUB
def test_counters_of_a_captured_launch_are_its_own(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    cache = draw_cache((3000, 130), 1, page=16, heads=8, kv_heads=1)

    def tickets() -> int:
        call(quick, cache)
        return int(launched(stub).tickets)

    eager = tickets()
    allocations = stub.library.stub_allocations()
    engine.host.is_capturing = True
    captured = [tickets(), tickets()]
    engine.host.is_capturing = False
    assert eager
    assert len({eager, *captured}) == 3
    assert tickets() == eager
    assert stub.library.stub_allocations() - allocations <= 1


@WITH_STUB
def test_nothing_to_see_gives_zeros_without_a_launch(stub: Stub, engine: OnCpu) -> None:
    cache = draw_cache((0, 0), 2, page=16, spare=0)
    before = stub.launches
    out, lse = torch.ones_like(cache.q), torch.zeros(2, 4, 2)
    bind_paged(cache.q, cache.k, cache.v, out, cache.table, cache.lengths, lse=lse, engine=engine)()
    assert not out.any()
    assert bool(lse.isneginf().all())
    assert stub.launches == before


@WITH_STUB
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_gradient_is_refused_before_and_after_a_plan_is_known(registered: Quick, which: str) -> None:
    cache = draw_cache((600, 130), 1, page=16)
    asks = dataclasses.replace(cache, **{which: getattr(cache, which).detach().requires_grad_()})
    for _ in range(2):
        with pytest.raises(Unsupported, match="backward pass"):
            call(registered, asks)
        with torch.no_grad():
            call(registered, asks)
        call(registered, cache)
    tensors = given_of(asks)
    with pytest.raises(Unsupported, match="backward pass"):
        as_operator(tensors, Options(names=tuple(tensors), longest=(-1, -1)))


@WITH_STUB
def test_fake_tensors_get_the_operators_shapes(stub: Stub, quick: Quick) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = stub.launches
    for queries in (3, (3, 1)):
        cache = draw_cache((600, 130), queries, page=16)
        with FakeTensorMode() as mode:
            names = [field.name for field in dataclasses.fields(cache) if getattr(cache, field.name) is not None]
            faked = dataclasses.replace(cache, **{name: mode.from_tensor(getattr(cache, name)) for name in names})
            out, lse = call(quick, faked, return_lse=True)
        assert out.shape == cache.q.shape
        assert tuple(lse.shape) == ((2, 4, 3) if queries == 3 else (4, 4))
    assert stub.launches == before


@WITH_STUB
@pytest.mark.parametrize("queries", [2, (2, 3)])
def test_under_the_compiler_the_call_is_the_operator(stub: Stub, registered: Quick, queries: Any) -> None:
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    cache = draw_cache((600, 130), queries, page=16)

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        given = cache.table, cache.lengths
        return attention_paged(q, k, v, *given, cu_seqlens_q=cache.starts, causal=True, return_lse=True)

    before = stub.launches
    out, _ = torch.compile(model, backend=backend, fullgraph=True)(cache.q, cache.k, cache.v)
    assert out.shape == cache.q.shape
    assert any("spotbench.attention_paged" in name for name in names)
    assert stub.launches > before


def replaced(**tensors: Any) -> Callable[[Cache], Cache]:
    return lambda cache: dataclasses.replace(cache, **{name: make(cache) for name, make in tensors.items()})


@WITH_STUB
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            replaced(table=lambda c: c.table.long()),
            ValueError,
            r"block_table must be int32, not torch\.int64: pass block_table\.to\(torch",
        ),
        (replaced(lengths=lambda c: c.lengths[None]), ValueError, r"seqused_k must be \[sequences\]; it has 2"),
        (replaced(table=lambda c: c.table.T.contiguous().T), ValueError, r"contiguous: pass block_table\.contiguous"),
        (replaced(lengths=lambda c: c.lengths[:1]), ValueError, "block_table has 2 sequences, seqused_k 1 and q 2"),
        (replaced(table=lambda c: c.table.to("meta")), ValueError, r"on the device of q, cpu: pass block_table\.to\(q"),
        (replaced(starts=lambda c: c.lengths), ValueError, r"q must be \[total_q, H, D\]"),
        (replaced(q=lambda c: c.q[0]), ValueError, r"q must be \[B, S_q, H, D\]"),
        (replaced(k=lambda c: c.k[0]), ValueError, r"must be \[pages, page_size, H_kv, D\]"),
        (replaced(k=lambda c: c.k[1:]), ValueError, "shapes do not fit"),
        (replaced(k=lambda c: c.k[:, :0], v=lambda c: c.v[:, :0]), ValueError, "a page must have a key"),
        (replaced(v=lambda c: c.v[..., :0]), Unsupported, "the head dimension must be 1 to 576, not 0"),
        (replaced(k=lambda c: c.k.mT.contiguous().mT), Unsupported, "last dimension of k_cache must be contiguous"),
        (replaced(q=lambda c: c.q[:, :, :3]), Unsupported, "3 heads of Q cannot share 2"),
        (replaced(k=lambda c: c.k.float()), Unsupported, "one dtype"),
        (replaced(q=lambda c: None), TypeError, "q must be a tensor"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(
    quick: Quick, change: Callable[[Cache], Cache], error: type[Exception], says: str
) -> None:
    good = draw_cache((60, 130), 1, page=16)
    for _ in range(2):
        with pytest.raises(error, match=says):
            call(quick, change(good))
        call(quick, good)


@WITH_STUB
def test_lengths_that_are_not_numbers_of_the_host_are_refused(engine: OnCpu) -> None:
    cache = draw_cache((60, 130), 1, page=16)
    for longest in (cache.lengths, -1):
        with pytest.raises((TypeError, ValueError), match="max_seqlen_k must"):
            attention_paged(*cache.tensors, max_seqlen_k=longest, engine=engine)  # type: ignore[arg-type]
