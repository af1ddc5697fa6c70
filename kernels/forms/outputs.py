"""Reads the output of programs that measure themselves, as bounded and finite data.

Each reader returns results: a benchmark's name, its axes, and its times in microseconds. These are single samples where
the program reports them, otherwise the one number that it reports. A benchmark that reports a failure is a result with
that reason.
"""

from __future__ import annotations

import csv
import io
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_RESULTS = 10_000
MOST_SAMPLES = 100_000
MOST_BYTES = 64 << 20
LONGEST_US = 1e12
LONGEST_WORD = 200
IN_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "seconds": 1e6}


class Unreadable(Exception):
    """An output is not in the declared format. The message says where, and what was expected."""


@dataclass(slots=True)
class Result:
    """One benchmark with one value of each of its axes. `implementation` is empty where the program names none."""

    name: str
    axes: Mapping[str, str] = field(default_factory=dict)
    samples_us: list[float] = field(default_factory=list)
    skipped: str = ""
    implementation: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which results are distinguished."""
        return self.implementation, self.name, tuple(self.axes.items())


def read(kind: str, text: str, folder: Path) -> list[Result]:
    """The results in an output; those of one name and the same axes are one. Raises `Unreadable`."""
    try:
        found = list(READERS[kind](text, folder))
    except Unreadable:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as exc:
        raise Unreadable(f"the output is not {kind}: {type(exc).__name__} {exc}"[:300]) from exc
    merged: dict[tuple[object, ...], Result] = {}
    for one in found:
        known = merged.setdefault(one.key, one)
        if known is not one:
            known.samples_us += one.samples_us
            known.skipped = known.skipped or one.skipped
        if len(known.samples_us) > MOST_SAMPLES or len(merged) > MOST_RESULTS:
            raise Unreadable(f"the output has more than {MOST_SAMPLES} times of a benchmark, or {MOST_RESULTS} of them")
    if not merged:
        raise Unreadable(f"the output is {kind} without a benchmark")
    for one in merged.values():
        if not one.samples_us and not one.skipped:
            one.skipped = "the program gave no time"
    return list(merged.values())


def word(value: object) -> str:
    """A value as it is written in a row: one line of limited length."""
    if isinstance(value, (dict, list)):
        value = json.dumps(value, sort_keys=True)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(one if one.isprintable() else " " for one in text)[:LONGEST_WORD]


def us(value: object, unit: str) -> float:
    """A time in microseconds. Raises `Unreadable` for any other value."""
    if unit not in IN_US:
        raise Unreadable(f"{word(unit)!r} is not a unit of time; there are {', '.join(IN_US)}")
    made = float(value) * IN_US[unit] if isinstance(value, (int, float, str)) and value is not True else math.nan
    if not (math.isfinite(made) and 0 < made <= LONGEST_US):
        raise Unreadable(f"{word(value)!r} {unit} is not a time")
    return made


def google_benchmark(text: str, _folder: Path) -> Iterator[Result]:
    """`benchmarks`: each repetition is a sample; of aggregates only the median counts, and only where there is nothing
    else."""
    listed = json.loads(text)["benchmarks"]
    alone = {one.get("run_name", one["name"]) for one in listed if one.get("run_type", "iteration") == "iteration"}
    for one in listed:
        name = word(one.get("run_name", one["name"]))
        if one.get("error_occurred") or one.get("skipped"):
            reason = word(one.get("error_message") or one.get("skip_message") or "the program reports an error")
            yield Result(name, skipped=reason)
        elif one.get("run_type", "iteration") == "iteration" or (
            one.get("aggregate_name") == "median" and one.get("run_name") not in alone
        ):
            yield Result(name, samples_us=[us(one["real_time"], one.get("time_unit", "ns"))])


def pytest_benchmark(text: str, _folder: Path) -> Iterator[Result]:
    """`benchmarks[].stats`: `data` (seconds) where it was saved, else the median; parameters are axes."""
    for one in json.loads(text)["benchmarks"]:
        params = one.get("params") or {}
        times = one["stats"].get("data") or [one["stats"]["median"]]
        name = word(one["name"].split("[")[0] if params else one["name"])
        yield Result(name, {word(key): word(value) for key, value in params.items()}, [us(t, "s") for t in times])


def hyperfine(text: str, _folder: Path) -> Iterator[Result]:
    """`results[].times` in seconds; parameters are axes."""
    for one in json.loads(text)["results"]:
        axes = {word(key): word(value) for key, value in (one.get("parameters") or {}).items()}
        yield Result(word(one["command"]), axes, [us(t, "s") for t in one.get("times") or [one["mean"]]])


def nvbench(text: str, folder: Path) -> Iterator[Result]:
    """States of benchmarks: the samples of `--jsonbin` where there are some, else the mean of cold runs on the GPU.
    Numbers are strings there. Of several devices, each is an axis value."""
    report = json.loads(text)
    several = len(report.get("devices", [])) > 1
    for benchmark in report["benchmarks"]:
        for state in benchmark["states"]:
            axes = {word(one["name"]): word(one["value"]) for one in state.get("axis_values") or []}
            if several:
                axes["device"] = word(state["device"])
            name = word(benchmark["name"])
            if state.get("is_skipped"):
                yield Result(name, axes, skipped=word(state.get("skip_reason") or "the program skipped it"))
                continue
            summaries = {one["tag"]: {v["name"]: v["value"] for v in one["data"]} for one in state["summaries"]}
            yield Result(name, axes, list(nvbench_times(summaries, folder)))


def nvbench_times(summaries: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[float]:
    """The times of one state, in microseconds."""
    for tag, values in summaries.items():
        if tag.endswith("/sample_times") and "filename" in values:
            path = (folder / str(values["filename"])).resolve()
            if path.is_relative_to(folder.resolve()) and path.is_file() and path.stat().st_size <= 4 * MOST_SAMPLES:
                data = path.read_bytes()
                yield from (us(t, "s") for (t,) in struct.iter_unpack("<f", data[: len(data) // 4 * 4]))
                return
    for tag in ("nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean", "nv/cold/time/cpu/mean"):
        if tag in summaries:
            yield us(summaries[tag]["value"], "s")
            return


def table(text: str, _folder: Path) -> Iterator[Result]:
    """A CSV with a header: one column of time (`ns`, `us`, `ms` or `s`), a line a sample; `benchmark`,
    `implementation` and `skipped` where they are there; every other column is an axis."""
    reader = csv.DictReader(io.StringIO(text))
    header = reader.fieldnames or []
    units = [name for name in header if name in IN_US]
    if len(units) != 1:
        raise Unreadable(f"the first line must name one column of time: {', '.join(IN_US)}; it is {header!r}"[:300])
    plain = {units[0], "benchmark", "implementation", "skipped"}
    for line in reader:
        if None in line or None in line.values():
            raise Unreadable(f"line {reader.line_num}: not as many cells as the header")
        axes = {word(name): word(value) for name, value in line.items() if name not in plain}
        one = Result(word(line.get("benchmark") or ""), axes, implementation=word(line.get("implementation") or ""))
        try:
            one.skipped = word(line.get("skipped") or "")
            one.samples_us = [] if one.skipped else [us(line[units[0]], units[0])]
        except (Unreadable, ValueError) as exc:
            raise Unreadable(f"line {reader.line_num}: {exc}") from exc
        yield one


READERS: Mapping[str, Callable[[str, Path], Iterator[Result]]] = {
    "google-benchmark": google_benchmark,
    "pytest-benchmark": pytest_benchmark,
    "hyperfine": hyperfine,
    "nvbench": nvbench,
    "csv": table,
}
