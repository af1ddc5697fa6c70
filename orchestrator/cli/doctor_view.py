"""Shows a page of checks, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.screen import screen
from orchestrator.core.doctor.verdicts import Level, Result, counted, exit_code
from orchestrator.core.wording import count

MARKS = {
    Level.OK: ("ok", "green"),
    Level.WARN: ("warn", "yellow"),
    Level.FAIL: ("FAIL", "bold red"),
    Level.SKIPPED: ("skip", "dim"),
}
AREAS = {"here": "this machine", "gce": "the project", "host": "the host"}


def page(results: Sequence[Result], where: str) -> RenderableType:
    """A line for each check; neighbours that were skipped for the same reason share a line."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for lines in _lines(results):
        first = lines[0]
        if first.check.area != area:
            area = first.check.area
            table.add_row("", Text(AREAS[area], "bold"), Text(where if area != "here" else "", "dim"))
        mark, style = MARKS[first.verdict.level]
        quiet = "dim" if first.verdict.level in (Level.OK, Level.SKIPPED) else ""
        title = first.check.title if len(lines) == 1 else count(len(lines), "check")
        also = "" if len(lines) == 1 else f" ({', '.join(dict.fromkeys(line.check.title for line in lines))})"
        table.add_row(Text(mark, style), Text(title), Text(first.verdict.why + also, quiet))
    return table


def _lines(results: Sequence[Result]) -> list[list[Result]]:
    """The results grouped by line: neighbours that were skipped for the same reason share one."""
    lines: list[list[Result]] = []
    for result in results:
        last = lines[-1][-1] if lines else None
        if last is not None and Level.SKIPPED is last.verdict.level and last.verdict == result.verdict:
            lines[-1].append(result)
        else:
            lines.append([result])
    return lines


def remedies(results: Sequence[Result]) -> list[Text]:
    """The remedies, one on each line, so that each can be copied whole."""
    told: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda one: one.verdict.level is not Level.FAIL):
        if result.verdict.remedy:
            told.setdefault(result.verdict.remedy, []).append(result)
    lines = [Text(), Text("how to fix it", "bold")] if told else []
    for remedy, wrong in told.items():
        _, style = MARKS[max((one.verdict.level for one in wrong), key=[*MARKS].index)]
        lines.append(Text(", ".join(one.check.title for one in wrong), style))
        lines.append(Text(f"    {remedy}", "cyan"))
    return lines


def total(results: Sequence[Result], seconds: float) -> Text:
    """How many checks had which result, and how long they took."""
    count = counted(results)
    words = ((Level.OK, "ok"), (Level.WARN, "warn"), (Level.FAIL, "fail"), (Level.SKIPPED, "skipped"))
    parts = ", ".join(f"{count[level]} {word}" for level, word in words)
    return Text(f"\n{parts}; {seconds:.1f} s, nothing spent", "bold" if count[Level.FAIL] else "")


def show(results: Sequence[Result], where: str, seconds: float) -> None:
    """The page, on standard output. Commands are not wrapped, so that they can be copied."""
    console = screen()
    console.print(page(results, where))
    for line in (*remedies(results), total(results, seconds)):
        console.print(line, soft_wrap=True)


def document(results: Sequence[Result], mode: str, project: str, bucket: str) -> dict[str, Any]:
    """The page as a document."""
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
