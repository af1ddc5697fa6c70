"""Reads the output of programs that measure themselves, as bounded and finite data.

Each reader returns results: a benchmark's name, its axes, and its times in microseconds. These are single samples where
the program reports them, otherwise the one number that it reports. A benchmark that reports a failure, or no time, is a
result with that reason. Results are never pooled because their names agree: two of one name are repetitions that the
format numbers, or the output is refused.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_RESULTS = 10_000
MOST_SAMPLES = 100_000
MOST_BYTES = 64 << 20
LONGEST_US = 1e12
LONGEST_WORD = 200
BENCHMARK = "benchmark"
"""The axis that a benchmark's name is in rows."""
CONTROL = ":aa"
"""The end of the name of a control, which no program measures."""
IN_US: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6, "seconds": 1e6}


class Unreadable(Exception):
    """An output is not in the declared format. The message says where, and what was expected."""


class NoTime(Exception):
    """A benchmark has no time that can be used. The message is the reason in its row."""


@dataclass(slots=True)
class Result:
    """One benchmark with one value of each of its axes. `implementation` is empty where the program names none;
    `repetition` is the name of a repetition, empty where the format names none."""

    name: str
    axes: Mapping[str, str] = field(default_factory=dict)
    samples_us: list[float] = field(default_factory=list)
    skipped: str = ""
    implementation: str = ""
    repetition: str = ""
    note: str = ""
    """What of it could not be read, if something else was used in its place."""

    @property
    def key(self) -> tuple[object, ...]:
        """The key by which results are distinguished."""
        return self.implementation, self.name, tuple(self.axes.items())

    @property
    def label(self) -> str:
        """The result's name in messages."""
        axes = ", ".join(f"{name}={value}" for name, value in self.axes.items())
        return " ".join(part for part in (self.implementation, self.name, axes) if part) or "without a name"


def read_output(kind: str, text: str, folder: Path, implementation: str = "", default: str = "") -> list[Result]:
    """Return the results in an output; repetitions of one are one result. `implementation` is an axis, or a pattern
    with one group, that names implementations; empty: what the format itself calls one. A result without one is of
    the implementation `default`. Raises `Unreadable`."""
    try:
        results = [*READERS[kind](text, folder)]
    except Unreadable:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as exc:
        raise Unreadable(f"the output is not {kind}: {type(exc).__name__} {exc}"[:300]) from exc
    if implementation:
        name_implementations(results, implementation)
    elif kind == "hyperfine":
        for result in results:
            result.implementation, result.name = implementation_name(result.name), ""
    for result in results:
        result.implementation = result.implementation or default
        if BENCHMARK in result.axes and result.name:
            result.axes = {f"{name}_axis" if name == BENCHMARK else name: one for name, one in result.axes.items()}
    merged = list(merge_repetitions(results))
    if len(merged) > MOST_RESULTS or any(len(one.samples_us) > MOST_SAMPLES for one in merged):
        raise Unreadable(f"the output has more than {MOST_SAMPLES} times of a benchmark, or {MOST_RESULTS} of them")
    if not merged:
        raise Unreadable(f"the output is {kind} without a benchmark")
    return merged


def merge_repetitions(results: Sequence[Result]) -> Iterator[Result]:
    """Yield each result with the samples of all of its repetitions. If one repetition has no time, the result has that
    reason and no samples. Raises `Unreadable` if two results differ in nothing that the format names."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(result.key, []).append(result)
    for group in groups.values():
        repeated = Counter(one.repetition for one in group)
        for repetition, times in repeated.items():
            if times > 1:
                called = f"{group[0].label}, repetition {repetition}" if repetition else group[0].label
                raise Unreadable(f"{times} results are called {called}: {REMEDY}"[:400])
        first, reasons = group[0], [one.skipped for one in group if one.skipped]
        first.samples_us = [] if reasons else [time for one in group for time in one.samples_us]
        first.skipped = reasons[0] if reasons else "" if first.samples_us else "the program gave no time"
        if reasons and len(group) > 1:
            first.skipped = f"{len(reasons)} of {len(group)} repetitions: {reasons[0]}"
        yield first


REMEDY = "they are not pooled; give them names of their own, or number them as repetitions (`bench docs forms/program`)"


def name_implementations(results: Sequence[Result], by: str) -> None:
    """Give results the implementations that an axis, or the group of a pattern within the benchmark's name, says; the
    rest of the name is the benchmark. Raises `Unreadable` if none has one."""
    pattern = re.compile(by) if "(" in by else None
    matches = 0
    for result in results:
        name = ""
        if pattern is None:
            name = result.axes.get(by, "")
            result.axes = {axis: value for axis, value in result.axes.items() if axis != by}
        elif (match := pattern.search(result.name)) and match[1]:
            name, kept = match[1], result.name[: match.start(1)].rstrip(SEPARATORS)
            after = result.name[match.end(1) :]
            result.name = kept + after if kept else after.lstrip(SEPARATORS)
        if name:
            matches += 1
            if result.implementation:
                result.axes = {**result.axes, "implementation": result.implementation}
            result.implementation = implementation_name(name)
    if not matches:
        names = [one.name for one in results] if pattern else [axis for one in results for axis in one.axes]
        listed = ", ".join([*dict.fromkeys(names)][:8]) or "none"
        what = "name of a benchmark matches" if pattern else "benchmark has the axis"
        raise Unreadable(f"implementation: no {what} {by}; there are {listed}")


SEPARATORS = " _-./:"


def general_commands(results: Sequence[Result]) -> Iterator[str]:
    """Yield each command of hyperfine with its parameters' names in the place of their values, if that still tells it
    from the others."""

    def without_values(result: Result) -> str:
        command = result.name
        for name, value in result.axes.items():
            command = re.sub(rf"(?<![\w.]){re.escape(value)}(?![\w.])", f"{{{name}}}", command) if value else command
        return command

    general = [without_values(one) for one in results]
    times = Counter((command, *one.axes.items()) for command, one in zip(general, results, strict=True))
    for command, result in zip(general, results, strict=True):
        yield command if times[command, *result.axes.items()] == 1 else result.name


def implementation_name(implementation: str) -> str:
    """The name of an implementation in rows. None may end as that of a control does."""
    return implementation.removesuffix(CONTROL) + "_aa" if implementation.endswith(CONTROL) else implementation


def row_word(value: object) -> str:
    """A value as it is written in a row: one line of limited length."""
    if isinstance(value, (dict, list)):
        value = json.dumps(value, sort_keys=True)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(one if one.isprintable() else " " for one in text)[:LONGEST_WORD]


def to_microseconds(value: object, unit: str) -> float:
    """A time in microseconds. Raises `NoTime` for a time of 0, and `Unreadable` for what is no time."""
    if unit not in IN_US:
        raise Unreadable(f"{row_word(unit)!r} is not a unit of time; there are {', '.join(IN_US)}")
    made = float(value) * IN_US[unit] if isinstance(value, (int, float, str)) and value is not True else math.nan
    if made == 0:
        raise NoTime("below the resolution of the program's clock: it reports a time of 0")
    if not (math.isfinite(made) and 0 < made <= LONGEST_US):
        raise Unreadable(f"{row_word(value)!r} {unit} is not a time")
    return made


def with_times(result: Result, times: Iterable[object], unit: str) -> Result:
    """The result with these times, or with the reason why it has none."""
    listed = list(times)
    try:
        result.samples_us = [to_microseconds(time, unit) for time in listed]
    except NoTime as exc:
        zeros = sum(str(time).strip("0.") == "" for time in listed)
        result.samples_us, result.skipped = (
            [],
            str(exc) if len(listed) == 1 else f"{exc}, {zeros} of {len(listed)} times",
        )
    return result


FITS = ("BigO", "RMS")


def google_benchmark(text: str, _folder: Path) -> Iterator[Result]:
    """`benchmarks`: each repetition is a sample. Of aggregates only the median counts, and only where there is nothing
    else; fits of complexity are no times."""
    listed = json.loads(text)["benchmarks"]
    alone = {one.get("run_name", one["name"]) for one in listed if one.get("run_type", "iteration") == "iteration"}
    repeated = {one.get("run_name") for one in listed if one.get("aggregate_name", "BigO") not in FITS}
    summed: dict[str, list[str]] = {}
    for index, one in enumerate(listed):
        name, aggregate = one.get("run_name", one["name"]), one.get("aggregate_name", "")
        # Old versions do not number repetitions, but sum them up.
        repetition = one.get("repetition_index", index if name in repeated else "")
        result = Result(row_word(name), repetition=row_word(repetition))
        if one.get("error_occurred") or one.get("skipped"):
            result.skipped = row_word(
                one.get("error_message") or one.get("skip_message") or "the program reports an error"
            )
            yield result
        elif one.get("run_type", "iteration") == "iteration":
            yield with_times(result, [one["real_time"]], one.get("time_unit", "ns"))
        elif aggregate not in FITS and name not in alone:
            summed.setdefault(name, []).append(aggregate)
            if aggregate == "median":
                result.repetition = ""
                yield with_times(result, [one["real_time"]], one.get("time_unit", "ns"))
    for name, aggregates in summed.items():
        if "median" not in aggregates:
            yield Result(
                row_word(name), skipped=f"the program gave only {row_word(', '.join(aggregates))}, and no median"
            )


def pytest_benchmark(text: str, _folder: Path) -> Iterator[Result]:
    """`benchmarks[].stats`: `data` (seconds) where it was saved, else the median. A test is known by its full name, and
    its parameters are axes."""
    results, full_names = [], []
    for one in json.loads(text)["benchmarks"]:
        params, full = one.get("params") or {}, row_word(one.get("fullname") or one["name"])
        axes = {row_word(key): row_word(value) for key, value in params.items()}
        result = Result(full.split("[")[0] if params else full, axes)
        results.append(with_times(result, one["stats"].get("data") or [one["stats"]["median"]], "s"))
        full_names.append(full)
    keys = Counter(result.key for result in results)
    for result, full in zip(results, full_names, strict=True):
        if keys[result.key] > 1:
            result.name = full  # parameters that are written alike: the test's own id tells them apart
    yield from results


def read_hyperfine(text: str, _folder: Path) -> Iterator[Result]:
    """`results[].times` in seconds, by command; parameters are axes."""
    results = []
    for one in json.loads(text)["results"]:
        axes = {row_word(key): row_word(value) for key, value in (one.get("parameters") or {}).items()}
        results.append(with_times(Result(row_word(one["command"]), axes), one.get("times") or [one["mean"]], "s"))
        if failed := sum(code != 0 for code in one.get("exit_codes") or ()):
            results[-1].note = f"{failed} of {len(one['exit_codes'])} runs ended with an exit code other than 0"
    for result, command in zip(results, [*general_commands(results)], strict=True):
        result.name = command
        yield result


def read_nvbench(text: str, folder: Path) -> Iterator[Result]:
    """States of benchmarks: the samples of `--jsonbin` where there are some, else the mean of cold runs on the GPU, or
    of runs on the CPU for a benchmark that has no others. Numbers are strings there. Of several devices, each is an
    axis value."""
    report = json.loads(text)
    several = len(report.get("devices") or []) > 1
    for benchmark in report["benchmarks"]:
        for state in benchmark["states"]:
            axes = {row_word(one["name"]): row_word(one["value"]) for one in state.get("axis_values") or []}
            if several:
                axes["device"] = row_word(state["device"])
            result = Result(row_word(benchmark["name"]), axes)
            if state.get("is_skipped"):
                result.skipped = row_word(state.get("skip_reason") or "the program skipped it")
            else:
                summaries = {
                    one["tag"]: {value["name"]: value["value"] for value in one.get("data") or []}
                    for one in state.get("summaries") or []
                }
                with_times(result, nvbench_times(summaries, folder), "s")
                if len(result.samples_us) == 1 and any(SAMPLES in tag for tag in summaries):
                    result.note = "its file of samples cannot be read, and its mean is used"
            yield result


def nvbench_times(summaries: Mapping[str, Mapping[str, Any]], folder: Path) -> list[object]:
    """The times of one state, in seconds."""
    for tag, values in summaries.items():
        if tag.endswith(SAMPLES) and "filename" in values:
            path = (folder / str(values["filename"])).resolve()
            if path.is_relative_to(folder.resolve()) and path.is_file() and path.stat().st_size <= 4 * MOST_SAMPLES:
                data = path.read_bytes()
                return [time for (time,) in struct.iter_unpack("<f", data[: len(data) // 4 * 4])]
    for tag in NVBENCH_TIMES:
        for value in ("value", "mean", "median"):
            if value in summaries.get(tag, {}):
                return [summaries[tag][value]]
    return []


SAMPLES = "/sample_times"
NVBENCH_TIMES = (
    "nv/cold/time/gpu/mean", "nv/batch/time/gpu/mean", "nv/cpu_only/time/cpu/mean", "nv/cpu_only/time/cpu/median",
    "nv/cold/time/cpu/mean",
)  # fmt: skip
"""The summaries that hold a state's time; the first that is there is used."""


def read_table(text: str, _folder: Path) -> Iterator[Result]:
    """A CSV with a header: one column of time (`ns`, `us`, `ms` or `s`); `benchmark`, `implementation`, `repeat` and
    `skipped` where they are there; every other column is an axis. Each line is a result, or one repeat of it."""
    reader = csv.DictReader(io.StringIO(text))
    header = reader.fieldnames or []
    units = [name for name in header if name in IN_US]
    if len(units) != 1:
        raise Unreadable(f"the first line must name one column of time: {', '.join(IN_US)}; it is {header!r}"[:300])
    if len(set(header)) < len(header):
        raise Unreadable(f"the first line names a column twice: {header!r}"[:300])
    plain = {units[0], "benchmark", "implementation", "repeat", "skipped"}
    for line in reader:
        if None in line or None in line.values():
            raise Unreadable(f"line {reader.line_num}: not as many cells as the header")
        result = Result(
            row_word(line.get("benchmark") or ""),
            {row_word(name): row_word(value) for name, value in line.items() if name not in plain},
            implementation=implementation_name(row_word(line.get("implementation") or "")),
            repetition=row_word(line.get("repeat") or ""),
        )
        result.skipped = row_word(line.get("skipped") or "")
        try:
            yield result if result.skipped else with_times(result, [line[units[0]]], units[0])
        except (Unreadable, ValueError) as exc:
            raise Unreadable(f"line {reader.line_num}: {exc}") from exc


READERS: Mapping[str, Callable[[str, Path], Iterator[Result]]] = {
    "google-benchmark": google_benchmark,
    "pytest-benchmark": pytest_benchmark,
    "hyperfine": read_hyperfine,
    "nvbench": read_nvbench,
    "csv": read_table,
}
