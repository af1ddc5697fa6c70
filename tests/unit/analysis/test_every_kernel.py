"""Several kernels of a user: each has a verdict against each baseline, and no order of rows changes anything."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from orchestrator.adapters.fetch import Fetched
from orchestrator.analysis.case import two_modes
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.verdicts import Verdict
from orchestrator.cli.fetch import answer_view
from orchestrator.report.answer import failures, largest, rows_of, wrong_first
from orchestrator.report.document import report_document, summary_csv, verdicts_csv
from orchestrator.report.html import report_page
from orchestrator.report.markdown import by_baseline, paper, pull_request, report_markdown
from orchestrator.report.report import Report
from orchestrator.report.site.digest import digest_of
from spotbench.results import of_report, typed_axes
from tests.unit.report.written import csv_text, records, reported, skip, studied

ROLES = {"zeta": ("1", "kernel"), "torch": ("2", "baseline"), "alpha": ("3", "kernel"), "jit": ("4", "baseline")}
SPEEDS = {"zeta": 1.0, "torch": 1.0, "alpha": 1.2, "jit": 0.8, "torch:aa": 1.0}


def own_rows(speeds: dict[str, float] = SPEEDS, **changes: str) -> list[dict[str, str]]:
    rows = []
    for row in records(speeds=speeds, lengths=(128, 256), device="AMD EPYC", **changes):
        name = row["implementation"].removesuffix(":aa")
        place, role = ROLES.get(name, ("9", "kernel"))
        rows.append(row | {"definition": place, "role": role, "backend": f"{role}_{name}"})
    return rows


def test_each_kernel_has_a_verdict_against_each_baseline_in_the_order_of_definition() -> None:
    study = studied(csv_text(own_rows()))
    assert (study.kernels, study.baselines) == (("zeta", "alpha"), ("torch", "jit"))
    for case in study.cases:
        pairs = [(one.subject, one.baseline) for one in case.contrasts]
        assert pairs == [("zeta", "torch"), ("zeta", "jit"), ("alpha", "torch"), ("alpha", "jit")]
        assert [(one.subject, one.baseline) for one in case.beside] == [("zeta", "alpha")]
        assert [one.baseline for one in case.best] == ["torch", "torch"]
    verdicts = {(one.subject, one.baseline): one.verdict for one in study.cases[0].contrasts}
    assert verdicts["alpha", "torch"] is verdicts["alpha", "jit"] is verdicts["zeta", "jit"] is Verdict.FASTER
    assert verdicts["zeta", "torch"] in (Verdict.SAME, Verdict.INCONCLUSIVE)


def test_a_third_kernel_costs_the_others_no_power_and_neither_do_more_cases() -> None:
    """A case's comparisons with baselines are one family, its kernels among themselves another."""
    rows = own_rows()
    kernels_alone = studied(csv_text(rows)).cases
    families = [[one.paired.test.p for one in case.contrasts] for case in kernels_alone]
    assert [[one.p for one in case.contrasts] for case in kernels_alone] == [list(holm(family)) for family in families]
    assert all(one.p == one.paired.test.p for case in kernels_alone for one in case.beside)
    one_case = [row for row in rows if "q128" in row["case_id"]]
    assert 0 < len(one_case) < len(rows)
    p_values = {one.subject + one.baseline: one.p for one in studied(csv_text(one_case)).cases[0].contrasts}
    assert p_values == {one.subject + one.baseline: one.p for one in kernels_alone[0].contrasts}


def everything(report: Report) -> str:
    """Every text that is made of a report."""
    settings = report.study.settings
    results = of_report(report, Path(), "succeeded")
    line = {"run_id": report.study.run_id}
    digest = digest_of(line, report, None, "")
    return "\n".join(
        [json.dumps(report_document(report)), verdicts_csv(report), summary_csv(report), report_markdown(report, settings),
         report_page(report), by_baseline(report), pull_request(report), paper(report), str(results), str(digest)]
    )  # fmt: skip


def test_rows_shuffled_100_times_give_one_report_byte_for_byte() -> None:
    rows = own_rows(noise=0.02)
    rows += [
        skip("late", "max abs error 3", fault="wrong", role="kernel", definition="5", device="AMD EPYC", backend="")
    ]
    expected = everything(reported(csv_text(rows)))
    shuffle = random.Random(20261126).shuffle
    for _ in range(100):
        shuffle(rows)
        assert studied(csv_text(rows)).kernels == ("zeta", "alpha", "late")
    assert everything(reported(csv_text(rows))) == expected


def test_terminal_csv_json_library_and_site_agree_on_every_verdict() -> None:
    report = reported(csv_text(own_rows()))
    rows = list(csv.DictReader(io.StringIO(verdicts_csv(report))))
    in_csv = {(row["case_id"], row["subject"], row["baseline"]): row["verdict"] for row in rows}
    assert {row["family"] for row in rows} == {"baselines", "kernels"}
    data = report_document(report)
    in_json = {
        (case["case_id"], one["subject"], one["baseline"]): one["verdict"]
        for case in data["cases"]
        for one in (*case["contrasts"], *case["between_kernels"])
    }
    assert in_csv == in_json
    results = of_report(report, Path(), "succeeded")
    for (case_id, subject, baseline), word in in_csv.items():
        assert [one.verdict for one in results.of(subject, baseline) if one.case_id == case_id] == [word]
    (back,) = [one for one in results.of("alpha", "zeta") if "q128" in one.case_id]
    (forth,) = [one for one in results.of("zeta", "alpha") if "q128" in one.case_id]
    assert (back.verdict, forth.verdict) == ("faster", "slower")
    assert back.ratio == pytest.approx(1 / forth.ratio)
    digest = digest_of({"run_id": "r"}, report, None, "")
    assert sum(digest.counts.values()) == len([one for case in report.study.cases for one in case.best])
    assert {one.kernel for one in digest.cases} == {"zeta", "alpha"}


def test_places_say_where_kernels_cannot_be_told_apart() -> None:
    speeds = {"zeta": 1.0, "torch": 1.0, "alpha": 1.0, "third": 1.5, "torch:aa": 1.0}
    case = studied(csv_text(own_rows(speeds, noise=0.03))).cases[0]
    assert {one.implementation: one.text for one in case.ranks} == {"third": "1", "zeta": "2 to 3", "alpha": "2 to 3"}
    assert "2 to 3" in report_page(reported(csv_text(own_rows(speeds, noise=0.03))))


def test_what_is_wrong_is_said_first_and_apart_from_what_cannot_run_here() -> None:
    wrong = {"fault": "wrong", "role": "kernel", "backend": "", "device": "AMD EPYC"}
    rows = own_rows()
    rows += [
        skip("bad", "max abs error 3", definition="5", **wrong),
        skip("slow", "hung: no answer within 10 s", definition="6", **wrong | {"fault": "hung"}),
        skip("tri", "Triton needs a GPU", definition="7", **wrong | {"fault": "unavailable"}),
    ]
    report = reported(csv_text(rows))
    told = wrong_first(report.study)
    assert told == ("bad is WRONG in 1 of 2 cases: max abs error 3",
                    "slow HUNG in 1 of 2 cases: hung: no answer within 10 s")  # fmt: skip
    assert [one.kind for one in failures(report.study)] == ["wrong", "hung", "unavailable"]
    assert rows_of(report.study)[0].kernel == "bad"
    head = report_page(report).partition("</header>")[0]
    said = re.sub(r"</?(strong|span)[^>]*>", "", head)
    places = [said.index('<p class="verdict">' + line.replace(" is WRONG", " WRONG")) for line in told]
    assert places == sorted(places)
    assert max(places) < said.index("zeta")
    assert 'class="badge wrong">WRONG' in head
    assert '<p class="soft">tri cannot run here in 1 of 2 cases: Triton needs a GPU</p>' in head
    text = report_markdown(report)
    assert text.index("is WRONG") < text.index("| zeta |")
    assert digest_of({"run_id": "r"}, report, None, "").wrong == told


def test_the_largest_differences_are_kept_and_the_rest_is_counted() -> None:
    study = studied(csv_text(own_rows()))
    shown, hidden = largest(rows_of(study), 2)
    assert ([one.kernel for one in shown], hidden) == (["alpha", "alpha"], 2)


def test_two_modes_are_said_with_their_places_and_shares() -> None:
    rows = own_rows()
    for row in rows:
        if row["implementation"] == "alpha" and (int(row["block"]) // 7) % 2:
            row["latency_us"] = f"{float(row['latency_us']) * 1.7:.3f}"
    report = reported(csv_text(rows))
    (note,) = [one for one in report.study.notes if "modes" in one]
    assert "alpha on b2-h8-kv8-q128-k128-d64-full-float16, burst: 6.8" in note
    assert "and 11." in note
    assert "two modes" in report_page(report)
    assert "two modes" in report_markdown(report)


@pytest.mark.parametrize("seed", range(40))
def test_one_mode_is_never_called_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for draw in (
        rng.normal(1, 0.05, 50),
        rng.uniform(1, 2, 50),
        1 + rng.exponential(0.1, 50),
        rng.lognormal(0, 0.3, 50),
    ):
        assert two_modes(np.abs(draw) + 1e-9) == ()


@pytest.mark.parametrize("seed", range(40))
def test_two_modes_are_found_between_outliers_and_stragglers(seed: int) -> None:
    """As a busy processor measures them: a tenth to each side, one sample ten times as long, two between the modes."""
    rng = np.random.default_rng(seed)
    low, high = 411 * np.exp(rng.normal(0, 0.05, 23)), 658 * np.exp(rng.normal(0, 0.04, 27))
    low[:2], high[:3] = (500, 512), (4760, 9000, 759)
    first, second = two_modes(rng.permutation(np.concatenate((low, high))))
    assert first.us == pytest.approx(411, rel=0.05)
    assert second.us == pytest.approx(658, rel=0.05)
    assert first.share == pytest.approx(0.46)


@pytest.mark.parametrize("outliers", [0, 1, 3, 4])
def test_outliers_of_one_mode_are_no_second_mode(outliers: int) -> None:
    rng = np.random.default_rng(outliers)
    draws = [np.exp(rng.normal(0, 0.03, 50)) for _ in range(400)]
    for draw in draws:
        draw[:outliers] *= rng.uniform(1.2, 12, outliers)
    assert sum(bool(two_modes(draw)) for draw in draws) <= 1


LENGTHS = (128, 256, 512, 1024)
REASON = "max abs error 3.25 is over the limit of 0.001, first at row 17, column 4 of the output: 3.5 and not 0.25"


def four_cases(wrong: int, *, noted: bool, reason: str, second: str = "") -> Report:
    """Three kernels on four cases, `mid` wrong in the first `wrong` of them; with notes, if `noted`."""
    rows = []
    for row in records(speeds=SPEEDS | {"mid": 1.1}, lengths=LENGTHS, device="AMD EPYC"):
        name = row["implementation"].removesuffix(":aa")
        place, role = ROLES.get(name, ("9", "kernel"))
        is_wrong = name == "mid" and int(row["seq_q"]) in LENGTHS[:wrong]
        if is_wrong or (second and name == second and int(row["seq_q"]) == LENGTHS[0]):
            continue
        if noted and name == "alpha" and (int(row["block"]) // 7) % 2:
            row["latency_us"] = f"{float(row['latency_us']) * 1.7:.3f}"
        rows.append(row | {"definition": place, "role": role, "backend": f"{role}_{name}"})
    fault = {"fault": "wrong", "role": "kernel", "backend": "", "device": "AMD EPYC"}
    for length in LENGTHS[:wrong]:
        case = {
            "case_id": f"b2-h8-kv8-q{length}-k{length}-d64-full-float16",
            "seq_q": str(length),
            "seq_k": str(length),
        }
        rows.append(skip("mid", reason, definition="9", **case, **fault))
    if second:
        rows.append(skip(second, reason, definition="3", **fault))
    if noted:
        rows.append(skip("tri", "Triton needs a GPU", definition="7", **fault | {"fault": "unavailable"}))
    report = reported(csv_text(rows), cases_total=5 if noted else 4)
    return replace(report, environment={**report.environment, "device": "AMD EPYC"})


def answer_lines(report: Report, state: str, width: int, *, verbose: bool = False) -> list[str]:
    fetched = Fetched("20261121-040506-l4-7f3a", state, Path("results"), True, 4, 4, 1, 0, "AMD EPYC")
    text = io.StringIO()
    console = Console(width=width, file=text, force_terminal=True, color_system=None)
    console.print(answer_view(fetched, report, verbose=verbose))
    return text.getvalue().splitlines()


def test_a_terminal_says_why_there_is_no_verdict_and_what_the_other_regime_says() -> None:
    speeds = {"bench": 1.3, "sdpa:default": 1.0, "bench:aa": 1.3}
    burst = records(lengths=(128, 256), speeds=speeds, timer_overhead_us="4", cache="cold")
    graph = records(lengths=(128, 256), speeds=speeds, regime="graph", cache="cold")
    report = reported(csv_text([*burst, *graph]), cases_total=2)
    assert [one.verdict.value for one in report.study.contrasts] == ["inconclusive"] * 2 + ["faster"] * 2
    lines = answer_lines(report, "succeeded", 100)
    assert "no verdict in 2 rows: below the timer's resolution; in graph: faster in 2" in lines
    decided = records(lengths=(1024,), speeds=speeds, timer_overhead_us="1", cache="cold")
    assert not [line for line in answer_lines(reported(csv_text(decided)), "succeeded", 100) if "no verdict" in line]


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize(("wrong", "second"), [(0, ""), (1, ""), (1, "alpha"), (3, ""), (4, ""), (4, "alpha")])
@pytest.mark.parametrize(("width", "reason"), [(80, "max abs error 3"), (80, REASON), (200, REASON * 9)])
def test_four_cases_and_three_kernels_end_a_launch_in_20_lines_of_80_columns(
    wrong: int, second: str, noted: bool, width: int, reason: str
) -> None:
    """Room is left for what a launch prints after it: its own last line, and two of an error if it did not succeed."""
    report = four_cases(wrong, noted=noted, reason=reason, second=second)
    if noted:
        assert report.notes_after()
    state = "incorrect" if wrong else "succeeded"
    lines = answer_lines(report, state, width)
    assert len(lines) + (3 if wrong else 1) <= 20, "\n".join(lines)
    assert max(map(len, map(str.rstrip, lines))) <= width
    assert not re.search(r"(?m)^report .*…", "\n".join(lines))
    words = " ".join(" ".join(lines).split())
    assert ("mid is WRONG" in words) == bool(wrong)
    if wrong:
        assert f"mid is WRONG in {wrong} of 4 cases: max abs error 3" in words
    shown = [line for line in lines if line.startswith("S ")]
    hidden = sum(map(int, re.findall(r"(\d+) rows?\b", words.partition("not shown: ")[2])))
    told = 4 if wrong == 4 else 0
    assert len(shown) + hidden + told == 12 + noted
    assert len(shown) >= 6
    assert lines[-1].startswith("report ") or "report.html" in lines[-1]


def test_a_kernel_that_is_wrong_in_every_case_has_a_sentence_and_no_rows() -> None:
    lines = answer_lines(four_cases(4, noted=False, reason="max abs error 3"), "incorrect", 80)
    assert [line for line in lines if "mid" in line and line.startswith("S ")] == []
    assert sum(line.startswith("S ") for line in lines) == 8
    partly = answer_lines(four_cases(1, noted=False, reason="max abs error 3"), "incorrect", 80, verbose=True)
    assert [("WRONG" in line) for line in partly if line.startswith("S ")] == [True] + [False] * 11


def test_verbose_shows_every_row_and_the_ends_of_sentences() -> None:
    report = four_cases(3, noted=True, reason=REASON * 3, second="alpha")
    lines = answer_lines(report, "incorrect", 80, verbose=True)
    assert sum(line.startswith("S ") for line in lines) == 13
    assert REASON * 3 in " ".join(lines).replace("  ", " ")
    assert "not shown" not in " ".join(lines)


def test_axes_of_the_library_have_the_names_and_types_of_the_workload() -> None:
    axes = {"axis:n": "1024", "axis:causal": "true", "axis:eps": "0.5", "axis:tag": "007", "dtype": "float32"}
    assert typed_axes(axes) == {"n": 1024, "causal": True, "eps": 0.5, "tag": "007", "dtype": "float32"}
