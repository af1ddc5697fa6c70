"""Shows a comparison of devices, with a column for each GPU: as a page, as Markdown and as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from orchestrator.analysis.across import floor_of
from orchestrator.analysis.devices import Against, Column, Devices, Row, Time
from orchestrator.analysis.study import Study
from orchestrator.core.results import is_control
from orchestrator.report.document import pick_fields, setting_of
from orchestrator.report.markdown import markdown_cell, table_line
from orchestrator.report.page import Cell, PageTable, Part, Section, Text, Word
from orchestrator.report.report import Report
from orchestrator.report.text import UNKNOWN, case_labels, common_parts, format_digits, format_energy, format_ratio

METHOD: Final = (
    "Each device is compared with the best of its row. Times of two devices come from two runs, so their intervals are "
    "combined as independent ones and then widened by how much two runs of the same code usually differ. A name in "
    "bold is ahead of every other device of its row: the interval excludes 1, the p-value is below 0.05 after Holm’s "
    "correction over all rows, and the ratio is beyond the noise and 2 %. Calls a dollar are the calls that a dollar "
    "pays for, at the machine’s price by the hour, if it does nothing else."
)
SIMULATED: Final = "Prices of the embedded cloud are simulated: no dollar was spent."


def times_of(study: Study) -> tuple[Time, ...]:
    """The medians of a run, without controls."""
    return tuple(
        Time(
            case.case_id,
            case.setting,
            one.implementation,
            one.median_us,
            floor_of(case, one.implementation),
            one.tflops,
            one.joules,
        )
        for case in study.cases
        for one in case.timings
        if one.timed and not is_control(one.implementation)
    )


def column_of(report: Report, *, name: str = "", usd_per_hour: float | None = None) -> Column:
    """One run as a column; `usd_per_hour` is the price of its machine."""
    study = report.study
    doubt = "; ".join(words.rstrip(".") for words in report.busy())
    return Column(
        name or study.device or "an unknown device", times_of(study), (study.run_id,), report.cost_usd, usd_per_hour,
        study.answers, report.simulated, doubt,
    )  # fmt: skip


def device_sections(found: Devices) -> list[Section]:
    """The sections: what each device cost, and for each setting which is fastest and which gives most for a dollar."""
    if not found.columns:
        return []
    made = [Section("Devices", [*_summary(found)])]
    for setting in found.settings():
        rows = [row for row in found.rows if row.setting == setting]
        title = f"{setting.name.capitalize() or 'Times'}"
        notes: list[Part] = [Text(setting.meaning, "soft")] if setting.meaning else []
        made.append(Section(f"{title}: time", [*notes, device_table(found, rows)]))
        if any(column.usd_per_hour for column in found.columns):
            made.append(Section(f"{title}: calls a dollar", [device_table(found, rows, of_value=True)]))
    if any(cell is not None and cell.time.joules > 0 for row in found.rows for cell in row.cells):
        made.append(Section("Energy of a call", [_energy(found)]))
    made.append(Section("How devices are compared", [Text(METHOD)]))
    return made


def _summary(found: Devices) -> Iterable[Part]:
    yield device_summary(found)
    if any(column.simulated for column in found.columns):
        yield Text(SIMULATED, "soft")
    yield from (Text(f"{column.name}: {column.doubt}.", "warn") for column in found.columns if column.doubt)


def device_summary(found: Devices) -> PageTable:
    """A row for each device: its runs and answers, and what they cost where somebody was paid."""
    columns = list(enumerate(found.columns))
    cells: dict[str, list[Cell]] = {
        "device": [one.name for _, one in columns],
        "runs": [f"{len(one.runs):,}" if one.runs else UNKNOWN for _, one in columns],
        "$ an hour": [format_money(one.usd_per_hour, 4) for _, one in columns],
        "spent": [format_money(one.cost_usd, 4) for _, one in columns],
        "answers": [f"{one.answers:,}" for _, one in columns],
        "$ an answer": [format_money(one.usd_per_answer, 6) for _, one in columns],
    }
    if len(columns) > 1:
        cells["fastest in"] = [f"{_ahead(found, place, of_value=False)}" for place, _ in columns]
        cells["most for a dollar in"] = [f"{_ahead(found, place, of_value=True)}" for place, _ in columns]
    if all(one.cost_usd is None and one.usd_per_hour is None for _, one in columns):  # nobody was paid
        cells = {head: column for head, column in cells.items() if "$" not in head and head not in UNPAID}
    return PageTable("Devices", tuple(cells), list(zip(*cells.values(), strict=True)), stack=True)


UNPAID: Final = ("spent", "most for a dollar in")


def _ahead(found: Devices, place: int, *, of_value: bool) -> int:
    return sum((row.cheapest if of_value else row.fastest) == place for row in found.rows)


def format_money(usd: float | None, places: int) -> str:
    return UNKNOWN if usd is None else f"${usd:,.{places}f}"


def device_table(found: Devices, rows: Sequence[Row], *, of_value: bool = False) -> PageTable:
    """A row for each case, a column for each device: medians, or calls a dollar, with the ratio to the best of the
    row."""
    names = case_labels(list(dict.fromkeys(row.case_id for row in rows)))
    several = len({row.implementation for row in rows}) > 1
    heads = ["case", *(["implementation"] if several else []), *(column.name for column in found.columns)]
    lines: list[list[Cell]] = []
    for row in rows:
        row_cells: list[Cell] = [names[row.case_id], *([row.implementation] if several else [])]
        lines.append([*row_cells, *(_cell(row, place, of_value=of_value) for place in range(len(found.columns)))])
    unit = "calls a dollar" if of_value else "median µs"
    return PageTable(f"{rows[0].setting.name or 'all'}: {unit}", heads, lines, left=(1,) if several else (), stack=True)


def _energy(found: Devices) -> PageTable:
    """Joules a call where a device reports them, otherwise a dash."""
    rows = [row for row in found.rows if any(cell is not None and cell.time.joules > 0 for cell in row.cells)]
    names = case_labels(list(dict.fromkeys(row.case_id for row in rows)))
    lines: list[list[Cell]] = [
        [
            names[row.case_id], row.implementation, row.setting.name or UNKNOWN,
            *(UNKNOWN if cell is None else format_energy(cell.time.joules) for cell in row.cells),
        ]
        for row in rows
    ]  # fmt: skip
    heads = ("case", "implementation", "regime", *(column.name for column in found.columns))
    return PageTable("Energy of a call", heads, lines, left=(1, 2), stack=True)


def _cell(row: Row, place: int, *, of_value: bool) -> Cell:
    cell = row.cells[place]
    if cell is None or (of_value and math.isnan(cell.calls_per_usd)):
        return UNKNOWN
    shown = f"{cell.calls_per_usd:,.0f}" if of_value else format_digits(cell.time.median_us.mid, 4)
    against = cell.value if of_value else cell.speed
    won = (row.cheapest if of_value else row.fastest) == place
    return Word(shown, "differs" if won else "", _said(against))


def _said(against: Against | None) -> str:
    """The ratio and the verdict. The reason why a device cannot be compared is shown only once, beside its costs."""
    if against is None:
        return ""
    return f"{format_ratio(against.ratio.mid)} {WORDS.get(against.verdict.value, against.verdict.value)}"


WORDS: Final = {"slower": "behind", "faster": "ahead"}


def devices_markdown(found: Devices) -> str:
    """The tables as Markdown, for a README or a pull request."""
    lines: list[str] = []
    for section in device_sections(found):
        lines += [f"**{markdown_cell(section.title)}**", ""]
        for part in section.parts:
            if isinstance(part, Text):
                lines += [markdown_cell(part.text), ""]
            elif isinstance(part, PageTable):
                lines += [*_markdown_table(part, found), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(part: PageTable, found: Devices) -> Iterable[str]:
    shared = "-".join(common_parts(list(dict.fromkeys(row.case_id for row in found.rows))))
    heads = [shared if head == "case" and shared else head for head in part.heads]
    yield table_line(map(markdown_cell, heads))
    yield "|---|" + "--:|" * (len(heads) - 1)
    for row in part.rows:
        yield table_line(map(_markdown_cell, row))


def _markdown_cell(one: Cell) -> str:
    if isinstance(one, str):
        return markdown_cell(one)
    shown = f"**{markdown_cell(one.text)}**" if one.style == "differs" else markdown_cell(one.text)
    return f"{shown} ({markdown_cell(one.more)})" if one.more else shown


def devices_document(found: Devices) -> dict[str, Any]:
    """The comparison as JSON. Unknown values are null."""
    return {
        "schema": 1,
        "devices": [pick_fields(one, COLUMN) for one in found.columns],
        "rows": [
            {
                "case_id": row.case_id,
                **setting_of(row.setting),
                "implementation": row.implementation,
                "fastest": found.columns[row.fastest].name if row.fastest is not None else None,
                "most_for_a_dollar": found.columns[row.cheapest].name if row.cheapest is not None else None,
                "cells": [None if cell is None else pick_fields(cell, CELL) for cell in row.cells],
            }
            for row in found.rows
        ],
    }


CELL: Final = "median_us=time.median_us tflops=time.tflops joules_per_call=time.joules calls_per_usd speed value"
COLUMN: Final = "name runs cost_usd usd_per_hour answers usd_per_answer prices_simulated=simulated doubt"
