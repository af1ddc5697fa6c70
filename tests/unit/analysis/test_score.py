"""The score of a GPU MODE problem, as its ranking_by says."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.score import scores_of
from tests.unit.report.written import csv_text, records, reported, skip, studied

SPEEDS = {"reference": 1.0, "mine": 2.0, "reference:aa": 1.0}
US = {128: 0.064 * 128, 1024: 0.064 * 1024}
"""The time of the reference in each case."""


def rows(ranking: str, last_alone: bool = False) -> list[dict[str, str]]:
    return [
        row | {"ranking": ranking if not last_alone or row["seq_q"] == "1024" else ""}
        for row in records(speeds=SPEEDS, noise=0.0, device="AMD EPYC")
    ]


@pytest.mark.parametrize(
    ("ranking", "us"),
    [("last", US[1024]), ("mean", (US[128] + US[1024]) / 2), ("geom", math.sqrt(US[128] * US[1024]))],
)
def test_times_of_all_cases_make_one_score_and_the_best_is_first(ranking: str, us: float) -> None:
    (score,) = scores_of(studied(csv_text(rows(ranking, last_alone=ranking == "last"))))
    assert list(score.us) == ["mine", "reference"]
    assert score.us["reference"] == pytest.approx(us, rel=1e-4)
    assert score.us["mine"] == pytest.approx(us / 2, rel=1e-4)
    assert (score.ranking, score.cases, score.unranked) == (ranking, 1 if ranking == "last" else 2, ())


def test_a_kernel_without_a_time_in_a_case_that_counts_has_no_score() -> None:
    wrong = skip("mine", "max abs error 3", fault="wrong", ranking="geom", device="AMD EPYC")
    kept = [row for row in rows("geom") if (row["implementation"], row["seq_q"]) != ("mine", "128")]
    report = reported(csv_text([*kept, wrong]))
    (words,) = [one for one in report.sentences() if one.startswith("Score")]
    assert words.startswith("Score (ranking_by: geom, over 2 cases): reference ")
    assert words.endswith("No score: mine, not timed in every case that counts.")


def test_a_workload_without_a_ranking_has_no_score() -> None:
    report = reported(csv_text(rows("")))
    assert scores_of(report.study) == ()
    assert not any("Score" in words for words in report.sentences())
