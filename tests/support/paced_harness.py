"""Stands where the payload's `kernels/harness/__main__.py` is, in tests of what goes on around a measurement.

It says the same facts and writes files of the same columns, at a pace: `repeats` is for how many milliseconds each step
and each case lasts, and `warmup`, where it is a number, for how many each step but measuring. The latency in its rows
is the row's number: nothing is measured, and nothing is computed. A file `does_not_compile` beside it is what has
become of the kernel: it then says and writes what the harness does (tests/kernels/test_harness_distrust.py). A file
`holds.json` beside it has, for a step or a `case N`, the path of a file without which that does not go on: what befalls
a machine then finds it there, however busy the machine is.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = [
    "run_id", "vm", "case_id", "device", "implementation", "backend", "dtype", "batch", "heads", "kv_heads", "seq_q",
    "seq_k", "head_dim", "causal", "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz",
    "power_w", "temperature_c", "throttle", "max_abs_error", "torch", "started_at", "skipped",
]  # fmt: skip
SHAPE = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
ROWS = 20
BROKEN = Path(__file__).with_name("does_not_compile").exists()
HOLDS = Path(__file__).with_name("holds.json")
INCORRECT, NOT_BUILT = 10, 20


def say(fact: str, /, **keys: object) -> None:
    sys.stdout.write(json.dumps({"fact": fact, **keys}) + "\n")
    sys.stdout.flush()
    if "path" in keys and not sys.stdin.readline():
        sys.exit(1)


def hold(at: str) -> None:
    """Goes on when it may. No test waits for longer than this does."""
    until, release = time.monotonic() + 3600, json.loads(HOLDS.read_text()).get(at) if HOLDS.exists() else None
    while release is not None and not Path(release).exists() and time.monotonic() < until:
        time.sleep(0.02)


def case_id(shape: dict[str, Any], dtype: str) -> str:
    mask = "causal" if shape["causal"] else "full"
    sizes = "b{batch}-h{heads}-kv{kv_heads}-q{seq_q}-k{seq_k}-d{head_dim}".format(**shape)
    return f"{sizes}-{mask}-{dtype}"


def measure(spec: dict[str, Any], out: Path, pace_s: float) -> None:
    every = [(shape, dtype) for shape in spec["measure"]["shapes"] for dtype in spec["measure"]["dtypes"]]
    left = [(case_id(*one), *one) for one in every if case_id(*one) not in spec["skip_cases"]]
    names = [name for name, _, _ in left]
    say("planned", cases=names, total=len(every), measurements_per_implementation=ROWS * len(every))
    (out / "cases").mkdir(parents=True, exist_ok=True)
    for index, (name, shape, dtype) in enumerate(left, 1):
        say("case_started", case_id=name, index=index, of=len(left))
        hold(f"case {index}")
        time.sleep(pace_s)
        common = {key: shape[key] for key in SHAPE} | {"causal": str(shape["causal"]).lower(), "dtype": dtype}
        common |= {"run_id": spec["run_id"], "vm": spec["vm"], "case_id": name, "device": "paced"}
        with (out / "cases" / f"{name}.csv").open("w", newline="") as file:
            rows = csv.DictWriter(file, COLUMNS)
            rows.writeheader()
            for implementation in spec["implementations"]:
                if BROKEN and implementation == "bench":
                    rows.writerow(common | {"implementation": implementation, "skipped": "build_failed: nonsense"})
                    continue
                for repeat in range(1, ROWS + 1):
                    latency = {"implementation": implementation, "repeat": repeat, "latency_us": repeat}
                    rows.writerow(common | latency)
        say(
            "case_finished", path=f"cases/{name}.csv", case_id=name, index=index, of=len(left), rows=ROWS,
            seconds=pace_s, median_us={} if BROKEN else {"bench": 10.5},
            skipped={"bench": "build_failed: nonsense"} if BROKEN else {},
        )  # fmt: skip
    if BROKEN:
        sys.exit(INCORRECT)


def main(step: str, spec: dict[str, Any], out: Path) -> None:
    pace_s = spec["repeats"] / 1000
    if step == "measure":
        measure(spec, out, pace_s)
        return
    hold(step)
    time.sleep(spec["warmup"] / 1000 if isinstance(spec["warmup"], int) else pace_s)
    if step == "environment":
        (out / "environment.json").write_text('{"schema": 1, "device": "paced", "device_kind": "cpu"}')
        say("environment", path="environment.json", device="paced", device_kind="cpu", torch="2.13.0")
    elif step == "build" and BROKEN and "bench" in spec["implementations"]:
        say("problem", cause="build_failed", detail="attention.cpp:1: nonsense")
        sys.exit(NOT_BUILT)
    elif step == "build":
        (out / "build.json").write_text('{"schema": 1}')
        say("built", path="build.json", seconds=pace_s, compiler="paced", cached=False)
    else:
        say("correctness", path="correctness.csv", checked=0, failed=0) if write_nothing(out) else None


def write_nothing(out: Path) -> bool:
    header = "implementation,case_id,dtype,batch,heads,kv_heads,seq_q,seq_k,head_dim,causal,passed,max_abs_error,limit,reason\n"
    return (out / "correctness.csv").write_text(header) > 0


if __name__ == "__main__":
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    say("preloaded", error="nothing is imported")
    for line in iter(sys.stdin.readline, ""):
        main(json.loads(line)["step"], json.loads(Path(options["--spec"]).read_text()), Path(options["--out"]))
        sys.stderr.write("harness: the step has ended\n")
        say("step_ended", code=0)
