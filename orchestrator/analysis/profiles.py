"""What Nsight Compute reports about a kernel: the figures that explain its time, read from ncu's own CSV pages.

`ncu --page raw --csv --print-units base` prints a header, a line of units, and a line for each kernel. `--page details
--csv` prints a line for each metric or rule. Names of metrics differ from chip to chip: where several are possible, the
first that is there is used.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.text import clean_line, clean_name

TIME: Final = ("gpu__time_duration.sum", "gpu__time_duration.avg")
TENSOR: Final = re.compile(r"sm__(?:inst_executed_)?pipe_tensor.*\.avg\.pct_of_peak_sustained_(?:active|elapsed)")
DRAM: Final = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)  # fmt: skip
L2: Final = (
    "lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "lts__t_bytes.avg.pct_of_peak_sustained_elapsed",
)  # fmt: skip
MOVED: Final = (("dram__bytes.sum",), ("dram__bytes_read.sum", "dram__bytes_write.sum"))
MOVED_EACH_SECOND: Final = "dram__bytes.sum.per_second"
"""The metric of GPUs that have none of `MOVED`; the bytes are its value times the kernel's time."""
REGISTERS: Final = ("launch__registers_per_thread",)
SHARED: Final = ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")
ACTIVE: Final = ("sm__warps_active.avg.pct_of_peak_sustained_active",)
POSSIBLE: Final = ("sm__maximum_warps_per_active_cycle_pct",)
LIMIT: Final = "launch__occupancy_limit_"
STALL: Final = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio")
SAMPLED: Final = re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)")
SCALES: Final = {
    "ns": 1e-3,
    "nsecond": 1e-3,
    "us": 1.0,
    "usecond": 1.0,
    "ms": 1e3,
    "msecond": 1e3,
    "s": 1e6,
    "second": 1e6,
}
SIZES: Final = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
RATES: Final = {f"{unit}/{second}": scale for unit, scale in SIZES.items() for second in ("s", "second")}
MOST_KERNELS: Final = 8
MOST_HINTS: Final = 6
STALLS: Final = 3


@dataclass(frozen=True, slots=True)
class Hint:
    """A rule's finding, in ncu's words; `speedup` is its estimate in per cent, NaN where it gives none."""

    rule: str
    text: str
    speedup: float = math.nan


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel of a call. Percentages are of the chip's peaks; NaN where ncu reported nothing."""

    name: str
    time_us: float
    tensor: float
    dram: float
    l2: float
    dram_bytes: float
    registers: float
    shared_bytes: float
    occupancy: float
    """The share of the warps that an SM can hold that were active, in per cent."""
    possible: float
    """The largest occupancy that the launch allowed, in per cent."""
    limiter: str
    """What limited the occupancy: registers, shared memory, warps, blocks or barriers."""
    stalls: tuple[tuple[str, float], ...]
    """What warps waited for most, each with its share of all their waiting time, in per cent."""
    hints: tuple[Hint, ...] = ()


def kernels_of(metrics: str, rules: str = "") -> tuple[KernelProfile, ...]:
    """The kernels in ncu's raw page, with the hints of its details page. Lines before the header (messages of ncu) and
    lines that cannot be read are left out."""
    table = _table(metrics, "Kernel Name")
    if len(table) < 2:
        return ()
    units, *rows = table
    hints = _hints(rules)
    return tuple(
        _kernel(row, units, hints.get(row.get("ID", ""), ())) for row in rows[:MOST_KERNELS] if row.get("Kernel Name")
    )


def whole_call_us(kernels: Sequence[KernelProfile]) -> float:
    """The time of all profiled kernels of a call together, in microseconds."""
    return sum(one.time_us for one in kernels if not math.isnan(one.time_us))


def _kernel(row: Mapping[str, str], units: Mapping[str, str], hints: tuple[Hint, ...]) -> KernelProfile:
    def first(names: Sequence[str]) -> float:
        names_found = (_number(row.get(name, "")) for name in names)
        return next((value for value in names_found if not math.isnan(value)), math.nan)

    def scaled(name: str, scales: Mapping[str, float]) -> float:
        return _number(row.get(name, "")) * scales.get(units.get(name, ""), 1.0)

    time = next((scaled(name, SCALES) for name in TIME if row.get(name)), math.nan)
    tensor = [_number(value) for name, value in row.items() if TENSOR.fullmatch(name)]
    moved = next(
        (sum(scaled(one, SIZES) for one in names) for names in MOVED if all(row.get(n) for n in names)), math.nan
    )
    if math.isnan(moved):
        moved = scaled(MOVED_EACH_SECOND, RATES) * time * 1e-6
    shared = [scaled(name, SIZES) for name in SHARED if row.get(name)]
    limits = {name.removeprefix(LIMIT): _number(value) for name, value in row.items() if name.startswith(LIMIT)}
    known_limits = {name: value for name, value in limits.items() if not math.isnan(value) and value > 0}
    return KernelProfile(
        name=clean_name(row["Kernel Name"]),
        time_us=time,
        tensor=max((value for value in tensor if not math.isnan(value)), default=math.nan),
        dram=first(DRAM),
        l2=first(L2),
        dram_bytes=moved,
        registers=first(REGISTERS),
        shared_bytes=sum(shared) if shared else math.nan,
        occupancy=first(ACTIVE),
        possible=first(POSSIBLE),
        limiter=min(known_limits, key=lambda name: known_limits[name]).replace("_", " ") if known_limits else "",
        stalls=_stalls(row),
        hints=hints,
    )


def _stalls(row: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    for pattern in (STALL, SAMPLED):
        stalls: dict[str, float] = {}
        for name, value in row.items():
            matched = pattern.fullmatch(name)
            number = _number(value)
            if matched and "not_issued" not in name and matched[1] != "selected" and not math.isnan(number):
                stalls[matched[1].replace("_", " ")] = max(number, stalls.get(matched[1].replace("_", " "), 0.0))
        total = sum(stalls.values())
        if total > 0:
            ranked = sorted(stalls.items(), key=lambda one: -one[1])[:STALLS]
            return tuple((reason, 100 * value / total) for reason, value in ranked if value > 0)
    return ()


def _hints(rules: str) -> dict[str, tuple[Hint, ...]]:
    """By the id of a kernel: the rules that found something, the largest estimate first."""
    found: dict[str, list[Hint]] = {}
    for row in _table(rules, "Rule Name"):
        text = clean_line(row.get("Rule Description", "").strip(), 600)
        if row.get("Rule Name") and text and row.get("Rule Type", "OPT") in ("OPT", "WRN"):
            speedup = _number(row.get("Estimated Speedup", ""))
            found.setdefault(row.get("ID", ""), []).append(Hint(clean_name(row["Rule Name"]), text, speedup))
    for hints in found.values():
        hints.sort(key=lambda hint: 0.0 if math.isnan(hint.speedup) else -hint.speedup)
    return {key: tuple(hints[:MOST_HINTS]) for key, hints in found.items()}


def _table(text: str, column: str) -> list[dict[str, str]]:
    """The rows of a CSV after the header, which is the first line that has `column`."""
    try:
        records = [record for record in csv.reader(io.StringIO(text)) if record]
    except csv.Error:
        return []
    head = next((place for place, record in enumerate(records) if column in record), None)
    if head is None:
        return []
    header = records[head]
    return [dict(zip(header, record, strict=True)) for record in records[head + 1 :] if len(record) == len(header)]


def _number(text: str) -> float:
    """A number as ncu prints it, with or without separators of thousands; NaN for any other text."""
    try:
        value = float(text.replace(",", "").split()[0])
    except (ValueError, IndexError, AttributeError):
        return math.nan
    return value if math.isfinite(value) else math.nan
