"""How measurements are written to files and read again."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.harness import rows
from kernels.harness.clocks import Reading
from kernels.harness.columns import correctness_columns, measurement_columns
from kernels.harness.energy import Drawn
from kernels.harness.host import HostReading
from kernels.harness.timing import Sample
from kernels.harness.workload import Check
from tests.kernels.harness_process import ROOT
from tests.kernels.measured import CASE

ORIGIN = rows.Origin("run", "vm", "device, with a comma", "2.0")


def sample(reading: Reading) -> Sample:
    return Sample("bench", 3, 3, 12.34567, reading, "2026-11-21T04:05:06.000001Z", 2, 4, HostReading(2450.5, 0.25, 0))


def setting(**changes: Any) -> rows.Setting:
    usual = rows.Setting(
        implementation="bench", backend="cpu", check=Check(True, 0.0, 1.0, ""), regime="burst", cache="cold",
        input_sets=17, warmup_calls=24, warmed="steady", stopped="repeats", timer_overhead_us=0.05,
        peak_memory_bytes=None,
    )  # fmt: skip
    return replace(usual, **changes)


def test_what_is_not_known_is_empty_and_never_zero() -> None:
    row = rows.measured_row(ORIGIN, CASE, setting(), rows.of_sample(sample(Reading())))
    assert {row[c] for c in ("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle")} == {""}
    assert row["max_abs_error"] == "0"
    later = ("position", "calls", "cpu_mhz", "load_1m", "steal_percent")
    assert [row[c] for c in later] == ["2", "4", "2450.5", "0.25", "0"]
    assert [row[c] for c in ("joules_per_call", "energy_s")] == ["", ""]
    fed = rows.measured_row(ORIGIN, CASE, setting(energy=Drawn(0.0123456, 0.61)), rows.of_sample(sample(Reading())))
    assert [fed[c] for c in ("joules_per_call", "energy_s")] == ["0.0123456", "0.610"]
    newest = ("regime", "cache", "input_sets", "warmup_calls", "warmed", "stopped", "timer_overhead_us")
    assert [row[c] for c in newest] == ["burst", "cold", "17", "24", "steady", "repeats", "0.05"]
    assert row["peak_memory_bytes"] == ""
    hiding = ("host_us", "cover", "hidden", "cover_us")
    assert [row[c] for c in hiding] == ["", "", "", ""]
    covered = rows.of_sample(replace(sample(Reading()), host_us=41.26, cover="gate", hidden=True, cover_us=100.04))
    assert [covered[c] for c in hiding] == ["41.3", "gate", "true", "100.0"]
    assert row["latency_us"] == "12.346"
    known = rows.of_sample(sample(Reading(0.0, 10251, 71.5, 40, "none")))
    known_row = rows.measured_row(ORIGIN, CASE, setting(peak_memory_bytes=0), known)
    names = ("sm_clock_mhz", "mem_clock_mhz", "power_w", "throttle", "peak_memory_bytes")
    assert [known_row[name] for name in names] == ["0", "10251", "71.5", "none", "0"]


def test_every_row_names_its_gpu_and_has_only_columns_of_the_file() -> None:
    check = Check(False, math.nan, 0.01, "NaN")
    origin = replace(ORIGIN, gpu="0123456789ab")
    for row in (
        rows.measured_row(origin, CASE, setting(check=check), rows.of_sample(sample(Reading()))),
        rows.skipped_row(origin, CASE, "burst", "bench", "NaN", check),
    ):
        assert row["gpu"] == "0123456789ab"
        assert set(row) <= set(measurement_columns(CASE.axes))
        assert row["max_abs_error"] == ""
    assert set(rows.checked_row(CASE, "bench", check, "NaN")) == set(correctness_columns(CASE.axes))


@settings(deadline=None, max_examples=30)
@given(count=st.integers(0, 40), throttle=st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20))
def test_a_spool_gives_back_what_it_was_given(
    tmp_path_factory: pytest.TempPathFactory, count: int, throttle: str
) -> None:
    kept = [replace(sample(Reading(throttle=throttle)), block=number) for number in range(count)]
    with rows.Spool(tmp_path_factory.getbasetemp() / "spool") as spool:
        for one in kept:
            spool.keep(one)
        assert list(spool.cells()) == [rows.of_sample(one) for one in kept]
    assert list((tmp_path_factory.getbasetemp() / "spool").iterdir()) == []


@settings(deadline=None, max_examples=30)
@given(reason=st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=50))
def test_reasons_survive_the_file_whatever_they_contain(tmp_path_factory: pytest.TempPathFactory, reason: str) -> None:
    path = tmp_path_factory.getbasetemp() / "reasons.csv"
    rows.write_csv(
        path, measurement_columns(CASE.axes), [rows.skipped_row(ORIGIN, CASE, "burst", "bench", reason, None)]
    )
    with path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["skipped"] == reason
    assert row["device"] == "device, with a comma"


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rows.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        rows.write_text(path, "\ud800")
    with pytest.raises(ValueError, match="not in fieldnames"):
        rows.write_csv(path, ("a",), ({"a": "1"}, {"b": "2"}))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# A case of any length passes through the harness: its rows are on disk, and eight bytes a measurement are kept.


PLAYED = """
import random, re, sys
from contextlib import nullcontext
from pathlib import Path
from kernels.attention.case import Case, Shape
from kernels.attention.correctness import Check
from kernels.harness import rows
from kernels.harness.clocks import NoClocks
from kernels.harness.timers import Timed
from kernels.harness.columns import measurement_columns
from kernels.harness.timing import Extent, Instruments, measure_contenders
from kernels.harness.turns import Contender

def now(what):
    return int(re.search(what + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) / 1024

class Timer:
    calls_made, overhead_us = 1, 0.05
    def __call__(self, plans):
        return Timed(random.random() + 1, 20.0, "gate", True)
    def rest_s(self, latency_us):
        return 0.0

folder, blocks = Path(sys.argv[1]), int(sys.argv[2])
case = Case(Shape(2, 8, 8, 512, 512, 64, False), "float16")
contenders = [Contender(f"implementation-{n}", (lambda: None,), nullcontext) for n in range(10)]
before = now("VmHWM")
with rows.Spool(folder) as spool:
    measure_contenders(contenders, Extent(blocks, 0), Instruments(lambda _: Timer(), NoClocks()), random.Random(1), spool.keep)
    setting = rows.Setting("x", "b", Check(True, 0.0, 1.0, ""), "burst", "cold", 2, 0, "fixed", "repeats", 0.05, None)
    origin = rows.Origin("run", "vm", "device", "2.0")
    count = rows.write_csv(folder / "case.csv", measurement_columns(case.axes),
                           (rows.measured_row(origin, case, setting, cells) for cells in spool.cells()))
print(count, now("VmHWM") - before, now("VmHWM"))
"""


def test_twenty_thousand_measurements_of_a_case_take_a_few_megabytes(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PLAYED, str(tmp_path), "2000"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    count, grown_mb, _ = ran.stdout.split()
    assert int(count) == 20_000
    assert float(grown_mb) < 4
    assert len((tmp_path / "case.csv").read_text().splitlines()) == 20_001
