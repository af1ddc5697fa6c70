"""How fast a case could be: its arithmetic, its least traffic, and what a device's data sheet allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.core import bundled


@dataclass(frozen=True, slots=True)
class Roof:
    """The peaks in a data sheet: dense tensor-core TFLOP/s at `clock_mhz`, and GB/s of memory."""

    names: tuple[str, ...]
    """The roof applies to a device whose name contains each of these words; the first roof that applies is used."""
    dtypes: tuple[str, ...]
    tflops: float
    clock_mhz: float
    gb_per_s: float
    source: str

    @property
    def ridge(self) -> float:
        """The arithmetic intensity, in FLOP per byte, above which arithmetic is the limit and not memory."""
        return self.tflops * 1e3 / self.gb_per_s


HALF: Final = ("float16", "bfloat16")
SPARSE: Final = "1,979 TFLOPS with sparsity, half of it dense"
ROOFS: Final = (
    Roof(("T4",), ("float16",), 65.0, 1590.0, 320.0, "NVIDIA T4 data sheet: 65 TFLOPS mixed precision, 320 GB/s"),
    Roof(("L4",), HALF, 121.0, 2040.0, 300.0, "NVIDIA L4 data sheet: 242 TFLOPS with sparsity, half dense, 300 GB/s"),
    Roof(("A100", "80GB"), HALF, 312.0, 1410.0, 2039.0, "NVIDIA A100 data sheet: 312 TFLOPS, 2,039 GB/s (80 GB SXM)"),
    Roof(("A100",), HALF, 312.0, 1410.0, 1555.0, "NVIDIA A100 data sheet: 312 TFLOPS, 1,555 GB/s (40 GB)"),
    Roof(("H200",), HALF, 989.0, 1830.0, 4800.0, f"NVIDIA H200 data sheet: {SPARSE}, 4.8 TB/s"),
    Roof(("H100", "HBM3"), HALF, 989.0, 1830.0, 3350.0, f"NVIDIA H100 data sheet: {SPARSE}, 3.35 TB/s (SXM)"),
)
"""`clock_mhz` is the clock at which the rate is reached: SMs × FLOP per SM and cycle × clock = TFLOP/s."""


def roof_of(device: str, dtype: str) -> Roof | None:
    """The roof of a device for one dtype. `device` is the name that the device reports; None where no data sheet is
    known."""
    device_words = device.replace("-", " ").split()
    for roof in ROOFS:
        if all(name in device_words for name in roof.names):
            return roof if dtype in roof.dtypes else None
    return None


def measured_roof(words: Mapping[str, str]) -> Roof | None:
    """The roof that was measured on the device, from the columns of a row; None where there is none."""
    flops, bytes_ = (_amount(words.get(name, "")) for name in ("roof_flops", "roof_bytes"))
    if not (flops > 0 and bytes_ > 0):
        return None
    return Roof((), (), flops / 1e12, math.nan, bytes_ / 1e9, "measured on the device: products and copies")


def _amount(cell: str) -> float:
    try:
        amount = float(cell or "nan")
    except ValueError:
        return math.nan
    return amount if 0 < amount < math.inf else math.nan


@dataclass(frozen=True, slots=True)
class CountedWork:
    """The operations of one call, and the least number of bytes that it must move. NaN where one is not known."""

    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes

    def tflops(self, latency_us: float) -> float:
        return self.flop / latency_us / 1e6


def work_of(axes: Mapping[str, str], words: Mapping[str, str] = {}) -> CountedWork | None:
    """The work of a case, from its axes (its pass is one of them) or from the columns in which a workload of the user
    gives it; None where neither does."""
    if (amounts := bundled.of_case(axes)) is not None:
        return CountedWork(*amounts)
    flop, bytes_ = _amount(words.get("flop", "")), _amount(words.get("bytes", ""))
    return None if math.isnan(flop) and math.isnan(bytes_) else CountedWork(flop, bytes_)


def share_of_roof(value: float, roof: float) -> float:
    """`value` of `roof` in per cent; NaN where either is unknown."""
    return 100 * value / roof if roof > 0 else math.nan
