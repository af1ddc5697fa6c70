"""Laws of the profile: it comes after everything is measured, its files are artifacts, and it spoils nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.startup.cloud import RUN, Cloud
from tests.unit.startup.machine import CASES, Machine, payload, run_spec

SUMMARY = "profile/summary.json"


def profiling(*acts: dict[str, Any]) -> Cloud:
    spec = run_spec({"profile": list(acts)})
    spec["harness"]["profile"] = {"cases": CASES[:1], "set": "roofline"}
    return Cloud(spec, payload())


def cases_of(cloud: Cloud) -> set[str]:
    prefix = f"runs/{RUN}/cases/"
    return {name.removeprefix(prefix).removesuffix(".csv") for name in cloud.objects if name.startswith(prefix)}


def test_a_profile_follows_the_last_case_and_its_files_are_artifacts_and_no_rows(tmp_path: Path) -> None:
    told = {"fact": "profiled", "path": SUMMARY, "case_id": "", "implementation": ""}
    with profiling({"say": told}) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert f"runs/{RUN}/artifacts/{SUMMARY}" in cloud.objects
        assert cases_of(cloud) == set(CASES)
        phases = [data["phase"] for data in cloud.said("phase_started")]
        assert phases[-3:] == ["measure", "profile", "finish"]
        assert cloud.kinds().index("case_measured") < len(cloud.kinds())
        assert cloud.said("finished")[0]["outcome"] == "succeeded"


@pytest.mark.parametrize("act", [{"exit": 1}, {"signal": 11}, {"exit": 22}])
def test_a_profile_that_goes_wrong_spoils_nothing_that_was_measured(tmp_path: Path, act: dict[str, Any]) -> None:
    with profiling(act) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert cloud.said("finished")[0]["outcome"] == "succeeded"
        assert cloud.said("diagnosed") == []
        assert cases_of(cloud) == set(CASES)
        assert "no profile:" in cloud.objects[f"runs/{RUN}/artifacts/log.txt"].decode()
