"""Makes the tables and the figure of a campaign: of README.md what was aimed at, of MEASURED.md every cell.

    python -m kernels.attention.cuda.campaign.tables RESULTS.jsonl README.md MEASURED.md [--figure FIGURE.svg]

Rewrites what stands between the marks of each page; a page has the sections it wants.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.campaign.figure import draw
from kernels.attention.cuda.campaign.numbers import (
    Row,
    by_cell,
    geometric_mean,
    of_kind,
    over,
    rate,
    ratio,
    read,
)
from kernels.attention.cuda.campaign.pages import fill, markdown
from kernels.attention.cuda.campaign.reach import REGIMES, is_claimed, ratios, times_of, verdicts

NAMES = (
    "ours",
    "ours:lse",
    "ours:dependent",
    "cudnn",
    "cudnn:lse",
    "flash",
    "efficient",
    "efficient:lse",
    "flex",
    "fa4",
)
RIVALS = ("cudnn", "flash", "efficient", "flex", "fa4")
GROUPS = ("main", "small", "decode", "middle", "long")


def facts(rows: Sequence[Row]) -> str:
    """The machine, every version, the roofs."""
    one = of_kind(rows, "environment")[0]
    built, end = of_kind(rows, "build")[0], of_kind(rows, "end")
    there = one.get("flash-attn-4")
    fa4 = f"flash-attn-4 {there} (nvidia-cutlass-dsl {one['nvidia-cutlass-dsl']})" if there else "no flash-attn-4"
    roofs = (
        f"An 8192-cubed bf16 matrix product: {one['gemm_tflops']:.0f} TFLOP/s; a copy: {one['copy_gb_per_s']:.0f} GB/s"
    )
    made = f"{built['kernels']} kernels built by {built['compiler']} in {built['seconds']:.1f} s"
    return "\n".join(
        (
            f"{one['device']}, driver {one['driver']}, torch {one['torch']}, cuDNN {one['cudnn']}, {fa4}.",
            f"{one['recorded_at'][:10]}. {roofs}, bytes read and written.",
            made + ("." if end else "; **the run was cut short**."),
        )
    )


def reach(rows: Sequence[Row]) -> str:
    """Asked, measured, met."""
    body = [[one.what, one.asked, one.without, one.with_sums, one.met] for one in verdicts(rows)]
    return markdown(["what", "asked", "measured", "with log-sum-exp", "met"], body)


def means(rows: Sequence[Row]) -> str:
    """Times faster than each rival over the main grid, S = 512 to 8192."""
    times, body = times_of(rows), []
    for rival in RIVALS:
        for regime in ("burst", "graph"):
            found = ratios(times, (regime,), is_claimed, lambda one, rival=rival: over(one, rival))  # type: ignore[misc]
            if found:
                shown = (f"{value:.2f}" for value in (geometric_mean(found), min(found), max(found)))
                body.append([rival, regime, *shown, str(len(found))])
    return markdown(["against", "regime", "geometric mean", "worst", "best", "cells"], body)


def grid(rows: Sequence[Row]) -> str:
    """Every cell and regime: rates of all, our ratio to the best backend, and the way that was taken."""
    times, visits = times_of(rows), by_cell(rows)
    head = ["group", "D", "mask", "shape", "dtype", "regime", *NAMES, "/ best", "/ best, lse", "/ fa4", "way"]
    body = []
    for cell in sorted(times, key=lambda c: (GROUPS.index(c.group), c.head_dim, c.causal, c.seq_k, c.batch, c.dtype)):
        way = visits[cell][-1]["ways"].get("ours", "-")
        for regime in REGIMES:
            one = times[cell].get(regime)
            if one:
                body.append([*labels(cell), regime, *rates(cell, one), *compared(one), way])
    return markdown(head, body)


def labels(cell: Cell) -> list[str]:
    heads = f"H{cell.heads}" if cell.heads == cell.kv_heads else f"H{cell.heads}:{cell.kv_heads}"
    lengths = f"S{cell.seq_q}" if cell.seq_q == cell.seq_k else f"S{cell.seq_q}x{cell.seq_k}"
    return [cell.group, str(cell.head_dim), cell.mask, f"B{cell.batch} {heads} {lengths}", cell.short_dtype]


def rates(cell: Cell, one: Mapping[str, float]) -> list[str]:
    return [rate(cell, one[name]).removesuffix(" GB/s") if name in one else "-" for name in NAMES]


def compared(one: Mapping[str, float]) -> list[str]:
    found = (ratio(one, lse=False), ratio(one, lse=True), over(one, "fa4"))
    return [f"{value:.3f}" if value is not None else "-" for value in found]


def control(rows: Sequence[Row]) -> str:
    """The same kernel bound twice, over itself: what of a ratio is chance."""
    times, body = times_of(rows), []
    for regime in REGIMES:
        found = sorted(
            abs(one - 1) for one in ratios(times, (regime,), lambda _: True, lambda t: over(t, "ours:again"))
        )
        if found:
            middle, most = found[len(found) // 2], found[int(len(found) * 0.9)]
            body.append([regime, f"{middle:.2%}", f"{most:.2%}", f"{found[-1]:.2%}", str(len(found))])
    return markdown(["regime", "median", "90th percentile", "most", "cells"], body)


def states(rows: Sequence[Row]) -> str:
    """Clocks and power while it was measured: after the bursts of each visit, and in the midst of sustained work."""
    body = []
    found = {"after bursts": [row.get("state", {}) for row in of_kind(rows, "visit")]}
    for row in of_kind(rows, "sustained"):
        for name, many in row["times"].items():
            found.setdefault(f"sustained {name}", []).extend(one["state"] for one in many)
    for name, many in found.items():
        known = [one for one in many if one]
        if known:
            spans = []
            for gauge in ("sm_mhz", "power_w", "celsius"):
                values = sorted(one[gauge] for one in known if gauge in one)
                spans.append(f"{values[len(values) // 2]:.0f} ({values[0]:.0f} to {values[-1]:.0f})" if values else "-")
            body.append([name, *spans, str(len(known))])
    return markdown(["when", "SM clock, MHz", "power, W", "temperature, C", "readings"], body)


def sustained(rows: Sequence[Row]) -> str:
    """Half a second back to back, first and last in each cell."""
    body = []
    for row in of_kind(rows, "sustained"):
        cell = Cell(**row["cell"])
        for name, many in row["times"].items():
            both = " / ".join(rate(cell, one["us"]) for one in many)
            body.append([*labels(cell)[1:], name, both])
    return markdown(["D", "mask", "shape", "dtype", "contender", "TFLOP/s, there / back"], body)


def errors(rows: Sequence[Row]) -> str:
    """Every cell: relative Frobenius error and largest difference, ours and cuDNN's, and the log-sum-exp's."""
    body = []
    for row in of_kind(rows, "visit"):
        found = row.get("errors", {})
        if {"ours", "cudnn"} <= found.keys():
            shown = [f"{found[name]['relative']:.3e}" for name in ("ours", "cudnn")]
            most = [f"{found[name]['max_abs']:.2e}" for name in ("ours", "cudnn")]
            over_cudnn = f"{found['ours']['relative'] / found['cudnn']['relative']:.4f}"
            lse = found.get("ours:lse", {}).get("lse_max_abs")
            body.append(
                [*labels(Cell(**row["cell"])), *shown, over_cudnn, *most, f"{lse:.1e}" if lse is not None else "-"]
            )
    head = [
        "group",
        "D",
        "mask",
        "shape",
        "dtype",
        "ours",
        "cuDNN",
        "ours / cuDNN",
        "max, ours",
        "max, cuDNN",
        "lse, max",
    ]
    return markdown(head, body)


def host(rows: Sequence[Row]) -> str:
    """Microseconds of the host's time a call."""
    body = [
        [str(tuple(one["shape"])), *(f"{one[f'{name}_us']:.1f}" for name in ("attention", "sdpa", "bound"))]
        for row in of_kind(rows, "host")
        for one in row["shapes"]
    ]
    return markdown(["q, k, v", "attention(q, k, v)", "F.scaled_dot_product_attention", "a bound call"], body)


def left_out(rows: Sequence[Row]) -> str:
    """What has no number, and why: cells, and contenders by reason."""
    found: dict[str, int] = {}
    for row in of_kind(rows, "visit"):
        for name, why in row["absent"].items():
            found[f"{name}: {why}"] = found.get(f"{name}: {why}", 0) + (row["turn"] == 0)
    body = [[words.replace("|", "/"), str(count)] for words, count in sorted(found.items()) if count]
    body += [[f"{Cell(**row['cell']).name}: {row['why']}", "1"] for row in of_kind(rows, "skipped")]
    return markdown(["what", "cells"], body) if body else "Nothing."


SECTIONS = {
    "campaign-facts": facts,
    "reach": reach,
    "means": means,
    "grid": grid,
    "control": control,
    "states": states,
    "sustained": sustained,
    "campaign-errors": errors,
    "host": host,
    "left-out": left_out,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the tables and the figure of a campaign.")
    parser.add_argument("results", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args(arguments)
    rows = read(asked.results)
    for page in asked.pages:
        page.write_text(fill(page.read_text(), rows, SECTIONS))
    if asked.figure:
        asked.figure.write_text(draw(rows))


if __name__ == "__main__":
    main()
