"""Checks that a stored file is one complete case of one run. Any machine may have written it, so the reader checks what
the bucket's permissions cannot."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from typing import Final

from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.core.text import clean_line

SHORTEST_US: Final = 1e-6
LONGEST_US: Final = 1e12
"""The shortest and the longest latency that is accepted, in microseconds: a picosecond, and about eleven days. Of what
lies between, no ratio or product leaves the range of a float."""
LONGEST: Final = 500_000
"""The most characters of a line. Readers of tables have such limits too."""
HEADER: Final = 4_000
"""The most characters of all column names together."""


def case_file_fault(lines: Iterable[str], case_id: str, run_id: str, is_requested: Callable[[str], bool]) -> str:
    """What is wrong with the file of case `case_id` of run `run_id`, as text that names the line; empty if nothing is.
    `is_requested` says whether the run requested a machine of a given name."""
    reader = csv.reader(lines)
    try:
        header = next(reader, None)
        if header is None:
            return "it is empty"
        # A user's workload has its own axis columns. A file with any axis of the bundled workload must have all of its
        # axes.
        axes = AXES if any(name in header for name in AXES if name != "dtype") else ()
        if missing := [name for name in (*ORIGIN, *axes, *MEASURED) if name not in header]:
            return f"it has no column {', '.join(missing[:3])}"
        place = {name: index for index, name in enumerate(header)}
        if len(place) != len(header):
            return f"it has two columns {clean_line(next(name for name in header if header.count(name) > 1), 40)!r}"
        if sum(map(len, header)) > HEADER:
            return f"the names of its columns are longer than {HEADER} characters"
        for cells in reader:
            why = _row(cells, place, case_id, run_id, is_requested)
            if why:
                return f"line {reader.line_num}: {why}"
    except csv.Error as exc:
        return f"line {reader.line_num}: {exc}"
    except UnicodeDecodeError:
        return f"line {reader.line_num + 1}: it is not UTF-8"
    return ""


def _row(
    cells: list[str], place: dict[str, int], case_id: str, run_id: str, is_requested: Callable[[str], bool]
) -> str:
    if len(cells) != len(place):
        return "torn: not as many cells as the header"
    if sum(map(len, cells)) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    for name, wanted in (("case_id", case_id), ("run_id", run_id)):
        if cells[place[name]] != wanted:
            return f"it belongs to {name.replace('_id', '')} {clean_line(cells[place[name]], 80)!r}"
    if not is_requested(cells[place["vm"]]):
        return f"it belongs to machine {clean_line(cells[place['vm']], 80)!r}, which the run never requested"
    latency = cells[place["latency_us"]]
    return f"latency_us is {clean_line(latency, 40)!r}" if latency and not _latency(latency) else ""


def _latency(text: str) -> bool:
    try:
        return is_latency(float(text))
    except ValueError:
        return False


def is_latency(value_us: float) -> bool:
    """Whether a call can have taken so many microseconds; False for what is no number."""
    return SHORTEST_US <= value_us <= LONGEST_US
