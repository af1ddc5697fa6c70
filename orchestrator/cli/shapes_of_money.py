"""The shapes of what commands print of money; see `shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Usd = str
"""Dollars as a decimal string."""


@dataclass
class Prices:
    schema: Literal[1]
    currency: str
    as_of: str
    age_days: int
    stale: bool
    sources: dict[str, str]
    trusted: list[str]
    prices: list[dict[str, Any]]


@dataclass
class Window:
    key: str
    spent_usd: Usd
    held_usd: Usd


@dataclass
class Costs:
    schema: Literal[1]
    runs: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    older: int
    windows: dict[str, Window]
    prices_simulated: bool


@dataclass
class CostAdded:
    schema: Literal[1]
    id: str
    category: str
    usd: Usd
    note: str


@dataclass
class CostTakenBack:
    schema: Literal[1]
    id: str
    takes_back: str
    usd: Usd
    note: str


@dataclass
class Budget:
    schema: Literal[1]
    config: str
    windows: list[dict[str, Any]]
    caps_of_the_bucket: dict[str, Any] | None
    alerts_at_percent: list[int]
    alerted: list[str]


@dataclass
class CapsSet:
    schema: Literal[1]
    caps: dict[str, Any] | None


@dataclass
class Rebuilt:
    schema: Literal[1]
    added: list[str]
    put_aside: str | None
