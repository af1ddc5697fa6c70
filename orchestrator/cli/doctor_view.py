"""A page of checks, as a person and as a script reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.core.doctor.verdicts import Level, Result, counted, exit_code

MARKS = {
    Level.OK: ("ok", "green"),
    Level.WARN: ("warn", "yellow"),
    Level.FAIL: ("FAIL", "bold red"),
    Level.SKIPPED: ("skip", "dim"),
}
AREAS = {"here": "this machine", "gce": "the project", "host": "the host"}


def page(results: Sequence[Result], where: str, seconds: float) -> RenderableType:
    """What is wrong first of all, with its remedy; what is right in one line each."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for result in results:
        if result.check.area != area:
            area = result.check.area
            table.add_row("", Text(AREAS[area], "bold"), Text(where if area != "here" else "", "dim"))
        mark, style = MARKS[result.verdict.level]
        quiet = "dim" if result.verdict.level in (Level.OK, Level.SKIPPED) else ""
        table.add_row(Text(mark, style), Text(result.check.title), Text(result.verdict.why, quiet))
    count = counted(results)
    parts = [
        f"{count[level]} {word}"
        for level, word in (
            (Level.OK, "ok"),
            (Level.WARN, "to know"),
            (Level.FAIL, "to mend"),
            (Level.SKIPPED, "not looked at"),
        )
    ]
    total = Text(f"{', '.join(parts)}; {seconds:.1f} s, nothing spent", "bold" if count[Level.FAIL] else "")
    return Group(table, *_remedies(results), Text(), total)


def _remedies(results: Sequence[Result]) -> list[RenderableType]:
    told = {result.verdict.remedy: result for result in reversed(results) if result.verdict.remedy}
    lines: list[RenderableType] = [Text(), Text("what mends it", "bold")] if told else []
    for result in results:
        remedy = result.verdict.remedy
        if remedy and told.get(remedy) is result:
            mark, style = MARKS[result.verdict.level]
            lines.append(Text.assemble((f"{mark:4} ", style), (result.check.title, "")))
            lines.append(Text(f"     {remedy}", "cyan"))
    return lines


def document(results: Sequence[Result], mode: str, project: str, bucket: str) -> dict[str, Any]:
    """The same for a script."""
    return {
        "schema": 1,
        "mode": mode,
        "project": project,
        "bucket": bucket,
        "exit_code": exit_code(results),
        "counts": {str(level): count for level, count in counted(results).items()},
        "checks": [
            {
                "name": result.check.name,
                "area": result.check.area,
                "level": str(result.verdict.level),
                "why": result.verdict.why,
                "remedy": result.verdict.remedy,
                "fixable": bool(result.verdict.steps),
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }
