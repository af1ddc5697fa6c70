"""The figure of a campaign: TFLOP/s by length, a panel for each head dimension and mask, a row for each regime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from kernels.attention.cuda.campaign.cells import BF16, HEAD_DIMS, MAIN_LENGTHS, MASKS, Cell
from kernels.attention.cuda.campaign.numbers import Row, of_kind
from kernels.attention.cuda.campaign.reach import Times, times_of

NAMES = {"ours": "this kernel", "fa4": "flash-attn-4", "cudnn": "cuDNN", "flash": "FLASH", "efficient": "EFFICIENT"}
COLOURS = {"ours": "#c24a00", "fa4": "#a3427f", "cudnn": "#0b62a8", "flash": "#00795a", "efficient": "#5b5f66"}
DASHES = {"ours": "", "fa4": "7 3", "cudnn": "2 3", "flash": "9 3 2 3", "efficient": "1 4"}
"""A line's dashes tell it apart where its colour does not."""
REGIMES = {"burst": "one cold call", "graph": "calls back to back"}
WIDTH, HEIGHT, GAP, LEFT, TOP, BOTTOM = 216.0, 190.0, 16.0, 60.0, 74.0, 46.0
INK, SOFT, LINE, PAPER = "#1b1f24", "#57606a", "#d0d7de", "#ffffff"


@dataclass(frozen=True, slots=True)
class Panel:
    """Where one panel lies, and its scales: lengths by logarithm, rates from zero to `most`."""

    x: float
    y: float
    most: float

    def at(self, seq: int, rate: float) -> tuple[float, float]:
        low, high = math.log2(MAIN_LENGTHS[0]), math.log2(MAIN_LENGTHS[-1])
        across = (math.log2(seq) - low) / (high - low)
        return self.x + 12 + across * (WIDTH - 24), self.y + HEIGHT * (1 - rate / self.most)


def text(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = INK, size: int = 12) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
    return f"<text {place}>{escape(words)}</text>"


def line(points: Sequence[tuple[float, float]], colour: str, width: float, dashes: str = "") -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def rates(times: Times, regime: str, head_dim: int, causal: bool) -> dict[str, list[tuple[int, float]]]:
    """TFLOP/s by length of every contender in a panel: bf16, batch 4, 16 heads."""
    found: dict[str, list[tuple[int, float]]] = {}
    for cell in sorted(times, key=lambda one: one.seq_q):
        if (cell.group, cell.dtype, cell.head_dim, cell.causal) == ("main", BF16, head_dim, causal):
            for name, us in tflops(cell, times[cell].get(regime, {})).items():
                found.setdefault(name, []).append((cell.seq_q, us))
    return found


def tflops(cell: Cell, us: Mapping[str, float]) -> dict[str, float]:
    return {name: cell.flops / us[name] / 1e6 for name in NAMES if name in us}


def panel(where: Panel, curves: Mapping[str, Sequence[tuple[int, float]]], *, first: bool, last: bool) -> list[str]:
    """Grid, scales where they are at the edge, and the curves, ours on top."""
    parts = [
        f'<rect x="{where.x:.1f}" y="{where.y:.1f}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="{LINE}"/>'
    ]
    step = 200 if where.most > 500 else 100
    for rate in range(0, int(where.most) + 1, step):
        y = where.at(MAIN_LENGTHS[0], rate)[1]
        parts.append(line([(where.x, y), (where.x + WIDTH, y)], LINE, 1))
        if first:
            parts.append(text(where.x - 8, y + 4, str(rate), anchor="end", colour=SOFT))
    if last:
        for seq in MAIN_LENGTHS:
            x = where.at(seq, 0)[0]
            label = str(seq) if seq < 1024 else f"{seq // 1024}k"
            parts.append(text(x, where.y + HEIGHT + 18, label, colour=SOFT))
    for name in reversed(NAMES):
        if name in curves:
            points = [where.at(seq, rate) for seq, rate in curves[name]]
            parts.append(line(points, COLOURS[name], 2.6 if name == "ours" else 1.8, DASHES[name]))
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{COLOURS[name]}"/>' for x, y in points]
    return parts


def draw(rows: Sequence[Row]) -> str:
    """The figure as SVG that stands alone."""
    times, where = times_of(rows), of_kind(rows, "environment")[0]
    columns = [(head_dim, causal) for head_dim in HEAD_DIMS for causal in MASKS]
    curves = {(r, d, c): rates(times, r, d, c) for r in REGIMES for d, c in columns}
    peak = max((rate for one in curves.values() for many in one.values() for _, rate in many), default=100.0)
    most = math.ceil(peak / 100) * 100.0
    width = LEFT + len(columns) * (WIDTH + GAP) + 8
    height = TOP + len(REGIMES) * (HEIGHT + GAP) + BOTTOM
    parts = [f'<rect width="100%" height="100%" fill="{PAPER}"/>']
    versions = f"{where['device']}, cuDNN {where['cudnn']}, torch {where['torch']}, driver {where['driver']}"
    if where.get("flash-attn-4"):
        versions += f", flash-attn-4 {where['flash-attn-4']}"
    parts.append(
        text(LEFT, 20, f"Forward attention, TFLOP/s by length; bf16, batch 4, 16 heads. {versions}", anchor="start")
    )
    at = LEFT
    for name in NAMES:
        if any(name in one for one in curves.values()):
            parts.append(line([(at, 40), (at + 30, 40)], COLOURS[name], 2.6 if name == "ours" else 1.8, DASHES[name]))
            parts.append(text(at + 36, 44, NAMES[name], anchor="start"))
            at += 60 + 7.5 * len(NAMES[name])
    for row, (regime, words) in enumerate(REGIMES.items()):
        y = TOP + row * (HEIGHT + GAP)
        middle = y + HEIGHT / 2
        parts.append(f'<g transform="rotate(-90 16 {middle:.1f})">{text(16, middle, words)}</g>')
        for column, (head_dim, causal) in enumerate(columns):
            x = LEFT + column * (WIDTH + GAP)
            if row == 0:
                parts.append(text(x + WIDTH / 2, TOP - 8, f"D = {head_dim}, {'causal' if causal else 'full'}"))
            parts += panel(
                Panel(x, y, most),
                curves[regime, head_dim, causal],
                first=column == 0,
                last=row == len(REGIMES) - 1,
            )
    parts.append(text(LEFT + (width - LEFT) / 2, height - 8, "queries and keys", colour=SOFT))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="system-ui, sans-serif" role="img" '
        f'aria-label="TFLOP/s of forward attention by length">{"".join(parts)}</svg>\n'
    )
