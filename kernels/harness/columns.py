"""The columns of the harness's files. Whoever reads them elsewhere is tested against this list.

A new column goes to the end of `LATER`: readers do without what older files lack.
"""

from __future__ import annotations

from collections.abc import Iterable

ORIGIN = ("run_id", "vm", "case_id", "device", "implementation", "backend")
"""The columns before those of the workload's axes, which say to which case a row belongs."""
MEASURED = (
    "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle",
    "max_abs_error", "torch", "started_at", "skipped",
)  # fmt: skip
"""The columns after the axes. Every file has these and `ORIGIN`."""
LATER = (
    "position", "calls", "cpu_mhz", "load_1m", "steal_percent",
    "cache", "input_sets", "warmup_calls", "warmed", "stopped", "timer_overhead_us", "peak_memory_bytes",
    "host_us", "cover", "hidden", "joules_per_call", "energy_s", "cover_us",
    "judged_calls", "rare_fault_seen",
    "definition", "role", "fault", "flop", "bytes", "roof_flops", "roof_bytes", "ranking",
    "retaken", "shared", "gpu",
)  # fmt: skip


def measurement_columns(axes: Iterable[str]) -> tuple[str, ...]:
    """The columns of a case's file, for a workload with these axes."""
    return (*ORIGIN, *axes, *MEASURED, *LATER)


def correctness_columns(axes: Iterable[str]) -> tuple[str, ...]:
    """The columns of correctness.csv."""
    return ("implementation", "case_id", *axes, "passed", "max_abs_error", "limit", "reason")
