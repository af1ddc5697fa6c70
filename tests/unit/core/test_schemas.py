"""One rule for the number of a stored document: none is the first, keys may be added, a larger one is not read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import baselines
from orchestrator.core.baselines import (
    Baseline,
    BaselinesUnreadable,
    Older,
    checked_name,
    device_key,
    dump_baselines,
    parse_baselines,
    place_baseline,
    plain_entries,
    remove_devices,
)
from orchestrator.core.config.model import HostsSpec
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet import sweep
from orchestrator.core.hosts import HostRecord, RecordUnreadable, parse_target
from orchestrator.core.run import events as ev
from orchestrator.core.run.slots import Slot
from orchestrator.core.run.status import decode_status, encode_status, status_line
from orchestrator.core.text import Newer, is_newer, parse_document
from startup.host import paths
from tests.unit.core.builders import RUN, at, replayed, running

NUMBERS: dict[str, Any] = {
    "none": None, "the first": 1, "the next": 2, "a far one": 10**9, "nought": 0, "less": -1, "text": "1", "a list": [],
    "yes": True, "a fraction": 1.5,
}  # fmt: skip
READ = {"none", "the first"}
LATER = {"the next", "a far one"}


def written(name: str, **keys: Any) -> bytes:
    number = NUMBERS[name]
    return json.dumps(({} if number is None else {"schema": number}) | keys).encode()


@pytest.mark.parametrize("name", NUMBERS)
def test_client_and_host_have_the_same_rule(name: str, tmp_path: Path) -> None:
    data = written(name, key="value", added_later=1)
    path = tmp_path / "record.json"
    path.write_bytes(data)
    found, why = paths.inspect_document(path)
    assert (found is not None, why == paths.NEWER, is_newer(data)) == (name in READ, name in LATER, name in LATER)
    if name in READ:
        assert parse_document(data)["key"] == "value"
        return
    with pytest.raises(ValueError, match="schema") as told:
        parse_document(data)
    assert isinstance(told.value, Newer) == (name in LATER)


@pytest.mark.parametrize("name", sorted(LATER))
def test_no_reader_takes_a_later_document_for_one_of_its_own(name: str) -> None:
    with pytest.raises(baselines.BaselinesUnreadable, match="newer version"):
        baselines.parse_baselines("main", written(name, devices={}))
    with pytest.raises(RecordUnreadable, match="newer version"):
        HostRecord.parse("host-box-123456", written(name, target="me@box"))
    with pytest.raises(ValueError, match="newer version"):
        sweep.read_children({"schema": NUMBERS[name], "cells": [], "children": []})
    assert (
        Slot.parse(
            written(name, state="idle", vm="v", zone="z", owner=RUN, idle_until="2026-11-21T00:00:00Z", claim=None)
        )
        is None
    )


def test_an_event_of_a_later_schema_is_known_to_be_there_and_told_nothing_by() -> None:
    log = running()
    (first, *_) = log.events
    later = json.loads(ev.encode_event(first)) | {"schema": 2}
    event = ev.decode_event(json.dumps(later).encode())
    assert isinstance(event.fact, ev.Unrecognised)
    assert (event.writer, event.seq, event.object_name) == (first.writer, first.seq, first.object_name)


def test_a_status_line_of_a_later_schema_is_read_from_the_events() -> None:
    line = encode_status(status_line(replayed(running()), at(60)))
    assert decode_status(RUN, line) is not None
    assert decode_status(RUN, {**line, "schema": "1", "mood": "fine"}) is not None
    assert decode_status(RUN, {**line, "schema": "2"}) is None


@pytest.mark.parametrize(
    ("python", "taken"),
    [("~/pyt", True), ("/opt/c/python3.13t", True), ("python3-torch", True), ("/bin/sh", False), ("py;ls", False)],
)
def test_an_interpreter_that_a_configuration_takes_is_read_back_and_no_other(python: str, taken: bool) -> None:
    target = parse_target("me@box")
    text = HostRecord(target=str(target)).model_dump_json(by_alias=True).replace('"python":""', f'"python":"{python}"')
    assert python in text
    assert HostRecord.parse(target.zone, text.encode()).python == (python if taken else "")
    if taken:
        assert HostsSpec(python=python).python == python
        return
    with pytest.raises(ValueError, match="begins with py"):
        HostsSpec(python=python)


# Named baselines as data: one for each device, never back by accident, and whole through storage.


FINGERPRINT: dict[str, Any] = {"driver": "580", "ecc": True, "regimes": ("burst",), "mig": None, "cuda": 13.0}
L4 = Baseline("20261121-040506-l4-7f3a", "NVIDIA L4", "c0ffee", False, FINGERPRINT, "2026-11-21T05:00:00Z", "ada")
T4 = replace(L4, run_id="20261121-040000-t4-0000", device="Tesla T4", git_commit="", git_dirty=None)


def test_a_device_has_one_baseline_under_a_name_and_another_device_another() -> None:
    there = place_baseline({}, L4)
    assert isinstance(there, dict)
    both = place_baseline(there, T4)
    assert isinstance(both, dict)
    assert {key: one.run_id for key, one in both.items()} == {"nvidia-l4": L4.run_id, "tesla-t4": T4.run_id}
    newer = replace(L4, run_id="20261122-000000-l4-0001")
    again = place_baseline(both, newer)
    assert isinstance(again, dict)
    assert (again["nvidia-l4"], again["tesla-t4"]) == (newer, T4)
    assert remove_devices(again, frozenset({"nvidia-l4"})) == {"tesla-t4": T4}


def test_an_older_run_takes_no_newer_ones_place_unless_it_is_meant() -> None:
    older = replace(L4, run_id="20261120-000000-l4-ffff")
    there = {"nvidia-l4": L4}
    assert place_baseline(there, older) == Older(L4)
    assert place_baseline(there, older, back=True) == {"nvidia-l4": older}
    assert place_baseline(there, L4) == there


def test_what_is_stored_reads_back_without_what_is_no_plain_value() -> None:
    data = dump_baselines("main", {"tesla-t4": T4, "nvidia-l4": L4})
    assert json.loads(data)["schema"] == 1
    assert list(json.loads(data)["devices"]) == ["nvidia-l4", "tesla-t4"]
    known = {"cuda": 13.0, "driver": "580", "ecc": True}
    assert plain_entries(FINGERPRINT) == known
    assert parse_baselines("main", data) == {
        "nvidia-l4": replace(L4, fingerprint=known),
        "tesla-t4": replace(T4, fingerprint=known),
    }


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"devices": []}', b'{"devices": {"l4": {}}}', b'{"devices": {"l4": 1}}']
)
def test_what_is_no_baseline_says_so_and_how_to_go_on(data: bytes) -> None:
    with pytest.raises(BaselinesUnreadable, match="main") as told:
        parse_baselines("main", data)
    assert "--broken" in told.value.hint


@pytest.mark.parametrize(
    ("device", "key"), [("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"), ("Tesla T4", "tesla-t4"), ("™", "unknown")]
)
def test_a_device_is_known_by_what_it_calls_itself(device: str, key: str) -> None:
    assert device_key(device) == key


@pytest.mark.parametrize("name", ["", "Main", "a/b", "../x", "-x", "a" * 64, "a b"])
def test_a_name_that_would_make_a_strange_object_is_refused(name: str) -> None:
    assert checked_name("release-1.2_x") == "release-1.2_x"
    with pytest.raises(ConfigError, match="not a valid name for a baseline"):
        checked_name(name)
