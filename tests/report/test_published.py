"""What is published under results/ is what the tool makes of the measurements there: nothing is pasted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.cli.reading import read_report
from orchestrator.report.document import verdicts_csv
from orchestrator.report.markdown import between_marks, by_baseline, markdown

RESULTS = Path(__file__).resolve().parents[2] / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/measurements.csv*"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_run_is_reported_as_its_measurements_say(folder: Path) -> None:
    """`make results` makes these files anew."""
    report = read_report(folder)
    assert (folder / "report.md").read_text() == markdown(report)
    assert (folder / "verdicts.csv").read_text() == verdicts_csv(report)
    readme = (RESULTS / "README.md").read_text()
    assert between_marks(readme, by_baseline(report), folder.name) == readme


def test_every_published_run_is_in_the_page_about_them() -> None:
    assert FOLDERS
    named = re.findall(r"bench:begin (\S+) -->", (RESULTS / "README.md").read_text())
    assert sorted(named) == [folder.name for folder in FOLDERS]
