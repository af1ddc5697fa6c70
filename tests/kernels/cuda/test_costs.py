"""What a way should take follows from its work; the choice by it is right where times were measured."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from kernels.attention.cuda.campaign import fit
from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.campaign.race import read_races
from kernels.attention.cuda.explaining import machine_named
from kernels.attention.cuda.plan.planning import Lengths, Mask, Problem
from kernels.attention.cuda.plan.variants import SOURCE
from kernels.attention.cuda.ways import costs, dispatch

ROWS = SOURCE.parent / "results" / "ways-h200.jsonl.gz"
PRICES = costs.FOLDER / "h200.json"
MACHINE = machine_named("h200")


@pytest.fixture(scope="module")
def races() -> list[fit.Race]:
    return list(fit.recorded_races(read_races(ROWS), MACHINE))


def cell(batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int, causal: bool = False) -> Cell:
    return Cell("test", "bfloat16", batch, heads, heads, seq_q, seq_k, head_dim, causal)


def test_the_choice_costs_at_most_a_twentieth_in_95_of_100_measured_shapes(
    races: list[fit.Race],
) -> None:
    found = fit.judge_prices(races, costs.parse_costs(PRICES.read_text()).prices)
    assert found["cells"] == len(races) > 800
    assert found["p95"] <= 1.05
    assert found["median"] == 1.0


def test_the_prices_that_ship_are_those_of_the_rows_that_ship(races: list[fit.Race]) -> None:
    shipped = costs.parse_costs(PRICES.read_text()).prices
    some = sorted(shipped)[::15]
    wanted = [
        fit.Race(race.cell, {name: one for name, one in race.ways.items() if set(one.kinds) & set(some)})
        for race in races
    ]
    fitted = fit.fit_kinds(
        [dataclasses.replace(race, near=whole.best) for race, whole in zip(wanted, races, strict=True)]
    )
    for kind in some:
        assert fitted[kind] == pytest.approx(shipped[kind], rel=2e-3, abs=1e-6)


BETWEEN = (
    cell(1024, 4, 49, 49, 32), cell(32, 32, 64, 512, 128), cell(1, 8, 6000, 6000, 64), cell(4, 32, 64, 4096, 64),
    cell(32, 16, 384, 384, 64), cell(8, 12, 1536, 1536, 64), cell(1, 16, 128, 16384, 128), cell(1, 1, 1024, 1024, 64),
    cell(1, 1, 16384, 16384, 64, True),
)  # fmt: skip
"""Windows of images, batches of sentences, few queries, few heads: far from what was tuned."""


@pytest.mark.parametrize("posed", BETWEEN, ids=lambda posed: posed.name)
def test_shapes_between_the_tuned_ones_take_what_was_fastest_for_them_or_nearly(
    races: list[fit.Race], posed: Cell
) -> None:
    way, why = dispatch.choose_way(fit.problem_of_cell(posed), MACHINE)
    measured = next(
        race for race in races if dataclasses.replace(race.cell, group="test") == posed and way.name in race.ways
    )
    assert measured.ways[way.name].us <= 1.06 * measured.best
    assert "the smallest of the estimates" in why


def test_where_cutting_keys_was_measured_the_choice_is_near_the_best(
    races: list[fit.Race],
) -> None:
    prices, cut = costs.parse_costs(PRICES.read_text()).prices, 0
    measured = [race for race in races if any("split" in name for name in race.ways)]
    assert len(measured) == 20
    for race in measured:
        wanted = fit.choice_regret(race, prices)
        assert wanted is not None
        assert wanted <= 1.07
        uncut = {name: one for name, one in race.ways.items() if "split" not in name}
        without = fit.choice_regret(dataclasses.replace(race, ways=uncut, near=race.best), prices)
        assert without is not None
        assert wanted <= without
        cut += wanted < without
    assert cut >= 15


def test_a_way_that_was_measured_in_few_cells_must_be_well_below_the_others() -> None:
    posed = fit.problem_of_cell(cell(1, 16, 128, 16384, 128))
    found = [way for way in dispatch.list_ways(posed, MACHINE) if "split" in way.name or way.name.startswith("fa2")]
    by_kind = {costs.kinds_of(way, posed)[0]: "split" in way.name for way in found}

    def taken(split_us: float) -> str:
        launch = {kind: (split_us if split else 100.0, 0.0, 0.0, 0.0, 0.0, 0.0) for kind, split in by_kind.items()}
        picked = costs.Costs({}, launch).cheapest(found, posed, MACHINE)
        assert picked is not None
        assert picked[1] == (split_us if "split" in picked[0].name else 100.0)
        return picked[0].name

    assert "split" not in taken(90.0)
    assert "split" in taken(80.0)


def test_decoding_costs_the_same_under_a_causal_mask_whose_last_row_sees_every_key() -> None:
    asked = cell(1, 32, 64, 8192, 128, True)
    whole = fit.problem_of_cell(dataclasses.replace(asked, causal=False))
    ends, begins = fit.problem_of_cell(asked, "bottom-right"), fit.problem_of_cell(asked)
    assert ends.causal_offset == 8192 - 64

    def kind(posed: Problem) -> str:
        way = next(way for way in dispatch.list_ways(posed, MACHINE) if way.name.startswith("decode"))
        return costs.kinds_of(way, posed)[0]

    assert kind(ends) == kind(whole)
    assert kind(begins) != kind(whole)


def test_a_measured_shape_takes_what_was_measured() -> None:
    _, why = dispatch.choose_way(fit.problem_of_cell(cell(4, 16, 1024, 1024, 128, True)), MACHINE)
    assert why.startswith("measured here")


def test_a_chip_without_prices_a_mask_and_lengths_are_chosen_for_otherwise() -> None:
    posed = fit.problem_of_cell(cell(3, 5, 700, 704, 64))
    found = dispatch.list_ways(posed, MACHINE)
    prices = costs.costs_for("hopper", 132)
    assert dispatch.by_costs(posed, MACHINE, found, prices) is not None
    assert dispatch.by_costs(posed, MACHINE, found, None) is None
    assert costs.costs_for("hopper", 100) is None
    assert costs.costs_for("ada", 132) is None
    masked = dataclasses.replace(posed, mask=Mask("bool", 4096, 0, 0, 704, 1))
    assert dispatch.by_costs(masked, MACHINE, dispatch.list_ways(masked, MACHINE), prices) is None
    packed = dataclasses.replace(posed, lengths=Lengths(16, 16, 100, True, 100))
    assert dispatch.by_costs(packed, MACHINE, dispatch.list_ways(packed, MACHINE), prices) is None


def test_the_busiest_worker_has_its_share_and_the_longest_tile_and_none_is_lost() -> None:
    chance = random.Random(3)
    for _ in range(300):
        tiles = sorted(chance.randint(1, 40) for _ in range(chance.randint(1, 30)))
        copies, workers = chance.randint(1, 60), chance.choice((4, 132, 264))
        found = costs.worker_load(tiles, copies, workers, 132)
        total = sum(tiles) * copies
        assert found.even == pytest.approx(total / 132)
        assert found.keys + found.tiles >= (total + len(tiles) * copies) / workers - 1e-9
        assert found.keys <= total
        if len(tiles) * copies <= workers:
            assert found == costs.Load(1.0, max(tiles), found.even)


def test_equal_tiles_come_in_whole_waves() -> None:
    assert costs.worker_load([8] * 3, 44, 132, 132) == costs.Load(1.0, 8.0, 8.0)
    assert costs.worker_load([8] * 3, 45, 132, 132) == costs.Load(2.0, 16.0, pytest.approx(8 * 135 / 132))


def test_tiles_of_keys_are_those_that_any_row_of_the_tile_sees() -> None:
    posed = fit.problem_of_cell(cell(1, 1, 300, 300, 64, True))
    assert costs.key_tiles(posed, 128, 64) == [2, 4, 5]
    assert costs.key_tiles(dataclasses.replace(posed, window_offset=-64), 128, 64) == [2, 3, 2]
    assert costs.key_tiles(dataclasses.replace(posed, causal=False), 128, 64) == [5, 5, 5]


def test_prices_are_never_negative_and_give_back_what_they_were_made_of() -> None:
    chance, prices = random.Random(4), (2.0, 1.0, 0.5, 0.0, 0.25, 0.0)
    work = [tuple(chance.uniform(0.5, 20) for _ in prices) for _ in range(40)]
    found = fit.fit_prices([(one, fit.predicted_time(prices, one), 1.0) for one in work])
    assert min(found) >= 0.0
    for one in work:
        assert fit.predicted_time(found, one) == pytest.approx(fit.predicted_time(prices, one), rel=0.02)


def test_prices_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match="schema 1"):
        costs.parse_costs(PRICES.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ValueError, match="joined"):
        costs.parse_costs(PRICES.read_text().replace('"joined"', '"parted"'))


def test_the_command_fits_judges_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, made = tmp_path / "rows.jsonl", tmp_path / "prices.json"
    few.write_text("".join(f"{json.dumps(row)}\n" for row in read_races(ROWS)[:60]))
    assert fit.main(["--rows", str(few), "--held-out", str(few), "--costs", str(made)]) == 0
    told = capsys.readouterr().out
    assert '"held_out"' in told
    written = costs.parse_costs(made.read_text())
    assert written.about["chip"] == "hopper"
    assert fit.costs_text(written) == made.read_text()
