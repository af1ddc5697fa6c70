"""What people paste elsewhere, word for word: Markdown of reports and of comparisons."""

from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from orchestrator.report import comparing
from orchestrator.report.comparing import compare_reports
from orchestrator.report.markdown import by_baseline, report_markdown
from tests.unit.report.written import both, csv_text, records, reported, skip

BEFORE = reported(csv_text(both()))


def test_the_markdown_of_a_run_in_two_regimes(snapshot: SnapshotAssertion) -> None:
    assert report_markdown(BEFORE, BEFORE.study.settings) == snapshot
    assert by_baseline(BEFORE) == snapshot


def test_the_markdown_of_a_run_with_everything_wrong(snapshot: SnapshotAssertion) -> None:
    rows = [*records(lengths=(128,), speeds={"bench": 1.0}, load_1m="30"), skip("sdpa:cudnn", "needs | CUDA <13>")]
    assert report_markdown(reported(csv_text(rows) + "torn,line\n", complete=False)) == snapshot


def test_the_markdown_of_a_comparison(snapshot: SnapshotAssertion) -> None:
    slower = both(noise=0.011)
    for row in slower:
        if row["regime"] == "sustained" and row["implementation"].startswith("bench"):
            row["latency_us"] = f"{float(row['latency_us']) * 1.08:.3f}"
    after = reported(csv_text(slower))
    device = reported(csv_text(records(device="Tesla T4")))
    assert (
        comparing.comparison_markdown(
            [compare_reports(BEFORE, after), compare_reports(BEFORE, device)], title="Against main"
        )
        == snapshot
    )
