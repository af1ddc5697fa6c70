"""All rows of a fleet in one object: made in the bucket, in few calls however many children, and checked when stored."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest

from orchestrator.core.bundled import AXES
from orchestrator.core.fleet.sweep import Child, SweepCell
from orchestrator.core.names import child_run, rows_object
from orchestrator.core.naming import instance_name
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.ports import ObjectEntry
from orchestrator.runs.fleet.results import (
    Fetching,
    FleetTable,
    compose_table,
    group_tables,
    pack_rows,
    store_rows,
    stored_members,
)
from tests.support.memory_bucket import MemoryBucket

FLEET = "fleet-20261122-040506-7f3a"


def child(index: int, gpu: str = "l4", repeat: int = 1) -> Child:
    return Child(index, SweepCell(gpu, (("measure.cache", "cold"),)), repeat, 0, ())


def case(run_id: str, case_id: str, rows: int = 2, **changed: str) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, (*ORIGIN, *AXES, *MEASURED), lineterminator="\n")
    writer.writeheader()
    known = {"run_id": run_id, "vm": instance_name(run_id, 1), "case_id": case_id, "implementation": "bench"}
    for number in range(rows):
        writer.writerow(known | {"repeat": str(number + 1), "latency_us": "10.5"} | changed)
    return text.getvalue().encode()


def measured(bucket: MemoryBucket, one: Child, *cases: str) -> None:
    run_id = child_run(FLEET, one.cell.gpu, one.index)
    for name in cases:
        bucket.create(f"runs/{run_id}/cases/{name}.csv", case(run_id, name))


def table(bucket: MemoryBucket) -> list[dict[str, str]]:
    """What somebody reads who fetched the one object, whatever unpacks it."""
    ((columns, parts),) = group_tables(stored_members(bucket, FLEET).whole.values()).items()
    blob = bucket.read(compose_table(bucket, FLEET, columns, parts).name)
    return list(csv.DictReader(io.StringIO(gzip.decompress(blob.data).decode())))


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def test_every_row_of_every_child_is_in_the_one_object_with_whose_it_is(bucket: MemoryBucket) -> None:
    for index in range(70):  # more than one compose takes
        measured(bucket, child(index), "a", "b")
        assert store_rows(bucket, FLEET, child(index)) == {}
    rows = table(bucket)
    assert [int(row["child"]) for row in rows] == [index for index in range(70) for _ in range(4)]
    assert {(row["gpu"], row["configuration"], row["pass"]) for row in rows} == {("l4", "measure.cache=cold", "1")}
    assert {row["case_id"] for row in rows} == {"a", "b"}


def test_a_childs_rows_are_stored_once_whoever_comes_later(bucket: MemoryBucket) -> None:
    measured(bucket, child(0), "a")
    store_rows(bucket, FLEET, child(0))
    first = bucket.read(rows_object(FLEET, 0))
    measured(bucket, child(0), "b")
    store_rows(bucket, FLEET, child(0))
    assert bucket.read(rows_object(FLEET, 0)) == first


def test_a_case_that_is_torn_or_of_another_machine_is_left_out_and_named() -> None:
    bucket, run_id = MemoryBucket(), child_run(FLEET, "l4", 0)
    measured(bucket, child(0), "a")
    bucket.create(f"runs/{run_id}/cases/torn.csv", b"run_id,vm\n1\n")
    bucket.create(f"runs/{run_id}/cases/latin.csv", b"\xff\xfe")
    bucket.create(f"runs/{run_id}/cases/foreign.csv", case(run_id, "foreign", vm="bench-other-1"))
    left_out = store_rows(bucket, FLEET, child(0))
    assert [name.rpartition("/")[2] for name in left_out] == ["foreign.csv", "latin.csv", "torn.csv"]
    assert {row["case_id"] for row in table(bucket)} == {"a"}


def test_a_thousand_children_are_one_object_after_forty_calls_and_no_download(bucket: MemoryBucket) -> None:
    for index in range(1000):
        run_id = child_run(FLEET, "l4", index)
        lines = case(run_id, "a", rows=3).decode().splitlines(keepends=True)
        data, columns, rows = pack_rows(child(index), {"a": lambda lines=lines: lines})  # type: ignore[misc]
        metadata = {"columns": ",".join(columns), "rows": str(rows)}
        bucket.replace(rows_object(FLEET, index), data, generation=0, metadata=metadata)
    before, read = bucket.calls, bucket.read
    bucket.read = None  # type: ignore[method-assign,assignment]
    ((columns, parts),) = group_tables(stored_members(bucket, FLEET).whole.values()).items()
    entry = compose_table(bucket, FLEET, columns, parts)
    assert bucket.calls - before <= 40
    again = bucket.calls
    assert compose_table(bucket, FLEET, columns, parts) == entry
    assert bucket.calls - again == 1, "what is made is not made again"
    blob = read(entry.name)
    assert gzip.decompress(blob.data).count(b"\n") == 3001


def test_rows_of_other_columns_are_another_table_and_unknown_ones_are_none(bucket: MemoryBucket) -> None:
    for index, (columns, rows) in enumerate((("a,b", "5"), ("a,b,c", "9"), ("a,b", "6"), ("a,b", "0"), ("a,b", "x"))):
        metadata = {"columns": columns, "rows": rows}
        bucket.replace(rows_object(FLEET, index), b"", generation=0, metadata=metadata)
    bucket.replace(rows_object(FLEET, 1)[:-7] + "x.csv.gz", b"", generation=0, metadata={"columns": "a", "rows": "1"})
    found = {
        columns: [one.index for one in part]
        for columns, part in group_tables(stored_members(bucket, FLEET).whole.values()).items()
    }
    assert found == {("a", "b"): [0, 2], ("a", "b", "c"): [1]}
    assert list(found) == [("a", "b"), ("a", "b", "c")]


def test_a_count_of_rows_that_no_child_has_is_no_childs(bucket: MemoryBucket) -> None:
    for index, rows in enumerate(("9" * 5000, "-1", "two", "")):
        bucket.replace(rows_object(FLEET, index), b"", generation=0, metadata={"columns": "a", "rows": rows})
    assert stored_members(bucket, FLEET).whole == {}


# --- fetched, and checked -------------------------------------------------------------------------------------------


def fetched(bucket: MemoryBucket, folder: Path, children: int) -> FleetTable:
    def bring(entry: ObjectEntry, path: Path) -> bool:
        bucket.download(entry, path)
        return True

    return Fetching(bucket, FLEET, folder, bring).fetched([child(index) for index in range(children)])


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode(), newline="")))


def cases_in(table: FleetTable) -> list[tuple[str, str]]:
    found = []
    for path in table.files:
        found += [(row["child"], row["case_id"]) for row in read(path)]
    return sorted(set(found))


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


ROW = "1,l4,a,1," + ",".join(["x"] * 20)
DAMAGE = {
    "no gzip": b"garbage",
    "torn gzip": packed("1,l4\n" * 9)[:-9],
    "a cell too many": packed("1," * 200 + "\n1,\n"),
    "no text": gzip.compress(b"1,\xff\xfe\n" * 2),
    "an open quote": packed('1,l4,"a\n2,l4\n'),
    "another child's": packed("0,l4\n" * 2),
    "nothing": b"",
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_rows_that_are_damaged_are_made_again_from_their_cases_and_named(
    bucket: MemoryBucket, data: bytes, tmp_path: Path
) -> None:
    for index in range(3):
        measured(bucket, child(index), "a")
        store_rows(bucket, FLEET, child(index))
    entry = stored_members(bucket, FLEET).whole[1].entry
    bucket.replace(entry.name, data, generation=entry.generation, metadata=entry.metadata)
    found = fetched(bucket, tmp_path, 3)
    assert cases_in(found) == [("0", "a"), ("1", "a"), ("2", "a")]
    assert found.rows == 6
    assert list(found.left_out) == [entry.name]
    assert found.left_out[entry.name].startswith("made again from its cases: ")
    assert fetched(bucket, tmp_path, 3).left_out == {}


@pytest.mark.parametrize("columns", ["", "a,a", 'a,"b', "child"])
@pytest.mark.parametrize("rows", ["2", "x"])
def test_rows_that_are_said_to_be_what_they_are_not_are_made_again(
    bucket: MemoryBucket, columns: str, rows: str, tmp_path: Path
) -> None:
    for index in range(2):
        measured(bucket, child(index), "a")
        store_rows(bucket, FLEET, child(index))
    entry = stored_members(bucket, FLEET).whole[1].entry
    metadata = {"columns": columns, "rows": rows}
    bucket.replace(entry.name, packed(ROW + "\n"), generation=entry.generation, metadata=metadata)
    assert cases_in(fetched(bucket, tmp_path, 2)) == [("0", "a"), ("1", "a")]


def test_damaged_rows_whose_cases_are_gone_stay_and_all_others_are_fetched(
    bucket: MemoryBucket, tmp_path: Path
) -> None:
    for index in range(3):
        measured(bucket, child(index), "a")
        store_rows(bucket, FLEET, child(index))
    entry = stored_members(bucket, FLEET).whole[1].entry
    bucket.replace(entry.name, b"garbage", generation=entry.generation, metadata=entry.metadata)
    bucket.forget(f"runs/{child_run(FLEET, 'l4', 1)}/cases/a.csv")
    found = fetched(bucket, tmp_path, 3)
    assert cases_in(found) == [("0", "a"), ("2", "a")]
    assert (found.rows, found.left_out) == (4, {entry.name: "left out: it is not gzip, or incomplete"})
    kept = bucket.read(entry.name)
    assert kept.data == b"garbage"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("case_id", "it has two columns 'case_id'"),
        ("x" * 5000, "the names of its columns are longer than 4000 characters"),
    ],
)
def test_columns_that_no_table_takes_keep_one_case_out_and_no_other(header: str, why: str, tmp_path: Path) -> None:
    bucket, run_id = MemoryBucket(), child_run(FLEET, "l4", 0)
    measured(bucket, child(0), "a")
    heads, *rows = case(run_id, "b").decode().splitlines()
    bucket.create(f"runs/{run_id}/cases/b.csv", "\n".join([f"{heads},{header}", *rows, ""]).encode())
    found = fetched(bucket, tmp_path, 1)
    assert cases_in(found) == [("0", "a")]
    assert found.left_out == {f"runs/{run_id}/cases/b.csv": f"left out: {why}"}


def test_columns_of_many_cases_never_say_more_than_an_object_can_carry(tmp_path: Path) -> None:
    bucket, run_id = MemoryBucket(), child_run(FLEET, "l4", 0)
    for name in "abcd":
        heads, *rows = case(run_id, name).decode().splitlines()
        text = "\n".join([f"{heads},{name * 3000}", *(f"{row},1" for row in rows), ""])
        bucket.create(f"runs/{run_id}/cases/{name}.csv", text.encode())
    found = fetched(bucket, tmp_path, 1)
    assert cases_in(found) == [("0", "a")]
    assert len(found.left_out) == 3
    assert len(stored_members(bucket, FLEET).whole[0].entry.metadata["columns"]) < 6000


def test_column_names_with_commas_and_quotes_and_cells_with_line_ends_survive(tmp_path: Path) -> None:
    bucket, run_id = MemoryBucket(), child_run(FLEET, "l4", 0)
    text = io.StringIO()
    heads, *rows = csv.reader(io.StringIO(case(run_id, "a").decode()))
    csv.writer(text).writerows([[*heads, 'size, in "k"'], *([*row, "one\rtwo\r\nthree"] for row in rows)])
    bucket.create(f"runs/{run_id}/cases/a.csv", text.getvalue().encode())
    found = fetched(bucket, tmp_path, 1)
    assert found.left_out == {}
    (path,) = found.files
    assert [row['size, in "k"'] for row in read(path)] == ["one\ntwo\nthree"] * 2
