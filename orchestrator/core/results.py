"""What a run measured: rows, one a measurement, and their summary, one a case and implementation.

The columns are those of docs/contracts.md, section 6; columns that this version does not know are kept.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
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
    reader = csv.DictReader(io.StringIO(text))
    if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise ResultsUnreadable(
            f"{source}: not a result file: no column {', '.join(missing[:3])}", hint="fetch it again with `bench fetch`"
        )
    rows = []
    for record in reader:
        try:
            # None stands for cells that a torn line lacks (values) or has too many of (a key).
            if None in record or None in record.values():
                raise ValueError("the line does not have as many cells as the header")
            rows.append(Row.model_validate(record))
        except ValidationError as error:
            first = error.errors()[0]
            where = f"{first['loc'][0]}: " if first["loc"] else ""
            raise _unreadable(source, reader.line_num, where + first["msg"].removeprefix("Value error, ")) from error
        except ValueError as error:
            raise _unreadable(source, reader.line_num, str(error)) from error
    return tuple(rows)


def _unreadable(source: str, line: int, what: str) -> ResultsUnreadable:
    return ResultsUnreadable(f"{source}:{line}: {what}", hint="delete the file and fetch it again with `bench fetch`")


def case_order(case_id: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which case ids sort by their numbers: 128 before 1024."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", case_id) if part)


def assemble(case_csvs: Mapping[str, str]) -> str:
    """One CSV of all cases: one header, cases by their numbers, rows as they were, cells untouched. Columns that
    only some cases have come last, and are empty in the others."""
    records: list[dict[str, str]] = []
    columns = dict.fromkeys(COLUMNS)
    for case_id in sorted(case_csvs, key=case_order):
        reader = csv.DictReader(io.StringIO(case_csvs[case_id]))
        columns |= dict.fromkeys(reader.fieldnames or ())
        records += reader
    return _csv(tuple(columns), records)


def is_control(implementation: str) -> bool:
    """Whether this is another implementation under a second name."""
    return implementation.endswith(CONTROL)


@dataclass(frozen=True, slots=True)
class Summary:
    """What one implementation did on one case in one regime, caches warm or cold. Times are in microseconds and None
    where it was not timed."""

    run_id: str
    device: str
    case_id: str
    implementation: str
    backend: str
    regime: str
    axes: Mapping[str, str]
    """dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, as they stand in the files."""
    count: int
    cache: str = ""
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


def summarize(rows: Iterable[Row]) -> tuple[Summary, ...]:
    """A summary for each case, regime and implementation: cases by their numbers, the others as they first come. What
    differs in its regime or its caches is never summed up together. An implementation with any skip row on a case has
    no timing there, whatever other rows it has; a skip row that names no regime holds in all."""
    cases: dict[tuple[str, str, str, str], dict[str, list[Row]]] = {}
    nowhere: list[Row] = []
    for row in rows:
        if row.skipped and not row.regime:
            nowhere.append(row)
        else:
            key = (row.run_id, row.case_id, row.regime, row.cache)
            cases.setdefault(key, {}).setdefault(row.implementation, []).append(row)
    for row in nowhere:
        timed = [key for key in cases if key[:2] == (row.run_id, row.case_id) and key[2]]
        for key in timed or [(row.run_id, row.case_id, "", "")]:
            cases.setdefault(key, {}).setdefault(row.implementation, []).append(row)
    found: list[Summary] = []
    for key in sorted(cases, key=lambda key: (key[0], case_order(key[1]))):
        alone = {name: _summary(group) for name, group in cases[key].items()}
        baselines = {
            name: summary.median_us
            for name, summary in alone.items()
            if name.startswith(BASELINE) and not is_control(name) and summary.median_us is not None
        }
        found += [_compared(summary, baselines) for summary in alone.values()]
    return tuple(found)


def _summary(group: Sequence[Row]) -> Summary:
    first = group[0]
    skipped = next((row.skipped for row in group if row.skipped), "")
    times = [] if skipped else sorted(row.latency_us for row in group if row.latency_us is not None)
    errors = [row.max_abs_error for row in group if row.max_abs_error is not None]
    identity = first.model_dump(include={"run_id", "device", "case_id", "implementation", "backend"})
    identity |= {name: next((getattr(row, name) for row in group if row.regime), "") for name in ("regime", "cache")}
    axes = {name: _text(getattr(first, name)) for name in AXES}
    error = max(errors) if errors else None
    if not times:
        return Summary(**identity, axes=axes, count=0, max_abs_error=error, skipped=skipped)
    return Summary(
        **identity,
        axes=axes,
        count=len(times),
        median_us=statistics.median(times),
        mean_us=statistics.fmean(times),
        min_us=times[0],
        p5_us=_percentile(times, 5),
        p95_us=_percentile(times, 95),
        throttled=sum(1 for row in group if row.throttle not in ("", "none")),
        max_abs_error=error,
    )


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
        *("run_id", "device", "case_id", "implementation", "backend", *AXES, "regime", "cache", "count", *numbers),
        *("throttled", "max_abs_error", *ratios.values(), "skipped"),
    )
    records: list[dict[str, str]] = []
    for summary in summaries:
        record = {name: _text(getattr(summary, name, "")) for name in columns} | dict(summary.axes)
        record |= {name: _number(getattr(summary, name), ".3f") for name in numbers}
        record |= {column: _number(summary.speedup.get(name), ".4f") for name, column in ratios.items()}
        records.append(record | {"max_abs_error": _number(summary.max_abs_error, ".6g")})
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
