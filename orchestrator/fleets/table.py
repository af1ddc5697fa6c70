"""Downloads all rows of a fleet and checks each child's: damaged rows are made again from the child's cases."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.core.fleet.children import Child
from orchestrator.fleets.rows import Member, Stored, compose, faults, members, store_rows, tables
from orchestrator.ports import Bucket, Entry

READERS: Final = 8
Bring = Callable[[Entry, Path], bool]
"""Downloads an object to a file, unless it is there already; whether it did."""


@dataclass(frozen=True, slots=True)
class Table:
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

    def fetched(self, found: Sequence[Child]) -> Table:
        """Rows that nobody stored are stored first; damaged ones are made again, once. Raises what the bucket does."""
        there = members(self.bucket, self.fleet)
        if missing := [child for child in found if child.index not in there.whole]:
            there = self._stored(missing, {index: entry.generation for index, entry in there.strange.items()})
        wrong = self._brought(self._parts(found, there))
        if wrong:
            before = {index: there.whole[index].entry for index in wrong}
            self.left_out |= {before[index].name: f"made again from its cases: {why}" for index, why in wrong.items()}
            generations = {index: entry.generation for index, entry in before.items()}
            there = self._stored([child for child in found if child.index in wrong], generations)
            still = self._brought(self._parts(found, there), suspect=frozenset(wrong))
            if still:  # somebody writes there who should not
                self.left_out |= {there.whole[index].entry.name: f"left out: {why}" for index, why in still.items()}
                found = [child for child in found if child.index not in still]
                self._brought(self._parts(found, there))
        rows = sum(member.rows for part in self._parts(found, there).values() for member in part)
        return Table(rows, self.files, self.left_out)

    def _parts(self, found: Sequence[Child], there: Stored) -> dict[tuple[str, ...], list[Member]]:
        return tables(there.whole[child.index] for child in found if child.index in there.whole)

    def _stored(self, children: Sequence[Child], generations: Mapping[int, int]) -> Stored:
        """The rows of these children made, over what is there in those generations; all that are stored then."""

        def one(child: Child) -> Mapping[str, str]:
            return store_rows(self.bucket, self.fleet, child, generations.get(child.index, 0))

        with ThreadPoolExecutor(READERS) as pool:
            for told in pool.map(one, children):
                self.left_out |= told
        there = members(self.bucket, self.fleet)
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
            entry = compose(self.bucket, self.fleet, columns, part)
            now[path] = self.bring(entry, path)
            if now[path] or any(one.index in suspect for one in part):
                with path.open("rb") as file:
                    wrong |= faults(file, part)
        self.files = {path: fetched or self.files.get(path, False) for path, fetched in now.items()}
        return wrong
