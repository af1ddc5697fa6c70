"""The tables of docs/timers.md are the published measurements."""

from __future__ import annotations

import csv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_of_the_timers_page_is_a_published_measurement() -> None:
    with (ROOT / "results/timers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["implementation"] == "bench"]
    timers = ("cupti", "harness graph", "harness burst", "triton do_bench", "triton do_bench_cudagraph")
    published = [[row[name] or "-" for name in (*timers, "torch.utils.benchmark", "nvbench")] for row in rows]
    page = (ROOT / "docs/timers.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ")[1:] for line in page.splitlines() if line.startswith("| B")]
    assert cells == published
    assert len(cells) == 14
