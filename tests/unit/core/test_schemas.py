"""One rule for the number of a stored document: none is the first, keys may be added, a larger one is not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core import baselines
from orchestrator.core.config.model import HostsSpec
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
    found, why = paths.looked_at(path)
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
    assert event is not None
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
