"""What the harness and clocks that share no code with it say of the same calls, on a calm host and on a slowed one.

python3 -m tests.kernels.agreement [--quick]
"""
# ruff: noqa: T201  (a table for people)

from __future__ import annotations

import argparse
import math
import statistics
from contextlib import nullcontext

import torch

from kernels.harness.watching import Missed
from kernels.harness.workload import BuildFailed, Unavailable
from tests.kernels.instruments import (
    CALM_SPIN_S,
    DEV,
    GRAPH_SPIN_S,
    LOADED_SPIN_S,
    Subject,
    by_events,
    by_loop,
    by_nvbench,
    by_own_graph,
    case,
    loader,
    middle,
    ours,
    subject,
    watched,
)  # fmt: skip

CELLS = (
    case(512, "float16"), case(1024, "bfloat16"), case(2048, "float16"), case(4096, "bfloat16"),
    case(4096, "float16", 128, causal=True),
)  # fmt: skip
NAMES = ("bench", "sdpa:cudnn", "sdpa:flash", "sdpa:math")


Line = tuple[str, float, float, str]
"""Regime and clock, our microseconds, theirs, a remark."""


def compared(one: Subject, spin_s: float, calm: bool) -> list[Line]:
    """What is said of one subject. Beside a loader only what does not follow the host is compared."""
    lines: list[Line] = []
    with one.scope():
        burst = ours(one, "burst", 25 if calm else 15)
        told = middle(burst)
        host = statistics.median(sample.host_us or 0 for sample in burst)
        remark = (
            f"{sum(bool(sample.hidden) for sample in burst)}/{len(burst)} hidden, host {host:.0f}, {burst[0].cover}"
        )
        lines.append(("burst/events", told, by_events(one.calls, spin_s, 25 if calm else 15), remark))
        try:
            graph = middle(ours(one, "graph", 15))
            lines.append(("graph/events", graph, by_own_graph(one.calls, GRAPH_SPIN_S if calm else spin_s), ""))
            if calm:
                steady = ours(one, "sustained", 5)
                share = sum(bool(sample.hidden) for sample in steady) / len(steady)
                lines.append(("sust./events", middle(steady), by_loop(one.calls, graph), f"{share:.0%} hidden"))
        except Unavailable as exc:
            lines.append(("graph", math.nan, math.nan, str(exc)[:60]))
    if calm:
        lines += [by_the_same_launches(one, regime) for regime in ("burst", "graph", "sustained")]
    return lines


def by_the_same_launches(one: Subject, regime: str) -> Line:
    """Ours and CUPTI's times of the launches that our timer times."""
    found = watched(one, regime)
    if isinstance(found, Missed):
        return f"{regime[:5]}/cupti", math.nan, math.nan, found.why[:60]
    theirs = found.cupti_us if math.isnan(found.covered_us) else found.covered_us
    remark = f"kernels {found.cupti_us:.2f}, worst sample {found.worst_ratio - 1:+.1%}"
    return f"{regime[:5]}/cupti", found.watched_us, theirs, remark


def show(
    condition: str, one: Subject, lines: list[Line], tally: dict[tuple[str, str], list[tuple[float, float]]]
) -> None:
    """One line each; the tally leaves out what followed the host."""
    for against, told, theirs, remark in lines:
        if remark != "0% hidden":
            tally.setdefault((condition, against), []).append((told, theirs))
        print(
            f"{condition:6} {one.case.id[10:]:38} {one.name:10} {against:13} {told:9.2f} {theirs:9.2f} "
            f"{told / theirs - 1:+7.1%} {remark}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="two cells")
    asked = parser.parse_args()
    print(torch.cuda.get_device_name(DEV), "torch", torch.__version__, flush=True)
    tally: dict[tuple[str, str], list[tuple[float, float]]] = {}
    bursts: list[tuple[Subject, float]] = []
    cells = CELLS[:2] if asked.quick else CELLS
    with torch.inference_mode():
        for condition, load, spin_s in (("calm", nullcontext, CALM_SPIN_S), ("loaded", loader, LOADED_SPIN_S)):
            calm = condition == "calm"
            for cell in cells if calm else cells[1:3]:
                for name in NAMES if calm else NAMES[:2]:
                    try:
                        one = subject(cell, name)
                        with load():
                            lines = compared(one, spin_s, calm)
                    except (Unavailable, BuildFailed, RuntimeError) as exc:
                        print(f"{condition:6} {cell.id} {name}: {type(exc).__name__} {str(exc)[:150]}", flush=True)
                        continue
                    show(condition, one, lines, tally)
                    if calm and name == "bench":
                        bursts.append((one, lines[0][1]))
        try:
            times = by_nvbench([one.calls for one, _ in bursts])
        except Exception as exc:  # an experimental package, which may not be there
            print(f"nvbench: {type(exc).__name__}: {str(exc)[:120]}", flush=True)
            times = []
        for (one, told), theirs in zip(bursts, times, strict=False):
            show("calm", one, [("burst/nvbench", told, theirs, "")], tally)
    print("\ncondition and clock: of cells above 10 us within 2 % / 5 %; below 10 us within 0.5 us; worst")
    for (condition, against), pairs in tally.items():
        known = [(a, b) for a, b in pairs if a == a and b == b]
        large = [abs(a / b - 1) for a, b in known if b >= 10]
        small = [abs(a - b) for a, b in known if b < 10]
        two, five, half = (sum(x <= y for x in xs) for xs, y in ((large, 0.02), (large, 0.05), (small, 0.5)))
        print(
            f"{condition:6} {against:13} {two}/{len(large)} {five}/{len(large)}; {half}/{len(small)}; "
            f"worst {max(large, default=0):.1%}, {max(small, default=0):.2f} us"
        )


if __name__ == "__main__":
    main()
