"""Events and names survive the trip through a bucket."""

from __future__ import annotations

import json
import re
import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import naming
from orchestrator.core.market.catalog import GPU_NAMES, launch_command
from orchestrator.core.names import child_run
from orchestrator.core.run import events as ev
from tests.unit.core.builders import RUN, T0, Log, at, measured, planned
from tests.unit.core.test_run import some_facts

times = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))  # noqa: DTZ001
INSTANCE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"


@given(st.sampled_from(some_facts()), times, st.integers(1, 999_999))
def test_an_event_decodes_to_itself(fact: ev.Fact, when: datetime, seq: int) -> None:
    event = ev.Event(run_id=RUN, time=when, writer="vm-1", seq=seq, fact=fact)
    decoded = ev.decode_event(ev.encode_event(event))
    assert decoded is not None
    assert (decoded.order, decoded.fact.model_dump(), decoded.object_name) == (
        event.order,
        event.fact.model_dump(),
        event.object_name,
    )


def test_an_unknown_kind_and_unreadable_data_are_kept_not_lost() -> None:
    document = json.loads(ev.encode_event(Log().add(0, planned()).events[0]))
    future = ev.decode_event(json.dumps(document | {"kind": "teleported", "data": {"to": "mars"}}).encode())
    assert future is not None
    assert future.fact == ev.Unrecognised(name="teleported", data={"to": "mars"})
    broken = ev.decode_event(json.dumps(document | {"data": {"gpu": "l4"}}).encode())
    assert broken is not None
    assert isinstance(broken.fact, ev.Unrecognised)
    assert broken.fact.name == "run_planned"


def test_keys_from_the_future_are_ignored() -> None:
    document = json.loads(ev.encode_event(Log().add(0, measured("a")).events[0]))
    document["data"]["joules"] = 3
    decoded = ev.decode_event(json.dumps(document).encode())
    assert decoded is not None
    assert decoded.fact == measured("a")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"kind": "finished", "data": {"outcome": "x"}}', b"7"])
def test_what_is_no_event_is_nothing(data: bytes) -> None:
    assert ev.decode_event(data) is None


writers = st.lists(st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6), min_size=1, max_size=3).map(
    "-".join
)


@given(
    times,
    writers,
    st.integers(1, 999_999),
    st.sampled_from(sorted(ev.FACTS)),
)
def test_an_event_name_parses_into_its_parts(when: datetime, writer: str, seq: int, kind: str) -> None:
    name = naming.EventName(when, writer, seq, kind)
    assert naming.parse_event_object(name.object(RUN)) == name


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 999)), min_size=2, max_size=10))
def test_event_names_sort_by_time(stamps: list[tuple[int, int]]) -> None:
    names = [naming.EventName(at(micro / 1e6), "vm-1", seq, "healed") for micro, seq in stamps]
    objects = [name.object(RUN) for name in names]
    assert sorted(objects) == [name.object(RUN) for name in sorted(names)]


@pytest.mark.parametrize("name", ["runs/x/events/notes.txt", "20261399T000000.000000Z-vm-000001-healed.json", ""])
def test_other_objects_are_no_events(name: str) -> None:
    assert naming.parse_event_object(name) is None


@given(times, st.text(min_size=1, max_size=12), st.integers(0, 0xFFFF))
def test_a_run_id_makes_a_legal_instance_name_and_label(when: datetime, gpu: str, entropy: int) -> None:
    run = naming.run_id(when, f"x{gpu}", f"{entropy:04X}")
    assert naming.is_run_id(run)
    assert re.fullmatch(INSTANCE_NAME, naming.instance_name(run, 99))


@given(st.text(max_size=100), st.text(max_size=222))
def test_any_user_and_bucket_make_legal_labels(user: str, bucket: str) -> None:
    for value in naming.machine_labels(RUN, 1, user, bucket).values():
        assert len(value) <= 63
        assert set(value) <= set(string.ascii_lowercase + string.digits + "_-")


def test_where_things_are() -> None:
    assert naming.run_id(T0, "L4", "7F3A99") == RUN
    assert naming.payload_object("ab") == "payloads/ab.tar.gz"
    assert naming.index_object(RUN) == f"index/{RUN}.json"
    assert naming.run_prefix(RUN) == f"runs/{RUN}/"
    assert naming.cases_prefix(RUN) == f"runs/{RUN}/cases/"
    assert naming.artifacts_prefix(RUN) == f"runs/{RUN}/artifacts/"
    assert not naming.is_run_id("last")


@pytest.mark.parametrize("gpu", GPU_NAMES)
def test_a_hint_to_launch_again_names_the_gpu_of_the_run(gpu: str) -> None:
    command = f"`bench launch --gpu {gpu}`"
    assert launch_command(naming.run_id(T0, gpu, "7f3a")) == command
    assert launch_command(child_run("fleet-20261122-040506-7f3a", gpu, 42)) == command


def test_a_hint_to_launch_again_repeats_nothing_of_a_name_that_is_no_run() -> None:
    assert launch_command("x; rm -rf ~ -l4-7f3a") == "`bench launch --gpu GPU`"
