"""Decoding against PyTorch's backends: one table, made on the spot.

    python -m kernels.attention.cuda.campaign.decode                # the grid
    python -m kernels.attention.cuda.campaign.decode --tiles        # what other tiles and splits would do

Each call of a CUDA graph takes another copy of K and V, as many as exceed the L2 cache several times over, so that
every byte comes from memory. `GB/s` counts K, V, Q and the output once; `of copy` is its share of what a large copy on
the device reaches in the same process, reads and writes counted; `best` is the fastest of PyTorch's backends that takes
the problem.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.cuda.campaign.timing import between_events
from kernels.attention.cuda.decode import Decode, DecodeTile, plan_decode
from kernels.attention.cuda.engine import engine_of
from kernels.attention.cuda.errors import BuildFailed
from kernels.attention.cuda.launching import Bound, Buffers
from kernels.attention.cuda.operator import bind, problem_of

Call = Callable[[], object]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
COLD_BYTES = 384 * 2**20
GRAPH_MS, MOST_CALLS, ROUNDS = 2.0, 120, 7


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem: a query a head of Q unless `seq_q` says more."""

    head_dim: int
    heads: int
    kv_heads: int
    batch: int
    seq_k: int
    seq_q: int = 1

    @property
    def cache_bytes(self) -> int:
        return 2 * self.batch * self.kv_heads * self.seq_k * self.head_dim * 2

    @property
    def all_bytes(self) -> int:
        """What must be read and written at least."""
        return self.cache_bytes + 2 * self.batch * self.heads * self.seq_q * self.head_dim * 2

    @property
    def sets(self) -> int:
        """How many copies of K and V it takes to have none of them in the cache."""
        return max(1, -(-COLD_BYTES // self.cache_bytes))

    def tensors(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        def made(heads: int, seq: int) -> torch.Tensor:
            empty = torch.empty(self.batch, heads, seq, self.head_dim, device="cuda", dtype=torch.bfloat16)
            return empty.normal_()

        for _ in range(self.sets):
            yield made(self.heads, self.seq_q), made(self.kv_heads, self.seq_k), made(self.kv_heads, self.seq_k)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy of 2 GiB: the best of ten."""
    source = torch.empty(2**31, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    found: list[float] = []
    for _ in range(10):
        before, after = between_events(lambda: target.copy_(source))
        torch.cuda.synchronize()
        found.append(2 * source.numel() / (before.elapsed_time(after) * 1e-3))
    return max(found)


def time_together(contenders: dict[str, Sequence[Call]]) -> dict[str, float]:
    """Median microseconds a call of each contender, whose calls a graph takes in turn; graphs interleaved at random."""
    graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]] = {}
    for name, calls in contenders.items():
        for call in calls[:2]:
            call()
        before, after = between_events(calls[0])
        torch.cuda.synchronize()
        wanted = int(GRAPH_MS / max(before.elapsed_time(after), 1e-3))
        count = max(min(wanted, MOST_CALLS), min(len(calls), MOST_CALLS), 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                calls[i % len(calls)]()
        graphs[name] = (graph, count)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    order, chance = list(graphs), random.Random(1)
    for round_ in range(ROUNDS + 1):
        chance.shuffle(order)
        for name in order:
            graph, count = graphs[name]
            before, after = between_events(graph.replay)
            torch.cuda.synchronize()
            if round_:
                times[name].append(before.elapsed_time(after) * 1e3 / count)
    return {name: statistics.median(found) for name, found in times.items()}


def backend_calls(backend: SDPBackend, sets: Sequence[tuple[torch.Tensor, ...]]) -> list[Call] | None:
    """PyTorch's calls; None if the backend does not take the problem."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    try:
        call(*sets[0][:3])
    except RuntimeError:
        return None
    return [functools.partial(call, *one[:3]) for one in sets]


def forced(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: DecodeTile | None, splits: int | None, tickets: bool | None
) -> Bound:
    """A bound call of the decode kernel with parts of its plan given."""
    engine, out = engine_of(q.device), torch.empty_like(q)
    problem = problem_of(q, k, v, out, causal=False, alignment="top-left")
    launch = plan_decode(problem, engine.machine, tile=tile, splits=splits, tickets=tickets)
    buffers, way = Buffers(engine), Decode(launch)
    return Bound(engine, way.name, way.steps(problem, q.shape[3] ** -0.5, buffers), (q, k, v, out, buffers))


def measure(cell: Cell, copy: float) -> str:
    """A row of the table."""
    sets = list(cell.tensors())
    bound = [bind(q, k, v, torch.empty_like(q)) for q, k, v in sets]
    contenders: dict[str, Sequence[Call]] = {"ours": bound}
    for name, backend in BACKENDS.items():
        calls = backend_calls(backend, sets)
        if calls is not None:
            contenders[name] = calls
    times = time_together(contenders)
    ours = times.pop("ours")
    rate = cell.all_bytes / (ours * 1e-6)
    best = min(times, key=lambda name: times[name]) if times else "-"
    ratio = f"{times[best] / ours:.2f}x" if times else "-"
    others = " ".join(f"{name} {us:.1f}" for name, us in times.items())
    return (
        f"D{cell.head_dim:<3} {cell.heads}/{cell.kv_heads:<2} B{cell.batch:<2} q{cell.seq_q:<2} "
        f"k{cell.seq_k // 1024:>3}k {ours:8.1f} us {rate * 1e-9:6.0f} GB/s {rate / copy:6.1%} of copy "
        f"{ratio:>6} of {best:9} [{bound[0].way}; {others}]"
    )


TILES = {
    64: [
        (16, 32, 8, 3),
        (16, 32, 4, 3),
        (16, 32, 4, 2),
        (16, 64, 4, 2),
        (16, 16, 8, 4),
        (16, 64, 4, 3),
        (16, 32, 8, 2),
    ],
    128: [
        (16, 16, 8, 3),
        (16, 16, 4, 3),
        (16, 32, 4, 3),
        (16, 32, 4, 2),
        (16, 16, 4, 6),
        (16, 16, 8, 2),
        (16, 16, 12, 2),
    ],
}


def sweep(cell: Cell, copy: float) -> Iterator[str]:
    """What each tile, two other splits and the other way of joining would do for a cell."""
    sets = list(cell.tensors())
    yield f"D{cell.head_dim} {cell.heads}/{cell.kv_heads} B{cell.batch} k{cell.seq_k // 1024}k"
    contenders: dict[str, Sequence[Call]] = {}
    for shape in TILES[cell.head_dim]:
        tile = DecodeTile(*shape)
        try:
            calls = [forced(*one, tile, None, None) for one in sets]
        except BuildFailed as exc:
            yield f"  {tile.name}: {exc}"
            continue
        contenders[calls[0].way] = calls
    planned = forced(*sets[0], None, None, None)
    parts = int(planned.way.rpartition("-")[2]) if planned.way.count("-") == 2 else 1
    for splits in {max(1, parts // 2), parts * 2} - {parts}:
        contenders[f"splits {splits}"] = [forced(*one, None, splits, None) for one in sets]
    if parts > 1:
        for tickets in (True, False):
            contenders[f"tickets {tickets}"] = [forced(*one, None, None, tickets) for one in sets]
    for name, us in sorted(time_together(contenders).items(), key=lambda item: item[1]):
        rate = cell.all_bytes / (us * 1e-6)
        yield f"  {us:8.1f} us {rate * 1e-9:6.0f} GB/s {rate / copy:6.1%}  {name}"


def cells(seqs: Sequence[int]) -> Iterator[Cell]:
    for head_dim, (heads, kv_heads) in itertools.product((64, 128), ((32, 4), (64, 8), (32, 32))):
        for batch, seq in itertools.product((1, 4, 16), seqs):
            if kv_heads < 32 or batch < 16:
                yield Cell(head_dim, heads, kv_heads, batch, seq * 1024)


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true", help="compare tiles and splits instead of backends")
    parser.add_argument("--seqs", type=int, nargs="+", default=[8, 32, 128], help="lengths of the cache in 1024 keys")
    options = parser.parse_args()
    copy = copy_bandwidth()
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {copy * 1e-9:.0f} GB/s")
    if options.tiles:
        for cell in (
            Cell(128, 32, 4, 1, 8192),
            Cell(128, 64, 8, 4, 32768),
            Cell(64, 32, 4, 1, 32768),
            Cell(64, 64, 8, 16, 32768),
        ):
            say("\n".join(sweep(cell, copy)))
        return
    for cell in cells(options.seqs):
        say(measure(cell, copy))


if __name__ == "__main__":
    main()
