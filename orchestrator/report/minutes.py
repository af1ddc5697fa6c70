"""How the time of a run's machines was spent, as its manifest records it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.run.paid_time import PARTS, span, told


@dataclass(frozen=True, slots=True)
class Minutes:
    """Seconds of machines, of measuring, and of the cold start by its parts."""

    paid_s: float
    measuring_s: float
    parts: Mapping[str, float]

    @classmethod
    def read(cls, found: Any) -> Minutes | None:
        """The minutes in a manifest; None where they are missing or impossible."""
        if not isinstance(found, Mapping):
            return None
        paid, measuring = _seconds(found.get("paid_s")), _seconds(found.get("measuring_s"))
        parts = found.get("cold_start_parts_s")
        if not isinstance(parts, Mapping) or not 0 < measuring <= paid:
            return None
        return cls(paid, measuring, {part: taken for part in PARTS if (taken := _seconds(parts.get(part)))})

    @property
    def share(self) -> float:
        """The share of the machines' time that was spent on measuring, 0 to 1."""
        return self.measuring_s / self.paid_s

    @property
    def text(self) -> str:
        sentence = f"Measuring took {self.share:.0%} of {span(self.paid_s)} of machine time"
        if not self.parts:
            return f"{sentence}."
        start = f"{span(sum(self.parts.values()))} after the request ({told(dict(self.parts))})"
        return f"{sentence}; the first case began {start}."

    def document(self) -> dict[str, Any]:
        return {
            "paid_s": self.paid_s,
            "measuring_s": self.measuring_s,
            "measuring_share": round(self.share, 4),
            "cold_start_parts_s": dict(self.parts),
        }


def _seconds(value: Any) -> float:
    """`value` as a number of seconds; 0 if it is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if number else 0.0
