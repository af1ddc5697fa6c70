"""Shows profiles side by side: the shares of the chip's peaks that kernels reach, what limits them, and the roof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.profiles import KernelProfile, kernels_of, whole_call_us
from orchestrator.analysis.roofs import roof_of, work_of
from orchestrator.core.bundled import with_named_axes
from orchestrator.core.text import clean_line
from orchestrator.report.figures import SLIM, WIDTH, RoofPoint, under_roof
from orchestrator.report.page import Fold, Page, PageTable, Part, Section, Text, figure_parts, write_page
from orchestrator.report.style import assign_looks
from orchestrator.report.svg import Board
from orchestrator.report.text import UNKNOWN, format_digits, format_size

TORCH = "by PyTorch's profiler, which has times but no counters"
NOT_ROWS = (
    "Profiled calls are serialized and replayed, so they are not measurements: their times only explain, and are in no "
    "table of results."
)


@dataclass(frozen=True, slots=True)
class Profiled:
    """One implementation on one case: its kernels from Nsight Compute, its operations from PyTorch's profiler, or the
    reason why there are none."""

    case_id: str
    implementation: str
    tool: str
    why_not_ncu: str
    reason: str
    kernels: tuple[KernelProfile, ...] = ()
    operations: tuple[Mapping[str, Any], ...] = ()
    calls: int = 0
    flop: float = math.nan
    dtype: str = ""
    files: tuple[str, ...] = ()

    @property
    def time_us(self) -> float:
        """The time of all kernels of a call in microseconds; NaN without counters."""
        return whole_call_us(self.kernels) if self.kernels else math.nan

    @property
    def main(self) -> KernelProfile | None:
        """The kernel that takes longest; None without counters."""
        timed_kernels = [one for one in self.kernels if not math.isnan(one.time_us)]
        return max(timed_kernels, key=lambda one: one.time_us, default=None)

    @property
    def intensity(self) -> float:
        """Operations per byte that was really read from or written to memory."""
        moved = sum(one.dram_bytes for one in self.kernels if not math.isnan(one.dram_bytes))
        return self.flop / moved if moved > 0 else math.nan

    @property
    def tflops(self) -> float:
        return self.flop / self.time_us / 1e6 if self.time_us > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Profiles:
    """All profiles of one run."""

    run_id: str
    device: str
    set: str
    profiles: tuple[Profiled, ...] = field(default_factory=tuple)

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.case_id for one in self.profiles))

    def of(self, case_id: str) -> tuple[Profiled, ...]:
        return tuple(one for one in self.profiles if one.case_id == case_id)


def read_profiles(
    run_id: str, summary: Mapping[str, Any], texts: Mapping[str, str], tables: Mapping[str, Any]
) -> Profiles:
    """Reads `profile/summary.json` and the files that it names: `texts` are CSV pages and `tables` JSON documents, by
    file name."""
    profile_rows = summary.get("profiles")
    rows = [one for one in profile_rows if isinstance(one, Mapping)] if isinstance(profile_rows, list) else []
    made = tuple(_read(one, texts, tables) for one in rows)
    return Profiles(run_id, clean_line(str(summary.get("device", "")), 120), str(summary.get("set", "")), made)


def _read(row: Mapping[str, Any], texts: Mapping[str, str], tables: Mapping[str, Any]) -> Profiled:
    listed = row.get("files")
    files = tuple(str(one) for one in listed) if isinstance(listed, list) else ()
    metrics = next((texts[one] for one in files if one.endswith(".metrics.csv") and one in texts), "")
    rules = next((texts[one] for one in files if one.endswith(".rules.csv") and one in texts), "")
    table: Any = next((tables[one] for one in files if one.endswith(".table.json") and one in tables), {})
    calls = table.get("calls") if isinstance(table, Mapping) else 0
    axes = row.get("axes") if isinstance(row.get("axes"), Mapping) else {}
    case_id = clean_line(str(row.get("case_id", "")), 200)
    work = work_of(with_named_axes(case_id, {str(key): str(value) for key, value in (axes or {}).items()}))
    flop = work.flop if work is not None else row.get("flops")
    operations = table.get("rows") if isinstance(table, Mapping) else None
    return Profiled(
        case_id=case_id,
        implementation=clean_line(str(row.get("implementation", "")), 120),
        tool=str(row.get("tool", "")),
        why_not_ncu=clean_line(str(row.get("why_not_ncu", "")), 400),
        reason=clean_line(str(row.get("reason", "")), 400),
        kernels=kernels_of(metrics, rules),
        operations=tuple(one for one in operations if isinstance(one, Mapping)) if isinstance(operations, list) else (),
        calls=calls if isinstance(calls, int) else 0,
        flop=float(flop) if isinstance(flop, (int, float)) and not isinstance(flop, bool) and flop else math.nan,
        dtype=str((axes or {}).get("dtype", "")),
        files=files,
    )


def figures_of(one: Profiled) -> list[tuple[str, str]]:
    """The figures of a profile as (name, value), in a fixed order. Of several kernels they are those of the longest
    one; time and intensity are of all kernels."""
    kernel = one.main
    if kernel is None:
        return []
    limit = f", by {kernel.limiter}" if kernel.limiter else ""
    return [
        ("kernels", str(len(one.kernels))),
        ("longest kernel", kernel.name),
        ("time, µs", known_name(one.time_us)),
        ("tensor pipe, % of peak", known_name(kernel.tensor)),
        ("DRAM, % of peak", known_name(kernel.dram)),
        ("L2, % of peak", known_name(kernel.l2)),
        ("FLOP a byte of DRAM", known_name(one.intensity)),
        ("TFLOP/s while profiled", known_name(one.tflops)),
        ("registers a thread", known_name(kernel.registers)),
        ("shared memory a block", UNKNOWN if math.isnan(kernel.shared_bytes) else format_size(kernel.shared_bytes)),
        ("occupancy, %", f"{known_name(kernel.occupancy)} of at most {known_name(kernel.possible)}{limit}"),
        ("stalls", ", ".join(f"{reason} {share:.0f} %" for reason, share in kernel.stalls) or UNKNOWN),
    ]


def known_name(value: float) -> str:
    return UNKNOWN if math.isnan(value) else format_digits(value)


def side_by_side(profiles: Sequence[Profiled]) -> tuple[list[str], list[list[str]]]:
    """The heads, one for each implementation with counters, and a row for each figure."""
    columns = [(one.implementation, dict(figures_of(one))) for one in profiles if one.kernels]
    if not columns:
        return [], []
    names = list(columns[0][1])
    return ["", *(name for name, _ in columns)], [[name, *(values[name] for _, values in columns)] for name in names]


def profile_roofline(profiles: Sequence[Profiled], device: str, width: float = WIDTH) -> Board | None:
    """A figure of rates by measured intensity, under the roof of the data sheet where there is one."""
    plotted = [one for one in profiles if one.intensity > 0 and one.tflops > 0]
    look = assign_looks([one.implementation for one in plotted])
    device_roofs = (roof_of(device, one.dtype) for one in plotted)
    roofs = tuple(dict.fromkeys(roof for roof in device_roofs if roof is not None))
    points = [
        RoofPoint(one.intensity, one.tflops, look[one.implementation], note, size=6)
        for one in plotted
        if (
            note
            := f"{one.implementation}: {format_digits(one.tflops)} TFLOP/s at {format_digits(one.intensity)} FLOP/B"
        )
    ]
    title = "Rate by the arithmetic intensity that was measured, and the device's roof"
    return under_roof(title, "FLOP per byte of DRAM, measured", list(look.items()), points, roofs, width)


def profile_page(found: Profiles) -> str:
    """The profiles as one HTML file."""
    sections = [Section(case_id, [*_case(found.of(case_id), found.device)]) for case_id in found.cases]
    head = [Text(f"{found.device} · run {found.run_id} · set {found.set}", "soft"), Text(NOT_ROWS)]
    return write_page(Page(f"Profile · {found.run_id}", "Why it takes its time", head, sections))


def _case(profiles: Sequence[Profiled], device: str) -> Sequence[Part]:
    parts: list[Part] = [Text(f"{one.implementation}: {one.reason}", "warn") for one in profiles if one.reason]
    why = list(dict.fromkeys(one.why_not_ncu for one in profiles if one.why_not_ncu and not one.kernels))
    parts += [Text(f"No counters: {words}", "warn") for words in why]
    heads, rows = side_by_side(profiles)
    if rows:
        parts.append(
            PageTable("Side by side", ["figure", *heads[1:]], rows, long=tuple(range(1, len(heads))), stack=True)
        )
    parts += figure_parts(
        profile_roofline(profiles, device),
        "Each mark is an implementation's whole call: operations as the workload counts them, bytes counted at DRAM.",
        profile_roofline(profiles, device, SLIM),
    )
    for one in profiles:
        hints = [f"{hint.rule}: {hint.text}" for kernel in one.kernels for hint in kernel.hints]
        if hints:
            parts.append(
                Fold(f"What Nsight Compute's rules say about {one.implementation}", [Text(text) for text in hints])
            )
        if one.operations:
            lines = [
                [str(row.get("name", ""))[:120], str(row.get("count", "")), _us(row, "cpu_us"), _us(row, "device_us")]
                for row in one.operations[:20]
            ]
            title = f"{one.implementation}, {one.calls} calls, {TORCH}"
            parts.append(Text(title))
            parts.append(
                PageTable(title, ("operation", "calls", "host, µs", "device, µs"), lines, long=(0,), stack=True)
            )
    return parts


def _us(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return format_digits(float(value)) if isinstance(value, (int, float)) and math.isfinite(value) else UNKNOWN
