"""What a run in several regimes says, each regime by itself."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from tests.unit.analysis.studied import mean_ratio
from tests.unit.report.written import both, csv_text, records, skip, studied


def test_each_regime_has_verdicts_of_its_own_and_nothing_is_pooled() -> None:
    found = studied(csv_text(both()))
    assert [one.name for one in found.settings] == ["burst, cold", "sustained, cold"]
    assert found.regime == "burst and sustained"
    assert len(found.case_ids) == 2
    assert len(found.cases) == 4
    burst, sustained = found.parts()
    assert burst.measurements == sustained.measurements == 400
    assert mean_ratio(burst) == pytest.approx(1.5, rel=0.01)
    assert mean_ratio(sustained) == pytest.approx(0.9 / 0.8, rel=0.01)
    alone = studied(csv_text(row for row in both() if row["regime"] == "burst"))
    assert [one.median_us for one in burst.cases[0].timings] == [one.median_us for one in alone.cases[0].timings]
    assert [one.paired for one in burst.contrasts] == [one.paired for one in alone.contrasts]


def test_blocks_pair_within_their_regime_and_their_caches_only() -> None:
    """Block 1 of one regime is no neighbour of block 1 of another."""
    rows = [row | {"cache": "warm"} if row["regime"] == "sustained" else row for row in both(lengths=(128,))]
    rows = [row for row in rows if (row["implementation"] == "bench") == (row["regime"] == "burst")]
    found = studied(csv_text(rows))
    assert [case.setting for case in found.cases] == [Setting("burst", "cold"), Setting("sustained", "warm")]
    assert found.contrasts == ()


def test_all_questions_about_a_case_in_all_regimes_are_corrected_for_together() -> None:
    one, two = studied(csv_text(records())), studied(csv_text(both()))
    assert len(two.contrasts) == 2 * len(one.contrasts)
    for case_id in two.case_ids:
        family = [contrast for contrast in two.contrasts if contrast.case_id == case_id]
        assert [contrast.p for contrast in family] == list(holm([contrast.paired.test.p for contrast in family]))


def test_what_was_skipped_without_a_regime_is_skipped_in_every_one() -> None:
    wrong = skip("bench", "wrong on these inputs", regime="")
    found = studied(csv_text([*both(lengths=(128,)), wrong]))
    assert len(found.cases) == 2
    for case in found.cases:
        timing = case.timing("bench")
        assert timing is not None
        assert (timing.timed, timing.skipped) == (False, "wrong on these inputs")
    only = studied(csv_text([*both(lengths=(128,)), skip("sdpa:math", "no graph", regime="sustained")]))
    assert len(only.cases) == 2, "a skip that does not name its caches makes no setting of its own"
    kept = [timing.timed for case in only.cases if (timing := case.timing("sdpa:math")) is not None]
    assert kept == [True, False]


def test_a_case_that_ended_early_or_never_settled_is_told() -> None:
    rows = [row | {"stopped": "dollars", "warmed": "limit"} for row in records(lengths=(128,))]
    assert studied(csv_text(rows)).notes == (
        (
            "In 4 of 4 timings the warm-up ended before times and clocks had settled: these times may include some of "
            "the warm-up."
        ),
        "In 1 of 1 case the budget was spent before the last repeat.",
    )
    twice = [row | {"stopped": "dollars"} for row in both(lengths=(128, 1024))]
    assert studied(csv_text(twice)).notes == ("In 2 of 2 cases the budget was spent before the last repeat.",)


def test_where_the_timer_is_a_part_of_what_it_times_that_is_said() -> None:
    rows = list(records(lengths=(128, 2048), timer_overhead_us="0.5"))
    (note,) = studied(csv_text(rows)).notes
    assert note.startswith("In 4 of 8 timings the timer itself takes over 2% of the median (up to 9%)")


def test_the_most_memory_a_call_held_is_that_of_its_rows() -> None:
    rows = list(records(lengths=(128,), peak_memory_bytes="1048576"))
    rows[0]["peak_memory_bytes"] = ""
    peaks = {one.implementation: one.peak_bytes for one in studied(csv_text(rows)).cases[0].timings}
    assert set(peaks.values()) == {1048576.0}
    unknown = studied(csv_text(records(lengths=(128,)))).cases[0].timings[0]
    assert math.isnan(unknown.peak_bytes)


@pytest.mark.parametrize(("regime", "cache"), [("burst", "cold"), ("graph", "warm"), ("sustained", "mixed")])
def test_a_setting_says_in_one_sentence_what_it_means(regime: str, cache: str) -> None:
    setting = Setting(regime, cache)
    assert setting.meaning.count(".") == 1
    assert len(setting.meaning) > 40
    assert (setting.name, setting.slug) == (f"{regime}, {cache}", f"{regime}-{cache}")
    assert "does not know" in Setting("novel").meaning
    assert Setting("").meaning == Setting("").name == ""
