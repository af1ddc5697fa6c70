"""What was aimed at, and whether it was reached: one verdict a claim, from the rows of a campaign. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels.attention.cuda.campaign.cells import Cell, campaign
from kernels.attention.cuda.campaign.numbers import (
    BACKENDS,
    Row,
    best_of,
    by_cell,
    geometric_mean,
    medians,
    of_kind,
    over,
    ratio,
)

REGIMES = ("burst", "graph", "cold")
YES, MEAN, NO, OPEN = "yes", "in the mean, not in every cell", "no", "not measured"
Times = Mapping[Cell, Mapping[str, Mapping[str, float]]]
"""Median microseconds by cell, regime and contender."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, what it asks for, what was measured without and with the log-sum-exp, and whether it holds."""

    what: str
    asked: str
    without: str
    with_sums: str
    met: str


def times_of(rows: Sequence[Row]) -> dict[Cell, dict[str, dict[str, float]]]:
    """Medians over all visits."""
    found = {}
    for cell, visits in by_cell(rows).items():
        by_regime = {regime: medians(visits, regime) for regime in REGIMES}
        found[cell] = {regime: times for regime, times in by_regime.items() if times}
    return found


def is_claimed(cell: Cell) -> bool:
    """Batch 4, 16 heads, S = 512 to 8192: what most claims are about."""
    return cell.group == "main" and cell.seq_q >= 512


def ratios(
    times: Times,
    regimes: Sequence[str],
    where: Callable[[Cell], bool],
    of: Callable[[Mapping[str, float]], float | None],
) -> list[float]:
    """A ratio for every cell and regime in which both sides were timed."""
    found = (of(times[c][r]) for c in times if where(c) for r in regimes if r in times[c])
    return [value for value in found if value is not None]


def spread(values: Sequence[float], expected: int) -> str:
    """Geometric mean, worst, best, and how many cells that is of how many."""
    if not values:
        return "-"
    of = f"{len(values)} cells" if len(values) == expected else f"{len(values)} of {expected} cells"
    return f"{geometric_mean(values):.3f} ({min(values):.3f} to {max(values):.3f}, {of})"


def judged(values: Sequence[Sequence[float]], asked: float, *, by: str) -> str:
    """Whether a claim holds, by its geometric mean or in every cell, for every list of ratios that was measured."""
    known = [one for one in values if one]
    if not known:
        return OPEN
    mean, every = all(geometric_mean(v) >= asked for v in known), all(min(v) >= asked for v in known)
    if by == "mean":
        return YES if mean else NO
    return YES if every else MEAN if mean and by == "cells" else NO


@dataclass(frozen=True, slots=True)
class Claim:
    """A bound on our ratio to PyTorch's best backend, judged by the mean, the worst cell, or all `cells`."""

    what: str
    asked: float
    regimes: tuple[str, ...]
    where: Callable[[Cell], bool]
    by: str


CLAIMS = (
    Claim("graph, B4 H16, S = 512 to 8192, geometric mean", 1.15, ("graph",), is_claimed, "mean"),
    Claim("single cold call, the same cells, geometric mean", 1.10, ("burst",), is_claimed, "mean"),
    Claim("the worst cell of both", 0.98, ("burst", "graph"), is_claimed, "worst"),
    Claim(
        "causal, D = 128, S >= 1024, both regimes",
        1.15,
        ("burst", "graph"),
        lambda c: is_claimed(c) and c.causal and c.head_dim == 128 and c.seq_q >= 1024,
        "cells",
    ),
    Claim(
        "D = 64, S >= 4096, both regimes",
        1.15,
        ("burst", "graph"),
        lambda c: is_claimed(c) and c.head_dim == 64 and c.seq_q >= 4096,
        "cells",
    ),
    Claim("B2 H8 D64, S = 64 to 512, graph", 1.6, ("graph",), lambda c: c.group == "small", "cells"),
    Claim(
        "B2 H8 D64, S = 64 to 512, graph over changing inputs", 1.6, ("cold",), lambda c: c.group == "small", "cells"
    ),
)


def expected(where: Callable[[Cell], bool], regimes: Sequence[str]) -> int:
    return sum(where(cell) for cell in campaign()) * len(regimes)


def claims(times: Times) -> Iterator[Verdict]:
    """Against the best of PyTorch's backends, cell by cell."""
    for claim in CLAIMS:
        without, with_sums = (
            ratios(times, claim.regimes, claim.where, lambda one, lse=lse: ratio(one, lse))  # type: ignore[misc]
            for lse in (False, True)
        )
        count = expected(claim.where, claim.regimes)
        met = judged((without, with_sums), claim.asked, by=claim.by)
        yield Verdict(claim.what, f">= {claim.asked:.2f}x", spread(without, count), spread(with_sums, count), met)


def against_fa4(times: Times, version: str) -> Iterator[Verdict]:
    """FlashAttention-4, without the log-sum-exp."""

    def where(cell: Cell) -> bool:
        return is_claimed(cell) and cell.seq_q >= 1024

    found = ratios(times, ("burst", "graph"), where, lambda one: over(one, "fa4"))
    shown = spread(found, expected(where, ("burst", "graph")))
    name = f"flash-attn-4 {version}, S = 1024 to 8192, burst and graph"
    yield Verdict(f"{name}, geometric mean", ">= 1.08x", shown, "", judged([found], 1.08, by="mean"))
    yield Verdict(f"{name}, worst cell", ">= 1.00x", shown, "", judged([found], 1.0, by="worst"))


def decoding(times: Times, copy_gb_per_s: float) -> Iterator[Verdict]:
    """One query against a long cache: how near to a copy's bandwidth, and to the best backend."""
    decode = {
        cell: found for cell, found in times.items() if cell.group == "decode" and "ours" in found.get("graph", {})
    }
    shares = [cell.set_bytes / found["graph"]["ours"] / 1e3 / copy_gb_per_s for cell, found in decode.items()]
    count = expected(lambda cell: cell.group == "decode", ("graph",))
    name = "decoding, Sq = 1, Sk = 8k to 128k, 8 heads to one of K and V, graph"
    met = OPEN if not shares else YES if min(shares) >= 0.8 else NO
    yield Verdict(f"{name}: share of a copy's bandwidth", ">= 0.80", spread(shares, count), "", met)
    rates = ratios(decode, ("graph",), lambda _: True, lambda one: ratio(one, lse=False))
    yield Verdict(f"{name}: best backend", ">= 1.00x", spread(rates, count), "", judged([rates], 1.0, by="worst"))


def error_ratios(rows: Sequence[Row], ours: str) -> list[float]:
    """Our relative Frobenius error over cuDNN's own, for every cell where both were compared with float64."""
    errors = [row["errors"] for row in of_kind(rows, "visit") if {ours, "cudnn"} <= row.get("errors", {}).keys()]
    return [one[ours]["relative"] / one["cudnn"]["relative"] for one in errors]


def the_rest(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Errors, repeatability, resources, the host."""
    off, on = error_ratios(rows, "ours"), error_ratios(rows, "ours:lse")
    met = OPEN if not off else YES if max(off + on) <= 1.02 else NO
    count = len(campaign())
    yield Verdict(
        "error against float64 over cuDNN's own, every cell", "<= 1.02", spread(off, count), spread(on, count), met
    )
    for row in of_kind(rows, "stress")[-1:]:
        words = f"{row['differing']} of {row['launches']:,}"
        met = YES if row["differing"] == 0 and row["launches"] >= 10_000 else NO
        what = "launches that differ in a bit, two streams at once beside a copying one"
        yield Verdict(what, "0 of 10,000", "", words, met)
    for row in (of_kind(rows, "end") or of_kind(rows, "build"))[-1:]:
        words = f"{row['spill_bytes']} bytes, {row['serialised']} warnings, {row['loaded']} kernels"
        met = YES if row["spill_bytes"] == row["serialised"] == 0 else NO
        yield Verdict("registers spilled, warnings that wgmma waits", "0", words, "", met)
    for row in of_kind(rows, "host")[-1:]:
        found = [one["sdpa_us"] / one["attention_us"] for one in row["shapes"]]
        met = YES if min(found) >= 1.0 else NO
        yield Verdict("an eager call's host time, F.sdpa's over ours", ">= 1.00x", spread(found, len(found)), "", met)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Every claim, in the order in which they were made."""
    times = times_of(rows)
    where = of_kind(rows, "environment")[0]
    found = [*claims(times)]
    fa4 = [*against_fa4(times, where.get("flash-attn-4") or "")]
    return [*found[:3], *fa4, *found[3:], *decoding(times, where["copy_gb_per_s"]), *the_rest(rows)]


def lost(times: Times, regime: str, lse: bool) -> list[tuple[float, Cell, str]]:
    """The cells in which a backend of PyTorch is faster than we are, the worst first, and which one."""
    found = []
    for cell, by_regime in times.items():
        one = by_regime.get(regime, {})
        value = ratio(one, lse)
        if value is not None and value < 1.0:
            best = best_of(one, BACKENDS)
            found.append((value, cell, next((name for name in BACKENDS if one.get(name) == best), "")))
    return sorted(found)
