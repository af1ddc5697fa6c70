"""The result files. They have a row for each measurement, and one for each implementation that was not measured. A file
is written completely or not at all."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from kernels.harness.energy import Drawn
from kernels.harness.stamps import utc_now
from kernels.harness.timing import Sample
from kernels.harness.workload import Case, Check

SPOOL_BYTES = 1 << 20

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of a process share: the run, the machine and the device. `gpu` is the short digest that tells GPUs
    of one kind apart; empty for a processor."""

    run_id: str
    vm: str
    device: str
    torch: str
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all measurements of one implementation in one regime share: columns of section 6 of the contract."""

    implementation: str
    backend: str
    check: Check
    regime: str
    cache: str
    input_sets: int
    warmup_calls: int
    warmed: str
    stopped: str
    timer_overhead_us: float
    peak_memory_bytes: int | None
    energy: Drawn | None = None


def axis_cells(case: Case) -> dict[str, str]:
    """The cells that say which case a row belongs to."""
    return {"case_id": case.id, **case.axes}


def measured_row(origin: Origin, case: Case, setting: Setting, cells: Row) -> Row:
    """The row of one measurement: its own `cells`, and those that it shares with others. Unknown values stay empty."""
    peak = setting.peak_memory_bytes
    return shared_cells(origin, case, setting.regime) | {
        **cells,
        "implementation": setting.implementation,
        "backend": setting.backend,
        "max_abs_error": format_number(setting.check.max_abs_error),
        "cache": setting.cache,
        "input_sets": str(setting.input_sets),
        "warmup_calls": str(setting.warmup_calls),
        "warmed": setting.warmed,
        "stopped": setting.stopped,
        "timer_overhead_us": f"{setting.timer_overhead_us:.4g}",
        "peak_memory_bytes": "" if peak is None else str(peak),
        "joules_per_call": "" if setting.energy is None else format_number(setting.energy.joules_per_call),
        "energy_s": "" if setting.energy is None else f"{setting.energy.seconds:.3f}",
        "judged_calls": str(setting.check.calls or ""),
        "rare_fault_seen": f"{setting.check.rare_fault_seen:.4f}" if setting.check.calls else "",
    }


CELLS: Mapping[str, Callable[[Sample], str]] = {
    "implementation": lambda sample: sample.implementation,
    "block": lambda sample: str(sample.block),
    "repeat": lambda sample: str(sample.repeat),
    "latency_us": lambda sample: f"{sample.latency_us:.3f}",
    "sm_clock_mhz": lambda sample: format_known(sample.reading.sm_clock_mhz),
    "mem_clock_mhz": lambda sample: format_known(sample.reading.mem_clock_mhz),
    "power_w": lambda sample: format_known(sample.reading.power_w),
    "temperature_c": lambda sample: format_known(sample.reading.temperature_c),
    "throttle": lambda sample: sample.reading.throttle or "",
    "started_at": lambda sample: sample.started_at,
    "position": lambda sample: str(sample.position),
    "calls": lambda sample: str(sample.calls),
    "cpu_mhz": lambda sample: format_known(sample.host.cpu_mhz),
    "load_1m": lambda sample: format_known(sample.host.load_1m),
    "steal_percent": lambda sample: format_known(sample.host.steal_percent),
    "host_us": lambda sample: "" if sample.host_us is None else f"{sample.host_us:.1f}",
    "cover": lambda sample: sample.cover,
    "hidden": lambda sample: "" if sample.hidden is None else format_boolean(sample.hidden),
    "cover_us": lambda sample: "" if sample.cover_us is None else f"{sample.cover_us:.1f}",
    "retaken": lambda sample: str(sample.retaken or ""),
    "shared": lambda sample: format_boolean(sample.shared) if sample.retaken else "",
}
"""The cells that differ from measurement to measurement, and how each is written."""


def of_sample(sample: Sample) -> dict[str, str]:
    """The cells of one measurement that it does not share with others."""
    return {name: cell(sample) for name, cell in CELLS.items()}


class Spool:
    """Keeps the cells of measurements until it is known whether these are valid. Beyond a megabyte they are kept on
    disk and not in memory. The file disappears with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = tempfile.SpooledTemporaryFile(  # noqa: SIM115  (closed in __exit__)
            SPOOL_BYTES, "w+", encoding="utf-8", newline="", dir=str(folder)
        )
        self.writer = csv.writer(self.file, lineterminator="\n")

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def keep(self, sample: Sample) -> None:
        """Add one measurement."""
        self.writer.writerow(of_sample(sample).values())

    def cells(self) -> Iterator[dict[str, str]]:
        """The cells of all measurements, in the order in which they were added."""
        self.file.seek(0)
        for line in csv.reader(self.file):
            yield dict(zip(CELLS, line, strict=True))


def skipped_row(
    origin: Origin, case: Case, regime: str, implementation: str, reason: str, check: Check | None, fault: str = ""
) -> Row:
    """The one row of an implementation that was not timed in a regime, with the reason and its kind."""
    return shared_cells(origin, case, regime) | {
        "implementation": implementation,
        "fault": fault,
        "max_abs_error": format_number(check.max_abs_error) if check is not None else "",
        "started_at": utc_now(),
        "skipped": reason,
    }


def checked_row(case: Case, implementation: str, check: Check | None, reason: str) -> Row:
    """A row of correctness.csv; `passed` is empty for what could not be checked at all."""
    return axis_cells(case) | {
        "implementation": implementation,
        "passed": format_boolean(check.passed) if check is not None else "",
        "max_abs_error": format_number(check.max_abs_error) if check is not None else "",
        "limit": format_number(check.limit) if check is not None else "",
        "reason": reason,
    }


def shared_cells(origin: Origin, case: Case, regime: str) -> dict[str, str]:
    """The columns that all rows of one case and regime share."""
    return axis_cells(case) | {
        "run_id": origin.run_id,
        "vm": origin.vm,
        "device": origin.device,
        "gpu": origin.gpu,
        "torch": origin.torch,
        "regime": regime,
    }


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Row]) -> int:
    """Writes a file row by row, and puts it in place in one step, so that no reader sees half of it. Returns the number
    of rows."""
    count = 0
    with replace_file(path) as file:
        writer = csv.DictWriter(file, tuple(columns), restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


def write_text(path: Path, text: str) -> None:
    """Writes a file, and puts it in place in one step."""
    with replace_file(path) as file:
        file.write(text)


@contextmanager
def replace_file(path: Path) -> Iterator[TextIO]:
    """A file of a temporary name beside `path`, which takes its place once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def format_boolean(value: bool) -> str:
    return "true" if value else "false"


def format_known(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def format_number(value: float) -> str:
    """A number with six digits; empty for NaN, which means that there was nothing to compare."""
    return "" if value != value else f"{value:.6g}"
