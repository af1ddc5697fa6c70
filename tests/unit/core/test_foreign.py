"""What somebody else wrote is data: whatever a machine or an object says, the folds of it exist and nothing is steered."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.columns import measurement_columns
from orchestrator.core.bundled import AXES
from orchestrator.core.naming import instance_name
from orchestrator.core.results import MEASURED, ORIGIN, assemble_rows, axes_of, case_order, plain_cell
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import Observation, Policy, decide_commands
from orchestrator.core.run.fold import replay
from orchestrator.core.run.orphans import judge_machine
from orchestrator.core.run.status import StatusLine, decode_status, encode_status, status_body, status_line
from orchestrator.core.run.status import run_document as status_document
from orchestrator.core.text import LINE, clean_line, clean_value, log_text, parse_document
from tests.unit.core.builders import RUN, T0, VM, Log, at, instance, planned, requested, running

STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
any_text = st.text(st.characters(exclude_categories=()), max_size=300) | st.text(
    "\x1b[]0;\x07\r\n\t\u202e\u200b\x9b/x", max_size=60
)


def steers(text: str, allowed: str = "") -> list[str]:
    return [c for c in text if unicodedata.category(c) in STEERING and c not in allowed]


@given(any_text, st.integers(1, 200))
def test_words_steer_nothing_stay_on_one_line_and_within_their_limit(text: str, limit: int) -> None:
    shown = clean_line(text, limit)
    assert steers(shown) == []
    assert len(shown) <= limit
    assert clean_line(shown, limit) == shown
    shown.encode("utf-8")


@given(any_text)
def test_a_log_keeps_its_lines_and_steers_nothing(text: str) -> None:
    shown = log_text(text)
    assert steers(shown, "\n\t") == []
    assert all(len(part) <= LINE for line in shown.split("\n") for part in line.split("\t"))


def test_what_is_harmless_is_left_as_it_is_and_what_is_not_is_spelt_out() -> None:
    assert clean_line("NVIDIA L4, 24 GB – schön [/x] 🙂") == "NVIDIA L4, 24 GB – schön [/x] 🙂"
    assert clean_line("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    assert clean_line("a\u202eb") == "a\\u202eb"
    assert log_text("50 %\r100 %\r\ndone\x1b[2J") == "50 %\n100 %\ndone\\x1b[2J"
    assert clean_line("x" * 5000).endswith("…")


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_text_of_a_document_is_made_harmless_keys_too(value: Any) -> None:
    def texts(one: Any) -> list[str]:
        if isinstance(one, dict):
            return [text for pair in one.items() for part in pair for text in texts(part)]
        return [text for part in one for text in texts(part)] if isinstance(one, list) else [one] * isinstance(one, str)

    assert [text for text in texts(clean_value(value)) if steers(text)] == []


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"a": ' * 5000, b"1" * 5000, b"null", b"\x00"])
def test_what_is_no_document_is_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_document(data)


# --- events ---------------------------------------------------------------------------------------------------------

nasty = st.sampled_from(
    [
        "NaN",
        "Infinity",
        "1e400",
        "-1",
        -1,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
        "2026-11-21T04:05:06",
        "2026-11-21T04:05:06+23:59",
        "",
        "\x1b[2J",
        "[/x]",
        [],
        {},
        None,
        True,
        "x" * 5000,
        "9" * 5000,
        "2026-11-21T04:05:06Z",
        0,
        1,
        3.5,
        "0.36",
        instance_name(RUN, 1),
        "bench-20261121-040506-l4-ffff-1",
        "succeeded",
        "preempted",
    ]
)


@st.composite
def hostile_event(draw: st.DrawFn) -> bytes:
    """An event of a known kind, some of whose values are not what they should be."""
    kind = draw(st.sampled_from(sorted(ev.FACTS)))
    fields = ev.FACTS[kind].model_fields
    good = {"attempt": 1, "vm": VM, "zone": "us-central1-a", "time": "2026-11-21T04:06:00Z"}
    data = {name: draw(nasty | st.just(good.get(name, 1))) for name in fields}
    written = {
        "schema": 1,
        "run_id": RUN,
        "kind": kind,
        "time": draw(nasty | st.just("2026-11-21T04:06:00Z")),
        "writer": draw(
            st.sampled_from(["vm-1", "vm-²", "vm-" + "9" * 70, "vm-" + "9" * 5000, "client-1", "", "boot-1"])
        ),
        "seq": draw(nasty | st.integers(1, 99)),
        "data": data,
    }
    return json.dumps(written).encode()


@given(st.lists(hostile_event(), max_size=8))
def test_no_event_keeps_a_run_from_being_folded_shown_decided_on_and_judged(blobs: list[bytes]) -> None:
    events = running().events + [event for blob in blobs if (event := ev.decode_event(blob)) is not None]
    run = replay(events)
    assert run is not None
    now = at(5000)
    line = status_line(run, now)
    found = encode_status(line)
    assert sum(len(key) + len(value) for key, value in found.items()) <= 8192
    assert decode_status(RUN, found) is not None
    assert steers(status_body(run, now).decode()) == []
    status_document(run, now)
    decide_commands(run, Observation(None), now, Policy(), None)
    vm = instance()
    decide_commands(run, Observation(vm), now, Policy(), None)
    judge_machine(vm, run, "memory", now, Policy())
    assert all(one.name.startswith(f"bench-{RUN}-") for one in run.vms)


@pytest.mark.parametrize("writer", ["vm-1", "boot-1-ab", "ada", "vm", "x-client-1", "reaper-1"])
@given(st.sampled_from(sorted(ev.FACTS)), st.integers(2, 900))
def test_whoever_is_no_client_says_nothing_of_money_of_requests_or_of_the_end(writer: str, kind: str, seq: int) -> None:
    data = {"hold_usd": "0", "cost_usd": "0", "released_usd": "0", "outcome": "succeeded", "by": "x", "reason": "y"}
    data |= {"attempt": 1, "vm": VM, "zone": "us-central1-a", "ended_at": "2026-11-21T04:05:50Z", "how": "deleted"}  # type: ignore[dict-item]
    written = {"run_id": RUN, "kind": kind, "time": "2026-11-21T04:06:00Z", "writer": writer, "seq": seq, "data": data}
    event = ev.decode_event(json.dumps(written).encode())
    assert event is not None
    before, after = replay(running().events), replay([*running().events, event])
    assert before is not None
    assert after is not None
    for part in ("held", "settled", "closed", "stop", "plan", "payload", "rejected", "exhausted", "resumed"):
        assert getattr(before, part) == getattr(after, part), kind
    assert [(vm.name, vm.open) for vm in before.vms] == [(vm.name, vm.open) for vm in after.vms]


def test_a_run_asks_for_no_machine_that_bears_another_runs_name() -> None:
    other = requested().model_copy(update={"vm": "bench-20261121-040506-l4-ffff-1"})
    run = replay(Log().add(0, planned()).add(1, other).events)
    assert run.vms == ()


def test_an_error_that_is_no_number_is_still_a_wrong_case() -> None:
    fact = {"implementation": "bench", "case_id": "a", "passed": False, "max_abs_error": math.nan, "limit": 0.1}
    written = {"run_id": RUN, "kind": "case_checked", "time": T0.isoformat(), "writer": "vm-1", "seq": 5, "data": fact}
    run = replay([*running().events, *filter(None, [ev.decode_event(json.dumps(written).encode())])])
    assert [(one.passed, one.max_abs_error) for one in run.wrong] == [(False, None)]


# --- index lines ----------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(sorted(StatusLine.__dataclass_fields__)),
        any_text | nasty.map(str),
        max_size=20,
    )
)
def test_an_index_line_is_either_believed_and_can_be_added_up_or_is_not_believed(changes: dict[str, str]) -> None:
    run = replay(running().events)
    assert run is not None
    line = decode_status(RUN, encode_status(status_line(run, at(20))) | changes | {"run_id": RUN})
    if line is None:
        return
    total = Decimal(line.cost_usd) + Decimal(line.ceiling_usd) + Decimal(line.usd_per_hour)
    assert total.quantize(Decimal("0.000001")) >= 0
    assert datetime.now(UTC) - line.created < timedelta(days=400_000)
    assert steers("".join(str(value) for value in encode_status(line).values())) == []
    assert steers(line.device + line.vm + line.detail + line.user) == []


# The result files: put together without loss, and text whatever a machine wrote into them.


COLUMNS = (*ORIGIN, *AXES, *MEASURED)

CONTRACT = (Path(__file__).parents[3] / "docs/contracts.md").read_text(encoding="utf-8")
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


def text_of(*records: dict[str, str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys([*COLUMNS, *(key for made in records for key in made)])))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def together(texts: dict[str, str]) -> str:
    return "".join(assemble_rows({case: partial(io.StringIO, text) for case, text in texts.items()}))


# --- rows -----------------------------------------------------------------------------------------------------------


def test_the_columns_are_those_of_the_contract() -> None:
    block = re.search(r"have one row a measurement:\n\n```\n(.*?)\n```", CONTRACT, re.DOTALL)
    assert block
    assert tuple(re.split(r",\s*", block[1])) == measurement_columns(AXES)


def test_cases_are_put_together_under_one_header_in_the_order_of_their_numbers() -> None:
    texts = {LATER: text_of(record(case_id=LATER)), CASE: text_of(record(), record(repeat="2"))}
    lines = together(texts).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert [line.split(",")[2] for line in lines[1:]] == [CASE, CASE, LATER]


def test_a_column_that_only_some_cases_have_is_empty_in_the_others() -> None:
    made = together({CASE: text_of(record()), LATER: text_of(record(case_id=LATER, l2_hits="7"))})
    rows = list(csv.DictReader(io.StringIO(made)))
    assert [row["l2_hits"] for row in rows] == ["", "7"]


def test_another_workload_has_its_own_axes_in_the_place_of_attentions() -> None:
    rows = "run_id,vm,case_id,device,implementation,backend,rows,dtype,regime,block,repeat,latency_us\nr,v,n8,d,mine,k,8,float16,burst,1,1,5\n"
    header, line = together({"n8": rows}).splitlines()
    assert axes_of(header.split(",")) == ("rows", "dtype")
    assert "seq_q" not in header
    assert line.startswith("r,v,n8,d,mine,k,8,float16,burst,1,1,5")
    assert axes_of(("case_id", "seq_q", "latency_us")) == ("seq_q",)


@given(st.lists(st.sampled_from([CASE, LATER, "b1-h1-kv1-q2-k2-d4-causal-float32"]), unique=True), st.integers(0, 3))
def test_assembling_loses_no_row_and_changes_none(cases: list[str], rows: int) -> None:
    texts = {case: text_of(*[record(case_id=case, repeat=str(n + 1)) for n in range(rows)]) for case in cases}
    apart = [row for case in sorted(texts, key=case_order) for row in csv.reader(io.StringIO(texts[case])) if row]
    apart = [row for row in apart if row[0] != "run_id"]
    assert list(csv.reader(io.StringIO(together(texts)))) == [list(COLUMNS), *apart]
    shuffled = list(texts.items())
    random.Random(1).shuffle(shuffled)
    assert together(dict(shuffled)) == together(texts)


def test_nothing_measured_is_a_header_alone() -> None:
    assert together({}) == ",".join(COLUMNS) + "\n"


def test_a_torn_line_stays_torn_and_what_is_no_csv_hides_no_other_line() -> None:
    whole = text_of(record(), record(repeat="2"))
    torn = whole[: whole.rindex("2026")] + "\n"
    short = list(csv.reader(io.StringIO(together({CASE: torn}))))
    assert [len(row) == len(COLUMNS) for row in short] == [True, True, False]
    huge = whole + '"' + "x" * 200_000 + "\n" + ",".join(record(repeat="3").values()) + "\n"
    assert together({CASE: huge}).count(CASE) >= 2
    long = text_of(record()).rstrip() + ",more\n"
    assert [len(row) for row in csv.reader(io.StringIO(together({CASE: long})))] == [
        len(COLUMNS),
        len(COLUMNS) + 1,
    ]


@pytest.mark.parametrize("cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\n@x"])
def test_no_cell_of_a_machine_is_a_formula_and_numbers_stay_numbers(cell: str) -> None:
    made = together({CASE: text_of(record(device=cell, max_abs_error="-1.5e-3", latency_us="+7"))})
    (row,) = csv.DictReader(io.StringIO(made, newline=""))
    assert row["device"] == f"'{cell}"
    assert (row["max_abs_error"], row["latency_us"]) == ("-1.5e-3", "+7")


@given(st.text())
def test_a_guarded_cell_begins_no_formula_in_any_spreadsheet(text: str) -> None:
    guarded = plain_cell(text)
    assert guarded.removeprefix("'") == "\n".join(re.split("\r\n?", text)).removeprefix("'")
    try:
        float(guarded)
    except ValueError:
        assert not guarded.lstrip().startswith(("=", "+", "-", "@"))


def test_a_hostile_header_is_no_formula_either() -> None:
    assert "'=cmd" in together({CASE: text_of(record(**{"=cmd": "1"}))}).splitlines()[0]


def test_case_ids_sort_by_their_numbers() -> None:
    made: list[Any] = ["b10-q2", "b2-q1024", "b2-q128", "", "b2"]
    assert sorted(made, key=case_order) == ["", "b2", "b2-q128", "b2-q1024", "b10-q2"]
