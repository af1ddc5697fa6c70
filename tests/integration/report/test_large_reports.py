"""What a report of many measurements costs to make."""

from __future__ import annotations

import time

from orchestrator.report.html import report_page
from tests.unit.report.written import both, csv_text, reported


def test_a_hundred_thousand_measurements_cost_little_more_each_than_ten_thousand() -> None:
    """In two regimes, and against itself in one process, so that neither a slow machine nor a tracer of coverage
    decides; `make bench` has the seconds."""

    def cost(blocks: int) -> float:
        text = csv_text(both(lengths=range(64, 89), blocks=blocks))
        begun = time.process_time()
        report = reported(text)
        size = len(report_page(report))
        assert report.study.measurements == 200 * blocks
        assert size < 2_000_000
        return time.process_time() - begun

    assert cost(500) < 2 * 10 * cost(50)
