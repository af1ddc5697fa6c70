"""Tuning: only what a file declares is tried or written, and the luck of the best of many is not published."""

from __future__ import annotations

import ast
import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

import pytest

from kernels.harness.session import BLOCKS, PRECISION
from kernels.harness.stopping import RACE, half_width, precision_rule, race_rule
from orchestrator.analysis.bootstrap import Interval
from orchestrator.api.sessions import DROPPED, VersionLine
from orchestrator.api.tuning import FIRST_TRIES, Search
from orchestrator.core.candidates import Candidate, Strategy, Values, promising_combination, read_space, with_values
from orchestrator.core.errors import ConfigError

SOURCE = '''"""A file."""
import torch
tune = {"block": [64, 128, 256], "stages": [2, 3]}  # what to try
# best comes from bench tune
best = {
    "block": 64, "stages": 2,
}  # kept
def kernel_mine(x, *, block, stages):
    return x
'''
NOISE = 0.02


def values_of(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(ast.parse(text.replace("import torch", "")), "f", "exec"), scope)
    return dict(scope["best"])


def test_values_are_written_into_best_and_nothing_else_changes() -> None:
    made = with_values(SOURCE, read_space(SOURCE, "f.py"), {"block": 256, "stages": 3})
    assert values_of(made) == {"block": 256, "stages": 3}
    assert made == SOURCE.replace('{\n    "block": 64, "stages": 2,\n}', "{'block': 256, 'stages': 3}")


def test_best_is_added_after_tune_where_there_is_none() -> None:
    source = 'tune = {"a": [1, 2]}\nx = 1\n'
    assert (
        with_values(source, read_space(source, "f.py"), {"a": 2}) == "tune = {\"a\": [1, 2]}\nbest = {'a': 2}\nx = 1\n"
    )


@pytest.mark.parametrize(
    "values",
    [
        {"block": 100, "stages": 2},
        {"block": 64},
        {"block": 64, "stages": 2, "x": 1},
        {"block": "64", "stages": 2},
        {"block": 64.0, "stages": 2},
        {"block": 64, "stages": True},
        {"block": 64, "stages": [2]},
    ],
)
def test_values_that_the_file_does_not_declare_are_never_written(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="does not declare"):
        with_values(SOURCE, read_space(SOURCE, "f.py"), values)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1\n", "declares no parameters"),
        ("tune = f()\n", "f.py:1: tune and best must be written out"),
        ("\ntune = {'a': 3}\n", "f.py:2: tune: 'a' must have a list of values"),
        ("tune = {'a': [[1]]}\n", "must have a list of values"),
        ("tune = {'a': []}\n", "must have a list of values"),
        ("tune = {\n", "f.py:1"),
        ("tune = " + repr({name: list(range(30)) for name in "abc"}) + "\n", "27000 combinations are more than"),
    ],
)
def test_a_mistake_in_tune_is_named_with_its_line(source: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        read_space(source, "f.py")


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "racing"])
def test_every_strategy_tries_each_combination_once_and_the_present_one_first(strategy: Strategy) -> None:
    space = read_space(SOURCE, "f.py")
    ordered = space.ordered(strategy, 7)
    assert sorted(map(str, ordered)) == sorted(map(str, space.combinations()))
    assert ordered[0] == space.best


def raced(chance: random.Random, ratio: float, beat: Mapping[str, float]) -> tuple[list[float], bool]:
    """The logarithms of the block ratios that the harness' own rules make of a kernel, and whether it lost the race."""
    rules, times = (race_rule(beat.get("c")), precision_rule(PRECISION)), {"torch": [], "mine": []}  # type: ignore[var-annotated]
    for _ in range(BLOCKS):
        for name, us in (("torch", 100.0), ("mine", 100.0 / ratio)):
            times[name].append(us * math.exp(chance.gauss(0, NOISE)))
        said = [rule(times) for rule in rules]
        if any(said):
            break
    logs = [math.log(a / b) for a, b in zip(times["torch"], times["mine"], strict=True)]
    return logs, RACE in said


@dataclass
class PlayedDesk:
    """A session whose candidates have known speeds, with noise; in a race those that cannot win are dropped."""

    chance: random.Random
    speeds: Mapping[int, float]
    stages: Mapping[int, float] = field(default_factory=dict)
    """What the other parameter makes of the speed."""
    lines: list[VersionLine] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    wrong: int = 0
    blocks: int = 0
    """How many blocks were measured, where the harness' rules are played."""
    plays_rules: bool = False

    def read(self) -> Any:
        return None, "f", Candidate("f", "own/f.py", {"own/f.py": SOURCE.encode()})

    def measure_candidate(self, _config: Any, _name: str, candidate: Candidate) -> VersionLine:
        self.candidates.append(candidate)
        (chosen,) = re.findall(rb"best = {'block': (\d+), 'stages': (\d+)}", candidate.files[candidate.path])
        block, stages = map(int, chosen)
        number = len(self.lines) + 1
        ratio = self.speeds[block] * self.stages.get(stages, 1.0) * math.exp(self.chance.gauss(0, NOISE))
        low, high = ratio * math.exp(-2 * NOISE), ratio * math.exp(2 * NOISE)
        has_lost = bool(candidate.beat) and high < min(candidate.beat.values())
        if self.plays_rules:
            logs, has_lost = raced(self.chance, self.speeds[block], candidate.beat)
            self.blocks += len(logs)
            middle, half = median(logs), half_width(logs)
            low, ratio, high = math.exp(middle - half), math.exp(middle), math.exp(middle + half)
        if block == self.wrong:
            line = VersionLine(number, "wrong", "mine", reason="max abs error 3")
        elif has_lost:
            line = VersionLine(number, DROPPED, "mine", time_us=1.0)
        else:
            ratios = {"c": low}
            line = VersionLine(
                number, "faster", "mine", "torch", 1 / ratio, Interval(low, ratio, high), "", 1.0, ratios
            )
        line = line if block == self.wrong else replace(line, relative_time=1 / ratio)
        self.lines.append(line)
        return line


def searched(seed: int, values: int = 40, **options: Any) -> tuple[Any, PlayedDesk]:
    blocks = list(range(1, values + 1))
    source = SOURCE.replace("[64, 128, 256]", str(blocks)).replace("[2, 3]", "[2]").replace("64", "1")
    chance = random.Random(seed)
    desk = PlayedDesk(chance, dict.fromkeys(blocks, 1.2), **{k: v for k, v in options.items() if k == "wrong"})
    rest = {k: v for k, v in options.items() if k != "wrong"}
    return Search(desk, read_space(source, "f.py"), source, **rest), desk  # type: ignore[arg-type]


@pytest.mark.parametrize(("strategy", "least"), [("exhaustive", 42), ("random", 42), ("racing", 30)])
def test_a_candidate_names_the_one_that_probably_comes_next(strategy: Strategy, least: int) -> None:
    search, desk = searched(3, strategy=strategy)
    desk.speeds = {block: 1 + block / 40 for block in desk.speeds}
    search.run()
    pairs = list(pairwise(desk.candidates))
    assert sum(before.ahead == after.files for before, after in pairs) >= least - 1
    assert all({*candidate.ahead} == {candidate.path} for candidate, _ in pairs)
    assert not desk.candidates[-1].ahead
    document = json.loads(desk.candidates[0].document(1))
    assert document["ahead"].keys() == document["files"].keys()


def test_what_comes_next_never_makes_a_candidate_too_large() -> None:
    candidate = Candidate("f", "f.py", {"f.py": b"x" * 900_000}, ahead={"f.py": b"y" * 900_000})
    assert "ahead" not in json.loads(candidate.document(1))


def test_the_published_ratio_of_a_winner_is_without_the_luck_of_the_search() -> None:
    made = [searched(seed, strategy="random")[0].run() for seed in range(100)]
    published = [math.log(one.winner.again.ratio.mid / 1.2) for one in made]
    lucky = [math.log(one.winner.line.ratio.mid / 1.2) for one in made]
    assert abs(mean(published)) < 0.005
    assert mean(lucky) > NOISE, "the best of forty equal ones is the luckiest"
    inside = sum(one.winner.again.ratio.low <= 1.2 <= one.winner.again.ratio.high for one in made)
    assert inside >= 0.9 * len(made)


def test_a_race_drops_what_is_slower_and_keeps_the_best() -> None:
    search, desk = searched(1, strategy="racing")
    desk.speeds = {block: 1 + block / 40 for block in desk.speeds}
    made = search.run()
    assert made.winner.values["block"] >= 38
    assert made.dropped > 10
    assert len(made.trials) == 40


# A Triton matmul of 2,048 in bf16 on an H100, 2026-11-28: the times in microseconds of the combinations below, in the
# order of the file, as far as an exhaustive search came.
MATMUL = {"bm": [32, 64, 128], "bn": [64, 128], "bk": [32, 64], "stages": [2, 3, 4, 5], "warps": [4, 8]}
MATMUL_US = (
    111, 179, 101, 153, 103, 151, 104, 152, 97.9, 124, 89.7, 118, 93.5, 119, 95.3, 120,
    106, 117, 98.1, 109, 96.5, 110, 84.6, 109, 87.9, 93.6, 82.4, 84.9, 81.6, 87, 79.8, 90.2,
    61.4, 92.1, 64.6, 72.5, 75.2, 79.2, 76.4, 71.2, 61.4, 60, 50.3, 54.4, 56.9, 58.7, 55.2, 59.3,
    58, 59, 46.6, 49.2, 52.8, 54.3, 57.7, 54.9, 43.7, 44.2, 49.2, 52.3, 41.5, 48.2, 49, 49.2,
    58.1, 58.6, 49.3, 52.1, 51.5, 52.7, 60, 62.6, 40.4, 41.9, 44.9, 46.4,
)  # fmt: skip


def test_a_race_over_measured_times_nears_the_best_in_a_quarter_of_the_tries() -> None:
    tries = []
    space = read_space(f"tune = {MATMUL}\n", "f.py")
    times = dict(zip(map(str, space.combinations()), MATMUL_US, strict=False))
    for seed in range(60):
        untried = [values for values in space.ordered("racing", seed) if str(values) in times]
        measured: list[tuple[Values, float]] = []
        while not measured or measured[-1][1] > 1.02 * min(MATMUL_US):
            chosen = untried[0] if len(measured) < FIRST_TRIES else promising_combination(untried, measured)
            untried.remove(chosen)
            measured.append((chosen, times[str(chosen)]))
        tries.append(len(measured))
    assert mean(tries) <= len(MATMUL_US) / 4, tries
    assert max(tries) <= len(MATMUL_US) / 2, tries


def test_a_wrong_combination_never_wins_and_the_rest_is_tried() -> None:
    search, desk = searched(1, wrong=40)
    desk.speeds = {**desk.speeds, 40: 99.0}
    made = search.run()
    assert made.winner.values["block"] != 40
    assert len(made.trials) == 40


def test_a_search_whose_time_is_over_still_measures_its_winner_again() -> None:
    search, desk = searched(1)
    search.is_over = lambda: "its time is over" if len(desk.lines) >= 5 else ""
    made = search.run()
    assert (len(made.trials), made.stopped) == (5, "its time is over")
    assert made.winner.again is not None
    assert len(made.runners_up) == 2


@pytest.mark.parametrize(("factor", "ends"), [(1.3, True), (1.0, False), (0.8, False)])
def test_a_race_in_a_case_ends_only_for_what_is_slower_with_confidence(factor: float, ends: bool) -> None:
    chance, rule = random.Random(3), race_rule(1.0)
    times: dict[str, list[float]] = {"torch": [], "mine": []}
    said = []
    for _ in range(30):
        for name, us in (("torch", 100.0), ("mine", 100.0 * factor)):
            times[name].append(us * math.exp(chance.gauss(0, 0.05)))
        said.append(rule(times))
    assert ("race" in said) is ends
