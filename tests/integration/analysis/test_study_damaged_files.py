"""What is still read of files that are empty, damaged, repeated or of an older schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN, ResultsUnreadable
from tests.unit.report.written import csv_text, records, skip, studied

ROOT = Path(__file__).resolve().parents[3]


def test_an_empty_run_says_so() -> None:
    found = studied(csv_text([]))
    assert (found.cases, found.contrasts, found.measurements, found.subject) == ((), (), 0, "")
    assert "has no rows" in found.notes[0]


@pytest.mark.parametrize("text", ["", "\n", "a,b,c\n1,2,3\n", "\x00\x01"])
def test_what_is_no_result_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(ResultsUnreadable, match=r"measurements\.csv"):
        studied(text)


def test_one_implementation_alone_is_timed_and_compared_with_nothing() -> None:
    found = studied(csv_text(records(speeds={"sdpa:math": 1.0})))
    assert found.contrasts == ()
    assert found.subject == "sdpa:math"
    assert "Only one implementation" in found.notes[0]
    assert all(case.timings[0].timed for case in found.cases)


def test_where_everything_was_skipped_the_reasons_are_kept() -> None:
    found = studied(csv_text([skip("bench", "no compiler"), skip("sdpa:cudnn", "needs CUDA")]))
    assert "Every implementation was skipped" in found.notes[0]
    assert [timing.skipped for timing in found.cases[0].timings] == ["no compiler", "needs CUDA"]


def test_rows_that_cannot_be_used_are_counted_and_the_rest_is_kept() -> None:
    rows = list(records(lengths=(128,)))
    rows[0]["latency_us"], rows[1]["latency_us"], rows[2]["latency_us"] = "nan", "-3", "soon"
    rows[3]["case_id"] = ""
    found = studied(csv_text(rows))
    assert found.measurements == 196
    assert found.faults == (
        "3 rows have no usable latency (first at measurements.csv:2)",
        "1 row names no case or no implementation (first at measurements.csv:5)",
    )


def test_a_repeated_row_counts_once() -> None:
    rows = list(records(lengths=(128,)))
    found = studied(csv_text(rows + rows[:3]))
    assert repr(found.contrasts) == repr(studied(csv_text(rows)).contrasts)  # NaN equals nothing
    (fault,) = found.faults
    assert fault.startswith("3 rows repeat a block that is already there (first at ")


def test_a_truncated_file_loses_its_last_row_only() -> None:
    text = csv_text(records(lengths=(128,)))
    found = studied(text[: len(text) - 60])
    assert found.measurements == 199
    assert "row is incomplete" in found.faults[0]


def test_files_of_several_schemas_and_runs_are_read_together() -> None:
    from orchestrator.analysis.samples import Reader
    from orchestrator.analysis.study import study

    reader = Reader()
    reader.read(csv_text(records(lengths=(128,)), (*ORIGIN, *AXES, *MEASURED)).splitlines(keepends=True), "old.csv")
    newer = csv_text(records(lengths=(1024,)), (*ORIGIN, *AXES, *MEASURED, "position", "novel"))
    reader.read(newer.splitlines(keepends=True), "new.csv")
    reader.read(csv_text(records(run_id="20261121-040506-l4-0000", blocks=9)).splitlines(keepends=True), "other.csv")
    found = study(reader.groups(), reader.told())
    assert len(found.cases) == 2
    assert "holds 2 runs" in found.notes[0]


def test_older_rows_that_name_no_caches_stand_apart_and_that_is_said() -> None:
    old, new = records(lengths=(128,)), records(lengths=(256,), cache="cold")
    found = studied(csv_text([*old, *new]))
    assert [one.name for one in found.settings] == ["burst, cold", "burst"]
    assert (
        "Some rows of burst come from an older version and do not say whether their caches were warm or cold"
        in found.notes[0]
    )


def test_an_implementation_with_a_skip_row_has_no_timing_whatever_else_there_is() -> None:
    found = studied(csv_text([*records(lengths=(128,)), skip("bench", "wrong after timing")]))
    bench = found.cases[0].timing("bench")
    assert bench is not None
    assert (bench.timed, bench.skipped) == (False, "wrong after timing")
    assert found.contrasts == ()


def test_two_hundred_thousand_rows_are_read_in_less_than_an_eighth_of_a_gigabyte() -> None:
    program = (
        "from itertools import chain, repeat\n"
        "from orchestrator.analysis.samples import Reader\n"
        "from orchestrator.analysis.study import study\n"
        "from tests.unit.report.written import csv_text, records\n"
        "header, *rows = csv_text(records(lengths=(128,), blocks=1)).splitlines(keepends=True)\n"
        "cells = [row.split(',') for row in rows]\n"
        "def block(cells, n):\n    return ','.join([*cells[:15], str(n), str(n), *cells[17:]])\n"
        "regimes = ('burst', 'sustained')\n"
        "lines = chain([header], (block([*c[:14], regimes[n % 2], *c[15:]], n) for n in range(50_000) for c in cells))\n"
        "reader = Reader(); reader.read(lines, 'x'); found = study(reader.groups(), reader.told())\n"
        "assert (found.measurements, len(found.cases)) == (200_000, 2), found\n"
        # Not getrusage's: that starts at what the parent had, and the parent here has PyTorch loaded.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 125_000
