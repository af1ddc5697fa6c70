"""The schema of result files, which have one row for each measurement, and how all cases of a run become one file.

The harness defines the columns (docs/contracts.md, section 6). Columns that this version does not know are kept.
`orchestrator.analysis` interprets the rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from orchestrator.core.bundled import AXES
from orchestrator.core.errors import BenchError
from orchestrator.core.text import clean_line

ORIGIN: Final = ("run_id", "vm", "case_id", "device", "implementation", "backend")
MEASURED: Final = (
    "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle",
    "max_abs_error", "torch", "started_at", "skipped",
)  # fmt: skip
"""`ORIGIN` and `MEASURED` are the columns before and after a workload's axes that every file has.
`kernels/harness/columns.py` lists all columns."""
TIMER_SHARE: Final = 0.02
"""The share of a median: if the timer's own time is a larger share, it noticeably affects a comparison."""
CONTROL: Final = ":aa"
"""The suffix of a control: `bench:aa` is `bench` measured a second time, so the difference between them is noise."""


class ResultsUnreadable(BenchError):
    """A result file does not follow the contract. It is kept as it is, and nothing is read from it."""


def case_order(case_id: str) -> tuple[tuple[int, int, str], ...]:
    """The sort key of case ids. Numbers in them sort by value: 128 before 1024."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", case_id) if part)


def axes_of(header: Sequence[str]) -> tuple[str, ...]:
    """The axis columns of a file: those between `backend` and `regime`. If the file lacks one of these two, they are
    the axes of the bundled workload that it has."""
    if "backend" in header and "regime" in header:
        return tuple(header[header.index("backend") + 1 : header.index("regime")])
    return tuple(name for name in AXES if name in header)


Lines = Callable[[], Iterable[str]]
"""Returns the lines of one file from its beginning, each time it is called."""


def assemble_rows(cases: Mapping[str, Lines]) -> Iterator[str]:
    """The lines of one CSV with all cases: one header, then the cases in the order of `case_order`. Rows are unchanged,
    except for cells that a spreadsheet would run as formulas (`plain`). Columns that only some cases have come last,
    and are empty in the others. An incomplete line stays incomplete, so that no reader takes it for a complete one."""
    ordered = [cases[case_id] for case_id in sorted(cases, key=case_order)]
    headers = [next(_records(lines()), []) for lines in ordered]
    axes = [name for header in headers for name in axes_of(header)] or AXES
    columns = dict.fromkeys((*ORIGIN, *axes, *MEASURED, *(name for header in headers for name in header)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(plain_cell, columns))
    for lines in ordered:
        records = _records(lines())
        header = next(records, [])
        columns_here = len(header)
        place = {name: index for index, name in enumerate(header)}
        places = [place.get(name, columns_here) for name in columns]
        for cells in records:
            yield _emptied(text)
            if len(cells) == columns_here:
                cells.append("")  # for columns that this file does not have
                writer.writerow([plain_cell(cell) if (cell := cells[index]) else "" for index in places])
            else:
                writer.writerow([plain_cell(cell) for cell in cells] + [""] * (len(cells) == len(columns)))
    yield _emptied(text)


def _records(lines: Iterable[str]) -> Iterator[list[str]]:
    """The records of a CSV. A part that is not CSV becomes a record of one cell, which matches no header."""
    reader = csv.reader(lines)
    while True:
        try:
            record = next(reader, None)
        except csv.Error as exc:
            record = [f"not CSV: {exc}"]
        if record is None:
            return
        if record:
            yield record


def _emptied(text: io.StringIO) -> str:
    held = text.getvalue()
    text.seek(0)
    text.truncate()
    return held


def is_control(implementation: str) -> bool:
    """Whether this is a control: another implementation under a second name."""
    return implementation.endswith(CONTROL)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def plain_cell(cell: str) -> str:
    """The cell as text that no spreadsheet runs as a formula: machines may write anything. A cell that begins like a
    formula and is not a number gets an apostrophe before it. Carriage returns become line feeds: some readers of CSV
    take a carriage return for the end of a row, and Python's writer does not quote it."""
    if "\r" in cell:
        cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell or cell[0].isalnum():
        return cell
    risky = cell.lstrip()[:1] in ("=", "+", "-", "@") or cell[0] in "\t\n"
    return f"'{cell}" if risky and NUMBER.fullmatch(cell) is None else cell


# Checks that a stored file is one complete case of one run. Any machine may have written it, so the reader checks
# what the bucket's permissions cannot.


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
