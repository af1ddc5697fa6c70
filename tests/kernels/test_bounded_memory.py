"""A case of any length passes through the harness: its rows are on disk, and eight bytes a measurement are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kernels.harness_process import ROOT

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
