"""No honest kernel is accused. All 117 take minutes: HONEST=all python -m pytest tests/kernels/test_honest.py."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kernels.harness_process import HarnessProcess, named
from tests.kernels.test_cheats import OWN, own

SOME = ["argmax", "gelu", "matmul"]
WAYS = 9


def test_no_honest_kernel_is_accused(tmp_path: Path) -> None:
    measure = {} if os.environ.get("HONEST") == "all" else {"axes": {"op": SOME}}
    asked = own(OWN / "honest.py", implementations=["*"], measure=measure)
    with HarnessProcess("measure", asked, tmp_path) as harness:
        code, facts = harness.finish()
    cases = named(facts, "case_finished")
    assert [case["skipped"] for case in cases] == [{}] * len(cases)
    assert code == 0, harness.log()
    kernels = sum(len(case["median_us"]) - 1 for case in cases)
    assert kernels == WAYS * len(cases)
    assert kernels >= (100 if not measure else 27)
