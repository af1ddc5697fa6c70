"""A full disk takes no machine's end, no operation's and no account's: what could not be written waits for room."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path

from orchestrator.embedded.store import Store
from tests.unit.embedded.builders import RUN, Stage, insert_body

NAME = f"bench-{RUN}-1"
ROOM = 1_000_000


def fill(store: Store) -> None:
    """SQLite's own bound on the pages of a file stands for the disk's."""
    (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count={pages}")
    for at in count():
        try:
            store.put("filling", str(at), "")
        except sqlite3.OperationalError:
            return


def make_room(store: Store) -> None:
    store.connection.execute(f"PRAGMA max_page_count={ROOM}")


def test_a_vm_has_its_deadline_though_the_disk_was_full_as_it_began_to_run(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert()
        fill(stage.cloud.store)
        stage.advance(12)
        assert stage.rest.instance()["status"] == "RUNNING"
        stage.advance(1830)
        assert stage.rest.instance() is None
        assert stage.only_row().ended_by == "deadline"


def test_a_vm_is_deleted_and_its_operation_is_done_though_the_disk_is_full(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        fill(stage.cloud.store)
        operation = stage.rest.delete(NAME)
        stage.advance(60)
        assert stage.rest.instance() is None
        assert stage.rest.operation(operation["name"])["status"] == "DONE"
        assert stage.only_row().ended_by == "client"


def test_what_a_full_disk_did_not_take_is_on_it_once_there_is_room(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        fill(stage.cloud.store)
        operation = stage.rest.delete(NAME)
        stage.advance(60)
        row = stage.only_row()
        make_room(stage.cloud.store)
        stage.cloud.store.put("filling", "last", "")
    with Stage(tmp_path) as again:
        assert again.only_row() == row
        assert again.rest.operation(operation["name"])["endTime"]


def test_a_machine_a_full_disk_cannot_record_is_refused_until_there_is_room(tmp_path: Path) -> None:
    body, once = insert_body(), "6f0a3f1e-0000-4000-8000-000000000000"
    with Stage(tmp_path) as stage:
        fill(stage.cloud.store)
        path = "/zones/us-central1-a/instances"
        status, answer = stage.rest.call("POST", path, body, requestId=once)
        assert (status, stage.rest.instance()) == (507, None)
        assert "full" in answer["error"]["message"]
        make_room(stage.cloud.store)
        status, _ = stage.rest.call("POST", path, body, requestId=once)
        assert status == 200
        stage.advance(12)
        assert stage.rest.instance()["status"] == "RUNNING"


def test_what_is_owed_is_written_in_its_order_and_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.put("kind", "gone", 1)
    fill(store)
    store.owe("kind", "gone", None)
    store.owe("kind", "changed", 1)
    store.owe("kind", "changed", 2)
    store.owe("kind", "last", {"a": "b" * 5000})
    make_room(store)
    store.put("other", "x", 0)
    assert store.all("kind") == [2, {"a": "b" * 5000}]
    store.close()
