"""What was measured is read as it was written, and summed up without flattering anybody."""

from __future__ import annotations

import csv
import io
import random
import re
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.results import (
    COLUMNS,
    LATER_COLUMNS,
    TIMER_SHARE,
    ResultsUnreadable,
    Summary,
    assemble,
    case_order,
    parse_csv,
    summarize,
    summary_csv,
)

CONTRACT = (Path(__file__).parents[2] / "docs/contracts.md").read_text(encoding="utf-8")
CASE = "b2-h8-kv8-q128-k128-d64-full-float16"
LATER = "b2-h8-kv8-q1024-k1024-d64-full-float16"


def record(**changes: str) -> dict[str, str]:
    made = {
        "run_id": "20261121-040506-l4-7f3a",
        "vm": "bench-20261121-040506-l4-7f3a-1",
        "case_id": CASE,
        "device": "NVIDIA L4",
        "implementation": "bench",
        "backend": "fa2",
        "dtype": "float16",
        "batch": "2",
        "heads": "8",
        "kv_heads": "8",
        "seq_q": "128",
        "seq_k": "128",
        "head_dim": "64",
        "causal": "false",
        "regime": "burst",
        "block": "1",
        "repeat": "1",
        "latency_us": "10.000",
        "sm_clock_mhz": "",
        "mem_clock_mhz": "",
        "power_w": "",
        "temperature_c": "",
        "throttle": "",
        "max_abs_error": "0.001",
        "torch": "2.13.0",
        "started_at": "2026-11-21T04:05:06.000001Z",
        "skipped": "",
    }
    return made | changes


def skip(implementation: str, reason: str, **changes: str) -> dict[str, str]:
    return record(implementation=implementation, repeat="", block="", latency_us="", skipped=reason, **changes)


def text_of(*records: dict[str, str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys([*COLUMNS, *(key for made in records for key in made)])))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def by_name(*records: dict[str, str]) -> dict[str, Summary]:
    return {summary.implementation: summary for summary in summarize(parse_csv(text_of(*records)))}


def together(texts: dict[str, str]) -> str:
    return "".join(assemble({case: partial(io.StringIO, text) for case, text in texts.items()}))


# --- rows -----------------------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_contract() -> None:
    block = re.search(r"have one row a measurement:\n\n```\n(.*?)\n```", CONTRACT, re.DOTALL)
    assert block
    assert tuple(re.split(r",\s*", block[1])) == (*COLUMNS, *LATER_COLUMNS)


def test_a_control_is_no_baseline_and_is_summed_up_beside_the_rest() -> None:
    found = by_name(
        record(),
        record(implementation="sdpa:default", latency_us="20.0"),
        record(implementation="sdpa:default:aa", latency_us="21.0", position="2", steal_percent="0.5"),
    )
    assert found["bench"].speedup == {"sdpa:default": 2.0}
    assert found["sdpa:default:aa"].median_us == 21.0


def test_a_row_is_read_as_it_was_written() -> None:
    (row,) = parse_csv(text_of(record(causal="true", sm_clock_mhz="2040", throttle="sw_power_cap")))
    assert (row.latency_us, row.repeat, row.block, row.causal) == (10.0, 1, 1, True)
    assert (row.sm_clock_mhz, row.power_w, row.throttle) == (2040.0, None, "sw_power_cap")
    assert row.started_at is not None
    assert row.started_at.microsecond == 1


def test_columns_of_a_newer_version_are_kept() -> None:
    (row,) = parse_csv(text_of(record(l2_hits="7")))
    assert row.model_extra == {"l2_hits": "7"}


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (text_of(record(latency_us="")), "a row has either a latency or the reason"),
        (text_of(record(skipped="wrong")), "a row has either a latency or the reason"),
        (text_of(record(latency_us="0")), "latency_us: Input should be greater than 0"),
        (text_of(record(latency_us="nan")), "latency_us: "),
        (text_of(record(seq_q="many")), "seq_q: "),
        (text_of(record())[:-60] + "\n", "does not have as many cells"),
        (text_of(record()).rstrip() + ",more\n", "does not have as many cells"),
    ],
    ids=["no latency", "both", "zero", "nan", "not a number", "torn", "too long"],
)
def test_a_line_that_says_no_one_thing_is_refused_by_number(broken: str, complaint: str) -> None:
    with pytest.raises(ResultsUnreadable, match="x.csv:2: .*" + complaint):
        parse_csv(broken, source="x.csv")


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_a_file_without_the_columns_is_not_a_result_file(text: str) -> None:
    with pytest.raises(ResultsUnreadable, match=r"x\.csv: not a result file: no column run_id, vm, case_id"):
        parse_csv(text, source="x.csv")


# --- assembling -----------------------------------------------------------------------------------------------------


def test_cases_are_put_together_under_one_header_in_the_order_of_their_numbers() -> None:
    texts = {LATER: text_of(record(case_id=LATER)), CASE: text_of(record(), record(repeat="2"))}
    lines = together(texts).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert [line.split(",")[2] for line in lines[1:]] == [CASE, CASE, LATER]


def test_a_column_that_only_some_cases_have_is_empty_in_the_others() -> None:
    made = together({CASE: text_of(record()), LATER: text_of(record(case_id=LATER, l2_hits="7"))})
    rows = list(csv.DictReader(io.StringIO(made)))
    assert [row["l2_hits"] for row in rows] == ["", "7"]


@given(st.lists(st.sampled_from([CASE, LATER, "b1-h1-kv1-q2-k2-d4-causal-float32"]), unique=True), st.integers(0, 3))
def test_assembling_loses_no_row_and_changes_none(cases: list[str], rows: int) -> None:
    texts = {case: text_of(*[record(case_id=case, repeat=str(n + 1)) for n in range(rows)]) for case in cases}
    apart = [row for case in sorted(texts, key=case_order) for row in parse_csv(texts[case])]
    assert list(parse_csv(together(texts))) == apart
    shuffled = list(texts.items())
    random.Random(1).shuffle(shuffled)
    assert together(dict(shuffled)) == together(texts)


def test_nothing_measured_is_a_header_alone() -> None:
    assert together({}) == ",".join(COLUMNS) + "\n"
    assert parse_csv(together({})) == ()


# --- summaries ------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40))
def test_a_summary_lies_within_what_was_measured(times: list[float]) -> None:
    summary = by_name(*[record(latency_us=repr(time), repeat=str(n + 1)) for n, time in enumerate(times)])["bench"]
    assert summary.count == len(times)
    assert summary.median_us == statistics.median(times)
    assert summary.min_us == min(times)
    assert summary.p5_us is not None
    assert summary.p95_us is not None
    assert min(times) <= summary.p5_us <= summary.median_us <= summary.p95_us <= max(times)
    assert summary.mean_us == pytest.approx(statistics.fmean(times))


def test_speed_is_told_against_every_baseline_that_was_timed() -> None:
    found = by_name(
        record(latency_us="10"),
        record(implementation="sdpa:flash", latency_us="20"),
        record(implementation="sdpa:math", latency_us="5"),
        skip("sdpa:cudnn", "not available"),
    )
    assert found["bench"].speedup == {"sdpa:flash": 2.0, "sdpa:math": 0.5}
    assert found["sdpa:flash"].speedup == {"sdpa:math": 0.25}
    assert found["sdpa:cudnn"] == Summary(
        run_id="20261121-040506-l4-7f3a",
        device="NVIDIA L4",
        case_id=CASE,
        implementation="sdpa:cudnn",
        backend="fa2",
        regime="burst",
        axes={
            "dtype": "float16",
            "batch": "2",
            "heads": "8",
            "kv_heads": "8",
            "seq_q": "128",
            "seq_k": "128",
            "head_dim": "64",
            "causal": "false",
        },
        count=0,
        max_abs_error=0.001,
        skipped="not available",
    )


def test_an_implementation_with_a_skip_row_has_no_timing_whatever_else_is_there() -> None:
    found = by_name(record(), skip("bench", "wrong answer"), record(implementation="sdpa:math"))
    assert (found["bench"].median_us, found["bench"].skipped, found["bench"].count) == (None, "wrong answer", 0)
    assert found["bench"].speedup == {}


def test_measurements_taken_while_the_device_was_held_back_are_counted() -> None:
    found = by_name(record(), record(throttle="none"), record(throttle="hw_thermal"), record(max_abs_error="0.002"))
    assert (found["bench"].throttled, found["bench"].max_abs_error) == (1, 0.002)
    assert by_name(record(max_abs_error=""))["bench"].max_abs_error is None


def test_cases_are_compared_within_their_own_run_and_come_in_the_order_of_their_numbers() -> None:
    rows = parse_csv(
        text_of(
            record(case_id=LATER),
            record(),
            record(implementation="sdpa:math", latency_us="20"),
            record(run_id="20261122-000000-l4-0000", implementation="sdpa:math", latency_us="40"),
        )
    )
    assert [(s.case_id, s.implementation, dict(s.speedup)) for s in summarize(rows)] == [
        (CASE, "bench", {"sdpa:math": 2.0}),
        (CASE, "sdpa:math", {}),
        (LATER, "bench", {}),
        (CASE, "sdpa:math", {}),
    ]


def test_what_differs_in_its_regime_or_its_caches_is_never_summed_up_together() -> None:
    rows = parse_csv(
        text_of(
            record(latency_us="10", cache="cold"),
            record(latency_us="30", cache="warm"),
            record(latency_us="50", regime="sustained", cache="cold"),
            record(latency_us="25", regime="sustained", cache="cold", implementation="sdpa:flash"),
        )
    )
    found = [(s.regime, s.cache, s.implementation, s.median_us, dict(s.speedup)) for s in summarize(rows)]
    assert found == [
        ("burst", "cold", "bench", 10, {}),
        ("burst", "warm", "bench", 30, {}),
        ("sustained", "cold", "bench", 50, {"sdpa:flash": 0.5}),
        ("sustained", "cold", "sdpa:flash", 25, {}),
    ]


def test_a_skip_that_names_no_regime_or_no_caches_holds_in_all_of_them_and_alone_is_kept() -> None:
    wrong = skip("bench", "wrong", regime="")
    rows = parse_csv(text_of(record(cache="cold"), record(regime="sustained", cache="warm"), wrong))
    assert [(s.regime, s.cache, s.count, s.skipped) for s in summarize(rows)] == [
        ("burst", "cold", 0, "wrong"),
        ("sustained", "warm", 0, "wrong"),
    ]
    rows = parse_csv(text_of(record(cache="cold"), record(regime="sustained"), skip("bench", "wrong")))
    assert [(s.regime, s.count, s.skipped) for s in summarize(rows)] == [("burst", 0, "wrong"), ("sustained", 1, "")]
    assert [(s.regime, s.skipped) for s in summarize(parse_csv(text_of(wrong)))] == [("", "wrong")]


def test_the_summary_file_has_a_line_for_each_and_says_what_is_missing() -> None:
    rows = parse_csv(
        text_of(
            record(latency_us="10"),
            record(latency_us="12", repeat="2", throttle="sw_power_cap"),
            record(implementation="sdpa:flash", backend="flash", latency_us="22", max_abs_error=""),
            skip("sdpa:cudnn", "not available, at all", backend=""),
        )
    )
    assert summary_csv(summarize(rows)) == (
        "run_id,device,case_id,implementation,backend,dtype,batch,heads,kv_heads,seq_q,seq_k,head_dim,causal,regime,"
        "count,median_us,mean_us,min_us,p5_us,p95_us,throttled,max_abs_error,speedup_vs_sdpa_flash,skipped,"
        "cache,timer_share,peak_memory_bytes,joules_per_call\n"
        f"20261121-040506-l4-7f3a,NVIDIA L4,{CASE},bench,fa2,float16,2,8,8,128,128,64,false,burst,"
        "2,11.000,11.000,10.000,10.100,11.900,1,0.001,2.0000,,,,,\n"
        f"20261121-040506-l4-7f3a,NVIDIA L4,{CASE},sdpa:flash,flash,float16,2,8,8,128,128,64,false,burst,"
        "1,22.000,22.000,22.000,22.000,22.000,0,,,,,,,\n"
        f"20261121-040506-l4-7f3a,NVIDIA L4,{CASE},sdpa:cudnn,,float16,2,8,8,128,128,64,false,burst,"
        '0,,,,,,0,0.001,,"not available, at all",,,,\n'
    )


def test_regimes_of_one_case_are_summed_up_apart_and_compared_within_themselves() -> None:
    rows = parse_csv(
        text_of(
            record(latency_us="10"),
            record(implementation="sdpa:math", latency_us="20"),
            record(regime="sustained", latency_us="40"),
            skip("sdpa:math", "its calls cannot be captured", regime="sustained"),
        )
    )
    found = {(s.regime, s.implementation): s for s in summarize(rows)}
    assert found["burst", "bench"].speedup == {"sdpa:math": 2.0}
    assert found["burst", "sdpa:math"].median_us == 20.0
    assert (found["sustained", "bench"].median_us, found["sustained", "bench"].speedup) == (40.0, {})
    assert found["sustained", "sdpa:math"].skipped == "its calls cannot be captured"


def test_the_timers_share_memory_and_joules_are_told_where_rows_have_them() -> None:
    told = {"timer_overhead_us": "0.5", "peak_memory_bytes": "4096", "cache": "cold", "calls": "100"}
    found = by_name(
        record(latency_us="10", energy_j="2.0", **told),
        record(latency_us="10", energy_j="4.0", **(told | {"peak_memory_bytes": "8192"})),
        record(implementation="sdpa:math"),
    )
    ours = found["bench"]
    assert (ours.cache, ours.timer_share, ours.peak_memory_bytes, ours.joules_per_call) == ("cold", 0.05, 8192, 0.03)
    assert ours.timer_share is not None
    assert ours.timer_share > TIMER_SHARE
    other = found["sdpa:math"]
    assert (other.cache, other.timer_share, other.peak_memory_bytes, other.joules_per_call) == ("", None, None, None)
    assert summary_csv([ours]).splitlines()[1].endswith(",cold,0.05,8192,0.03")


def test_case_ids_sort_by_their_numbers() -> None:
    made: list[Any] = ["b10-q2", "b2-q1024", "b2-q128", "", "b2"]
    assert sorted(made, key=case_order) == ["", "b2", "b2-q128", "b2-q1024", "b10-q2"]
