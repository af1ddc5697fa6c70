"""Tuning finds the fastest way, decides from recorded rows alone, and writes a table that dispatch can go by."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.campaign import tune
from kernels.attention.cuda.campaign.cells import Cell, select_cells
from kernels.attention.cuda.campaign.race import (
    REFERENCE,
    STAGES,
    Track,
    against_reference,
    geometric_scores,
    key_of,
    race_choice,
    race_ways,
    read_races,
    row_of,
)
from kernels.attention.cuda.campaign.tune import make_inputs, square_cell
from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.plan.variants import chip_of
from kernels.attention.cuda.ways import dispatch
from kernels.attention.cuda.ways.tuned import FAR, FOLDER, Choice, Key, Table, parse_table, way_stem
from kernels.harness.timers import Timed, Timer
from kernels.harness.turns import Contender
from kernels.harness.workload import Plan

CELL = square_cell("bfloat16", 4, 16, 1024, 128, True)
AT = "2026-11-21T08:00:00+00:00"
ABOUT = {"device": "NVIDIA H200", "chip": "hopper", "sm_count": 132}


class Simulated:
    """A timer of work that lasts `us`, off by up to `noise`; a graph takes nine tenths of a single call."""

    overhead_us = 0.0

    def __init__(self, us: float, calls_made: int, off: Callable[[], float]) -> None:
        self.us, self.calls_made, self.off = us, calls_made, off

    def __call__(self, plans: Sequence[Plan]) -> Timed:
        assert len(plans) == self.calls_made
        for plan in plans:
            plan()
        return Timed(self.us * self.off())

    def rest_s(self, latency_us: float) -> float:
        return latency_us / 1e6


def raced(us: Mapping[str, float], noise: float = 0.0, seed: int = 0) -> dict[str, object]:
    chance = random.Random(seed)

    def off() -> float:
        return 1 + noise * chance.uniform(-1, 1)

    def timed_by(regime: str) -> Callable[[Contender], Timer]:
        share, calls = (1.0, 1) if regime == "burst" else (0.9, 3)
        return lambda one: Simulated(us[one.implementation] * share, calls, off)

    field = {name: Contender(name, (torch.Tensor, torch.Tensor), nullcontext) for name in us}
    return row_of(CELL, race_ways(field, timed_by, random.Random(seed), lambda _: None), {}, AT)


def test_each_call_of_a_race_is_on_the_next_inputs_in_its_scope_before_its_rest() -> None:
    calls: list[int] = []
    rests: list[float] = []

    def plan(number: int) -> Plan:
        def call() -> torch.Tensor:
            calls.append(number)
            return torch.empty(0)

        return call

    one = Contender("a", tuple(plan(number) for number in range(3)), nullcontext)
    track = Track(
        {"a": one}, lambda regime: lambda _: Simulated(5.0, 1 if regime == "burst" else 4, lambda: 1.0), rests.append
    )
    assert [track.time("a", regime) for regime in ("burst", "graph", "burst")] == [5.0] * 3
    assert calls == [0, 1, 2, 0, 1, 2]
    assert rests == [5e-6] * 3


def test_a_cell_survives_being_written_down_and_words_choose_cells_by_name() -> None:
    assert all(Cell(**asdict(one)) == one for one in tune.tuning_cells())
    found = select_cells(tune.tuning_cells(), "bf16 d128 causal")
    assert found
    assert all(one.dtype == "bfloat16" and one.head_dim == 128 and one.causal for one in found)


def test_inputs_are_the_same_at_every_race_and_each_set_has_memory_of_its_own() -> None:
    small = square_cell("float16", 1, 2, 8, 64, False)
    first, again = make_inputs(small, 3, torch.device("cpu")), make_inputs(small, 3, torch.device("cpu"))
    assert all(
        torch.equal(a, b) for one, other in zip(first, again, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert len({tensor.data_ptr() for one in first for tensor in one}) == 9


def test_rows_read_back_as_far_as_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"kind": "about"}\n{"kind": "race"}\n{"kind": "ra')
    assert [row["kind"] for row in read_races(path)] == ["about", "race"]


def key(all_heads: int = 64, seq_q: int = 1024, seq_k: int = 1024, **changes: object) -> Key:
    usual = {"dtype": "bfloat16", "head_dim": 128, "causal": True, "group": 1}
    return Key(**(usual | {"all_heads": all_heads, "seq_q": seq_q, "seq_k": seq_k} | changes))  # type: ignore[arg-type]


def cell(way: str, where: Key, margin: float = 0.05) -> Choice:
    return Choice(where, way, {"other": margin}, {"burst": 10.0, "graph": 9.0}, AT)


def test_the_fastest_wins_with_its_margin_over_the_second() -> None:
    made = race_choice(raced({"a": 100.0, "b": 90.0, "c": 99.0, REFERENCE: 50.0}))
    assert (made.way, made.second) == ("b", "c")
    assert made.margin == pytest.approx(0.10, abs=1e-3)
    assert made.us["burst"] == pytest.approx(90.0)


@pytest.mark.parametrize("seed", range(10))
def test_noise_does_not_hide_a_lead_of_three_per_cent(seed: int) -> None:
    field = {"a": 100.0, "b": 97.0, "c": 101.0, "d": 130.0}
    assert race_choice(raced(field, noise=0.02, seed=seed)).way == "b"


def test_what_is_far_behind_is_timed_in_the_first_stage_only() -> None:
    row = raced({"a": 100.0, "b": 101.0, "slow": 300.0, REFERENCE: 200.0})
    times = row["times_us"]
    assert isinstance(times, dict)
    every = sum(stage[0] for stage in STAGES)
    counts = {name: len(found["burst"]) for name, found in times.items()}
    assert counts == {"a": every, "b": every, "slow": STAGES[0][0], REFERENCE: every}


def test_the_reference_is_compared_with_and_never_chosen() -> None:
    row = raced({"a": 100.0, REFERENCE: 50.0})
    made = race_choice(row)
    assert (made.way, made.second, made.margin) == ("a", "", 0.0)
    assert against_reference(row, "a") == pytest.approx({"burst": 0.5, "graph": 0.5})
    assert against_reference(raced({"a": 100.0}), "a") == {}


def test_both_regimes_count_the_same() -> None:
    samples = {"a": {"burst": [10.0], "graph": [12.0]}, "b": {"burst": [12.0], "graph": [10.0]}}
    found = geometric_scores(samples)
    assert found["a"] == found["b"] == pytest.approx(1.2**0.5)


def test_a_table_is_made_of_recorded_rows_alone_and_merged_with_an_older_one(tmp_path: Path) -> None:
    rows, table, merged = tmp_path / "tune.jsonl", tmp_path / "h200.json", tmp_path / "merged.json"
    lines: list[object] = [{"kind": "about", "about": ABOUT}, raced({"a": 100.0, "b": 90.0, REFERENCE: 95.0})]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tune.main(["--from", str(rows), "--table", str(table)])
    assert [one.way for one in parse_table(table.read_text()).cells] == ["b"]
    old = Table(ABOUT).merged(ABOUT, [cell("z", key()), cell("z", key(seq_q=64))])
    merged.write_text(old.text())
    tune.main(["--from", str(rows), "--table", str(merged), "--merge", str(merged)])
    assert {one.key.seq_q: one.way for one in parse_table(merged.read_text()).cells} == {64: "z", 1024: "b"}


def test_level_ways_are_chosen_by_name_so_that_the_same_rows_give_the_same_table() -> None:
    assert race_choice(raced({"b": 100.0, "a": 100.0})).way == "a"
    row = raced({"b": 100.0, "a": 99.0, "c": 100.5}, noise=0.05)
    again = json.loads(json.dumps(row))
    texts = {Table(ABOUT).merged(ABOUT, [race_choice(one)]).text() for one in (row, again)}
    assert len(texts) == 1


def test_a_table_reads_back_as_it_was_written_and_one_line_is_one_cell() -> None:
    table = Table(ABOUT).merged(ABOUT, [cell("a", key(seq_q=512)), cell("b", key())])
    assert parse_table(table.text()) == table
    assert sum('"way"' in line for line in table.text().splitlines()) == 2
    with pytest.raises(ValueError, match="schema"):
        parse_table('{"schema": 0}')


def test_new_cells_take_the_place_of_old_ones_and_leave_the_others() -> None:
    old = Table(ABOUT).merged(ABOUT, [cell("a", key()), cell("a", key(seq_q=64))])
    new = old.merged({**ABOUT, "driver": "2"}, [cell("b", key())])
    assert {one.key.seq_q: one.way for one in new.cells} == {1024: "b", 64: "a"}
    assert new.about["driver"] == "2"


def test_a_problem_goes_by_its_nearest_cell_in_doublings() -> None:
    table = Table(ABOUT).merged(ABOUT, [cell("short", key(seq_q=256, seq_k=256)), cell("long", key())])
    names = ("short", "long")
    assert table.pick(key(seq_q=300, seq_k=300), names) is not None
    assert table.pick(key(seq_q=300, seq_k=300), names)[0] == "short"  # type: ignore[index]
    assert table.pick(key(seq_q=900, seq_k=900), names)[0] == "long"  # type: ignore[index]
    why = table.pick(key(), names)[1]  # type: ignore[index]
    assert "measured here on NVIDIA H200" in why


def test_a_winner_that_cannot_compute_the_problem_gives_way_to_the_next_nearest() -> None:
    table = Table(ABOUT).merged(ABOUT, [cell("fast", key()), cell("able", key(all_heads=128))])
    assert table.pick(key(), ("able",))[0] == "able"  # type: ignore[index]
    assert table.pick(key(), ()) is None


def test_the_same_way_with_the_keys_in_another_number_of_parts_is_the_same_way() -> None:
    table = Table(ABOUT).merged(ABOUT, [cell("decode-16x32-16", key(seq_q=1)), cell("fa2-64x64", key(seq_q=2))])
    assert table.pick(key(seq_q=1), ("fa2-64x64", "decode-16x32-4"))[0] == "decode-16x32-4"  # type: ignore[index]


def test_what_is_far_from_every_cell_or_of_another_kind_is_not_in_the_table() -> None:
    table = Table(ABOUT).merged(ABOUT, [cell("a", key())])
    far = int(1024 * 2 ** (FAR + 1))
    assert table.pick(key(seq_q=far), ("a",)) is None
    assert table.pick(key(dtype="float16"), ("a",)) is None
    assert table.pick(key(causal=False), ("a",)) is None
    assert table.pick(key(head_dim=64), ("a",)) is None


def test_the_tuned_grid_holds_the_campaign_s_problems() -> None:
    found = {key_of(one) for one in tune.tuning_cells()}
    for seq in (64, 512, 8192):
        for head_dim in (64, 128):
            for causal in (False, True):
                assert key_of(square_cell("float16", 4, 16, seq, head_dim, causal)) in found
    assert key_of(Cell("decode", "bfloat16", 4, 64, 8, 1, 131072, 128, False)) in found
    assert len(found) == len(tune.tuning_cells())


def test_a_race_is_told_in_one_line_with_the_ratio_to_cudnn() -> None:
    words = tune.line_of(raced({"fa90-a": 90.0, "fa2-b": 100.0, REFERENCE: 99.0}))
    assert "fa90-a" in words
    assert "1.100x" in words
    assert "+11.1% fa2-b" in words


def problem(seq: int, **changes: object) -> Problem:
    sizes: dict[str, object] = {"dtype": "bfloat16", "batch": 4, "heads": 16, "kv_heads": 16, "head_dim": 128}
    lies = Layout(16 * seq * 128, seq * 128, 128, 4096)
    layouts = dict.fromkeys(("q", "k", "v", "out"), lies)
    return Problem(**{**sizes, "seq_q": seq, "seq_k": seq, "causal": True, "causal_offset": 0, **layouts, **changes})  # type: ignore[arg-type]


def hopper() -> Machine:
    chip = chip_of(90)
    assert chip is not None
    return Machine(chip, 132, 50 * 2**20, hopper=True)


def test_dispatch_goes_by_the_table_where_it_reaches_and_by_rule_elsewhere() -> None:
    posed, there_are = problem(1024), dispatch.list_ways(problem(1024), hopper())
    last = there_are[-1].name
    table = Table(ABOUT).merged(ABOUT, [cell(last, key())])
    measured = dispatch.by_table(posed, there_are, table)
    assert measured is not None
    assert measured[0].name == last
    assert dispatch.by_table(posed, there_are, None) is None
    assert dispatch.by_table(problem(16), dispatch.list_ways(problem(16), hopper()), table) is None


def test_a_window_is_not_in_the_table() -> None:
    posed = problem(1024, window_offset=-256)
    table = Table(ABOUT).merged(ABOUT, [cell(way.name, key()) for way in dispatch.list_ways(posed, hopper())])
    assert dispatch.by_table(posed, dispatch.list_ways(posed, hopper()), table) is None


def test_every_table_that_ships_names_ways_that_exist() -> None:
    for path in FOLDER.glob("*.json"):
        table = parse_table(path.read_text())
        assert table.text() == path.read_text()
        for one in table.cells:
            batch = one.key.all_heads // 4 if one.key.all_heads % 4 == 0 else 1
            heads = one.key.all_heads // batch
            posed = problem(
                one.key.seq_q,
                dtype=one.key.dtype,
                batch=batch,
                heads=heads,
                kv_heads=heads // one.key.group if heads % one.key.group == 0 else heads,
                seq_k=one.key.seq_k,
                head_dim=one.key.head_dim,
                causal=one.key.causal,
            )
            names = {way_stem(way.name) for way in dispatch.list_ways(posed, hopper())}
            assert way_stem(one.way) in names, one
