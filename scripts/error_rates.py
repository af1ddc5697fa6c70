"""Measures how often a verdict is wrong, on the device of this machine: equal kernels called different, and a planted
slowdown of 2 % that is not found.

    python3 -m scripts.error_rates OUT --seconds 560

Each call adds rounds to OUT, which are ordinary runs of the harness on `scripts/pairs`: every case has a baseline, its
control, three equal kernels and, where one can be planted, a kernel that is 2 % slower. A round that was cut short goes
on when the same device is at it again. OUT may be a copy of several such folders: all rounds are pooled, and each
device keeps its name. `--seconds 0` measures nothing and only counts. Measuring needs torch and numpy; counting needs
bench itself. `rates.csv` and `rates.md` have a row for each device, kind, regime and size.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAIRS: Final = ROOT / "scripts" / "pairs"
SLOW: Final = "slow"
LIMIT: Final = 0.95
DONE: Final = (0, 10)
COLUMNS: Final = (
    "device", "pairs", "kind", "size", "regime", "stop", "median_us", "cupti_ratio",
    "comparisons", "cases", "faster", "slower", "same", "inconclusive", "rate", "limit", "limit_by_case",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call measures: where, which pairs, by which regimes, and with which rule to stop early."""

    out: Path
    pairs: Sequence[str]
    regime: str
    cases: int
    stop: float | None
    axes: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    """The values of axes that are measured; all where an axis is not here."""


def spec_of(name: str, run_id: str, plan: Plan, skip: Sequence[str]) -> dict[str, Any]:
    """The harness's spec of a round. A round has `cases` of the last axis, which only repeats the others."""
    again = list(range(1, plan.cases + 1))
    return {
        "run_id": run_id,
        "vm": "here",
        "workload": {"form": "file", "path": str(PAIRS / f"{name}.py")},
        "implementations": ["*", "*:aa"],
        "measure": {"axes": {"again": again, **plan.axes}},
        "correctness": {},
        "repeats": 50,
        "warmup": "steady",
        "regime": plan.regime,
        "seed": int(run_id.rpartition("-")[2], 16),
        "skip_cases": list(skip),
        **({} if plan.stop is None else {"stop_at_relative_ci": plan.stop}),
    }


def device_name() -> tuple[str, bool]:
    """The name of the device, and whether it is a CUDA device."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0), True
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return (models[0].partition(":")[2].strip() if models else "CPU"), False


def unfinished_round(plan: Plan, name: str, device: str) -> Path:
    """The folder of this device's round that is not finished, or of a new one."""
    key = {"pairs": name, "device": device, "stop": plan.stop, "regime": plan.regime, "cases": plan.cases}
    if plan.axes:
        key["axes"] = {name: list(values) for name, values in plan.axes.items()}
    for about in sorted(plan.out.rglob("round.json")):
        if json.loads(about.read_text()) == key and not (about.parent / "finished").exists():
            return about.parent
    folder = plan.out / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    folder.mkdir(parents=True)
    (folder / "round.json").write_text(json.dumps(key))
    return folder


def measure_round(plan: Plan, name: str, device: str, end: float) -> int:
    """Measures until the round is finished or the time is over. Returns the harness's exit code; cases that are
    finished by then are kept."""
    folder = unfinished_round(plan, name, device)
    skip = sorted(path.stem for path in (folder / "cases").glob("*.csv"))
    file = folder / "spec.json"
    file.write_text(json.dumps(spec_of(name, folder.name, plan, skip), indent=1))
    if not (folder / "environment.json").exists():
        run_step("environment", file, folder, end)
    code = run_step("measure", file, folder, end)
    if code in DONE:
        (folder / "finished").touch()
    print(f"{folder.name}: exit code {code}, {len(list((folder / 'cases').glob('*.csv')))} cases", flush=True)
    return code


def run_step(step: str, spec: Path, folder: Path, end: float) -> int:
    """Runs one step of the harness until `end`; then it and what it started are killed. Returns its exit code, negative
    after a kill."""
    command = [sys.executable, "-m", "kernels.harness", step, "--spec", str(spec), "--out", str(folder), "--no-ack"]
    with (folder / "log.txt").open("ab") as log, (folder / "facts.jsonl").open("ab") as facts:
        process = subprocess.Popen(command, cwd=ROOT, stdout=facts, stderr=log, start_new_session=True)
        try:
            return process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def confirm_spin(file: Path) -> None:
    """Writes how many times longer the slower kernel takes than the plain one by CUPTI's record of each size, and the
    plain one's microseconds, by turns in one process."""
    import torch

    from kernels.forms.load import load_workload
    from kernels.harness.bench import Bench

    definition, device = load_workload("file", PAIRS / "spin.py"), torch.device("cuda")
    sizes: dict[str, Any] = {}
    benches = [Bench(definition, name, device) for name in (definition.baselines[0], SLOW)]
    for case in (dict(case) for case in definition.cases if case["again"] == 1):
        for bench in benches:
            bench.bind(case, 7)
            bench.call(0)
        trace = file.with_suffix(".trace")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(100):
                for bench in benches:
                    bench.call(0)
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
        durations: dict[str, list[float]] = {}
        for event in events:
            durations.setdefault(str(event.get("name")), []).append(float(event.get("dur", 0)))
        entries = [definition.implementations[bench.name]["entry"] for bench in benches]
        us = [statistics.median(durations[entry]) for entry in entries]
        sizes[size_of(case)] = {"plain_us": us[0], "ratio": us[1] / us[0]}
        trace.unlink()
    file.write_text(json.dumps(sizes, indent=1))


def size_of(axes: Mapping[str, Any]) -> str:
    """A case's size: its axes but the one that only repeats the others."""
    return " ".join(f"{name.removeprefix('axis:')}={axes[name]}" for name in sorted(axes) if not name.endswith("again"))


@dataclass
class Tally:
    """The verdicts of one kind of comparison, with the cases in which one of them was wrong."""

    verdicts: Counter[str] = field(default_factory=Counter)
    cases: set[str] = field(default_factory=set)
    misses: set[str] = field(default_factory=set)
    median_us: list[float] = field(default_factory=list)

    def add(self, case: str, verdict: str, median_us: float, *, hit: bool) -> None:
        self.verdicts[verdict] += 1
        self.cases.add(case)
        self.median_us.append(median_us)
        if not hit:
            self.misses.add(case)

    def merge(self, other: Tally) -> None:
        self.verdicts += other.verdicts
        self.cases |= other.cases
        self.misses |= other.misses
        self.median_us += other.median_us


def count_verdicts(out: Path) -> dict[tuple[str, ...], Tally]:
    """The verdicts of all rounds below a folder, by device, pairs, kind, size, regime and rule to stop. A verdict on
    equal kernels is wrong if it is faster or slower, and one on the slower kernel if it is anything but that."""
    from orchestrator.analysis.samples import Reader
    from orchestrator.analysis.study import study

    tallies: dict[tuple[str, ...], Tally] = {}
    for about in sorted(out.rglob("round.json")):
        key, reader = json.loads(about.read_text()), Reader()
        for path in sorted((about.parent / "cases").glob("*.csv")):
            with path.open(encoding="utf-8", newline="") as lines:
                reader.read(lines, path.name)
        for case in study(reader.groups()).cases:
            medians = {timing.implementation: timing.median_us.mid for timing in case.timings}
            axes = {name: value for name, value in case.axes.items() if name.startswith("axis:")}
            for one in (*case.contrasts, *case.beside):
                slow = SLOW in (one.subject, one.baseline)
                contrast = one.inverse if one.baseline == SLOW else one
                kind = "2 % slower" if slow else "equal kernels" if one.between_kernels else "equal to the baseline"
                verdict = contrast.verdict.value
                hit = verdict == "slower" if slow else verdict not in ("faster", "slower")
                stop = "" if key["stop"] is None else str(key["stop"])
                for size in (size_of(axes), "all"):
                    place = (key["device"], key["pairs"], kind, size, case.setting.regime, stop)
                    tally = tallies.setdefault(place, Tally())
                    tally.add(f"{about.parent.name}/{case.case_id}", verdict, medians[contrast.baseline], hit=hit)
    return tallies


def upper_limit(events: int, trials: int, level: float = LIMIT) -> float:
    """The one-sided upper limit of the chance of what was seen in `events` of `trials` (Clopper and Pearson 1934)."""
    if events >= trials:
        return 1.0
    low, high = events / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(events, trials, middle) > 1 - level else (low, middle)
    return high


def at_most(events: int, trials: int, chance: float) -> float:
    """P(Binomial(trials, chance) <= events)."""
    from orchestrator.analysis.bootstrap import at_least

    return 1 - at_least(events + 1, trials, chance) if 0 < chance < 1 else float(chance <= 0)


def rows_of(
    tallies: Mapping[tuple[str, ...], Tally], ratios: Mapping[tuple[str, str], float]
) -> Iterator[dict[str, str]]:
    """A row for each place. `rate` is that of false verdicts among equal kernels and of those found among slower ones;
    `limit` its upper (or, for those found, lower) 95 % limit, and `limit_by_case` the same for cases, which are
    independent: a case counts as wrong if any of its comparisons is."""
    for (device, pairs, kind, size, regime, stop), tally in sorted(tallies.items()):
        slow = kind == "2 % slower"
        trials = sum(tally.verdicts.values())
        wrong = trials - tally.verdicts["slower"] if slow else tally.verdicts["faster"] + tally.verdicts["slower"]
        limits = upper_limit(wrong, trials), upper_limit(len(tally.misses), len(tally.cases))
        ratio = ratios.get((device, size), math.nan)
        yield {
            "device": device, "pairs": pairs, "kind": kind, "size": size, "regime": regime, "stop": stop,
            "median_us": f"{statistics.median(tally.median_us):.4g}",
            "cupti_ratio": "" if math.isnan(ratio) or not slow else f"{ratio:.4f}",
            "comparisons": str(trials), "cases": str(len(tally.cases)),
            **{name: str(tally.verdicts[name]) for name in ("faster", "slower", "same", "inconclusive")},
            "rate": f"{1 - wrong / trials if slow else wrong / trials:.4f}",
            "limit": f"{1 - limits[0] if slow else limits[0]:.4f}",
            "limit_by_case": f"{1 - limits[1] if slow else limits[1]:.4f}",
        }  # fmt: skip


def read_published(path: Path) -> dict[tuple[str, ...], Tally]:
    """The counts of a `rates.csv` of earlier rounds whose rows are no longer there. How many cases had a wrong verdict
    follows from the limit by case."""
    tallies: dict[tuple[str, ...], Tally] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cases, limit = int(row["cases"]), float(row["limit_by_case"])
            limit = 1 - limit if row["kind"] == "2 % slower" else limit
            misses = min(range(cases + 1), key=lambda number: abs(upper_limit(number, cases) - limit))
            names = [f"{path.name}/{number}" for number in range(cases)]
            verdicts = Counter({name: int(row[name]) for name in ("faster", "slower", "same", "inconclusive")})
            place = tuple(row[name] for name in ("device", "pairs", "kind", "size", "regime", "stop"))
            median_us = [float(row["median_us"])] * int(row["comparisons"])
            tallies[place] = Tally(verdicts, set(names), set(names[:misses]), median_us)
    return tallies


def write_rates(out: Path, published: Path | None = None) -> list[dict[str, str]]:
    """Writes `rates.csv` and `rates.md`, and returns the rows. The counts of a published `rates.csv` are added."""
    tallies = count_verdicts(out)
    for place, tally in (read_published(published) if published else {}).items():
        tallies.setdefault(place, Tally()).merge(tally)
    ratios = {}
    if published:
        with published.open(encoding="utf-8", newline="") as file:
            earlier = [row for row in csv.DictReader(file) if row["cupti_ratio"]]
        ratios = {(row["device"], row["size"]): float(row["cupti_ratio"]) for row in earlier}
    for path in out.rglob("spin.json"):
        device = json.loads((path.parent / "spin-device.json").read_text())
        ratios |= {(device, size): float(found["ratio"]) for size, found in json.loads(path.read_text()).items()}
    rows = list(rows_of(tallies, ratios))
    with (out / "rates.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row[name] for name in COLUMNS) + " |" for row in rows]
    (out / "rates.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows


def confirm_once(out: Path, device: str, end: float) -> None:
    """Asks CUPTI about the spin of this device once, in a process of its own. A failure is printed and costs no
    round."""
    known = [json.loads(path.read_text()) for path in out.rglob("spin-device.json")]
    if device in known:
        return
    folder = out / f"spin-{secrets.token_hex(3)}"
    folder.mkdir()
    command = [sys.executable, "-m", "scripts.error_rates", str(folder / "spin.json"), "--confirm-spin"]
    try:
        subprocess.run(command, cwd=ROOT, check=True, timeout=max(1.0, min(120.0, end - time.monotonic())))
        (folder / "spin-device.json").write_text(json.dumps(device))
    except (subprocess.SubprocessError, OSError) as exc:
        print(f"CUPTI did not confirm the spin: {exc}", file=sys.stderr)


def measure_rounds(plan: Plan, seconds: float) -> None:
    """Measures rounds of all pairs by turns until the time is over, or one fails."""
    device, cuda = device_name()
    names = [name for name in plan.pairs if cuda or name != "spin"]
    end = time.monotonic() + seconds
    if cuda and "spin" in names:
        confirm_once(plan.out, device, end)
    while names and time.monotonic() < end - 1:
        began = time.monotonic()
        for number, name in enumerate(names):
            share = (end - time.monotonic()) / (len(names) - number)
            if measure_round(plan, name, device, time.monotonic() + share) not in (*DONE, -signal.SIGKILL):
                return
        if time.monotonic() - began < 1:
            return


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0, help="how long to measure; 0 only counts")
    parser.add_argument("--pairs", default="spin,library", help="comma-separated; spin needs a CUDA device")
    parser.add_argument("--regime", default="", help="burst+graph on a CUDA device, else burst")
    parser.add_argument("--cases", type=int, default=25, help="so many cases of each size in a round")
    parser.add_argument("--axis", action="append", default=[], help="only these sizes: n=1048576,4194304")
    parser.add_argument("--stop-at-relative-ci", type=float, help="end each case early, to measure what that costs")
    parser.add_argument("--published", type=Path, help="a rates.csv of other rounds, whose counts are added")
    parser.add_argument("--confirm-spin", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.confirm_spin:
        confirm_spin(asked.out)
        return 0
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if asked.seconds:
        regime = asked.regime or ("burst+graph" if device_name()[1] else "burst")
        axes = {
            name: [int(value) for value in values.split(",")] for name, values in (one.split("=") for one in asked.axis)
        }
        plan = Plan(out, asked.pairs.split(","), regime, asked.cases, asked.stop_at_relative_ci, axes)
        measure_rounds(plan, asked.seconds)
    try:
        rows = write_rates(out, asked.published)
    except ImportError as exc:
        print(f"measured, not counted: {exc}; `python3 -m scripts.error_rates OUT` counts where bench is installed")
        return 0
    for row in rows:
        if row["size"] == "all":
            print(", ".join(f"{name} {row[name]}" for name in COLUMNS if row[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
