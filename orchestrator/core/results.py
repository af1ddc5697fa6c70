"""What a run measured: rows, one a measurement, and their summary, one a case and implementation.

The columns are those of docs/contracts.md, section 6; columns that this version does not know are kept.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.core.errors import BenchError

COLUMNS: Final = (
    "run_id", "vm", "case_id", "device", "implementation", "backend", "dtype",
    "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal",
    "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle",
    "max_abs_error", "torch", "started_at", "skipped",
)  # fmt: skip
AXES: Final = ("dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal")
LATER_COLUMNS: Final = (
    "position", "calls", "energy_j", "cpu_mhz", "load_1m", "steal_percent",
    "cache", "input_sets", "warmup_calls", "warmed", "stopped", "timer_overhead_us", "peak_memory_bytes",
)  # fmt: skip
"""Columns that files of older runs lack; they stand last."""
TIMER_SHARE: Final = 0.02
"""Of a median: from here on what is compared is, noticeably, the timer."""
BASELINE: Final = "sdpa:"
"""Implementations whose names begin so are what the others are compared with."""
CONTROL: Final = ":aa"
"""`bench:aa` is `bench` once more, measured beside it: what differs between the two is noise."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ResultsUnreadable(BenchError):
    """A result file is not what the contract says. It is kept as it is; nothing is read from it."""


class Row(BaseModel):
    """One measurement, or the reason why there is none. What is not known is None, never 0."""

    model_config = ConfigDict(frozen=True, extra="allow")
    run_id: str
    vm: str = ""
    case_id: str
    device: str = ""
    implementation: str
    backend: str = ""
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool
    regime: str = ""
    block: int | None = None
    repeat: int | None = None
    latency_us: Positive | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str = ""
    max_abs_error: float | None = None
    torch: str = ""
    started_at: AwareDatetime | None = None
    skipped: str = ""
    position: int | None = None
    calls: int | None = None
    energy_j: float | None = None
    cpu_mhz: float | None = None
    load_1m: float | None = None
    steal_percent: float | None = None
    cache: str = ""
    input_sets: int | None = None
    warmup_calls: int | None = None
    warmed: str = ""
    stopped: str = ""
    timer_overhead_us: float | None = None
    peak_memory_bytes: int | None = None

    @model_validator(mode="before")
    @classmethod
    def empty_is_unknown(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value != ""} if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def measured_or_skipped(self) -> Row:
        if (self.latency_us is None) != bool(self.skipped):
            raise ValueError("a row has either a latency or the reason why it was skipped")
        return self


def parse_csv(text: str, *, source: str = "results") -> tuple[Row, ...]:
    """The rows of a CSV with a header. Raises `ResultsUnreadable`, which names the line."""
    return tuple(read_rows(io.StringIO(text), source=source))


def read_rows(lines: Iterable[str], *, source: str = "results") -> Iterator[Row]:
    """The same one by one, from the lines of a file of any length."""
    reader = csv.DictReader(lines)
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise ResultsUnreadable(
            f"{source}: not a result file: no column {', '.join(missing[:3])}", hint="fetch it again with `bench fetch`"
        )
    for record in reader:
        try:
            # None stands for cells that a torn line lacks (values) or has too many of (a key).
            if None in record or None in record.values():
                raise ValueError("the line does not have as many cells as the header")
            yield Row.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            where = f"{first['loc'][0]}: " if first["loc"] else ""
            raise _unreadable(source, reader.line_num, where + first["msg"].removeprefix("Value error, ")) from error
        except ValueError as error:
            raise _unreadable(source, reader.line_num, str(error)) from error


def _unreadable(source: str, line: int, what: str) -> ResultsUnreadable:
    return ResultsUnreadable(f"{source}:{line}: {what}", hint="delete the file and fetch it again with `bench fetch`")


def case_order(case_id: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which case ids sort by their numbers: 128 before 1024."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", case_id) if part)


Lines = Callable[[], Iterable[str]]
"""The lines of one file, from its beginning, as often as it is called."""


def assemble(cases: Mapping[str, Lines]) -> Iterator[str]:
    """One CSV of all cases, line by line: one header, cases by their numbers, rows as they were, cells untouched.
    Columns that only some cases have come last, and are empty in the others."""
    ordered = [cases[case_id] for case_id in sorted(cases, key=case_order)]
    columns = dict.fromkeys(COLUMNS)
    for lines in ordered:
        columns |= dict.fromkeys(csv.DictReader(lines()).fieldnames or ())
    line = io.StringIO()
    writer = csv.DictWriter(line, tuple(columns), restval="", lineterminator="\n")
    writer.writeheader()
    for lines in ordered:
        for record in csv.DictReader(lines()):
            yield _emptied(line)
            writer.writerow(record)
    yield _emptied(line)


def _emptied(text: io.StringIO) -> str:
    held = text.getvalue()
    text.seek(0)
    text.truncate()
    return held


def is_control(implementation: str) -> bool:
    """Whether this is another implementation under a second name."""
    return implementation.endswith(CONTROL)


@dataclass(frozen=True, slots=True)
class Summary:
    """What one implementation did on one case and regime. Times are in microseconds and None where it was not timed."""

    run_id: str
    device: str
    case_id: str
    implementation: str
    backend: str
    regime: str
    axes: Mapping[str, str]
    """dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, as they stand in the files."""
    count: int
    median_us: float | None = None
    mean_us: float | None = None
    min_us: float | None = None
    p5_us: float | None = None
    p95_us: float | None = None
    throttled: int = 0
    """Measurements that were taken while the device was held back."""
    max_abs_error: float | None = None
    speedup: Mapping[str, float] = field(default_factory=dict)
    """Baseline to how many times faster this implementation's median is: over 1 is faster."""
    skipped: str = ""
    cache: str = ""
    """`cold`, `warm` or `mixed`; empty where the file does not say."""
    timer_share: float | None = None
    """The timer's own part of the median, which still has it: more than `TIMER_SHARE` is worth a word."""
    peak_memory_bytes: int | None = None
    joules_per_call: float | None = None


@dataclass(slots=True)
class _Tally:
    """What is kept of the rows of one implementation in one case and regime: eight bytes a measurement."""

    first: Row
    times: array[float] = field(default_factory=lambda: array("d"))
    overheads: array[float] = field(default_factory=lambda: array("d"))
    throttled: int = 0
    error: float | None = None
    peak_memory_bytes: int | None = None
    joules: float = 0.0
    calls: int = 0
    skipped: str = ""

    def add(self, row: Row) -> None:
        self.skipped = self.skipped or row.skipped
        self.throttled += row.throttle not in ("", "none")
        self.error = _larger(self.error, row.max_abs_error)
        if row.peak_memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, row.peak_memory_bytes)
        if row.latency_us is not None:
            self.times.append(row.latency_us)
        if row.timer_overhead_us is not None:
            self.overheads.append(row.timer_overhead_us)
        if row.energy_j is not None and row.calls:
            self.joules += row.energy_j
            self.calls += row.calls

    def summary(self) -> Summary:
        first, times = self.first, [] if self.skipped else sorted(self.times)
        identity = first.model_dump(
            include={"run_id", "device", "case_id", "implementation", "backend", "regime", "cache"}
        )
        alone = Summary(
            **identity,
            axes={name: _text(getattr(first, name)) for name in AXES},
            count=len(times),
            max_abs_error=self.error,
            skipped=self.skipped,
        )
        if not times:
            return alone
        median = statistics.median(times)
        return replace(
            alone,
            median_us=median,
            mean_us=statistics.fmean(times),
            min_us=times[0],
            p5_us=_percentile(times, 5),
            p95_us=_percentile(times, 95),
            throttled=self.throttled,
            timer_share=statistics.median(self.overheads) / median if self.overheads else None,
            peak_memory_bytes=self.peak_memory_bytes,
            joules_per_call=self.joules / self.calls if self.calls else None,
        )


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def summarize(rows: Iterable[Row]) -> tuple[Summary, ...]:
    """A summary for each case, regime (with its caches) and implementation, cases by their numbers, the others as they
    first come. An implementation with any skip row on a case has no timing there in that regime, whatever other rows it
    has; a skip row that names no regime, or no caches, holds in all of them."""
    cases: dict[tuple[str, str], dict[tuple[str, str], dict[str, _Tally]]] = {}
    vague: list[Row] = []
    for row in rows:
        case = cases.setdefault((row.run_id, row.case_id), {})
        if row.skipped and not (row.regime and row.cache):
            vague.append(row)
        else:
            case.setdefault((row.regime, row.cache), {}).setdefault(row.implementation, _Tally(row)).add(row)
    for row in vague:
        case = cases[row.run_id, row.case_id]
        own = [key for key in case if row.regime in ("", key[0]) and row.cache in ("", key[1])]
        for regime, cache in own or [(row.regime, row.cache)]:
            held = row.model_copy(update={"regime": regime, "cache": cache})
            case.setdefault((regime, cache), {}).setdefault(row.implementation, _Tally(held)).add(held)
    found: list[Summary] = []
    for key in sorted(cases, key=lambda key: (key[0], case_order(key[1]))):
        for tallies in cases[key].values():
            alone = {name: tally.summary() for name, tally in tallies.items()}
            baselines = {
                name: summary.median_us
                for name, summary in alone.items()
                if name.startswith(BASELINE) and not is_control(name) and summary.median_us is not None
            }
            found += [_compared(summary, baselines) for summary in alone.values()]
    return tuple(found)


def _percentile(times: Sequence[float], percent: int) -> float:
    """Of sorted `times`, interpolated between the two nearest; never outside of what was measured."""
    whole, rest = divmod((len(times) - 1) * percent, 100)
    low, high = times[whole], times[min(whole + 1, len(times) - 1)]
    return min(low + (high - low) * rest / 100, high)


def _compared(summary: Summary, baselines: Mapping[str, float]) -> Summary:
    own = summary.median_us
    if own is None:
        return summary
    speedup = {name: median / own for name, median in baselines.items() if name != summary.implementation}
    return replace(summary, speedup=speedup)


def summary_csv(summaries: Sequence[Summary]) -> str:
    """The summaries as CSV; a column `speedup_vs_<baseline>` for each baseline that was timed anywhere."""
    baselines = list(dict.fromkeys(name for summary in summaries for name in summary.speedup))
    numbers = ("median_us", "mean_us", "min_us", "p5_us", "p95_us")
    ratios = {name: f"speedup_vs_{name.replace(':', '_')}" for name in baselines}
    columns = (
        *("run_id", "device", "case_id", "implementation", "backend", *AXES, "regime", "count", *numbers),
        *("throttled", "max_abs_error", *ratios.values(), "skipped"),
        *("cache", "timer_share", "peak_memory_bytes", "joules_per_call"),
    )
    records: list[dict[str, str]] = []
    for summary in summaries:
        record = {name: _text(getattr(summary, name, "")) for name in columns} | dict(summary.axes)
        record |= {name: _number(getattr(summary, name), ".3f") for name in numbers}
        record |= {column: _number(summary.speedup.get(name), ".4f") for name, column in ratios.items()}
        peak = summary.peak_memory_bytes
        record |= {
            "max_abs_error": _number(summary.max_abs_error, ".6g"),
            "timer_share": _number(summary.timer_share, ".2g"),
            "joules_per_call": _number(summary.joules_per_call, ".4g"),
            "peak_memory_bytes": "" if peak is None else str(peak),
        }
        records.append(record)
    return _csv(columns, records)


def _csv(columns: Sequence[str], records: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None, style: str) -> str:
    return "" if value is None else format(value, style)
