"""Measures named grids on this machine with the harness alone: for a machine of your own with a GPU, without a cloud.

    python3 scripts/measure_here.py --grid hopper --dtypes float16,bfloat16 --regime both --out results/here

Runs the harness's four steps as the agent does on a VM and assembles `measurements.csv`. Needs PyYAML, numpy, torch.
If it is run again with the same --out, it goes on where it stopped; `--shard 1/4` measures every fourth case, and
`--assemble A B …` makes one folder of several. With `--payload` the packed sources are measured, and named by their
hash, in place of this checkout.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from kernels.attention.grids import case_ids, combine_grids  # noqa: E402 - it is found by the line above

IMPLEMENTATIONS = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "bench:aa")
DONE = (0, 10)
OUT_OF_TIME = 124
SHIPPED = ROOT / "configs" / "grids.yaml"


def read_grids(path: Path) -> dict[str, Any]:
    """The named grids of a file."""
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def skipped_cases(measure: dict[str, Any], out: Path, shard: str) -> list[str]:
    """The ids of cases that are measured already, or belong to another shard."""
    done = [path.stem for path in (out / "cases").glob("*.csv")]
    number, _, of = shard.partition("/")
    ids = case_ids(measure)
    mine = set(ids[int(number) - 1 :: int(of)])
    return sorted({*done, *(one for one in ids if one not in mine)} & set(ids))


def unpack_payload(payload: Path, folder: Path) -> Path:
    """Unpacks the payload and writes its hash into its manifest, as the agent does. Returns the folder."""
    root = folder / "payload"
    shutil.rmtree(root, ignore_errors=True)
    with tarfile.open(payload) as archive:
        archive.extractall(root, filter="data")
    manifest = root / "manifest.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    sha256 = hashlib.sha256(payload.read_bytes()).hexdigest()
    manifest.write_text(json.dumps({**document, "payload_sha256": sha256}), encoding="utf-8")
    return root


def assemble_file(out: Path, folders: list[Path]) -> None:
    """Writes all cases of the folders into one file, row by row, so that memory holds only one row at a time."""
    paths = sorted(path for folder in folders for path in (folder / "cases").glob("*.csv"))
    columns: dict[str, None] = {}
    for path in paths:
        columns |= dict.fromkeys(next(rows_of(path, header=True), []))
    with (out / "measurements.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns), restval="")
        writer.writeheader()
        for path in paths:
            writer.writerows({**row, "run_id": out.name} for row in rows_of(path))
    for name in ("environment.json", "build.json", "correctness.csv"):
        first = next((folder / name for folder in folders if (folder / name).exists()), None)
        if first is not None and first != out / name:
            shutil.copy(first, out / name)
    specs = [json.loads((one / "spec.json").read_text()) for one in folders if (one / "spec.json").exists()]
    if specs and folders != [out]:
        (out / "spec.json").write_text(json.dumps(merge_specs(out.name, specs), indent=1), encoding="utf-8")
    sources = [folder / "cupti.csv" for folder in folders if (folder / "cupti.csv").exists() and folder != out]
    if sources:
        lines = [path.read_text(encoding="utf-8").splitlines(keepends=True) for path in sources]
        text = lines[0][0] + "".join(line for own in lines for line in own[1:])
        (out / "cupti.csv").write_text(text, encoding="utf-8")


def merge_specs(name: str, specs: list[dict[str, Any]]) -> dict[str, Any]:
    """The specs merged into one, with every shape and every implementation once."""
    shapes: list[dict[str, Any]] = []
    for spec in specs:
        shapes += [shape for shape in spec["measure"]["shapes"] if shape not in shapes]
    names = list(dict.fromkeys(one for spec in specs for one in spec["implementations"]))
    measure = {**specs[0]["measure"], "shapes": shapes}
    return {**specs[0], "run_id": name, "implementations": names, "measure": measure, "skip_cases": []}


def rows_of(path: Path, *, header: bool = False) -> Iterator[Any]:
    """A file's rows, or its header alone."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        yield from [reader.fieldnames or []] if header else reader


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--grid", default="standard", help="comma-separated names")
    parser.add_argument("--grids", type=Path, default=SHIPPED, help="the file they are in")
    parser.add_argument("--dtypes", default="", help="comma-separated; the grid's own unless given")
    parser.add_argument("--regime", default="both", choices=("both", "burst+graph", "burst", "sustained", "graph"))
    parser.add_argument("--cache", default="cold", choices=("cold", "warm"))
    parser.add_argument("--repeats", type=int, default=50, help="in each regime")
    parser.add_argument("--warmup", default="steady", help="a number of calls, or `steady`")
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS), help="comma-separated")
    parser.add_argument("--stop-at-relative-ci", type=float, help="a case ends once its ratios are known within this")
    parser.add_argument("--case-seconds", type=float, help="the most that a case may take; no limit unless given")
    parser.add_argument("--minutes", type=float, help="stop after so long; what is measured by then stays")
    parser.add_argument("--shard", default="1/1", help="K/N: every N-th case from the K-th on")
    parser.add_argument("--no-correctness", action="store_true", help="leave out the classic problems")
    parser.add_argument("--payload", type=Path, help="a packed payload to run in place of this checkout")
    parser.add_argument("--assemble", type=Path, nargs="+", help="measure nothing; make --out of these folders")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> int:
    asked = parse_arguments()
    began = time.monotonic()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if asked.assemble:
        assemble_file(out, asked.assemble)
        return 0
    root = unpack_payload(asked.payload, out) if asked.payload else ROOT
    measure = combine_grids(
        read_grids(asked.grids), asked.grid.split(","), [name for name in asked.dtypes.split(",") if name]
    )
    spec = {
        "run_id": out.name,
        "vm": "here",
        "implementations": asked.implementations.split(","),
        "measure": measure,
        "correctness": {
            "max_abs_error": 0.01,
            **combine_grids(read_grids(SHIPPED), ["correctness-classic"], ["float16", "bfloat16"]),
        },
        "repeats": asked.repeats,
        "warmup": int(asked.warmup) if asked.warmup.isdigit() else asked.warmup,
        "regime": asked.regime,
        "cache": asked.cache,
        "seed": 20261121,
        "threads": 0,
        "skip_cases": skipped_cases(measure, out, asked.shard),
        # A dollar a second, so that dollars are seconds.
        **({"usd_per_hour": 3600, "case_budget_usd": asked.case_seconds} if asked.case_seconds else {}),
        **({"stop_at_relative_ci": asked.stop_at_relative_ci} if asked.stop_at_relative_ci else {}),
    }
    file = out / "spec.json"
    file.write_text(json.dumps(spec, indent=1), encoding="utf-8")
    worst = 0
    steps = ["environment", "build", "correctness", "measure"]
    if asked.no_correctness:
        steps.remove("correctness")
    for step in steps:
        command = [sys.executable, "-m", "kernels.harness", step, "--spec", str(file), "--out", str(out), "--no-ack"]
        time_left_s = None if asked.minutes is None else max(1.0, 60 * asked.minutes - (time.monotonic() - began))
        try:
            code = subprocess.run(command, cwd=root, timeout=time_left_s).returncode
        except subprocess.TimeoutExpired:
            code = OUT_OF_TIME
        print(f"{step}: exit code {code}", file=sys.stderr)
        worst = max(worst, code)
        if code not in DONE:
            break
    assemble_file(out, [out])
    return worst


if __name__ == "__main__":
    sys.exit(main())
