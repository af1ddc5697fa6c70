"""All rows of a fleet in one object: made in the bucket, in few calls however many children, and checked when stored."""

from __future__ import annotations

import csv
import gzip
import io

from orchestrator.core.bundled.names import AXES
from orchestrator.core.fleet.children import Cell, Child
from orchestrator.core.fleet.names import child_run, rows_object
from orchestrator.core.naming import instance_name
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.fleets.rows import compose, members, pack, store_rows, tables
from tests.support.memory_bucket import MemoryBucket

FLEET = "fleet-20261122-040506-7f3a"


def child(index: int, gpu: str = "l4", repeat: int = 1) -> Child:
    return Child(index, Cell(gpu, (("measure.cache", "cold"),)), repeat, 0, ())


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
    ((columns, parts),) = tables(members(bucket, FLEET).values()).items()
    blob = bucket.read(compose(bucket, FLEET, columns, parts).name)
    assert blob is not None
    return list(csv.DictReader(io.StringIO(gzip.decompress(blob.data).decode())))


def test_every_row_of_every_child_is_in_the_one_object_with_whose_it_is() -> None:
    bucket = MemoryBucket()
    for index in range(70):  # more than one compose takes
        measured(bucket, child(index), "a", "b")
        assert store_rows(bucket, FLEET, child(index)) == {}
    rows = table(bucket)
    assert [int(row["child"]) for row in rows] == [index for index in range(70) for _ in range(4)]
    assert {(row["gpu"], row["configuration"], row["pass"]) for row in rows} == {("l4", "measure.cache=cold", "1")}
    assert {row["case_id"] for row in rows} == {"a", "b"}


def test_a_childs_rows_are_stored_once_whoever_comes_later() -> None:
    bucket = MemoryBucket()
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


def test_a_thousand_children_are_one_object_after_forty_calls_and_no_download() -> None:
    bucket = MemoryBucket()
    for index in range(1000):
        run_id = child_run(FLEET, "l4", index)
        lines = case(run_id, "a", rows=3).decode().splitlines(keepends=True)
        data, columns, rows = pack(child(index), {"a": lambda lines=lines: lines})  # type: ignore[misc]
        metadata = {"columns": ",".join(columns), "rows": str(rows)}
        bucket.replace(rows_object(FLEET, index), data, generation=0, metadata=metadata)
    before, read = bucket.calls, bucket.read
    bucket.read = None  # type: ignore[method-assign,assignment]
    ((columns, parts),) = tables(members(bucket, FLEET).values()).items()
    entry = compose(bucket, FLEET, columns, parts)
    assert bucket.calls - before <= 40
    again = bucket.calls
    assert compose(bucket, FLEET, columns, parts) == entry
    assert bucket.calls - again == 1, "what is made is not made again"
    blob = read(entry.name)
    assert blob is not None
    assert gzip.decompress(blob.data).count(b"\n") == 3001


def test_rows_of_other_columns_are_a_table_of_their_own_and_what_is_none_of_ours_is_none() -> None:
    bucket = MemoryBucket()
    for index, (columns, rows) in enumerate((("a,b", "5"), ("a,b,c", "9"), ("a,b", "6"), ("a,b", "0"), ("a,b", "x"))):
        metadata = {"columns": columns, "rows": rows}
        bucket.replace(rows_object(FLEET, index), b"", generation=0, metadata=metadata)
    bucket.replace(rows_object(FLEET, 1)[:-7] + "x.csv.gz", b"", generation=0, metadata={"columns": "a", "rows": "1"})
    found = {columns: [one.index for one in part] for columns, part in tables(members(bucket, FLEET).values()).items()}
    assert found == {("a", "b"): [0, 2], ("a", "b", "c"): [1]}
    assert list(found) == [("a", "b"), ("a", "b", "c")]


def test_a_count_of_rows_that_no_child_has_is_no_childs() -> None:
    bucket = MemoryBucket()
    for index, rows in enumerate(("9" * 5000, "-1", "two", "")):
        bucket.replace(rows_object(FLEET, index), b"", generation=0, metadata={"columns": "a", "rows": rows})
    assert members(bucket, FLEET) == {}
