"""Measures every way of computing on the GPU of this machine and writes the table that dispatch uses.

    python3 -m kernels.attention.cuda.campaign.tune --seconds 200 --table TABLE.json [--merge OLD.json]
    python3 -m kernels.attention.cuda.campaign.tune --from ROWS.jsonl --table TABLE.json   # chooses only, needs no GPU

The most important cells are measured first. Cells that are not reached in time are left out of the table.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

from kernels.attention.baseline import Sdpa
from kernels.attention.cuda.campaign.cells import BF16, DECODE_LENGTHS, FP16, HEAD_DIMS, MASKS, Cell, select_cells
from kernels.attention.cuda.campaign.host import say_line
from kernels.attention.cuda.campaign.race import (
    REFERENCE,
    REGIMES,
    against_reference,
    of_kind,
    race_choice,
    race_ways,
    read_races,
    row_of,
)
from kernels.attention.cuda.compile.build import build_one
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unavailable
from kernels.attention.cuda.plan.planning import Problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.plan.variants import Entry
from kernels.attention.cuda.run.engine import Engine, engine_of
from kernels.attention.cuda.run.launching import Bound, Buffers, Way
from kernels.attention.cuda.ways.dispatch import list_ways
from kernels.attention.cuda.ways.tuned import Choice, Table, parse_table
from kernels.harness.clocks import open_nvml
from kernels.harness.timers import timer_for
from kernels.harness.turns import Contender

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SHORT_LENGTHS, LONGEST = LENGTHS[:6], 16384
SEED = 20261121
SAVE_EVERY = 10
RELATIVE_ERROR = {"float16": 2.4e-3, "bfloat16": 1.6e-2}
"""The largest relative error between two results. Both are rounded, so it is twice the error that one may have."""
MOST_SETS = 24
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def make_inputs(cell: Cell, count: int, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return `count` sets of Q, K and V with elements from N(0, 1), each set in separate memory. They are the same for
    every race of a cell."""
    generator = torch.Generator(device).manual_seed(cell.seq_q * 131 + cell.seq_k * 7 + cell.head_dim)

    def tensor(heads: int, rows: int) -> torch.Tensor:
        shape = (cell.batch, heads, rows, cell.head_dim)
        return torch.randn(shape, device=device, generator=generator).to(getattr(torch, cell.dtype))

    return [
        (tensor(cell.heads, cell.seq_q), tensor(cell.kv_heads, cell.seq_k), tensor(cell.kv_heads, cell.seq_k))
        for _ in range(count)
    ]


def square_cell(dtype: str, batch: int, heads: int, seq: int, head_dim: int, causal: bool) -> Cell:
    return Cell("tune", dtype, batch, heads, heads, seq, seq, head_dim, causal)


def tuning_cells() -> list[Cell]:
    """Return the cells in the order in which they are measured: for each element type 64 heads in all, then 16, then
    decoding; at the end, for bfloat16 only, 256 and 4 heads."""
    cells: list[Cell] = []
    for dtype in (BF16, FP16):
        for batch, heads in ((4, 16), (2, 8)):
            lengths = list(LENGTHS) if batch == 4 else [*LENGTHS, LONGEST]
            cells += [square_cell(dtype, batch, heads, s, d, c) for d, c, s in product(HEAD_DIMS, MASKS, lengths)]
        for batch, seq_k, head_dim in product((1, 4), DECODE_LENGTHS, HEAD_DIMS):
            cells.append(Cell("tune", dtype, batch, 64, 8, 1, seq_k, head_dim, False))
    cells += [square_cell(BF16, 8, 32, s, d, c) for d, c, s in product(HEAD_DIMS, MASKS, SHORT_LENGTHS)]
    cells += [square_cell(BF16, 1, 4, s, d, c) for d, c, s in product(HEAD_DIMS, MASKS, LENGTHS)]
    return cells


def pose_problem(engine: Engine, cell: Cell, tensors: Tensors) -> tuple[Problem, list[Way]]:
    """Return the problem of these tensors, and every way of computing it."""
    problem = problem_of(*tensors, causal=cell.causal, alignment="top-left")
    return problem, list_ways(problem, engine.machine)


def build_everything(engine: Engine, wanted: Sequence[Cell]) -> dict[str, str]:
    """Compile and load every kernel of every way of every cell. Return the kernels that do not build, by name, with the
    reason."""
    entries: dict[str, Entry] = {}
    for cell in wanted:
        q = torch.empty(
            (cell.batch, cell.heads, cell.seq_q, cell.head_dim), dtype=getattr(torch, cell.dtype), device="cuda"
        )
        k = q.new_empty((cell.batch, cell.kv_heads, cell.seq_k, cell.head_dim))
        problem, ways = pose_problem(engine, cell, (q, k, torch.empty_like(k), torch.empty_like(q)))
        for way in ways:
            for step in way.steps(problem, 1.0, Buffers.now(engine)):
                entries[step.entry.name] = step.entry
    compiler = engine.find_compiler()

    def build(entry: Entry) -> tuple[str, str]:
        try:
            build_one(entry, engine.target, compiler, engine.cache)
        except BuildFailed as exc:
            return entry.name, str(exc)[:200]
        return entry.name, ""

    with ThreadPoolExecutor(16) as pool:
        failed = {name: why for name, why in pool.map(build, entries.values()) if why}
    for entry in entries.values():
        if entry.name not in failed:
            try:
                engine.function(entry)
            except BuildFailed as exc:
                failed[entry.name] = str(exc)[:200]
    say_line(f"{len(entries)} kernels, {len(failed)} do not build")
    for name, why in failed.items():
        say_line(f"  {name}: {why}")
    return failed


def field_of(engine: Engine, cell: Cell) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return the contenders for a cell: every way whose result is right, after a first call, and cuDNN for comparison.
    Return also the other ways, with the reason why they are absent."""
    sets = make_inputs(cell, 1 + min(MOST_SETS, math.ceil(2 * engine.machine.l2_bytes / cell.set_bytes)), engine.device)
    q, k, v = sets[0]
    field: dict[str, Contender] = {}
    absent: dict[str, str] = {}
    wanted = Sdpa("default").prepare(q, k, v, cell.causal)()
    reference = Sdpa(REFERENCE)
    try:
        plans = tuple(reference.prepare(*own, cell.causal) for own in sets)
        field[REFERENCE] = Contender(REFERENCE, plans, reference.scope)
    except Unavailable as exc:
        absent[REFERENCE] = str(exc)[:200]
    _, ways = pose_problem(engine, cell, (q, k, v, torch.empty_like(q)))
    for way in ways:
        calls = []
        try:
            for own in sets:
                tensors = (*own, torch.full_like(q, math.nan))
                problem = problem_of(*tensors, causal=cell.causal, alignment="top-left")
                call = Bound.of(way, problem, cell.head_dim**-0.5, Buffers.now(engine), tensors)
                calls.append((call, tensors[3]))
            calls[0][0]()
            torch.cuda.synchronize()
        except (BuildFailed, Unavailable, CudaError) as exc:
            absent[way.name] = str(exc)[:200]
            continue
        error = ((calls[0][1].float() - wanted.float()).norm() / wanted.float().norm()).item()
        if error < RELATIVE_ERROR[cell.dtype]:
            field[way.name] = Contender(way.name, tuple(call for call, _ in calls), nullcontext)
        else:
            absent[way.name] = f"wrong: {error:.3g} from cuDNN's answer"
    return field, absent


def line_of(row: Mapping[str, Any]) -> str:
    """Return one line: the cell, the winner and its speed relative to cuDNN, the second way, and the absent ways."""
    made = race_choice(row)
    vs = " ".join(
        f"{regime} {made.us[regime]:.1f}us {x:.3f}x" for regime, x in against_reference(row, made.way).items()
    )
    cell = Cell(**row["cell"])
    rate = f"{cell.flops / made.us['graph'] / 1e6:.0f}"
    wrong = "".join(f" | {name} {why}" for name, why in row["absent"].items())
    return f"{cell.name[5:]}: {made.way} {rate} {vs} | +{made.margin:.1%} {made.second}{wrong}"


def measure_cells(engine: Engine, wanted: Sequence[Cell], end: float, rows: Path) -> Iterator[dict[str, Any]]:
    """Race every cell until the clock reads `end`. Write each row to the file `rows`, then yield it."""
    timers = {regime: timer_for(engine.device, regime) for regime in REGIMES}
    chance = random.Random(SEED)
    with rows.open("w") as out:
        out.write(json.dumps({"kind": "about", "about": describe_engine(engine)}) + "\n")
        for cell in wanted:
            if time.perf_counter() > end:
                return
            field, absent = field_of(engine, cell)
            if not set(field) - {REFERENCE}:
                say_line(f"{cell.name}: no way computes it: {absent}")
                continue
            at = datetime.now(UTC).isoformat(timespec="seconds")
            try:
                samples = race_ways(field, timers.__getitem__, chance)
            except Unavailable as exc:
                say_line(f"{cell.name}: {exc}")
                continue
            row = row_of(cell, samples, absent, at)
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
            out.flush()
            yield row


def describe_engine(engine: Engine) -> dict[str, Any]:
    """Return the device and the software with which the times were measured."""
    return {
        "device": torch.cuda.get_device_name(),
        "chip": engine.chip.name,
        "target": engine.target.name,
        "sm_count": engine.machine.sm_count,
        "driver": sensors.driver_version() if (sensors := open_nvml(engine.device)) is not None else "",
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
    }


def table_of(old: Path | None, where: Mapping[str, Any], made: Sequence[Choice]) -> Table:
    """Return the table of the new cells; with an old table, the old one in which they replace cells with the same
    key."""
    before = parse_table(old.read_text()) if old else Table(where)
    return before.merged(where, made)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Find the fastest way for every size, and write the table.")
    parser.add_argument("--table", type=Path, required=True, help="the table to write")
    parser.add_argument("--rows", type=Path, help="where every measured time goes; beside the table unless given")
    parser.add_argument("--from", type=Path, dest="source", metavar="ROWS", help="decide from recorded rows, no GPU")
    parser.add_argument("--merge", type=Path, metavar="OLD", help="a table whose other cells are kept")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", default="", metavar="WORDS", help="the cells with these words, e.g. 'bf16 d128'")
    options = parser.parse_args(arguments)
    if options.source:
        rows = read_races(options.source)
        where = of_kind(rows, "about")[-1]["about"]
        options.table.write_text(
            table_of(options.merge, where, [race_choice(row) for row in of_kind(rows, "race")]).text()
        )
        return
    warnings.simplefilter("ignore")  # of a backend that does not take a cell
    started = time.perf_counter()
    end = started + options.seconds
    with torch.no_grad():
        engine = engine_of(torch.device("cuda"))
        wanted = select_cells(tuning_cells(), options.only)
        build_everything(engine, wanted)
        say_line(f"built in {time.perf_counter() - started:.1f} s")
        made: list[Choice] = []
        where = describe_engine(engine)
        options.table.parent.mkdir(parents=True, exist_ok=True)
        for number, row in enumerate(
            measure_cells(engine, wanted, end, options.rows or options.table.with_suffix(".jsonl")), 1
        ):
            made.append(race_choice(row))
            say_line(f"{time.perf_counter() - started:6.1f} {line_of(row)}")
            if number % SAVE_EVERY == 0:
                options.table.write_text(table_of(options.merge, where, made).text())
        options.table.write_text(table_of(options.merge, where, made).text())
        say_line(f"{len(made)} of {len(wanted)} cells in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
