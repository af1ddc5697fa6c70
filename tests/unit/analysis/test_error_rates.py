"""The programme that counts wrong verdicts on equal kernels and slowdowns that are not found."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.forms.load import load_workload
from kernels.harness.columns import measurement_columns
from kernels.harness.spec import parse_spec
from scripts.error_rates import (
    COLUMNS,
    PAIRS,
    ROOT,
    Plan,
    Tally,
    at_most,
    read_published,
    rows_of,
    spec_of,
    unfinished_round,
    upper_limit,
    write_rates,
)
from tests.unit.report.written import csv_text, records

SPEEDS = {"plain": 1.0, "plain:aa": 1.0, "same1": 1.0, "same2": 1.0, "slow": 1 / 1.02}


def write_round(folder: Path, device: str, seed: int, speeds: dict[str, float] = SPEEDS) -> None:
    (folder / "cases").mkdir(parents=True)
    key = {"pairs": "spin", "device": device, "stop": None, "regime": "burst", "cases": 1}
    (folder / "round.json").write_text(json.dumps(key))
    rows = [
        row | {"role": "baseline" if row["implementation"].startswith("plain") else "kernel", "axis:n": row["seq_q"]}
        for row in records(run_id=folder.name, device=device, speeds=speeds, noise=0.003, seed=seed)
    ]
    (folder / "cases" / "a.csv").write_text(csv_text(rows, measurement_columns(["axis:n"])))


def test_rounds_of_several_devices_are_pooled_and_each_device_is_named(tmp_path: Path) -> None:
    for number in range(3):  # seeds for which no verdict is wrong by chance
        write_round(tmp_path / f"one-{number}", "NVIDIA H100", 20 + number)
    write_round(tmp_path / "elsewhere" / "two", "NVIDIA H200", 9)
    rows = {(row["device"], row["kind"], row["size"]): row for row in write_rates(tmp_path)}
    slow = rows["NVIDIA H100", "2 % slower", "all"]
    assert (slow["comparisons"], slow["cases"], slow["slower"], slow["rate"]) == ("18", "6", "18", "1.0000")
    assert slow["limit"] == f"{0.05 ** (1 / 18):.4f}"
    assert slow["limit_by_case"] == f"{0.05 ** (1 / 6):.4f}"
    equal = rows["NVIDIA H100", "equal to the baseline", "all"]
    assert (equal["comparisons"], equal["rate"], equal["limit"]) == ("12", "0.0000", f"{1 - 0.05 ** (1 / 12):.4f}")
    assert rows["NVIDIA H100", "equal kernels", "n=128"]["comparisons"] == "3"
    assert rows["NVIDIA H200", "2 % slower", "all"]["cases"] == "2"
    with (tmp_path / "rates.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)


def test_a_difference_between_equal_kernels_is_counted_as_wrong_and_a_missed_one_too(tmp_path: Path) -> None:
    write_round(tmp_path / "one", "NVIDIA H100", 1, SPEEDS | {"same2": 1.1, "slow": 1.0})
    rows = {(row["kind"], row["size"]): row for row in write_rates(tmp_path)}
    equal = rows["equal to the baseline", "all"]
    assert (equal["faster"], equal["comparisons"], equal["rate"]) == ("2", "4", "0.5000")
    assert float(equal["limit_by_case"]) == 1.0  # each of both cases has one
    slow = rows["2 % slower", "all"]
    assert slow["slower"] == "2"  # beside the kernel that is faster than it
    assert slow["rate"] == "0.3333"


def test_a_round_goes_on_only_on_its_own_device_and_until_it_is_finished(tmp_path: Path) -> None:
    plan = Plan(tmp_path, ("library",), "burst", 2, None)
    first = unfinished_round(plan, "library", "NVIDIA H100")
    assert unfinished_round(plan, "library", "NVIDIA H100") == first
    assert unfinished_round(plan, "library", "NVIDIA H200") != first
    (first / "finished").touch()
    assert unfinished_round(plan, "library", "NVIDIA H100") != first


@pytest.mark.parametrize("name", ["spin", "library"])
def test_the_pairs_are_workloads_whose_slower_kernel_is_named_so(name: str, tmp_path: Path) -> None:
    definition = load_workload("file", PAIRS / f"{name}.py")
    assert definition.baselines == ("plain",)
    assert list(definition.implementations) == ["plain", "same1", "same2", "same3", "slow"]
    plan = Plan(tmp_path, (name,), "burst", 2, 0.01)
    spec = parse_spec(json.dumps(spec_of(name, "spin-20261127-000000-a1b2c3", plan, ["again1-n128"])))
    assert (spec.repeats, spec.stop_at_relative_ci, spec.seed) == (50, 0.01, 0xA1B2C3)
    some = spec_of(name, "spin-20261127-000000-a1b2c3", replace(plan, axes={"n": [1 << 20]}), [])
    assert some["measure"] == {"axes": {"again": [1, 2], "n": [1 << 20]}}


def test_a_round_of_some_sizes_is_not_one_of_all(tmp_path: Path) -> None:
    plan = Plan(tmp_path, ("spin",), "graph", 2, None)
    first = unfinished_round(plan, "spin", "NVIDIA H100")
    assert unfinished_round(replace(plan, axes={"n": [1 << 20]}), "spin", "NVIDIA H100") != first


@pytest.mark.parametrize(("events", "trials", "limit"), [(0, 1000, 0.002991), (10, 1000, 0.016903), (5, 5, 1.0)])
def test_the_limits_are_those_of_clopper_and_pearson(events: int, trials: int, limit: float) -> None:
    assert upper_limit(events, trials) == pytest.approx(limit, abs=2e-6)
    if events < trials:
        assert at_most(events, trials, upper_limit(events, trials)) == pytest.approx(0.05, abs=1e-9)


def test_the_table_on_the_judges_page_is_what_was_published() -> None:
    with (ROOT / "results" / "error-rates.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["size"] != "all"]
    page = (ROOT / "docs" / "judge.md").read_text(encoding="utf-8")

    def total(found: list[dict[str, str]], *words: str) -> int:
        return sum(int(row[word]) for row in found for word in words)

    def equal(regime: str, *, small: bool | None = None) -> str:
        found = [row for row in rows if row["kind"].startswith("equal") and row["regime"] == regime]
        found = [row for row in found if small is None or (row["size"] == "n=128 op=add") == small]
        count, wrong = total(found, "comparisons"), total(found, "faster", "slower")
        rate = f"{wrong} ({100 * wrong / count:.1f} %)" if wrong else "0"
        return f"| {regime} | {count} | {rate} | ≤ {math.ceil(1000 * upper_limit(wrong, count)) / 10} % |"

    def slower(regime: str, least_us: float, most_us: float) -> tuple[int, int, str]:
        planted = [row for row in rows if row["kind"] == "2 % slower" and row["regime"] == regime]
        found = [row for row in planted if least_us <= float(row["median_us"]) < most_us]
        count, hits = total(found, "comparisons"), total(found, "slower")
        ratios = [100 * (float(row["cupti_ratio"]) - 1) for row in found]
        limit = f"≥ {math.floor(1000 - 1000 * upper_limit(count - hits, count)) / 10} %"
        return count, hits, f"{min(ratios):.1f} to {max(ratios):.1f} %|{min(ratios):.0f} to {max(ratios):.0f} %|{limit}"

    assert f"| equal code called faster or slower {equal('graph')}" in page
    assert f"| of these: additions of 1.4 µs {equal('graph', small=True)}" in page
    assert f"| of these: all others {equal('graph', small=False)}" in page
    assert f"| equal code called faster or slower {equal('burst')}" in page
    count, hits, words = slower("graph", 17, 1e9)
    exact, _, limit = words.split("|")
    assert f"| planted 2 % called slower, from 17 µs on (CUPTI: {exact}) | graph | {count} | {hits} | {limit} |" in page
    count, hits, words = slower("graph", 0, 9)
    _, rounded, limit = words.split("|")
    assert f"below 9 µs (CUPTI: {rounded}) | graph | {count} | {hits}, the others inconclusive | {limit} |" in page
    count, hits, words = slower("burst", 67, 1e9)
    assert f"| the same, from 67 µs on | burst | {count} | {hits} | {words.split('|')[2]} |" in page
    count, hits, _ = slower("burst", 0, 34)
    assert f"| the same, below 34 µs | burst | {count} | {hits}, all others inconclusive or same | – |" in page
    for pairs, words in (("library", "of PyTorch from {} to {} µs"), ("spin", "spins of {} to {} µs")):
        times = [float(row["median_us"]) for row in rows if row["pairs"] == pairs and row["regime"] == "graph"]
        shown = (f"{min(times):.1f}", f"{max(times):.0f}")
        assert words.format(*shown) in page


def test_published_counts_are_read_back_whole_and_added_to_new_ones() -> None:
    published = ROOT / "results" / "error-rates.csv"
    with published.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    ratios = {(row["device"], row["size"]): float(row["cupti_ratio"]) for row in rows if row["cupti_ratio"]}
    tallies = read_published(published)
    assert list(rows_of(tallies, ratios)) == sorted(rows, key=lambda row: [row[name] for name in COLUMNS[:6]])
    place = next(iter(tallies))
    before = sum(tallies[place].verdicts.values())
    more = Tally()
    for case in range(3):
        more.add(f"new/{case}", "same", 6.0, hit=True)
    tallies[place].merge(more)
    (row,) = rows_of({place: tallies[place]}, {})
    assert int(row["comparisons"]) == before + 3
    assert int(row["cases"]) == int(rows[0]["cases"]) + 3
    assert float(row["limit_by_case"]) < float(rows[0]["limit_by_case"])
