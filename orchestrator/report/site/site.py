"""All pages of a site but those of the runs, made from the digests of the runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.budget import Caps, Ledger, counted_costs, key_of, lower_caps, window_exposure
from orchestrator.core.text import count
from orchestrator.report.figures import SLIM, WIDTH
from orchestrator.report.page import Cell, Figure, Page, PageTable, Part, Section, Text, Word, write_page
from orchestrator.report.site import cases, index
from orchestrator.report.site.digest import Digest
from orchestrator.report.site.index import CASES, COSTS, GPUS, INDEX, case_page, run_page, site_nav
from orchestrator.report.svg import Board, Scale
from orchestrator.report.text import UNKNOWN, format_tick

DAYS: Final = 60
LEAST_DAYS: Final = 7
DATE_WIDTH: Final = 92.0
"""The width of a day's name on the axis, with the room beside it."""
DEAREST: Final = 10


def costs_page(digests: Sequence[Digest], ledger: Ledger | None, caps: Caps, now: datetime, trouble: str = "") -> str:
    """The whole file. `ledger` is None where it cannot be read, and `trouble` says why. `caps` are the client's own."""
    sections: list[Section] = []
    if ledger is not None:
        sections.append(Section("Caps", [_caps(ledger, caps, now, pretend=False)]))
    real, pretended = ([one for one in digests if one.simulated is kind] for kind in (False, True))
    sections += _of_runs(real, now)
    if ledger is not None and counted_costs(ledger):
        sections.append(Section("Other costs", [_others(ledger)]))
    head: list[Part] = [Text(trouble, "warn")] if trouble else []
    if pretended:
        head.append(Text(f"{count(len(pretended), 'practice run')}: no dollar was spent on practice.", "soft"))
    if not any(one.cost_usd > 0 for one in real):
        head.append(Text("No run has cost anything yet."))
    return write_page(Page("Costs", "Costs", head, sections, site_nav(COSTS)))


def _caps(ledger: Ledger, own: Caps, now: datetime, *, pretend: bool) -> PageTable:
    both = lower_caps(ledger, own)
    rows: list[list[Cell]] = []
    for window, name in (("day", key_of("day", now)), ("month", key_of("month", now)), ("total", "all of it")):
        seen, cap = window_exposure(ledger, window, now, pretend=pretend), both.of(window)  # type: ignore[arg-type]
        usd_left = UNKNOWN if cap is None else format_usd(cap - seen.total)
        rows.append(
            [name, format_usd(seen.spent), format_usd(seen.held), "none" if cap is None else format_usd(cap), usd_left]
        )
    return PageTable("Caps", ("window, UTC", "spent", "held", "cap", "left"), rows, stack=True)


def format_usd(amount: Decimal | float) -> str:
    return f"${amount:,.4f}"


def _of_runs(runs: Sequence[Digest], now: datetime) -> list[Section]:
    paid = [one for one in runs if one.cost_usd > 0]
    if not paid:
        return []
    total = f"{format_usd(sum(one.cost_usd for one in paid))} for {count(len(paid), 'run')}."
    parts: list[Part] = [Text(total, "lead")]
    board, slim = by_day(paid, now), by_day(paid, now, SLIM)
    if board is not None:
        parts.append(Figure(board, "Dollars by the day on which a run was begun, UTC.", slim))
    made = [Section("Runs", parts)]
    for title, key in KEYS.items():
        made.append(Section(title, [_sums(title, paid, key)]))
    dearest = sorted(paid, key=lambda one: (-one.cost_usd, one.run_id))[:DEAREST]
    rows: list[list[Cell]] = [
        [
            Word(one.run_id, href=run_page(one.run_id)),
            one.device or UNKNOWN,
            f"{one.answers:,}",
            format_usd(one.cost_usd),
        ]
        for one in dearest
    ]
    heads = ("run", "device", "answers", "cost")
    made.append(Section("Most expensive runs", [PageTable("Most expensive runs", heads, rows, left=(1,), stack=True)]))
    return made


KEYS: Final[Mapping[str, Callable[[Digest], str]]] = {
    "By month": lambda one: one.status.created_at[:7],
    "By GPU": lambda one: one.status.gpu or UNKNOWN,
    "By user": lambda one: one.status.user or UNKNOWN,
}


def _sums(title: str, runs: Sequence[Digest], key: Callable[[Digest], str]) -> PageTable:
    digests: dict[str, list[Digest]] = {}
    for one in runs:
        digests.setdefault(key(one), []).append(one)
    rows: list[list[Cell]] = []
    for name, own in sorted(digests.items()):
        spent, answers = sum(one.cost_usd for one in own), sum(one.answers for one in own)
        each = f"${spent / answers:.6f}" if answers else UNKNOWN
        rows.append([name, f"{len(own):,}", format_usd(spent), format_usd(spent / len(own)), f"{answers:,}", each])
    head = title.removeprefix("By ")
    heads = (head if head.isupper() else head.lower(), "runs", "spent", "$ a run", "answers", "$ an answer")
    return PageTable(title, heads, rows, stack=True)


def _others(ledger: Ledger) -> PageTable:
    rows: list[list[Cell]] = [
        [f"{cost.at:%Y-%m-%d %H:%M}", cost.category, cost.note or UNKNOWN, format_usd(cost.usd)]
        for cost in sorted(counted_costs(ledger).values(), key=lambda one: one.at, reverse=True)
    ]
    return PageTable("Other costs", ("when, UTC", "kind", "note", "cost"), rows, left=(1, 2), wrap=(2,), stack=True)


def by_day(runs: Sequence[Digest], now: datetime, width: float = WIDTH) -> Board | None:
    """A figure with a bar for each day, from the first of the last `DAYS` days on which something was spent, and of at
    least `LEAST_DAYS`; None where nothing was spent in them. With width `SLIM` it fits a phone."""
    days = [f"{now - timedelta(days=back):%Y-%m-%d}" for back in range(DAYS - 1, -1, -1)]
    spent = dict.fromkeys(days, 0.0)
    for one in runs:
        day = one.status.created_at[:10]
        if day in spent:
            spent[day] += one.cost_usd
    most, total = max(spent.values()), sum(spent.values())
    if most <= 0:
        return None
    first = next(place for place, day in enumerate(days) if spent[day] > 0)
    days = days[min(first, DAYS - LEAST_DAYS) :]
    title = f"Dollars by day over {count(len(days), 'day')}: {format_usd(total)} in all"
    board = Board(width, 222, f"{title}, {format_usd(most)} on the most expensive day")
    left, right = 70.0, width - 12
    up, step = Scale(0, most * 1.08, 180, 20), (right - left) / len(days)
    for value in up.ticks(5):
        board.line(left, up(value), right, up(value), "grid")
        board.text(left - 8, up(value) + 4.5, f"${format_tick(value)}", "end soft")
    named_x = right + DATE_WIDTH
    for place, day in reversed(list(enumerate(days))):
        x, amount = left + place * step, spent[day]
        if amount:
            board.box(x + step * 0.1, up(amount), step * 0.8, 180 - up(amount), "c0", f"{day}: {format_usd(amount)}")
        middle = min(x + step / 2, width - DATE_WIDTH / 2)
        if named_x - middle >= DATE_WIDTH and middle >= left:
            board.text(middle, 202, day, "middle soft")
            named_x = middle
    board.line(left, 180, right, 180, "axis")
    return board


@dataclass(frozen=True, slots=True)
class Money:
    """What the costs page needs of the ledger; `trouble` says why it cannot be read."""

    ledger: Ledger | None = None
    caps: Caps = field(default_factory=Caps)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A page: its path, a digest of what it was made from, and its text, which is None where it did not change."""

    path: str
    source: str
    text: str | None


def shared_pages(
    digests: Sequence[Digest], bucket: str, money: Money, now: datetime, before: Mapping[str, str]
) -> Iterator[Made]:
    """The pages of the index, the cases, the devices and the costs. `before` has the source digest of each page of the
    last build: the page of a case is made again only where its source has changed."""
    yield Made(INDEX, "", index.index_page(digests, bucket))
    pages_by_case = cases.by_case(digests)
    points = {case_id: cases.judge_series(followed) for case_id, followed in pages_by_case.items()}
    for case_id, followed in pages_by_case.items():
        path, source = case_page(case_id), source_of(followed)
        yield Made(
            path,
            source,
            None if before.get(path) == source else cases.write_case_page(case_id, followed, points[case_id]),
        )
    yield Made(CASES, "", cases.case_list_page(pages_by_case, points, digests))
    yield Made(GPUS, "", cases.gpus_page(digests))
    yield Made(COSTS, "", costs_page(digests, money.ledger, money.caps, now, money.trouble))


def source_of(followed: cases.Followed) -> str:
    """The digest of everything from which the page of a case is made."""
    sources = [
        [
            asdict(series),
            [[run.run_id, dict(run.fingerprint), run.busy, case.value, case.noise, case.backend] for run, case in own],
        ]
        for series, own in sorted(followed.items())
    ]
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:32]
