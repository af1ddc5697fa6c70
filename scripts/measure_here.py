"""Measures a named grid on this very machine with the harness alone: for a GPU box of one's own, without any cloud.

    python3 scripts/measure_here.py --grid hopper --dtypes float16,bfloat16 --regime both --out results/here

Runs the harness's four steps as the agent does on a VM and assembles `measurements.csv`. Needs PyYAML, numpy, torch.
Run again with the same --out it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
IMPLEMENTATIONS = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "bench:aa")


def grid(name: str, dtypes: list[str]) -> dict[str, Any]:
    """The named grid with every shape spelt out, as the run spec has it."""
    found = yaml.safe_load((ROOT / "configs" / "grids.yaml").read_text(encoding="utf-8"))[name]
    shapes = []
    for shape in found["shapes"]:
        full = {
            "seq_q": shape.get("seq"),
            "seq_k": shape.get("seq"),
            "kv_heads": shape["heads"],
            "causal": False,
            **shape,
        }
        full.pop("seq", None)
        shapes.append(full)
    limits = {"max_abs_error": found["max_abs_error"]} if "max_abs_error" in found else {}
    return {"shapes": shapes, "dtypes": dtypes or found["dtypes"], **limits}


def assemble(out: Path) -> None:
    """All cases in one file, row by row: however many there are, one of them is in memory."""
    columns: dict[str, None] = {}
    for path in sorted((out / "cases").glob("*.csv")):
        columns |= dict.fromkeys(next(rows_of(path, header=True), []))
    with (out / "measurements.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns), restval="")
        writer.writeheader()
        for path in sorted((out / "cases").glob("*.csv")):
            writer.writerows(rows_of(path))


def rows_of(path: Path, *, header: bool = False) -> Iterator[Any]:
    """A file's rows, or its header alone."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        yield from [reader.fieldnames or []] if header else reader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--grid", default="standard")
    parser.add_argument("--dtypes", default="", help="comma-separated; the grid's own unless given")
    parser.add_argument("--regime", default="both", choices=("both", "burst", "sustained", "graph"))
    parser.add_argument("--cache", default="cold", choices=("cold", "warm"))
    parser.add_argument("--repeats", type=int, default=50, help="in each regime")
    parser.add_argument("--warmup", default="steady", help="a number of calls, or `steady`")
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS), help="comma-separated")
    parser.add_argument("--case-seconds", type=float, help="the most that a case may take; no limit unless given")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    spec = {
        "run_id": out.name,
        "vm": "here",
        "implementations": asked.implementations.split(","),
        "measure": grid(asked.grid, [name for name in asked.dtypes.split(",") if name]),
        "correctness": {"max_abs_error": 0.01, **grid("correctness-classic", ["float16", "bfloat16"])},
        "repeats": asked.repeats,
        "warmup": int(asked.warmup) if asked.warmup.isdigit() else asked.warmup,
        "regime": asked.regime,
        "cache": asked.cache,
        "seed": 20261121,
        "threads": 0,
        "skip_cases": [path.stem for path in (out / "cases").glob("*.csv")],
        # A dollar a second, so that dollars are seconds.
        **({"usd_per_hour": 3600, "case_budget_usd": asked.case_seconds} if asked.case_seconds else {}),
    }
    file = out / "spec.json"
    file.write_text(json.dumps(spec, indent=1), encoding="utf-8")
    worst = 0
    for step in ("environment", "build", "correctness", "measure"):
        command = [sys.executable, "-m", "kernels.harness", step, "--spec", str(file), "--out", str(out), "--no-ack"]
        code = subprocess.run(command, cwd=ROOT).returncode
        print(f"{step}: exit code {code}", file=sys.stderr)
        worst = max(worst, code)
        if code not in (0, 10):
            break
    assemble(out)
    return worst


if __name__ == "__main__":
    sys.exit(main())
