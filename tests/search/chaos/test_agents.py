"""The agent that ships in bad weather: a few seeded lives of it, and proof that its judge finds what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.chaos.agents import CASES, Life, Story, judged, play, story
from tests.search.chaos.judge import AGAIN, LOST, MISSING, Broken
from tests.unit.startup.cloud import RUN, Cloud
from tests.unit.startup.machine import payload, run_spec


def test_a_machine_that_continues_a_killed_ones_work_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    lost_answer = {"pattern": r"POST .*/cases/", "times": 1, "cut": "after"}
    lives = (Life("killed", 2, "/cases/", (lost_answer,)), Life("itself", faults=(lost_answer,)))
    told = play(Story(CASES[:4], lives), tmp_path)
    assert (told.machines, told.killed, told.cases) == (2, 1, 4)
    assert told.skipped >= 2


@pytest.mark.parametrize("seed", [4])
def test_seeded_lives_of_the_agent_break_no_promise(tmp_path: Path, seed: int) -> None:
    told = play(story(seed), tmp_path)
    assert told.machines >= 2


def case(name: str) -> str:
    return f"runs/{RUN}/cases/{name}.csv"


@pytest.mark.parametrize("broken", [MISSING, AGAIN, LOST])
def test_the_judge_of_agents_finds_what_is_wrong(tmp_path: Path, broken: str) -> None:
    out = tmp_path / "vm" / "out"
    (out / "cases").mkdir(parents=True)
    before: set[str] = set()
    with Cloud(run_spec(), payload()) as cloud:
        if broken == MISSING:
            (out / "acks").write_text("cases/a.csv 1.0\n")
        elif broken == AGAIN:
            cloud.objects[case("a")] = b"x"
            before = {"a"}
            (out / "cases" / "a.csv").write_text("x")
        else:
            for name in "ab":
                (out / "cases" / f"{name}.csv").write_text("x")
        with pytest.raises(Broken) as found:
            judged(cloud, tmp_path, before, "a machine")
    assert found.value.promise == broken
