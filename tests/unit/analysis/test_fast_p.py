"""KernelBench's fast_p: of all problems, the share that is right and more than p times as fast as eager."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import Study, study
from orchestrator.analysis.summaries import THRESHOLDS, fast_p, scores_of
from orchestrator.report.document import report_document
from orchestrator.report.report import Report
from tests.unit.report.written import csv_text, records, reported, skip, studied

HEADER = "run_id,case_id,implementation,backend,regime,cache,block,latency_us,skipped"
Cell = tuple[str, str, float | str]
"""A problem, an implementation, and its time or why there is none."""


def read(*cells: Cell, role: str = "baseline_") -> Study:
    lines = [HEADER]
    for problem, name, time in cells:
        if isinstance(time, str):
            lines.append(f"r,{problem},{name},,burst,warm,,,{time}")
            continue
        backend = role if name in ("eager", "compiled") else "kernel_"
        lines += [f"r,{problem},{name},{backend}{name},burst,warm,{block},{time}," for block in range(10)]
    reader = Reader()
    reader.read(lines, "measurements.csv")
    return study(reader.groups())


RUN = read(
    ("a", "eager", 30.0), ("a", "compiled", 12.0), ("a", "mine", 10.0),
    ("b", "eager", 30.0), ("b", "compiled", 28.0), ("b", "mine", 25.0),
    ("c", "eager", 30.0), ("c", "compiled", 28.0), ("c", "mine", "wrong by far"),
    ("d", "eager", 30.0), ("d", "compiled", 28.0), ("d", "mine", 40.0),
)  # fmt: skip


def test_a_problem_that_a_kernel_is_wrong_on_or_too_slow_for_is_not_solved() -> None:
    (mine,) = fast_p(RUN)
    assert (mine.implementation, mine.problems) == ("mine", 4)
    assert dict(zip(THRESHOLDS, mine.solved, strict=True)) == {0.0: 3, 1.0: 2, 1.5: 1, 2.0: 1}
    assert mine.share(1) == 0.5


def test_it_is_told_in_the_report_and_in_its_document() -> None:
    report = Report(RUN)
    (words,) = [one for one in report.sentences() if one.startswith("fast_p of mine")]
    assert "50 % at p = 1" in words
    assert report_document(report)["fast_p"][0]["shares"] == {"0": 0.75, "1": 0.5, "1.5": 0.25, "2": 0.25}


def test_problems_without_a_kernel_tell_it_of_the_compiled_baseline() -> None:
    (compiled,) = fast_p(
        read(("a", "eager", 30.0), ("a", "compiled", 12.0), ("b", "eager", 8.0), ("b", "compiled", 9.0))
    )
    assert (compiled.implementation, compiled.solved) == ("compiled", (2, 1, 1, 1))


def test_a_run_in_another_form_has_none() -> None:
    others = (("a", "torch", 30.0), ("a", "mine", 10.0))
    assert fast_p(read(*others)) == ()
    assert fast_p(read(("a", "eager", 30.0), ("a", "mine", 10.0), role="kernel_")) == ()
    assert not [one for one in Report(read(*others)).sentences() if "fast_p" in one]


# The score of a GPU MODE problem, as its ranking_by says.


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
