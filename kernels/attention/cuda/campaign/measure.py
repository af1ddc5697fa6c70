"""The campaign: our kernel against every other on the GPU at hand, within a budget of seconds.

    python3 -m kernels.attention.cuda.campaign.measure OUT.jsonl --seconds 420 [--quick] [--flex 40] [--only WORDS]

Writes one JSON object a line as it comes: `environment`, `build`, `host`, `stress`, then a `visit` for each cell and
turn, `sustained` for some, `skipped` for those that the time did not reach, and `end`. `campaign.tables` reads it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from kernels.attention.cuda.campaign import facts
from kernels.attention.cuda.campaign.cells import campaign, chosen, from_row, quick
from kernels.attention.cuda.campaign.contenders import GpuStable
from kernels.attention.cuda.campaign.numbers import medians, rate
from kernels.attention.cuda.campaign.runner import run
from kernels.attention.cuda.campaign.stress import stress
from kernels.attention.cuda.campaign.timing import CudaStopwatch
from kernels.attention.cuda.campaign.visit import Visitor
from kernels.attention.cuda.engine import engine_of

SEED = 20261121


def line(row: dict[str, Any]) -> str:
    """What a row says on the screen: one line."""
    if row["kind"] != "visit":
        shown = {key: value for key, value in row.items() if key not in ("kind", "cell")}
        where = f" {from_row(row['cell']).name}" if "cell" in row else ""
        return f"{row['kind']}{where} {json.dumps(shown)}"[:400]
    cell = from_row(row["cell"])
    words = []
    for regime in ("burst", "graph", "cold"):
        found = medians([row], regime)
        if "ours" in found:
            rivals = {name: us for name, us in found.items() if name in ("cudnn", "flash", "efficient")}
            best = min(rivals, key=lambda name: rivals[name], default="")
            ratio = f" {rivals[best] / found['ours']:.3f}x {best}" if best else ""
            fa4 = f" {found['fa4'] / found['ours']:.3f}x fa4" if "fa4" in found else ""
            words.append(f"{regime} {found['ours']:.1f}us {rate(cell, found['ours'])}{ratio}{fa4}")
    wrong = [
        f"{name}: {why}" for name, why in row["absent"].items() if why.startswith("wrong") or name.startswith("ours")
    ]
    return f"{cell.name} [{row['ways'].get('ours', '-')}] " + " | ".join(words + wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the CUDA kernel on this GPU against every other.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=420.0, help="of measuring in all, building included")
    parser.add_argument("--quick", action="store_true", help="three cells: does everything run?")
    parser.add_argument("--only", default="", metavar="WORDS", help="the cells with these words, e.g. 'main bf16 d128'")
    parser.add_argument("--flex", type=float, default=0.0, metavar="SECONDS", help="what FlexAttention may compile for")
    parser.add_argument("--launches", type=int, default=10_000, help="of the test that results repeat bit for bit")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # a backend says in ten lines why it does not take a cell; the row has the reason
    started = time.perf_counter()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w") as out, torch.no_grad():

        def emit(row: dict[str, Any]) -> None:
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
            out.flush()
            sys.stdout.write(f"{time.perf_counter() - started:6.1f} {line(row)}\n")
            sys.stdout.flush()

        engine = engine_of(torch.device("cuda"))
        stable = GpuStable(engine, flex_s=asked.flex)
        emit(facts.environment(engine, stable.about()))
        emit(facts.build(engine))
        emit(facts.host_cost(engine))
        if asked.launches:
            emit(stress(engine, asked.launches))
        cells = chosen(quick() if asked.quick else campaign(), asked.only)
        visitor = Visitor(stable, CudaStopwatch(), random.Random(SEED))
        run(cells, visitor, asked.seconds - (time.perf_counter() - started), emit)
        emit({"kind": "end", "seconds": round(time.perf_counter() - started, 1), **facts.resources(engine)})


if __name__ == "__main__":
    main()
