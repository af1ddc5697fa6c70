"""Laws of a machine that shares a grid: it measures what it is granted, when it is, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from startup.agent.__main__ import Conductor
from tests.startup.cloud import RUN, Cloud
from tests.startup.machine import CASES, await_truth, payload, run_spec
from tests.startup.test_agent import Conducted, cause, ended

GRANTS = f"runs/{RUN}/grants.json"
FIRST, SECOND = CASES
QUICK = {"grant_poll_s": 0.02, "grant_patience_s": 5}


def sharing(timing: dict[str, float] | None = None, **spec: Any) -> Cloud:
    made = run_spec({"measure": [{"share": CASES}]}, timing={**QUICK, **(timing or {})}, **spec)
    made["harness"]["on_request"] = True
    return Cloud(made, payload())


def grant(cloud: Cloud, *cases: str, over: bool = False) -> None:
    cloud.objects[GRANTS] = json.dumps({"schema": 1, "cases": list(cases), "over": over}).encode()


def measured(cloud: Cloud) -> list[str]:
    return [data["case_id"] for data in cloud.said("case_measured")]


def waits(conductor: Conductor) -> bool:
    """Whether the machine has said that it waits for a case."""
    return "waiting for more" in conductor.log.stream.getvalue()  # type: ignore[attr-defined]


def test_cases_are_measured_in_the_order_in_which_they_are_granted(tmp_path: Path) -> None:
    with sharing() as cloud:
        grant(cloud, SECOND, FIRST, over=True)
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert measured(cloud) == [SECOND, FIRST]
        assert ended(cloud)["outcome"] == "succeeded"


def test_a_machine_waits_for_its_next_case_and_measures_none_twice(tmp_path: Path) -> None:
    with sharing() as cloud:
        grant(cloud, FIRST)

        def hand_out(conductor: Conductor) -> None:
            await_truth(lambda: waits(conductor))
            assert measured(cloud) == [FIRST]
            grant(cloud, FIRST, SECOND)
            await_truth(lambda: len(measured(cloud)) == 2)
            grant(cloud, over=True)

        run = Conducted(cloud, tmp_path, hand_out)
        assert run.code == 0
        assert measured(cloud) == [FIRST, SECOND]
        assert waits(run.conductor)


def test_a_machine_that_was_granted_nothing_when_the_grid_is_over_has_succeeded(tmp_path: Path) -> None:
    with sharing() as cloud:
        grant(cloud, over=True)
        run = Conducted(cloud, tmp_path)
        assert (run.code, measured(cloud)) == (0, [])
        assert ended(cloud)["detail"] == "the grid is measured"


def test_a_machine_that_nobody_grants_anything_gives_up(tmp_path: Path) -> None:
    with sharing({"grant_patience_s": 0.2}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 1
        assert cause(cloud) == "unknown"
        assert "nobody has granted a case" in ended(cloud)["detail"]


def test_waiting_for_a_case_ends_with_the_phases_limit(tmp_path: Path) -> None:
    with sharing(limits={"measure": 0.3}) as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 124
        assert cause(cloud) == "phase_timeout"


def test_waiting_for_a_case_ends_at_once_when_the_run_is_asked_to_stop(tmp_path: Path) -> None:
    def stop(conductor: Conductor) -> None:
        await_truth(lambda: waits(conductor))
        conductor.on_signal(15)

    with sharing() as cloud:
        run = Conducted(cloud, tmp_path, stop)
        assert ended(cloud)["outcome"] == "terminated"
        assert run.seconds < 4


@pytest.mark.parametrize("nonsense", [b"{", b"[]", b'{"cases": 3}'], ids=["no JSON", "no object", "no list"])
def test_grants_that_cannot_be_read_grant_nothing_until_they_can(tmp_path: Path, nonsense: bytes) -> None:
    def repair(conductor: Conductor) -> None:
        await_truth(lambda: "the grants cannot be read" in conductor.log.stream.getvalue())  # type: ignore[attr-defined]
        grant(cloud, FIRST, over=True)

    with sharing() as cloud:
        cloud.objects[GRANTS] = nonsense
        run = Conducted(cloud, tmp_path, repair)
        assert run.code == 0
        assert measured(cloud) == [FIRST]
