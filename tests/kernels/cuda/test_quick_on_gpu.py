"""Remembered calls on a GPU: the same bits as bound ones, on any stream, in graphs, in threads."""

from __future__ import annotations

import threading
import time

import torch

from kernels.attention.cuda.operator import attention, bind_attention
from tests.kernels.cuda.on_gpu import DEV, DTYPES, ON_GPU, randn

pytestmark = ON_GPU

SHAPES = ((2, 8, 64, 64), (1, 4, 333, 64), (2, 2, 512, 128), (1, 2, 2048, 128), (1, 16, 1, 64), (1, 2, 50, 37))


def bound(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    out = torch.empty_like(q)
    bind_attention(q, k, v, out, causal=causal)()
    return out


def test_remembered_calls_give_the_bits_of_bound_ones() -> None:
    for dtype in DTYPES:
        for number, shape in enumerate(SHAPES * 3):
            q, k, v = (randn(*shape, dtype=dtype, seed=number * 3 + i, bshd=number % 2 == 1) for i in range(3))
            for causal in (False, True):
                out, lse = attention(q, k, v, causal=causal, return_lse=True)
                assert torch.equal(out, bound(q, k, v, causal=causal)), shape
                assert torch.equal(attention(q, k, v, causal=causal), out), shape
                assert bool(lse.isfinite().all())


def test_tensors_off_their_boundary_are_right_too() -> None:
    q, k, v = (randn(1, 2, 200, 64, dtype=torch.float16, seed=i) for i in range(3))
    want = attention(q, k, v)
    for which in range(3):
        tensors = [q, k, v]
        storage = torch.empty(q.numel() + 8, device=DEV, dtype=q.dtype)
        moved = storage[1 : 1 + q.numel()].view(q.shape)
        moved.copy_(tensors[which])
        tensors[which] = moved
        for _ in range(2):
            assert (attention(*tensors).float() - want.float()).abs().max().item() < 2e-3


def test_two_streams_at_once_do_not_disturb_each_other() -> None:
    sets = [[randn(2, 8, 1024, 64, dtype=torch.bfloat16, seed=7 * n + i) for i in range(3)] for n in range(2)]
    want = [attention(*one, causal=True) for one in sets]
    streams = [torch.cuda.Stream() for _ in sets]
    torch.cuda.synchronize()
    for _ in range(100):
        got = []
        for one, stream in zip(sets, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(attention(*one, causal=True))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_graph_replays_beside_eager_calls_of_the_same_shape() -> None:
    q, k, v = (randn(2, 8, 1024, 64, dtype=torch.bfloat16, seed=i) for i in range(3))
    want = attention(q, k, v, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [attention(q, k, v, causal=True) for _ in range(3)]
    side = torch.cuda.Stream()
    for _ in range(50):
        with torch.cuda.stream(side):
            graph.replay()
        eager = attention(q, k, v, causal=True)
        torch.cuda.synchronize()
        assert torch.equal(eager, want)
        assert all(torch.equal(one, want) for one in captured)


def test_threads_on_one_stream_and_on_their_own_are_right() -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream() if number % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            q, k, v = (randn(1, 4, 256 + number, 64, dtype=torch.float16, seed=number + i) for i in range(3))
            want = bound(q, k, v, causal=True)
            equal = [torch.equal(attention(q, k, v, causal=True), want) for _ in range(100)]
            wrong.extend(f"thread {number}" for one in equal if not one)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_compiled_operator_agrees() -> None:
    q, k, v = (randn(1, 2, 128, 64, dtype=torch.float16, seed=i) for i in range(3))
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, causal=True) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), attention(q, k, v, causal=True) * 2)


def test_a_call_from_python_costs_no_more_than_pytorchs() -> None:
    q, k, v = (randn(2, 8, 64, 64, dtype=torch.bfloat16, seed=i) for i in range(3))

    def us(call: object) -> float:
        best = float("inf")
        for _ in range(7):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(300):
                call()  # type: ignore[operator]
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - started) / 300 * 1e6)
        return best

    ours = us(lambda: attention(q, k, v))
    theirs = us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert ours <= theirs, f"{ours:.1f} us against {theirs:.1f} us"
