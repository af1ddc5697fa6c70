"""The first page, with a row for each run, newest first; and the paths of all pages with the links between them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.run.fold import OUTCOMES
from orchestrator.core.text import count, format_clock
from orchestrator.report.page import (
    Cell,
    Finder,
    Link,
    Page,
    PageChoice,
    PageTable,
    Part,
    Section,
    Text,
    Word,
    write_page,
)
from orchestrator.report.site.digest import Digest, newest_first
from orchestrator.report.text import UNKNOWN

# The paths of a site's pages and the links between them. Links are relative, so that a folder of pages can be moved.


INDEX: Final = "index.html"
CASES: Final = "cases/index.html"
GPUS: Final = "gpus.html"
COSTS: Final = "costs.html"
TOP: Final = (("Runs", INDEX), ("Cases", CASES), ("GPUs", GPUS), ("Costs", COSTS))
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def run_page(run_id: str) -> str:
    """The path of a run's page. Run ids are safe in paths, as they were checked
    (`orchestrator.core.naming.is_run_id`)."""
    return f"runs/{run_id}.html"


def case_page(case_id: str) -> str:
    """The path of a case's page. A case may have any name; one that is not plain gets a digest in its path."""
    return f"cases/{file_slug(case_id)}.html"


def file_slug(text: str) -> str:
    """A name for a file or for an anchor. Two different texts never get the same name."""
    if _PLAIN.fullmatch(text) and text.lower() not in ("index", "con", "nul", "aux", "prn") and text == text.lower():
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
    return f"{plain or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:10]}"


def relative_link(path: str, page: str) -> str:
    """The relative link from `page` to `path`, which are both paths from the top of the site."""
    return "../" * page.count("/") + path


def site_nav(page: str) -> tuple[Link, ...]:
    """The links at the top of every page."""
    return tuple(Link(name, relative_link(path, page), here=path == page) for name, path in TOP)


HEADS: Final = (
    "run",
    "workload",
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
PRACTICE: Final = (
    "Practice runs measured the computer that they were started on: nothing was rented, and no dollar was spent."
)


def index_page(digests: Sequence[Digest], bucket: str) -> str:
    """The whole file. It is always the same for the same runs, so that an unchanged page is not written again."""
    runs = newest_first(digests)
    parts: list[Part] = []
    if runs:
        parts = [run_finder(runs), run_table(runs)]
    else:
        parts = [Text("There are no runs yet. bench launch --gpu l4 makes one.")]
    practice = sum(one.simulated for one in runs)
    practised = f"{practice} of them practice" if practice < len(runs) else "all of them practice"
    facts = (bucket, count(len(runs), "run"), practised if practice else "", last_change(runs))
    head = [Text(" · ".join(part for part in facts if part), "soft")]
    if practice:
        head.append(Text(PRACTICE, "soft"))
    sections = [Section("Runs", parts)]
    return write_page(Page(f"Runs · {bucket}", "Benchmark runs", head, sections, site_nav(INDEX)))


def run_finder(runs: Sequence[Digest]) -> Finder:
    choices = [
        PageChoice("gpu", "GPU", 2, distinct_values([one.status.gpu for one in runs])),
        PageChoice("state", "State", 5, distinct_values([shown_state(one) for one in runs])),
        PageChoice("by", "By", 4, distinct_values([one.status.user for one in runs])),
    ]
    orders = [(name, place) for place, name in enumerate(HEADS) if place not in (4,)]
    return Finder("runs", [one for one in choices if len(one.values) > 1 and one.name != "by"], orders)


def distinct_values(texts: Sequence[str]) -> list[str]:
    return sorted({text for text in texts if text})


def run_table(runs: Sequence[Digest]) -> PageTable:
    rows = [run_row(one) for one in runs]
    return PageTable("Runs", HEADS, rows, left=(1, 2, 3, 4, 5, 7), wrap=(1, 7), minor=(2, 4), stack=True, sortable=True)


def run_row(one: Digest) -> list[Cell]:
    line = one.status
    verdicts = ", ".join(f"{one.counts[word.value]} {word.value}" for word in Verdict if one.counts.get(word.value))
    state = shown_state(one)
    faults = "; ".join(words.partition(":")[0] for words in one.wrong)
    faster = one.counts.get("faster", 0)
    return [
        Word(one.run_id, href=run_page(one.run_id)),
        one.workload or UNKNOWN,
        line.gpu or UNKNOWN,
        one.device or UNKNOWN,
        line.user or UNKNOWN,
        Word(state, style_of(line.phase), key=state),
        Word(f"{line.cases_done} of {line.cases_total}", key=str(line.cases_done)),
        Word(faults or verdicts or UNKNOWN, "failed" if faults else "", verdicts if faults else "",
             key=str(faster) if verdicts else ""),
        Word(format_clock(line.seconds), key=str(line.seconds)),
        shown_cost(one),
    ]  # fmt: skip


def shown_cost(one: Digest) -> Word:
    """The cost of a run; practice costs nothing."""
    if one.simulated:
        return Word("practice", "soft", key="0")
    return Word(f"${one.cost_usd:,.4f}", key=f"{one.cost_usd:.6f}")


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
