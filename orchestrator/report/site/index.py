"""The first page: a row for each run, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.run.fold import OUTCOMES
from orchestrator.core.text import clock, count
from orchestrator.report.page import Cell, Choice, Finder, Page, Part, Section, Table, Text, Word, written
from orchestrator.report.site.digest import Digest, newest_first
from orchestrator.report.site.links import INDEX, nav, run_page
from orchestrator.report.text import UNKNOWN

HEADS: Final = (
    "run",
    "started, UTC",
    "GPU",
    "device",
    "by",
    "state",
    "cases",
    "verdicts",
    "took",
    "cost",
)
FAILED: Final = ("failed", "incorrect", "refused")


def page(digests: Sequence[Digest], bucket: str) -> str:
    """The whole file. It is always the same for the same runs, so that an unchanged page is not written again."""
    runs = newest_first(digests)
    parts: list[Part] = []
    if runs:
        parts = [finder(runs), table(runs)]
    else:
        parts = [Text("There are no runs yet. bench launch --gpu l4 makes one.")]
    simulated = [Text("* simulated prices of the embedded cloud: no dollar was spent.", "soft")]
    sections = [Section("Runs", [*parts, *(simulated if any(one.simulated for one in runs) else [])])]
    head = [Text(" · ".join(part for part in (bucket, count(len(runs), "run"), last_change(runs)) if part), "soft")]
    return written(Page(f"Runs · {bucket}", "Benchmark runs", head, sections, nav(INDEX)))


def finder(runs: Sequence[Digest]) -> Finder:
    choices = [
        Choice("gpu", "GPU", 2, values([one.status.gpu for one in runs])),
        Choice("state", "State", 5, values([shown_state(one) for one in runs])),
        Choice("by", "By", 4, values([one.status.user for one in runs])),
    ]
    orders = [(name, place) for place, name in enumerate(HEADS) if place not in (4,)]
    return Finder("runs", [one for one in choices if len(one.values) > 1 and one.name != "by"], orders)


def values(texts: Sequence[str]) -> list[str]:
    return sorted({text for text in texts if text})


def table(runs: Sequence[Digest]) -> Table:
    rows = [row(one) for one in runs]
    return Table("Runs", HEADS, rows, left=(1, 2, 3, 4, 5, 7), wrap=(3, 7), stack=True, sortable=True)


def row(one: Digest) -> list[Cell]:
    line = one.status
    verdicts = ", ".join(f"{one.counts[word.value]} {word.value}" for word in Verdict if one.counts.get(word.value))
    state = shown_state(one)
    cost = f"${one.cost_usd:,.4f}"
    faster = one.counts.get("faster", 0)
    return [
        Word(one.run_id, href=run_page(one.run_id)),
        line.created_at[:16].replace("T", " "),
        line.gpu or UNKNOWN,
        one.device or UNKNOWN,
        line.user or UNKNOWN,
        Word(state, style_of(line.phase), key=state),
        Word(f"{line.cases_done} of {line.cases_total}", key=str(line.cases_done)),
        Word(verdicts or UNKNOWN, key=str(faster) if verdicts else ""),
        Word(clock(line.seconds), key=str(line.seconds)),
        Word(f"{cost}*" if one.simulated else cost, key=f"{one.cost_usd:.6f}"),
    ]


UNREADABLE: Final = "unreadable"
"""The phase that is shown for a run whose events cannot be read."""


def shown_state(one: Digest) -> str:
    line = one.status
    if line.phase == UNREADABLE:
        return UNREADABLE
    return line.phase.replace("_", " ") if line.phase in OUTCOMES else f"running: {line.vm_phase or line.phase}"


def style_of(phase: str) -> str:
    if phase == UNREADABLE:
        return "failed"
    if phase not in OUTCOMES:
        return "running"
    return "" if phase == "succeeded" else "failed" if phase in FAILED else "soft"


def last_change(runs: Sequence[Digest]) -> str:
    at = max((one.status.updated_at for one in runs), default="")
    return f"last change {at[:16].replace('T', ' ')} UTC" if at else ""
