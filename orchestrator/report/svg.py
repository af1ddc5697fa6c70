"""A small drawing board: scales with sensible ticks, and code that writes SVG with coordinates rounded to a tenth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
from numpy.typing import NDArray

from orchestrator.report.style import Look
from orchestrator.report.text import format_tick

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low`..`high` to the pixels `begin`..`end`, on a linear or a logarithmic scale."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(max(value, 1e-300)) if self.log else value
        share = (at - low) / (high - low) if high > low else 0.5
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)

    def each(self, values: Vector) -> list[float]:
        """The pixels of many values."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = np.log(np.maximum(values, 1e-300)) if self.log else values
        share = (at - low) / (high - low) if high > low else np.full(values.shape, 0.5)
        pixels: list[float] = (self.begin + np.clip(share, 0.0, 1.0) * (self.end - self.begin)).tolist()
        return pixels

    def ticks(self, most: int = 7) -> list[float]:
        return log_ticks(self.low, self.high, most) if self.log else linear_ticks(self.low, self.high, most)

    def ratios(self, apart: float = 0.0) -> list[float]:
        """The numbers for an axis of ratios that have room; 1, 1.5, 2 and 3 come first. They are at least `apart`
        pixels from each other, or as far as two numbers side by side need."""
        kept: list[float] = []
        for value in first_ratios(self.low, self.high):
            if all(abs(self(value) - self(other)) >= (apart or label_room(value, other)) for other in kept):
                kept.append(value)
        return sorted(kept) if len(kept) >= 2 else self.ticks(5)


@dataclass(frozen=True, slots=True)
class Area:
    """Where a panel is drawn: its upper left corner and its width."""

    x: float
    y: float
    width: float


def tile_panels(count: int, width: float, gap: float, top: float, height: float) -> tuple[list[Area], float]:
    """The areas of `count` panels, and the y at which the last row of panels ends. Two panels are side by side, unless
    there is only one or the figure is narrow."""
    columns = 2 if count > 1 and width >= 600 else 1
    each = (width - gap * (columns - 1)) / columns
    areas = [Area((place % columns) * (each + gap), top + (place // columns) * height, each) for place in range(count)]
    return areas, top - (-count // columns) * height


def label_room(one: float, other: float) -> float:
    """The least distance between the middles of two numbers that are written side by side, in pixels."""
    both_ticks = format_tick(one) + format_tick(other)
    return 3.6 * (len(both_ticks) - both_ticks.count(".") / 2) + 6


def first_ratios(low: float, high: float) -> list[float]:
    """The numbers that a reader expects on an axis of ratios; the most important come first."""
    near = (1.0, 2.0, 1.5, 3.0, 0.5, 5.0, 0.8, 1.2, 10.0, 0.9, 1.1, 4.0, 0.7, 7.0, 0.6, 1.3, 1.05, 0.95, 1.02, 0.98)
    far = [m * 10.0**d for d in (*range(1, 7), *range(-7, 0)) for m in (1, 3, 2, 5)]
    return [value for value in dict.fromkeys((*near, *far)) if low * 0.999 <= value <= high * 1.001]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most - 1, 1)
    size = 10 ** math.floor(math.log10(rough))
    step = next(step for step in (size, 2 * size, 5 * size, 10 * size) if step >= rough)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """1, 2 and 5 in each decade; fewer where there are many decades, and round steps where there is less than one."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [m * 10.0**d for d in decades for m in mantissas if low * 0.999 <= m * 10.0**d <= high * 1.001]
        if len(ticks) <= most:
            return ticks if len(ticks) >= 3 else linear_ticks(low, high, max(most, 5))
    every = -(-len(ticks) // most)
    return ticks[::every]


def axis_span(values: Sequence[float], *, log: bool = False, pad: float = 0.06) -> tuple[float, float]:
    """The least and the greatest value, with a margin. Values must be finite, and positive with `log`."""
    low, high = min(values), max(values)
    if log:
        margin = max((high / low) ** pad, 1.02)
        return low / margin, high * margin
    margin = (high - low) * pad or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


@dataclass(slots=True)
class Board:
    """A figure that is being drawn. Screen readers read out its `title`."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def box(self, x: float, y: float, width: float, height: float, style: str, note: str = "") -> None:
        shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}"'
        title = f"><title>{escape(note)}</title></rect>" if note else "/>"
        self.parts.append(f'<rect {shape} class="{style}"{title}')

    def text(self, x: float, y: float, words: str, style: str = "", *, turned: bool = False) -> None:
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{kind}{turn}>{escape(words)}</text>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path d="M{steps}" class="{style}"/>')

    def mark(self, x: float, y: float, look: Look, size: float = 4.5, note: str = "") -> None:
        """A point, in the colour and shape of an implementation; `note` shows when it is pointed at."""
        title = f"<title>{escape(note)}</title>" if note else ""
        style, s = look.colour, size
        match look.shape:
            case "circle":
                body = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:.1f}" class="{style}">{title}</circle>'
            case "ring":
                body = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:.1f}" class="o{style[1:]}">{title}</circle>'
            case _:
                d = {
                    "square": f"M{x - s:.1f} {y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z",
                    "triangle": f"M{x:.1f} {y - 1.2 * s:.1f}l{1.2 * s:.1f} {2.1 * s:.1f}h{-2.4 * s:.1f}z",
                    "diamond": f"M{x:.1f} {y - 1.3 * s:.1f}l{1.3 * s:.1f} {1.3 * s:.1f}l{-1.3 * s:.1f} {1.3 * s:.1f}"
                    f"l{-1.3 * s:.1f} {-1.3 * s:.1f}z",
                    "wedge": f"M{x:.1f} {y + 1.2 * s:.1f}l{1.2 * s:.1f} {-2.1 * s:.1f}h{-2.4 * s:.1f}z",
                    "plus": f"M{x - 1.2 * s:.1f} {y:.1f}h{2.4 * s:.1f}m{-1.2 * s:.1f} {-1.2 * s:.1f}v{2.4 * s:.1f}",
                    "cross": f"M{x - s:.1f} {y - s:.1f}l{2 * s:.1f} {2 * s:.1f}m{-2 * s:.1f} 0"
                    f"l{2 * s:.1f} {-2 * s:.1f}",
                }[look.shape]
                kind = f"l{style[1:]}" if look.shape in ("cross", "plus") else style
                body = f'<path d="{d}" class="{kind}">{title}</path>'
        self.parts.append(body)

    def svg(self, css: str = "") -> str:
        """The figure as SVG. With `css` it can be a separate file."""
        style = f"<style>{css}</style>" if css else ""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"' if css else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:.0f} {self.height:.0f}" {size} '
            f'role="img" aria-label="{escape(self.title)}">{style}{"".join(self.parts)}</svg>'
        )


def draw_legend(board: Board, x: float, y: float, names: Sequence[tuple[str, Look]], most_x: float) -> float:
    """Draws marks and names in a row that wraps before `most_x`. Returns the y below it."""
    at = x
    for name, look in names:
        width = 24 + 7.4 * len(name)
        if at + width > most_x and at > x:
            at, y = x, y + 20
        board.mark(at + 6, y - 4.5, look)
        board.text(at + 17, y, name)
        at += width + 12
    return y + 12
