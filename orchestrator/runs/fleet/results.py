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
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from io import SEEK_END
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final

from orchestrator.core.errors import Unavailable
from orchestrator.core.fleet.sweep import Child
from orchestrator.core.names import fleet_prefix, rows_object, rows_prefix
from orchestrator.core.naming import attempt_of, cases_prefix
from orchestrator.core.results import LONGEST, assemble_rows, case_file_fault, plain_cell
from orchestrator.core.text import count
from orchestrator.ports import Bucket, ObjectEntry

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
MOST_COLUMNS: Final = 6_000
"""Bytes of their names: all that is said of an object beside it may have 8 KiB."""


@dataclass(frozen=True, slots=True)
class Member:
    """The rows of one child in the bucket."""

    entry: ObjectEntry
    index: int
    columns: tuple[str, ...]
    rows: int


CHILD_FILES: Final = 10_000
CHILD_BYTES: Final = 1 << 30
"""How many files of cases a child may have stored, and how many bytes in all."""


@dataclass(frozen=True, slots=True)
class StoredMembers:
    """The stored rows, by child; `strange` are objects in their place that are not a child's rows."""

    whole: dict[int, Member]
    strange: dict[int, ObjectEntry]


def store_rows(bucket: Bucket, fleet: str, child: Child, generation: int = 0) -> Mapping[str, str]:
    """Stores the rows of a measured child, once, or over what is there in that generation. What is left out of them, by
    object, and why: a case's file that is not whole, or not this child's, or with columns of its own too many."""
    name, run_id = rows_object(fleet, child.index), child.run_id(fleet)
    prefix = cases_prefix(run_id)
    listed = bucket.list(prefix, most=CHILD_FILES + 1)
    fits = [total <= CHILD_BYTES for total in accumulate(entry.size for entry in listed)]
    blobs = bucket.read_many([entry.name for entry, fit in zip(listed[:CHILD_FILES], fits, strict=False) if fit])
    cases: dict[str, str] = {}
    left_out = {entry.name: "left out: a child stores less" for entry in listed if entry.name not in blobs}
    heads: dict[str, None] = {}
    for place, blob in sorted(blobs.items()):
        case, text = place.removeprefix(prefix).removesuffix(".csv"), blob.data.decode("utf-8", "replace")
        why = case_file_fault(_lines(text), case, run_id, lambda vm: attempt_of(run_id, vm) is not None)
        extra_columns = heads if why else heads | dict.fromkeys(next(csv.reader(_lines(text))))
        if len(_line(tuple(extra_columns)).encode()) > MOST_COLUMNS:
            why = "there are too many columns, its own and those of the cases before it"
        if why:
            left_out[place] = f"left out: {why}"
        else:
            cases[case], heads = text, extra_columns
    if generation and not cases:
        return left_out  # what is damaged is more than nothing
    data, columns, rows = pack_rows(child, {case: partial(_lines, text) for case, text in cases.items()})
    metadata = {"v": "1", "columns": _line(columns), "rows": str(rows)}
    bucket.replace(name, data, generation=generation, metadata=metadata, content_type="application/gzip")
    return left_out


def _line(cells: Sequence[str]) -> str:
    """The cells as a line of CSV, without its line end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()[:-1]


def _lines(text: str) -> Iterable[str]:
    return io.StringIO(text, newline="")


def pack_rows(child: Child, cases: Mapping[str, Callable[[], Iterable[str]]]) -> tuple[bytes, tuple[str, ...], int]:
    """One member of gzip with the rows of a child and no header, its columns, and how many rows it has."""
    reader = csv.reader(assemble_rows(cases))
    columns = tuple(next(reader, ()))
    text, rows = io.StringIO(), 0
    writer = csv.writer(text, lineterminator="\n")
    child_columns = (child.index, child.cell.gpu, plain_cell(child.cell.title), child.repeat)
    for cells in reader:
        writer.writerow((*child_columns, *cells))
        rows += 1
    return gzip.compress(text.getvalue().encode(), LEVEL, mtime=0), columns, rows


def stored_members(bucket: Bucket, fleet: str) -> StoredMembers:
    """Every child's rows that are stored, with one listing a thousand."""
    stored_rows = StoredMembers({}, {})
    for entry in bucket.list(rows_prefix(fleet)):
        index = entry.name.removeprefix(rows_prefix(fleet)).removesuffix(".csv.gz")
        rows = entry.metadata.get("rows", "")
        if not _number(index) or entry.name != rows_object(fleet, int(index)):
            continue
        columns = _columns(entry.metadata.get("columns", ""))
        if _number(rows) and (columns or not int(rows)):
            stored_rows.whole[int(index)] = Member(entry, int(index), columns, int(rows))
        else:
            stored_rows.strange[int(index)] = entry
    return stored_rows


def _number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < DIGITS


def _columns(text: str) -> tuple[str, ...]:
    """Those that are said beside rows; none where they are no columns."""
    try:
        header = tuple(next(csv.reader(_lines(text), strict=True), ()))
    except csv.Error:
        return ()
    return header if len(set(header)) == len(header) else ()


def group_tables(found: Iterable[Member]) -> dict[tuple[str, ...], list[Member]]:
    """The members, grouped by their columns, groups with the most rows first; in the order of the children."""
    parts: dict[tuple[str, ...], list[Member]] = {}
    for member in sorted(found, key=lambda one: one.index):
        if member.rows:
            parts.setdefault(member.columns, []).append(member)
    return dict(sorted(parts.items(), key=lambda part: -sum(one.rows for one in part[1])))


def member_faults(table: BinaryIO, parts: Sequence[Member]) -> dict[int, str]:
    """What is wrong with the members of a composed table, by child: each must be so many rows of its child with the
    columns that it says, as readers of CSV understand one another."""
    header = table.seek(0, SEEK_END) - sum(one.entry.size for one in parts)
    table.seek(max(header, 0))
    part_faults = ((one.index, _fault(table.read(one.entry.size), one)) for one in parts)
    return {index: why for index, why in part_faults if why}


def _fault(data: bytes, member: Member) -> str:
    try:
        reader = csv.reader(_lines(gzip.decompress(data).decode()), strict=True)
        rows, wide = 0, len(OWN) + len(member.columns)
        for rows, cells in enumerate(reader, start=1):  # noqa: B007 - how many there were
            if len(cells) != wide or cells[0] != str(member.index) or sum(map(len, cells)) > LONGEST:
                return f"line {reader.line_num} is not a row of child {member.index}"
    except (OSError, EOFError, zlib.error):
        return "it is not gzip, or incomplete"
    except (UnicodeDecodeError, csv.Error) as exc:
        return f"it is not CSV: {exc}"
    return "" if rows == member.rows else f"it has {count(rows, 'row')}, not the {member.rows} that were stored"


def compose_table(bucket: Bucket, fleet: str, columns: Sequence[str], parts: Sequence[Member]) -> ObjectEntry:
    """One object of a header and all members, made in the bucket. Made once: its name says of what. Raises
    `Unavailable` where a source went away meanwhile."""
    made_of = "\n".join(f"{one.entry.name} {one.entry.generation}" for one in parts)
    base = f"{fleet_prefix(fleet)}table/{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if there := _entry(bucket, f"{base}.csv.gz"):
        return there
    header = gzip.compress((_line((*OWN, *columns)) + "\n").encode(), LEVEL, mtime=0)
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
        raise Unavailable(f"{base}.csv.gz was deleted as soon as it was made", hint="run the same command again")
    return entry


def _entry(bucket: Bucket, name: str) -> ObjectEntry | None:
    return next((entry for entry in bucket.list(name) if entry.name == name), None)


# Downloads all rows of a fleet and checks each child's: damaged rows are made again from the child's cases.


READERS: Final = 8
Bring = Callable[[ObjectEntry, Path], bool]
"""Downloads an object to a file, unless it is there already; whether it did."""


@dataclass(frozen=True, slots=True)
class FleetTable:
    """`files` has whether each was fetched now, `left_out` what was damaged, by object, and what became of it."""

    rows: int
    files: Mapping[Path, bool]
    left_out: Mapping[str, str]


@dataclass(slots=True)
class Fetching:
    """The tables of a fleet's measured children, on their way into `folder`."""

    bucket: Bucket
    fleet: str
    folder: Path
    bring: Bring
    files: dict[Path, bool] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def fetched(self, fetched_children: Sequence[Child]) -> FleetTable:
        """Rows that nobody stored are stored first; damaged ones are made again, once. Raises what the bucket does."""
        there = stored_members(self.bucket, self.fleet)
        if missing := [child for child in fetched_children if child.index not in there.whole]:
            there = self._stored(missing, {index: entry.generation for index, entry in there.strange.items()})
        wrong = self._brought(self._parts(fetched_children, there))
        if wrong:
            before = {index: there.whole[index].entry for index in wrong}
            self.left_out |= {before[index].name: f"made again from its cases: {why}" for index, why in wrong.items()}
            generations = {index: entry.generation for index, entry in before.items()}
            there = self._stored([child for child in fetched_children if child.index in wrong], generations)
            still = self._brought(self._parts(fetched_children, there), suspect=frozenset(wrong))
            if still:  # somebody writes there who should not
                self.left_out |= {there.whole[index].entry.name: f"left out: {why}" for index, why in still.items()}
                fetched_children = [child for child in fetched_children if child.index not in still]
                self._brought(self._parts(fetched_children, there))
        rows = sum(member.rows for part in self._parts(fetched_children, there).values() for member in part)
        return FleetTable(rows, self.files, self.left_out)

    def _parts(self, found: Sequence[Child], there: StoredMembers) -> dict[tuple[str, ...], list[Member]]:
        return group_tables(there.whole[child.index] for child in found if child.index in there.whole)

    def _stored(self, children: Sequence[Child], generations: Mapping[int, int]) -> StoredMembers:
        """The rows of these children made, over what is there in those generations; all that are stored then."""

        def one(child: Child) -> Mapping[str, str]:
            return store_rows(self.bucket, self.fleet, child, generations.get(child.index, 0))

        with ThreadPoolExecutor(READERS) as pool:
            for told in pool.map(one, children):
                self.left_out |= told
        there = stored_members(self.bucket, self.fleet)
        self.left_out |= {
            entry.name: "left out: it does not say how many rows it has" for entry in there.strange.values()
        }
        return there

    def _brought(
        self, parts: Mapping[tuple[str, ...], Sequence[Member]], suspect: Collection[int] = ()
    ) -> dict[int, str]:
        """What is wrong with members of the files that were fetched now, or that have a suspect's rows, by child."""
        wrong: dict[int, str] = {}
        now: dict[Path, bool] = {}
        for place, (columns, part) in enumerate(parts.items(), start=1):
            path = self.folder / (f"measurements-{place}.csv.gz" if place > 1 else "measurements.csv.gz")
            entry = compose_table(self.bucket, self.fleet, columns, part)
            now[path] = self.bring(entry, path)
            if now[path] or any(one.index in suspect for one in part):
                with path.open("rb") as file:
                    wrong |= member_faults(file, part)
        self.files = {path: fetched or self.files.get(path, False) for path, fetched in now.items()}
        return wrong
