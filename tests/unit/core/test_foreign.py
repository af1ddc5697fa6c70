"""What somebody else wrote is data: whatever a machine or an object says, the folds of it exist and nothing is steered."""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.naming import instance_name
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
    assert run is not None
    assert run.vms == ()


def test_an_error_that_is_no_number_is_still_a_wrong_case() -> None:
    fact = {"implementation": "bench", "case_id": "a", "passed": False, "max_abs_error": math.nan, "limit": 0.1}
    written = {"run_id": RUN, "kind": "case_checked", "time": T0.isoformat(), "writer": "vm-1", "seq": 5, "data": fact}
    run = replay([*running().events, *filter(None, [ev.decode_event(json.dumps(written).encode())])])
    assert run is not None
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
