"""Times the tool itself: start-up, what start-up imports, `bench status` on 1,000 finished runs, a plan, a whole run,
and its results fetched again; with `--site RUNS`, `bench site` on a bucket of so many runs.

Each time is the median of five processes after one that warms the caches, together with their processor time, which
on a busy machine is more exact than the elapsed time. The bucket is the embedded cloud's. These are measurements, not
tests.
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
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

BENCH = Path(sys.executable).with_name("bench")
HEAVY = ("google.cloud.compute_v1", "google.cloud.storage", "fabric", "torch", "numpy", "rich")


def time_process(arguments: Sequence[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Elapsed seconds of a whole process of `bench`, seconds of processor time, and what it printed."""
    begun, before = time.perf_counter(), child_processor_time()
    done = subprocess.run([str(BENCH), *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - begun, child_processor_time() - before, done.stdout


def describe_times(times: Sequence[tuple[float, float, str]]) -> str:
    seconds, used = ([row[place] for row in times] for place in (0, 1))
    spread = f"({min(seconds):.3f} to {max(seconds):.3f})"  # type: ignore[type-var]
    return f"{statistics.median(seconds):.3f} s {spread}, {statistics.median(used):.3f} s of processors"  # type: ignore[type-var]


def time_commands(arguments: Sequence[str], environment: dict[str, str], repeats: int = 5) -> str:
    """How long whole processes of `bench` take, in words."""
    return describe_times([time_process(arguments, environment) for _ in range(repeats + 1)][1:])


def child_processor_time() -> float:
    """The processor time of all child processes so far, in seconds."""
    seen = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seen.ru_utime + seen.ru_stime


def imported_by(arguments: Sequence[str], environment: dict[str, str]) -> list[str]:
    """The names of the heavy modules that a command loads."""
    program = (
        "import sys\nfrom orchestrator.cli.app import app\n"
        "try: app(sys.argv[1:], prog_name='bench')\n"
        f"except SystemExit: pass\nprint([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    modules: list[str] = json.loads(done.stderr.strip().splitlines()[-1].replace("'", '"'))
    return modules


def fill_index(runs: int) -> None:
    """Writes the index lines of `runs` finished runs into the embedded bucket."""
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.core.naming import run_id
    from orchestrator.core.run import events as ev
    from orchestrator.core.run.fold import replay
    from orchestrator.core.run.status import encode_status, status_body, status_line
    from orchestrator.wiring import wire

    wiring = wire()
    begin = datetime.now(UTC) - timedelta(days=30)

    def write(number: int) -> None:
        at = begin + timedelta(minutes=20 * number)
        run = run_id(at, "l4", f"{number:04x}")
        plan = ev.RunPlanned(
            gpu="l4", config="l4", user="ada", mode="embedded", ceiling_usd=Decimal("0.18"), ttl_s=1800,
            attempts=1, cases=12, measurements_per_implementation=600,
        )  # fmt: skip
        facts = (
            plan,
            ev.Settled(cost_usd=Decimal("0.01"), released_usd=Decimal("0.17")),
            ev.RunClosed(outcome="succeeded"),
        )
        log = [
            ev.Event(run_id=run, time=at, writer="client-000000", seq=i, fact=fact) for i, fact in enumerate(facts, 1)
        ]
        state = replay(log)
        assert state is not None
        wiring.index.write(run, encode_status(status_line(state, at)), status_body(state, at))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(runs)))


def time_tool(folder: Path, environment: dict[str, str]) -> list[tuple[str, str]]:
    rows = []
    for name, arguments in (("bench --help", ["--help"]), ("bench launch --help", ["launch", "--help"])):
        rows.append((name, time_commands(arguments, environment)))
    rows.append(("  heavy imports of bench --help", ", ".join(imported_by(["--help"], environment)) or "none"))
    subprocess.run([str(BENCH), "cloud", "start"], env=environment, check=True, stdout=subprocess.DEVNULL)
    fill_index(1000)
    rows.append(("bench status, 1,000 finished runs", time_commands(["status"], environment)))
    rows.append(("  heavy imports of it", ", ".join(imported_by(["status"], environment)) or "none"))
    rows.append(("bench plan --gpu l4", time_commands(["plan", "--gpu", "l4"], environment)))
    took, _, printed = time_process(["launch", "--gpu", "l4", "--json"], environment)
    run = json.loads(printed)
    what = f"{run['cases_done']} cases, {run['measurements_per_implementation']} measurements each, {run['state']}"
    rows.append(("bench launch --gpu l4, embedded", f"{took:.1f} s, {what}"))
    again = ["fetch", run["run_id"], "--into", str(folder / "results")]
    rows.append(("bench fetch of it, again", time_commands(again, environment)))
    return rows


def time_site(folder: Path, environment: dict[str, str], runs: int) -> list[tuple[str, str]]:
    """The first build, one in which nothing is new, and one with a new run."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from orchestrator.wiring import wire
    from tests.unit.site.written import many, store

    out, lengths, blocks = folder / "site", (128, 256, 512, 1024), 20
    arguments = ["site", "--out", str(out), "--json"]
    bucket = wire().bucket
    many(bucket, range(runs), lengths=lengths, blocks=blocks)
    first, used, printed = time_process(arguments, environment)
    again = [time_process(arguments, environment) for _ in range(5)]
    fresh = []
    for number in range(runs, runs + 5):
        store(bucket, number, lengths=lengths, blocks=blocks)
        fresh.append(time_process(arguments, environment))
    built, size = json.loads(printed), sum(path.stat().st_size for path in out.rglob("*.html"))
    return [
        ("runs, cases, implementations, blocks", f"{built['runs']}, {len(lengths)}, 4, {blocks}"),
        ("first build", f"{first:.1f} s, {used:.1f} s of processors, {built['pages']} pages, {size / 1e6:.0f} MB"),
        ("nothing new", describe_times(again)),
        ("one new run", describe_times(fresh)),
        ("index.html", f"{(out / 'index.html').stat().st_size / 1e6:.3f} MB"),
        ("site.json", f"{(out / 'site.json').stat().st_size / 1e6:.2f} MB"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=int, metavar="RUNS")
    runs = parser.parse_args().site
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ["BENCH_HOME"] = folder
        # Compiled modules are kept, as a user's Python does, unlike that of many containers.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        try:
            rows = time_site(Path(folder), environment, runs) if runs else time_tool(Path(folder), environment)
        finally:
            subprocess.run([str(BENCH), "cloud", "stop"], env=environment, stdout=subprocess.DEVNULL)
    load = f"load {os.getloadavg()[0]:.1f}"
    here = f"python {platform.python_version()}  {os.cpu_count()} cores  {platform.machine()}  {load}"
    print(f"{datetime.now(UTC):%Y-%m-%d}  {here}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
