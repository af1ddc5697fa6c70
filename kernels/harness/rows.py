"""The result files: one row a measurement, one row for what was not measured, written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernels.attention.case import Case
from kernels.attention.correctness import Check
from kernels.harness.stamps import now
from kernels.harness.timing import Sample

MEASUREMENT_COLUMNS = (
    "run_id", "vm", "case_id", "device", "implementation", "backend",
    "dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal",
    "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle",
    "max_abs_error", "torch", "started_at", "skipped",
    "position", "calls", "energy_j", "cpu_mhz", "load_1m", "steal_percent",
)  # fmt: skip
CORRECTNESS_COLUMNS = (
    "implementation", "case_id", "dtype", "batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal",
    "passed", "max_abs_error", "limit", "reason",
)  # fmt: skip

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of a run share: who measured, on what, how."""

    run_id: str
    vm: str
    device: str
    torch: str
    regime: str


def axes(case: Case) -> dict[str, str]:
    """The columns that say which case a row belongs to."""
    s = case.shape
    return {
        "case_id": case.id,
        "dtype": case.dtype,
        "batch": str(s.batch),
        "heads": str(s.heads),
        "kv_heads": str(s.kv_heads),
        "seq_q": str(s.seq_q),
        "seq_k": str(s.seq_k),
        "head_dim": str(s.head_dim),
        "causal": boolean(s.causal),
    }


def measured(origin: Origin, case: Case, backend: str, check: Check, sample: Sample) -> Row:
    """The row of one timed call (or one timed batch of calls). What is not known stays empty."""
    reading = sample.reading
    return shared(origin, case) | {
        "implementation": sample.implementation,
        "backend": backend,
        "block": str(sample.block),
        "repeat": str(sample.repeat),
        "latency_us": f"{sample.latency_us:.3f}",
        "sm_clock_mhz": known(reading.sm_clock_mhz),
        "mem_clock_mhz": known(reading.mem_clock_mhz),
        "power_w": known(reading.power_w),
        "temperature_c": known(reading.temperature_c),
        "throttle": reading.throttle or "",
        "max_abs_error": number(check.max_abs_error),
        "started_at": sample.started_at,
        "position": str(sample.position),
        "calls": str(sample.calls),
        "energy_j": known(sample.energy_j),
        "cpu_mhz": known(sample.host.cpu_mhz),
        "load_1m": known(sample.host.load_1m),
        "steal_percent": known(sample.host.steal_percent),
    }


def skipped(origin: Origin, case: Case, implementation: str, reason: str, check: Check | None) -> Row:
    """The one row of an implementation that was not timed, with the reason."""
    return shared(origin, case) | {
        "implementation": implementation,
        "max_abs_error": number(check.max_abs_error) if check is not None else "",
        "started_at": now(),
        "skipped": reason,
    }


def checked(case: Case, implementation: str, check: Check | None, reason: str) -> Row:
    """A row of correctness.csv; `passed` is empty for what could not be checked at all."""
    return axes(case) | {
        "implementation": implementation,
        "passed": boolean(check.passed) if check is not None else "",
        "max_abs_error": number(check.max_abs_error) if check is not None else "",
        "limit": number(check.limit) if check is not None else "",
        "reason": reason,
    }


def shared(origin: Origin, case: Case) -> dict[str, str]:
    """The columns that all rows of one case share."""
    return axes(case) | {
        "run_id": origin.run_id,
        "vm": origin.vm,
        "device": origin.device,
        "torch": origin.torch,
        "regime": origin.regime,
    }


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> None:
    """Write a whole file and put it in place in one step, so that no reader ever sees half of it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, tuple(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write to a temporary name beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def boolean(value: bool) -> str:
    return "true" if value else "false"


def known(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def number(value: float) -> str:
    """Six digits; empty for NaN, which means that there was nothing to compare."""
    return "" if value != value else f"{value:.6g}"
