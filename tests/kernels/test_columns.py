"""The harness owns the columns of its files; what readers elsewhere expect of them holds."""

from __future__ import annotations

from kernels.harness.columns import LATER, measurement_columns
from orchestrator.analysis.samples import NEEDED, SENSORS, WORDS
from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN

OLDER = {"energy_j"}
"""What only files of older runs have."""


def test_what_no_file_may_lack_stands_first_in_what_the_harness_writes() -> None:
    assert measurement_columns(AXES) == (*ORIGIN, *AXES, *MEASURED, *LATER)


def test_statistics_ask_for_columns_that_there_are() -> None:
    assert {*NEEDED, *SENSORS, *WORDS} - OLDER <= set(measurement_columns(AXES))
