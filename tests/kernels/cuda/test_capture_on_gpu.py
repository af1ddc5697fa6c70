"""Captured launches on a GPU, as servers use them: many graphs, shared pools, any order, eager calls between, threads.

Every answer is compared with the eager one bit for bit. A test that hangs ends the process, with its stacks.
"""

from __future__ import annotations

import faulthandler
import itertools
import random
import threading
from collections.abc import Iterator

import pytest
import torch

from kernels.attention.cuda.operator import attention, bind_attention
from kernels.attention.cuda.run.engine import Engine, engine_of
from tests.kernels.cuda.on_gpu import DEV, ON_GPU, randn

pytestmark = ON_GPU

BF16 = torch.bfloat16
SECONDS = 240
"""Other processes may have their share of the GPU."""


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """A kernel that waits for ever cannot be interrupted, only left."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def tensors(batch: int, heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int) -> list[torch.Tensor]:
    shapes = [(batch, heads, seq_q, head_dim), *[(batch, kv_heads, seq_k, head_dim)] * 2]
    return [randn(*shape, dtype=BF16, seed=seq_k + number) for number, shape in enumerate(shapes)]


def test_graphs_of_all_batch_sizes_in_one_pool_replay_right_in_any_order() -> None:
    layers, sizes = 32, range(32, 0, -2)
    _, k, v = tensors(32, 16, 2, 1, 4096, 128)
    queries = [randn(32, 16, 1, 128, dtype=BF16, seed=layer) for layer in range(layers)]
    want = {n: torch.stack([attention(q[:n], k[:n], v[:n]) for q in queries]) for n in sizes}
    pool, graphs, made = torch.cuda.graph_pool_handle(), {}, {}
    for n in sizes:
        graphs[n] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[n], pool=pool):
            made[n] = torch.stack([attention(q[:n], k[:n], v[:n]) for q in queries])
    chance, wrong = random.Random(1), 0
    for _ in range(240):
        n = chance.choice(sizes)
        graphs[n].replay()
        wrong += not torch.equal(made[n], want[n])
    assert wrong == 0


def test_eager_calls_on_a_new_stream_after_many_graphs_are_right() -> None:
    _, k, v = tensors(8, 32, 8, 1, 2048, 128)
    q = randn(8, 32, 1, 128, dtype=BF16, seed=3)
    want = {n: attention(q[:n], k[:n], v[:n]).clone() for n in range(1, 9)}
    pool, graphs, made = torch.cuda.graph_pool_handle(), [], []
    for n in range(8, 0, -1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            made.append([attention(q[:n], k[:n], v[:n]) for _ in range(40)])
        graphs.append(graph)
    for graph in (*graphs, *reversed(graphs)):
        graph.replay()
    torch.cuda.synchronize()
    for _ in range(10):
        stream = torch.cuda.Stream()
        for n in (8, 3):
            with torch.cuda.stream(stream):
                eager = attention(q[:n], k[:n], v[:n])
            torch.cuda.synchronize()
            assert torch.equal(eager, want[n])


def test_more_persistent_launches_than_a_pool_ever_had_slots_neither_hang_nor_err() -> None:
    q, k, v = tensors(1, 4, 4, 640, 640, 64)
    want = attention(q, k, v, causal=True).clone()
    pool, graphs, made = torch.cuda.graph_pool_handle(), [], []
    for count in (1100, 600):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            for _ in range(count):
                out = attention(q, k, v, causal=True)
        graphs.append(graph)
        made.append(out)
    for number in (1, 0, 1, 1, 0, 0, 1):
        graphs[number].replay()
        torch.cuda.synchronize()
        assert torch.equal(made[number], want)
        assert torch.equal(attention(q, k, v, causal=True), want)


def test_memory_that_other_graphs_of_a_pool_write_is_never_a_counter() -> None:
    q, k, v = tensors(8, 32, 8, 1, 2048, 128)
    want, x = attention(q, k, v).clone(), torch.randn(8192, device=DEV)
    pool, first, second = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        held = [x * 3 for _ in range(300)]
        del held
    with torch.cuda.graph(second, pool=pool):
        outs = [attention(q, k, v) for _ in range(150)]
    for graph in (first, second):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in outs)
    first.replay()  # writes where the second's results were, and may, for they share a pool; nobody's counters
    second.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, want) for out in outs)
    first.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        eager = attention(q, k, v)
        torch.cuda.synchronize()
    assert torch.equal(eager, want)


def test_a_graph_outlives_the_bound_call_that_it_captured() -> None:
    q, k, v = tensors(2, 8, 2, 1, 8192, 128)
    out, want = torch.empty_like(q), attention(q, k, v).clone()
    graph, call = torch.cuda.CUDAGraph(), bind_attention(q, k, v, out)
    call()
    with torch.cuda.graph(graph):
        call()
        call()
    del call
    side = torch.cuda.Stream()
    for _ in range(50):
        out.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            graph.replay()
        other = torch.empty_like(q)
        bind_attention(q, k, v, other)()
        torch.cuda.synchronize()
        assert torch.equal(out, want)
        assert torch.equal(other, want)


def test_one_graph_on_two_streams_at_once_is_right() -> None:
    q, k, v = tensors(1, 4, 4, 2048, 2048, 64)
    want = attention(q, k, v, causal=True).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = [attention(q, k, v, causal=True) for _ in range(20)][-1]
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(100):
        for stream in streams:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


def test_a_kernel_first_needed_in_a_capture_is_loaded_in_it() -> None:
    q, k, v = tensors(1, 4, 4, 640, 640, 64)
    want, fresh = attention(q, k, v, causal=True).clone(), Engine(engine_of(q.device).device)
    assert fresh.functions == {}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, causal=True, engine=fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


LAYERS, AT_ONCE = 500, 25
KINDS = (
    # batch, heads, heads of K and V, queries, keys, head dimension, causal: decoding in parts, and a persistent kernel
    ((1, 8, 2, 1, 2048, 64), False),
    ((1, 2, 2, 600, 600, 64), True),
    ((2, 16, 2, 1, 1024, 128), False),
)


class Worker:
    """One thread's graphs, in a pool of its own; all count into `wrong` how many elements differ from the eager ones."""

    one_at_a_time = threading.Lock()  # PyTorch captures one graph at a time in a process

    def __init__(self, number: int, graphs: int) -> None:
        self.number, self.count = number, graphs
        self.stream = torch.cuda.Stream()
        self.wrong = torch.zeros((), device=DEV, dtype=torch.int64)
        self.cases = [(tensors(*shape), causal) for shape, causal in KINDS]
        self.want = [attention(*given, causal=causal).clone() for given, causal in self.cases]
        self.errors: list[BaseException] = []

    def capture(self, pool: object) -> torch.cuda.CUDAGraph:
        graph, kinds = torch.cuda.CUDAGraph(), itertools.cycle(zip(self.cases, self.want, strict=True))
        with (
            self.one_at_a_time,
            torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"),
        ):
            for _ in range(LAYERS // AT_ONCE):
                (given, causal), want = next(kinds)
                outs = torch.stack([attention(*given, causal=causal) for _ in range(AT_ONCE)])
                self.wrong += (outs != want).sum()
        return graph

    def eager(self) -> None:
        for (given, causal), want in zip(self.cases, self.want, strict=True):
            self.wrong += (attention(*given, causal=causal) != want).sum()

    def run(self) -> None:
        try:
            chance, pool = random.Random(self.number), torch.cuda.graph_pool_handle()
            graphs: list[torch.cuda.CUDAGraph] = []
            with torch.cuda.stream(self.stream):
                for _ in range(self.count):
                    graphs.append(self.capture(pool))
                    chance.choice(graphs).replay()
                    self.eager()
                for graph in chance.sample(graphs, len(graphs)):
                    graph.replay()
                    self.eager()
                self.stream.synchronize()
        except BaseException as exc:
            self.errors.append(exc)


@pytest.mark.parametrize(("launches", "threads"), [(2_000, 1), (20_000, 2), (100_000, 4)])
def test_a_soak_of_captured_and_eager_launches_in_threads_errs_nowhere(launches: int, threads: int) -> None:
    workers = [Worker(number, launches // threads // LAYERS) for number in range(threads)]
    torch.cuda.synchronize()
    running = [threading.Thread(target=worker.run) for worker in workers]
    for one in running:
        one.start()
    for one in running:
        one.join()
    torch.cuda.synchronize()
    assert [worker.errors for worker in workers] == [[]] * threads
    assert [int(worker.wrong) for worker in workers] == [0] * threads
