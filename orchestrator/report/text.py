"""How numbers and cases are written, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.bundled import FAMILY
from orchestrator.core.text import count

if TYPE_CHECKING:
    from orchestrator.analysis.bootstrap import Interval
    from orchestrator.analysis.case import Case, CaseTiming, Contrast

UNKNOWN = "–"


def format_digits(value: float, significant: int = 3) -> str:
    """`value` with `significant` digits, without an exponent for ordinary sizes; a dash for NaN."""
    if math.isnan(value):
        return UNKNOWN
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    places = significant - 1 - math.floor(math.log10(abs(value)))
    if places > 6 + significant:
        return f"{value:.{significant - 1}e}"
    return f"{value:,.{max(0, places)}f}"


def format_tick(value: float) -> str:
    """A number on an axis, without needless digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_ratio(value: float) -> str:
    """`1.29×`; two digits of one far below 1, and no decimals above 100."""
    if math.isnan(value):
        return UNKNOWN
    return f"{format_limit(value, 2)}×" if value < 100 else f"{value:.0f}×"


def format_limit(value: float, places: int) -> str:
    """A number with `places` decimals; with two digits where these decimals would hide them."""
    return format_digits(value, 2) if 0 < value < 0.095 and places <= 2 else f"{value:.{places}f}"


def other_regime_text(one: Contrast) -> str:
    """The ratio in the other of burst and graph, as a text after a verdict; empty where the two agree."""
    if math.isnan(one.elsewhere):
        return ""
    return f", {format_ratio(one.elsewhere)} in {'graph' if one.setting.regime == 'burst' else 'burst'}"


@dataclass(frozen=True, slots=True)
class WorkRate:
    """A rate in the unit that fits it, and its share of the device's peak in per cent (NaN where no peak is known)."""

    value: float
    unit: str
    of_roof: float

    @property
    def text(self) -> str:
        """`2,210 GB/s`; empty where the rate is not known."""
        return f"{format_digits(self.value)} {self.unit}" if self.unit else ""

    @property
    def share(self) -> str:
        if math.isnan(self.of_roof):
            return ""
        return f"{self.of_roof:.0f} %" if self.of_roof >= 0.5 or not self.of_roof else "<1 %"


def rate(case: Case, timing: CaseTiming) -> WorkRate:
    """The rate of an implementation: GB/s where memory limits the case or operations are not counted, else TFLOP/s, and
    GFLOP/s below 0.1 TFLOP/s."""
    work, roof = case.work, case.roof
    if work is None or not timing.timed:
        return WorkRate(math.nan, "", math.nan)
    by_memory = math.isnan(work.flop) or (roof is not None and work.intensity < roof.ridge)
    if by_memory:
        speed = work.bytes / timing.median_us.mid / 1e3
        share = 100 * speed / roof.gb_per_s if roof is not None else math.nan
        return WorkRate(speed, "GB/s", share) if speed >= 0.1 else WorkRate(speed * 1e3, "MB/s", share)
    share = 100 * timing.tflops / roof.tflops if roof is not None else math.nan
    return (
        WorkRate(timing.tflops, "TFLOP/s", share)
        if timing.tflops >= 0.1
        else WorkRate(timing.tflops * 1e3, "GFLOP/s", share)
    )


def format_limits(interval: Interval, *, places: int = 2) -> str:
    """The limits of an interval, in brackets; empty where they are not known."""
    if not interval.known:
        return ""
    return f"[{format_limit(interval.low, places)}, {format_limit(interval.high, places)}]"


def format_estimate(interval: Interval) -> str:
    """A ratio with its limits: `1.29× [1.10, 1.39]`. Every place that shows a ratio shows it so."""
    return " ".join(part for part in (format_ratio(interval.mid), format_limits(interval)) if part)


def of_cases(found: int, total: int, done: str = "measured") -> str:
    """`36 of 40 cases, 4 not measured`; `12 cases` where none is missing."""
    return count(total, "case") if found >= total else f"{found} of {count(total, 'case')}, {total - found} not {done}"


def format_percent(share: float, *, places: int = 1) -> str:
    """A share (0 to 1) in per cent."""
    return UNKNOWN if math.isnan(share) else f"{100 * share:.{places}f} %"


def format_size(bytes_: float) -> str:
    """A number of bytes, in the unit in which it has up to three digits."""
    if math.isnan(bytes_):
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if abs(bytes_) < 1000:
            return f"{bytes_:.0f} {unit}" if unit == "B" else f"{format_digits(bytes_)} {unit}"
        bytes_ /= 1024
    return f"{format_digits(bytes_)} GiB"


def format_energy(joules: float) -> str:
    """A number of joules, in the unit in which it has up to three digits."""
    for unit, size_ in (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6)):
        if joules >= size_:
            return f"{format_digits(joules / size_)} {unit}"
    return UNKNOWN if math.isnan(joules) else f"{format_digits(joules * 1e9)} nJ"


def display_name(implementation: str) -> str:
    """An implementation's name as figures show it."""
    return implementation.removeprefix(FAMILY)


def in_words(value: object) -> str:
    """A value of a document in words; lists and objects as a person writes them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {in_words(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(in_words(one) for one in value)
    return UNKNOWN if value is None else str(value)


def shorten_name(name: str, most: int = 42) -> str:
    """A name, shortened to at most `most` characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def common_parts(case_ids: Sequence[str]) -> list[str]:
    """The parts of a case id that all the cases have in common; empty for a single case. They are shown once instead of
    in every row."""
    if len(case_ids) < 2:
        return []
    shared = set(case_ids[0].split("-")).intersection(*(case_id.split("-") for case_id in case_ids[1:]))
    return [part for part in case_ids[0].split("-") if part in shared]


def case_labels(case_ids: Sequence[str]) -> dict[str, str]:
    """A label for each case, of the parts that differ from other cases: `256 float32`, `q1 k300 bfloat16`."""
    common = set(common_parts(case_ids))
    label_by_case = {}
    for case_id in case_ids:
        parts = case_id.split("-")
        differing_parts = [part for part in parts if part not in common]
        lengths = {part[:1]: part[1:] for part in parts if part[:1] in ("q", "k") and part[1:].isdigit()}
        if lengths.get("q") and lengths.get("q") == lengths.get("k"):
            differing_parts = [part for part in differing_parts if part != f"k{lengths['k']}"]
            differing_parts = [f"S {lengths['q']}" if part == f"q{lengths['q']}" else part for part in differing_parts]
        label_by_case[case_id] = " ".join(differing_parts) or case_id
    return label_by_case
