"""Estimates how long a way takes: the work of its launches, multiplied by measured prices.

The work of a way is described by the terms of `TERMS`: the launch itself, the row tiles of the busiest SM, the key
tiles that this SM reads for them, the average number of key tiles per SM, and megabytes moved. The prices of the terms
in microseconds come from `prices/*.json`, which `campaign.fit` writes. Pure: no torch, no device.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from pathlib import Path
from typing import Any

from kernels.attention.cuda.plan.planning import (
    ELEMENT_BYTES,
    REGISTERS_PER_SM,
    Machine,
    Problem,
    slots_per_sm,
    visible_keys,
)
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways.decode import Decode
from kernels.attention.cuda.ways.decode import blocks_per_sm as decoding_blocks_per_sm
from kernels.attention.cuda.ways.general import General
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.portable import Portable
from kernels.attention.cuda.ways.small import Small
from kernels.attention.cuda.ways.small_hopper import SmallHopper
from kernels.attention.cuda.ways.tuned import way_stem

FOLDER = Path(__file__).parents[1] / "prices"
SCHEMA = 1
MEGABYTE = 1e6
PLAYED = 512
"""Up to this many tiles of different lengths are assigned to workers one by one. With more tiles the differences
average out, and a formula is used."""
TERMS = ("launch", "tiles", "keys", "even", "megabytes", "joined")
CAUTION = 1.15
"""The estimated time of a way is multiplied by this if the way was measured in few cells only."""
Terms = tuple[float, ...]
"""One amount or one price for each term, in the order of TERMS. `joined` counts the megabytes of partial results,
which are written and read again."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of the worker that ends last: its row tiles, and the key tiles of all of them together. `even` is the
    number of key tiles per SM if the work were divided exactly."""

    tiles: float
    keys: float
    even: float


def worker_load(key_tiles: Sequence[int], copies: int, workers: int, sm_count: int) -> Load:
    """Return the load of the last worker if workers take the longest row tiles first. `key_tiles` has the number of key
    tiles for each row tile of one head; there are `copies` heads."""
    count, total = len(key_tiles) * copies, sum(key_tiles) * copies
    even = total / sm_count
    longest, shortest = max(key_tiles), min(key_tiles)
    if count <= workers:
        return Load(1.0, float(longest), even)
    if longest == shortest:
        waves = -(-count // workers)
        return Load(float(waves), float(waves * longest), even)
    if count > PLAYED:
        return Load(count / workers + 0.5, total / workers + 0.5 * shortest, even)
    ends = [(0, 0)] * workers  # for each worker: key tiles plus row tiles, row tiles
    for tile in sorted(key_tiles, reverse=True):
        for _ in range(copies):
            keys, tiles = ends[0]
            heapq.heapreplace(ends, (keys + tile + 1, tiles + 1))
    keys, tiles = max(ends)
    return Load(float(tiles), float(keys - tiles), even)


def key_tiles(problem: Problem, rows: int, keys: int) -> list[int]:
    """Return for each row tile how many key tiles it reads; at least 1."""
    count, every = -(-problem.seq_q // rows), -(-problem.seq_k // keys)
    if not problem.causal and problem.window_offset is None:
        return [every] * count
    tile_counts = []
    for start in range(0, count * rows, rows):
        to = problem.seq_k
        if problem.causal:
            to = min(to, min(start + rows, problem.seq_q) + problem.causal_offset)
        begin = 0 if problem.window_offset is None else max(0, start + problem.window_offset)
        tile_counts.append(max(1, -(-to // keys) - begin // keys))
    return tile_counts


def problem_megabytes(problem: Problem) -> float:
    """Return the megabytes (10^6 bytes) of Q, K, V and the output, each counted once."""
    rows = problem.heads * problem.seq_q + problem.kv_heads * problem.seq_k
    return problem.batch * rows * (problem.head_dim + problem.width) * ELEMENT_BYTES / MEGABYTE


def joined_megabytes(problem: Problem, parts: int) -> float:
    """Return the megabytes of the float32 outputs of the parts; 0 if the keys are not cut."""
    return 0.0 if parts == 1 else parts * problem.out_rows * problem.width * 4 / MEGABYTE


@singledispatch
def work_terms(way: object, problem: Problem, machine: Machine) -> Terms | None:
    """Return the amounts of work of a way for a problem, in the order of TERMS; None if no function describes it."""
    del way, problem, machine
    return None


@work_terms.register
def _(way: HopperWay, problem: Problem, machine: Machine) -> Terms:
    shape, sms = way.kernel.shape, machine.sm_count
    tiles = key_tiles(problem, shape.rows, shape.keys)
    parted = [max(1, -(-one // way.parts)) for one in tiles]
    load_of_parts = worker_load(parted, problem.batch * problem.heads * way.parts, sms, sms)
    return (
        1.0,
        load_of_parts.tiles,
        load_of_parts.keys,
        load_of_parts.even,
        problem_megabytes(problem),
        joined_megabytes(problem, way.parts),
    )


def of_grid(problem: Problem, machine: Machine, tiles: list[int], copies: int, slots: int, parts: int) -> Terms:
    """Return the amounts of work of a grid of blocks, where one SM runs `slots` blocks at the same time."""
    parted = [max(1, -(-one // parts)) for one in tiles]
    load_of_grid = worker_load(parted, copies * parts, machine.sm_count * slots, machine.sm_count)
    joined = joined_megabytes(problem, parts)
    return (1.0, load_of_grid.tiles, load_of_grid.keys, load_of_grid.even, problem_megabytes(problem), joined)


@work_terms.register
def _(way: Portable, problem: Problem, machine: Machine) -> Terms:
    kernel, tile = way.launch.kernel, way.launch.kernel.tile
    slots = slots_per_sm(kernel.shared_bytes, kernel.threads, machine.chip)
    tiles = key_tiles(problem, tile.rows, tile.keys)
    return of_grid(problem, machine, tiles, problem.batch * problem.heads, slots, way.launch.splits)


@work_terms.register
def _(way: General, problem: Problem, machine: Machine) -> Terms:
    launch, tile = way.launch, way.launch.kernel.tile
    slots = slots_per_sm(launch.kernel.shared_bytes, launch.kernel.threads, machine.chip)
    packs = problem.batch * problem.heads // launch.pack
    each = -(-visible_keys(problem, -(-tile.rows // launch.pack)) // tile.keys)
    return of_grid(problem, machine, [each] * launch.row_tiles, packs, slots, launch.splits)


@work_terms.register
def _(way: Decode, problem: Problem, machine: Machine) -> Terms:
    launch, tile = way.launch, way.launch.kernel.tile
    slots = decoding_blocks_per_sm(launch.kernel, machine.chip)
    steps = -(-visible_keys(problem, problem.seq_q) // (tile.keys * tile.warps))
    return of_grid(problem, machine, [steps], launch.items, slots, launch.splits)


@work_terms.register(Small)
@work_terms.register(SmallHopper)
def _(way: Small | SmallHopper, problem: Problem, machine: Machine) -> Terms:
    kernel, shape = way.kernel, way.kernel.shape
    rows = shape.rows if isinstance(way, SmallHopper) else way.kernel.shape.all_rows
    blocks = -(-problem.seq_q // rows) * problem.batch * problem.heads
    by_shared = machine.chip.shared_bytes_per_sm // (kernel.shared_bytes + 1024)
    slots = max(1, min(by_shared, REGISTERS_PER_SM // (kernel.threads * 128), 16))
    load = worker_load([1], blocks, machine.sm_count * slots, machine.sm_count)
    return (1.0, load.tiles, blocks / machine.sm_count, problem.seq_k / 64, problem_megabytes(problem), 0.0)


def kinds_of(way: Way, problem: Problem) -> tuple[str, str]:
    """Return the two kinds under which a way's price is looked up, the more exact one first.

    The first names the way, the width of its kernel, `causal` or `full`, and the element type of a mask; in the second,
    `any` stands for both `causal` and `full`. The numbers of packed heads and of parts are left out, because the
    amounts of work contain them. Decoding reads all keys for all rows, so a causal problem whose last row sees every
    key has the price of a full one.
    """
    kernel = way.kernel if isinstance(way, HopperWay | Small | SmallHopper) else way.launch.kernel  # type: ignore[attr-defined]
    ragged = problem.causal or problem.window_offset is not None
    if isinstance(way, Decode) and problem.window_offset is None:
        ragged = problem.causal and problem.causal_offset + problem.seq_q < problem.seq_k
    ends = "causal" if ragged else "full"
    mask = f" {problem.mask.dtype}" if problem.mask is not None else ""
    name = f"{re.sub(r'-pack[0-9]+', '-pack', way_stem(way.name))} d{kernel.head_dim}"
    return f"{name} {ends}{mask}", f"{name} any{mask}"


def caution_factor(way: Way) -> float:
    """Return the factor for the estimate of a way before it is compared with others. Hopper's way that cuts keys was
    measured in 20 cells, the others in hundreds."""
    return CAUTION if isinstance(way, HopperWay) and way.kernel.split else 1.0


@dataclass(frozen=True, slots=True)
class Costs:
    """Prices in microseconds, by kind and term, on one chip. `about` says where they were measured and how well they
    fit."""

    about: Mapping[str, Any]
    prices: Mapping[str, Terms]

    def us(self, way: Way, problem: Problem, machine: Machine) -> float | None:
        """Return the estimated microseconds of a way; None if it has no price."""
        work = work_terms(way, problem, machine)
        kinds = () if work is None else kinds_of(way, problem)
        price = next((self.prices[kind] for kind in kinds if kind in self.prices), None)
        return None if price is None or work is None else sum(map(float.__mul__, price, work))

    def cheapest(self, found: Iterable[Way], problem: Problem, machine: Machine) -> tuple[Way, float] | None:
        """Return the way with the least estimate and its microseconds; None if no way has a price."""
        priced_ways = [
            (us * caution_factor(way), number, way, us)
            for number, way in enumerate(found)
            if (us := self.us(way, problem, machine))
        ]
        return None if not priced_ways else min(priced_ways)[2:]


def parse_costs(text: str) -> Costs:
    """Return the prices in the text of a file. Raises ValueError if its schema or its terms are others."""
    document = json.loads(text)
    if document.get("schema") != SCHEMA or tuple(document["terms"]) != TERMS:
        raise ValueError(f"the prices must have schema {SCHEMA} and the terms {', '.join(TERMS)}")
    return Costs(document["about"], {kind: tuple(prices) for kind, prices in document["prices"].items()})


@cache
def costs_for(chip: str, sm_count: int) -> Costs | None:
    """Return the prices measured on a chip of this family with this number of SMs; None if there are none."""
    costs_list = [parse_costs(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return next((one for one in costs_list if (one.about["chip"], one.about["sm_count"]) == (chip, sm_count)), None)
