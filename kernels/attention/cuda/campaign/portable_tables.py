"""Makes the Markdown tables of PORTABLE.md from what `portable` wrote.

python -m kernels.attention.cuda.campaign.portable_tables RESULTS.jsonl PORTABLE.md  # between its marks
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernels.attention.cuda.campaign.numbers import geometric_mean, of_kind, read
from kernels.attention.cuda.campaign.pages import Row, fill, markdown
from kernels.attention.cuda.ladder import IDEAS, LADDER

REGIMES = ("burst", "graph")


def ratios(rows: Iterable[Row], ours: str, rival: str, regime: str, **where: object) -> list[float]:
    """How many times faster `ours` is than `rival`, for every cell in which both were timed."""
    return [
        row["times"][rival][regime]["median_us"] / row["times"][ours][regime]["median_us"]
        for row in of_kind(rows, "cell")
        if {ours, rival} <= row["times"].keys() and all(row[key] == value for key, value in where.items())
    ]


def speeds(rows: Sequence[Row]) -> str:
    """TFLOP/s of every contender in every cell, and our speed over FlashAttention-2's."""
    names = ("fa2", "flash", "efficient", "cudnn", "fa2@sm_80", "fa2@sm_89", "fa2@sm_75")
    head = ["D", "mask", "S", "dtype", "regime", *names, "fa2 / flash"]
    body = []
    for row in sorted(of_kind(rows, "cell"), key=lambda r: (r["head_dim"], r["causal"], r["seq"], r["dtype"])):
        for regime in REGIMES:
            times = row["times"]
            values = [f"{times[n][regime]['tflops']:.0f}" if n in times else "-" for n in names]
            both = {"fa2", "flash"} <= times.keys()
            ratio = times["flash"][regime]["median_us"] / times["fa2"][regime]["median_us"] if both else math.nan
            mask, dtype = "causal" if row["causal"] else "full", {"float16": "fp16", "bfloat16": "bf16"}[row["dtype"]]
            body.append([str(row["head_dim"]), mask, str(row["seq"]), dtype, regime, *values, f"{ratio:.2f}"])
    return markdown(head, body)


def verdicts(rows: Sequence[Row]) -> str:
    """Geometric means over all cells, the worst cell, and how many cells there are."""
    pairs = [("fa2", rival) for rival in ("flash", "efficient", "cudnn")]
    pairs += [("fa2@sm_75", "efficient"), ("fa2@sm_75", "flash"), ("fa2@sm_80", "flash"), ("fa2@sm_89", "flash")]
    body = []
    for ours, rival in pairs:
        for regime in REGIMES:
            found = ratios(rows, ours, rival, regime)
            if found:
                middle, worst, best = geometric_mean(found), min(found), max(found)
                shown = (f"{value:.2f}" for value in (middle, worst, best))
                body.append([ours, rival, regime, *shown, str(len(found))])
    return markdown(["kernel", "against", "regime", "geometric mean", "worst", "best", "cells"], body)


def ladder(rows: Sequence[Row]) -> str:
    """Each rung and each rival on one problem: time, rate, share of the matrix product's rate, and the idea."""
    roof = of_kind(rows, "environment")[0]["gemm_tflops"]
    body = []
    for row in of_kind(rows, "cell"):
        if not row["ladder"]:
            continue
        mask = "causal" if row["causal"] else "full"
        for name in (*LADDER, "efficient", "flash", "cudnn"):
            if name not in row["times"]:
                continue
            one = row["times"][name]["burst"]
            idea = IDEAS.get(name, f"PyTorch's {name} backend")
            share = f"{one['tflops'] / roof:.1%}"
            problem = f"D={row['head_dim']} {mask}"
            body.append([problem, name, f"{one['median_us']:.0f}", f"{one['tflops']:.1f}", share, idea])
    return markdown(["problem", "kernel", "us", "TFLOP/s", "of GEMM", "idea"], body)


def errors(rows: Sequence[Row]) -> str:
    """The largest error of each contender over all cells, and the largest ratio to FlashAttention-2's in one cell."""
    names = ("fa2", "fa2@sm_75", "fa2@sm_80", "fa2@sm_89", "flash", "efficient", "cudnn")
    body = []
    for dtype in ("float16", "bfloat16"):
        found = [row["errors"] for row in of_kind(rows, "cell") if row["dtype"] == dtype]
        for name in names:
            mine = [(e[name], e.get("flash")) for e in found if name in e]
            if not mine:
                continue
            worst = max(own["max_abs"] for own, _ in mine)
            relative = max(own["relative"] for own, _ in mine)
            ratio = max(own["max_abs"] / flash["max_abs"] for own, flash in mine if flash)
            body.append([dtype, name, f"{worst:.2e}", f"{relative:.2e}", f"{ratio:.2f}"])
    return markdown(["dtype", "kernel", "max abs", "relative", "max abs over flash's, worst cell"], body)


def facts(rows: Sequence[Row]) -> str:
    """Where this was measured and what building and calling cost."""
    where, build, host = (of_kind(rows, kind)[0] for kind in ("environment", "build", "host"))
    lines = []
    lines.append(f"{where['device']}, driver {where['driver']}, torch {where['torch']}, cuDNN {where['cudnn']}.")
    lines.append(f"{where['recorded_at'][:10]}. An 8192-cubed bf16 matrix product: {where['gemm_tflops']:.0f} TFLOP/s.")
    lines.append(f"Build of all {build['kernels']} kernels by {build['compiler']}: {build['seconds']:.1f} s.")
    lines.append(f"The slowest kernel: {build['slowest_s']:.1f} s. Registers spilled: {build['spill_bytes']} bytes.")
    lines.append(
        f"Host time of a bound call: {host['bound_us']:.1f} us; of an empty launch: {host['empty_us']:.1f} us;"
    )
    lines.append(f"of PyTorch's SDPA: {host['sdpa_us']:.1f} us.")
    return "\n".join(lines)


SECTIONS = {"facts": facts, "verdicts": verdicts, "ladder": ladder, "errors": errors, "speeds": speeds}


def main() -> None:
    results, page = map(Path, sys.argv[1:3])
    page.write_text(fill(page.read_text(), read(results), SECTIONS))


if __name__ == "__main__":
    main()
