"""Times `bench site` on a bucket of so many runs: the first build, one in which nothing is new, one with a new run.

The bucket is the embedded cloud's. Each time is of a whole process, start-up and all; the last two are medians of
five. These are measurements, not tests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.site.written import many, store

BENCH = Path(sys.executable).with_name("bench")
LENGTHS = (128, 256, 512, 1024)
BLOCKS = 20


def time_command(command: list[str]) -> tuple[float, float, dict[str, object]]:
    """Elapsed seconds, seconds of processor time, and what the command printed."""
    begun, used = time.perf_counter(), child_processor_time()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - begun, child_processor_time() - used, json.loads(done.stdout)


def child_processor_time() -> float:
    seen = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seen.ru_utime + seen.ru_stime


def describe_times(times: list[tuple[float, float]]) -> str:
    wall, used = ([one[place] for one in times] for place in (0, 1))
    spread = f"({min(wall):.2f} to {max(wall):.2f})"
    return f"{statistics.median(wall):.2f} s {spread}, {statistics.median(used):.2f} s of processors"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory(prefix="bench-site-") as home:
        os.environ["BENCH_HOME"] = home
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as a user's Python: what was compiled once is kept
        out = Path(home) / "site"
        command = [str(BENCH), "site", "--out", str(out), "--json"]
        try:
            from orchestrator.wiring import wire

            bucket = wire().bucket
            begun = time.perf_counter()
            many(bucket, range(runs), lengths=LENGTHS, blocks=BLOCKS)
            print(f"filled in {time.perf_counter() - begun:.1f} s", file=sys.stderr)
            first, used, built = time_command(command)
            again = [time_command(command)[:2] for _ in range(5)]
            fresh = []
            for number in range(runs, runs + 5):
                store(bucket, number, lengths=LENGTHS, blocks=BLOCKS)
                fresh.append(time_command(command)[:2])
        finally:
            subprocess.run([str(BENCH), "cloud", "stop"], stdout=subprocess.DEVNULL)
        size = sum(path.stat().st_size for path in out.rglob("*.html"))
        rows = (
            ("runs, cases, implementations, blocks", f"{built['runs']}, {len(LENGTHS)}, 4, {BLOCKS}"),
            ("first build", f"{first:.1f} s, {used:.1f} s of processors, {built['pages']} pages, {size / 1e6:.0f} MB"),
            ("nothing new", describe_times(again)),
            ("one new run", describe_times(fresh)),
            ("index.html", f"{(out / 'index.html').stat().st_size / 1e6:.3f} MB"),
            ("site.json", f"{(out / 'site.json').stat().st_size / 1e6:.2f} MB"),
            ("load of the last minute", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"),
        )
    print(f"python {platform.python_version()}  {platform.machine()}")
    for name, value in rows:
        print(f"{name:<38}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
