"""All rows of a fleet in one file, without a server and without a download for each child.

Whoever sees that a child is measured checks its cases and stores its rows once: one member of gzip without a header,
the columns and the count in its metadata. Members one after the other are gzip; so `compose` makes one object of them
in the bucket, 32 at a time, and what is fetched is that one.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from orchestrator.core.case_file import fault
from orchestrator.core.errors import Unavailable
from orchestrator.core.fleet.children import Child
from orchestrator.core.fleet.names import child_run, fleet_prefix, rows_object, rows_prefix
from orchestrator.core.naming import attempt_of, cases_prefix
from orchestrator.core.results import assemble, plain
from orchestrator.ports import Bucket, Entry

OWN: Final = ("child", "gpu", "configuration", "pass")
"""What a row of a fleet has before the columns of its run."""
TEXTS: Final = frozenset(
    {
        "gpu", "configuration", "run_id", "vm", "case_id", "device", "implementation", "backend", "dtype", "regime",
        "throttle", "torch", "started_at", "skipped", "cache", "warmed", "stopped", "state", "machine", "reason",
    }
)  # fmt: skip
"""Columns of rows, and of the list of children, that are text whatever their cells look like."""
DIGITS: Final = 12
"""No child has rows whose number has so many."""
MOST: Final = 32
"""Sources of one `compose`."""
WRITERS: Final = 8
LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class Member:
    """The rows of one child in the bucket."""

    entry: Entry
    index: int
    columns: tuple[str, ...]
    rows: int


def store_rows(bucket: Bucket, fleet: str, child: Child) -> Mapping[str, str]:
    """Stores the rows of a measured child, once. What is left out of them, by object, and why: a case's file that is
    not whole, or not this child's."""
    name, run_id = rows_object(fleet, child.index), child_run(fleet, child.cell.gpu, child.index)
    prefix = cases_prefix(run_id)
    blobs = bucket.read_many([entry.name for entry in bucket.list(prefix)])
    cases: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for place, blob in sorted(blobs.items()):
        case, text = place.removeprefix(prefix).removesuffix(".csv"), blob.data.decode("utf-8", "replace")
        why = fault(_lines(text), case, run_id, lambda vm: attempt_of(run_id, vm) is not None)
        if why:
            left_out[place] = f"left out: {why}"
        else:
            cases[case] = text
    data, columns, rows = pack(child, {case: partial(_lines, text) for case, text in cases.items()})
    metadata = {"v": "1", "columns": ",".join(columns), "rows": str(rows)}
    bucket.replace(name, data, generation=0, metadata=metadata, content_type="application/gzip")
    return left_out


def _lines(text: str) -> Iterable[str]:
    return io.StringIO(text, newline="")


def pack(child: Child, cases: Mapping[str, Callable[[], Iterable[str]]]) -> tuple[bytes, tuple[str, ...], int]:
    """One member of gzip with the rows of a child and no header, its columns, and how many rows it has."""
    reader = csv.reader(assemble(cases))
    columns = tuple(next(reader, ()))
    text, rows = io.StringIO(), 0
    writer = csv.writer(text, lineterminator="\n")
    own = (child.index, child.cell.gpu, plain(child.cell.title), child.repeat)
    for cells in reader:
        writer.writerow((*own, *cells))
        rows += 1
    return gzip.compress(text.getvalue().encode(), LEVEL, mtime=0), columns, rows


def members(bucket: Bucket, fleet: str) -> dict[int, Member]:
    """Every child's rows that are stored, by child, with one listing a thousand."""
    found = {}
    for entry in bucket.list(rows_prefix(fleet)):
        index = entry.name.removeprefix(rows_prefix(fleet)).removesuffix(".csv.gz")
        rows = entry.metadata.get("rows", "")
        counted = rows.isdecimal() and len(rows) < DIGITS
        if counted and index.isdecimal() and entry.name == rows_object(fleet, int(index)):
            columns = tuple(entry.metadata.get("columns", "").split(","))
            found[int(index)] = Member(entry, int(index), columns, int(rows))
    return found


def tables(found: Iterable[Member]) -> dict[tuple[str, ...], list[Member]]:
    """Members by their columns, those with the most rows first; in each the order of the children."""
    parts: dict[tuple[str, ...], list[Member]] = {}
    for member in sorted(found, key=lambda one: one.index):
        if member.rows:
            parts.setdefault(member.columns, []).append(member)
    return dict(sorted(parts.items(), key=lambda part: -sum(one.rows for one in part[1])))


def compose(bucket: Bucket, fleet: str, columns: Sequence[str], parts: Sequence[Member]) -> Entry:
    """One object of a header and all members, made in the bucket. Made once: its name says of what. Raises
    `Unavailable` where a source went away meanwhile."""
    made_of = "\n".join(f"{one.entry.name} {one.entry.generation}" for one in parts)
    base = f"{fleet_prefix(fleet)}table/{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if there := _entry(bucket, f"{base}.csv.gz"):
        return there
    header = gzip.compress((",".join((*OWN, *columns)) + "\n").encode(), LEVEL, mtime=0)
    bucket.create(f"{base}/header.gz", header, content_type="application/gzip")
    names, level = [f"{base}/header.gz", *(one.entry.name for one in parts)], 0
    while len(names) > MOST:
        groups = [names[at : at + MOST] for at in range(0, len(names), MOST)]
        targets = [f"{base}/{level}-{place:04}.gz" for place in range(len(groups))]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(bucket.compose, targets, groups))
        names, level = targets, level + 1
    bucket.compose(f"{base}.csv.gz", names)
    entry = _entry(bucket, f"{base}.csv.gz")
    if entry is None:
        raise Unavailable(f"{base}.csv.gz went away as soon as it was made", hint="fetch again")
    return entry


def _entry(bucket: Bucket, name: str) -> Entry | None:
    return next((entry for entry in bucket.list(name) if entry.name == name), None)
