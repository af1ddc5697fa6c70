"""The schema of result files: one row a measurement, and all cases of a run put together.

The harness owns the columns (docs/contracts.md, section 6); those that this version does not know are kept. What the
rows mean is `orchestrator.analysis`'s to say.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from orchestrator.core.bundled.names import AXES
from orchestrator.core.errors import BenchError

ORIGIN: Final = ("run_id", "vm", "case_id", "device", "implementation", "backend")
MEASURED: Final = (
    "regime", "block", "repeat", "latency_us", "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle",
    "max_abs_error", "torch", "started_at", "skipped",
)  # fmt: skip
"""Before and after a workload's axes, the columns that no file lacks. `kernels/harness/columns.py` lists all."""
TIMER_SHARE: Final = 0.02
"""Of a median: from here on what is compared is, noticeably, the timer."""
CONTROL: Final = ":aa"
"""`bench:aa` is `bench` once more, measured beside it: what differs between the two is noise."""


class ResultsUnreadable(BenchError):
    """A result file is not what the contract says. It is kept as it is; nothing is read from it."""


def case_order(case_id: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which case ids sort by their numbers: 128 before 1024."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", case_id) if part)


def axes_of(header: Sequence[str]) -> tuple[str, ...]:
    """The columns of a file that say which case a row belongs to: those between `backend` and `regime`; in a file that
    does not have both, those of the workload that the tool brings along."""
    if "backend" in header and "regime" in header:
        return tuple(header[header.index("backend") + 1 : header.index("regime")])
    return tuple(name for name in AXES if name in header)


Lines = Callable[[], Iterable[str]]
"""The lines of one file, from its beginning, as often as it is called."""


def assemble(cases: Mapping[str, Lines]) -> Iterator[str]:
    """One CSV of all cases, line by line: one header, cases by their numbers, rows as they were, but for cells that a
    spreadsheet would run (`plain`). Columns that only some cases have come last, and are empty in the others. A torn
    line stays torn, so that nothing takes it for a whole one."""
    ordered = [cases[case_id] for case_id in sorted(cases, key=case_order)]
    headers = [next(_records(lines()), []) for lines in ordered]
    axes = [name for header in headers for name in axes_of(header)] or AXES
    columns = dict.fromkeys((*ORIGIN, *axes, *MEASURED, *(name for header in headers for name in header)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(plain, columns))
    for lines in ordered:
        records = _records(lines())
        header = next(records, [])
        nowhere = len(header)
        place = {name: index for index, name in enumerate(header)}
        places = [place.get(name, nowhere) for name in columns]
        for cells in records:
            yield _emptied(text)
            if len(cells) == nowhere:
                cells.append("")  # for columns that this file has not
                writer.writerow([plain(cell) if (cell := cells[index]) else "" for index in places])
            else:
                writer.writerow([plain(cell) for cell in cells] + [""] * (len(cells) == len(columns)))
    yield _emptied(text)


def _records(lines: Iterable[str]) -> Iterator[list[str]]:
    """The records of a CSV. What is none is a record of one cell, which no header has."""
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
    """Whether this is another implementation under a second name."""
    return implementation.endswith(CONTROL)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def plain(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: one that begins like a formula and is no number gets an
    apostrophe before it. What machines say is text. A carriage return, which some readers of CSV take for the end of a
    row and Python's writer does not quote, is a line end."""
    if "\r" in cell:
        cell = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not cell or cell[0].isalnum():
        return cell
    risky = cell.lstrip()[:1] in ("=", "+", "-", "@") or cell[0] in "\t\n"
    return f"'{cell}" if risky and NUMBER.fullmatch(cell) is None else cell
