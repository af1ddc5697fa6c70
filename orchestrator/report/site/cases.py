"""The page of each case over all runs, with where its time changed and what else changed then; and the list of
cases."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.devices import Column, Time, side_by_side
from orchestrator.analysis.history import HistoryPoint, Reading, history
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core.results import case_order
from orchestrator.core.text import capitalize_first, count
from orchestrator.report.devices import device_sections
from orchestrator.report.figures import RIGHT, SLIM, WIDTH
from orchestrator.report.page import (
    Cell,
    Figure,
    Finder,
    Page,
    PageChoice,
    PageTable,
    Part,
    Section,
    Text,
    Word,
    write_page,
)
from orchestrator.report.site.digest import CaseDigest, Digest, newest_first, unpack_interval
from orchestrator.report.site.index import CASES, GPUS, PRACTICE, case_page, relative_link, run_page, site_nav
from orchestrator.report.style import Look
from orchestrator.report.svg import Board, Scale, axis_span, draw_legend
from orchestrator.report.text import UNKNOWN, format_digits, format_limits, format_tick

LEFT: Final = 76.0
BOTTOM: Final = 244.0
LOOKS: Final = {
    "faster": Look("c2", "triangle"),
    "slower": Look("c1", "square"),
    "neither": Look("c0", "circle"),
    "not judged": Look("c5", "ring"),
}


WORDS: Final = {"neither": "neither faster nor slower"}


def timeline_board(
    points: Sequence[HistoryPoint], title: str, unit: str, *, relative: bool, width: float = WIDTH
) -> Board | None:
    """The figure; None where there is only one run. With width `SLIM` it fits a phone."""
    if len(points) < 2:
        return None
    ends = [end for point in points for end in _ends(point)]
    left, right = (64.0, width - 8) if width < WIDTH else (LEFT, RIGHT)
    across = Scale(0, len(points) - 1, left + 16, right - 8)
    changes = sum(point.change in (Verdict.FASTER, Verdict.SLOWER) for point in points)
    newest = f"{format_digits(points[-1].reading.value.mid)} {unit}"
    caption = f"{title}: {count(len(points), 'run')}, {count(changes, 'change')}, newest {newest}"
    board = Board(width, BOTTOM + 58, caption)
    used = dict.fromkeys(_kind(point) for point in points)
    names = [(WORDS.get(name, name), LOOKS[name]) for name in LOOKS if name in used]
    top = draw_legend(board, left, 18, names, right) + 14
    up = Scale(*axis_span(ends, log=True, pad=0.12), BOTTOM, top, log=True)
    for at in up.ratios(22) if relative else up.ticks(6):
        board.line(left, up(at), right, up(at), "grid")
        board.text(left - 8, up(at) + 4.5, f"{format_tick(at)}{'×' if relative else ''}", "end soft")
    if relative and up.low < 1 < up.high:
        board.line(left, up(1), right, up(1), "axis")
    board.text(12 if width < WIDTH else 16, (top + BOTTOM) / 2, unit, "middle", turned=True)
    _days(board, points, across, top)
    _levels(board, points, across, up)
    for place, point in enumerate(points):
        x, value, look = across(place), point.reading.value, LOOKS[_kind(point)]
        if value.known:
            board.line(x, up(value.low), x, up(value.high), f"l{look.colour[1:]}")
        size = 6.0 if _kind(point) in ("faster", "slower") else 4.0
        point_notes = ", ".join(part for part in (_kind(point), point.doubt, *point.split) if part)
        board.mark(
            x,
            up(value.mid),
            look,
            size,
            f"{point.reading.run_id}: {format_digits(value.mid, 4)} {format_limits(value)} {point_notes}",
        )
    return board


def _ends(point: HistoryPoint) -> list[float]:
    value = point.reading.value
    return [value.low, value.high] if value.known and value.low > 0 else [value.mid]


def _kind(point: HistoryPoint) -> str:
    if point.change is None:
        return "neither"
    if point.change in (Verdict.FASTER, Verdict.SLOWER):
        return point.change.value
    return "not judged" if point.doubt else "neither"


def _days(board: Board, points: Sequence[HistoryPoint], across: Scale, top: float) -> None:
    """Writes the day of each run below it, where there is room."""
    last = -1e9
    for place, point in enumerate(points):
        x = across(place)
        if point.split:
            board.path([(x, top), (x, BOTTOM)], "split")
        board.line(x, BOTTOM, x, BOTTOM + 4, "axis")
        if x - last >= 96 and x + 36 <= board.width:
            board.text(x, BOTTOM + 20, day_of(point.reading.run_id), "middle soft")
            last = x
    middle = (across.begin + across.end) / 2
    board.text(middle, BOTTOM + 44, "runs in the order in which they were begun", "middle soft")


def _levels(board: Board, points: Sequence[HistoryPoint], across: Scale, up: Scale) -> None:
    """Draws a line for each level, from the run that began it to the last run that is compared with it."""
    begun = next((place for place, point in enumerate(points) if not point.reading.doubt), None)
    if begun is None:
        return
    places = [begun]
    places += [place for place, point in enumerate(points) if point.change in (Verdict.FASTER, Verdict.SLOWER)]
    for start, end in zip(places, [*places[1:], len(points) - 1], strict=True):
        y = up(points[start].reading.value.mid)
        board.line(across(start), y, across(end), y, "roof")


# The page that compares devices, from the newest runs on each.


def gpus_page(digests: Sequence[Digest]) -> str:
    measured = [one for one in digests if one.device and one.cases]
    devices = sorted({one.device for one in measured})
    columns = [device_column(device, [one for one in measured if one.device == device]) for device in devices]
    table = side_by_side(columns)
    notes: list[Part] = [
        Text(
            f"{count(len(columns), 'device')}. Each time is of the newest run that has it and was not disturbed; what "
            "was spent is the sum over all runs.",
            "soft",
        )
    ]
    made = device_sections(table)
    if not columns:
        made = [Section("Devices", [Text("No run has measured a case yet.")])]
    elif len(columns) == 1:
        notes.append(Text("A comparison needs a second device.", "soft"))
    if any(one.simulated for one in measured):
        notes.append(Text(PRACTICE, "soft"))
    return write_page(Page("GPUs", "Devices side by side", notes, made, site_nav(GPUS)))


def device_column(device: str, digests: Sequence[Digest]) -> Column:
    """The column of a device. Each time comes from the newest undisturbed run that has it, or else from the newest
    run."""
    runs = newest_first(digests)
    paid = [one for one in runs if not one.simulated]
    times: dict[tuple[str, str, str, str], Time] = {}
    calm = [one for one in runs if not one.busy]
    for digest in (*calm, *(one for one in runs if one.busy)):
        for case in digest.cases:
            time = _time(digest, case)
            if time is not None:
                times.setdefault((case.case_id, case.regime, case.cache, time.implementation), time)
    return Column(
        name=device,
        times=tuple(times.values()),
        runs=tuple(one.run_id for one in runs),
        cost_usd=sum(one.cost_usd for one in paid) if paid else None,
        usd_per_hour=next((one.usd_per_hour for one in paid if one.usd_per_hour), None),
        answers=sum(one.answers for one in paid or runs),
        doubt="" if calm else runs[0].busy,
    )


def _time(digest: Digest, case: CaseDigest) -> Time | None:
    kernel = case.kernel or digest.subject
    kernel_time = case.times.get(kernel)
    if kernel_time is None:
        return None
    rate = case.rates.get(kernel, float("nan"))
    return Time(case.case_id, case.setting, kernel, unpack_interval(kernel_time), case.floor, rate)


MOST: Final = 200
"""The most runs of a series on a page; the newest are shown."""
TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """A series of values over runs: one implementation on one device in one setting, against the same baseline."""

    device: str
    regime: str
    cache: str
    subject: str
    relative_to: str

    @property
    def title(self) -> str:
        setting = Setting(self.regime, self.cache).name
        return " · ".join(part for part in (self.device or "an unknown device", setting) if part)

    @property
    def unit(self) -> str:
        return f"times as fast as {self.relative_to}" if self.relative_to else "µs a call"


Followed = Mapping[Series, Sequence[tuple[Digest, CaseDigest]]]


def by_case(digests: Sequence[Digest]) -> dict[str, dict[Series, list[tuple[Digest, CaseDigest]]]]:
    """The series of each case by case id. Cases are in the order of their axes, runs from the oldest to the newest."""
    found: dict[str, dict[Series, list[tuple[Digest, CaseDigest]]]] = {}
    for digest in sorted(digests, key=lambda one: one.run_id):
        for case in digest.cases:
            if case.value is not None:
                over = digest.relative_to if case.relative else ""
                series = Series(digest.device, case.regime, case.cache, case.kernel or digest.subject, over)
                found.setdefault(case.case_id, {}).setdefault(series, []).append((digest, case))
    return {case: found[case] for case in sorted(found, key=case_order)}


def points_of(series: Series, runs: Sequence[tuple[Digest, CaseDigest]]) -> tuple[HistoryPoint, ...]:
    """The newest runs of a series with their verdicts, as in `bench history`."""
    readings = [
        Reading(
            digest.run_id,
            {**digest.fingerprint, "backend": case.backend},
            unpack_interval(case.value),
            case.floor,
            digest.busy,
        )
        for digest, case in runs[-MOST:]
        if case.value is not None
    ]
    return history(readings, relative=bool(series.relative_to), tolerance=TOLERANCE)


Judged = Mapping[Series, Sequence[HistoryPoint]]
"""The newest runs of each series with their verdicts."""


def judge_series(followed: Followed) -> dict[Series, tuple[HistoryPoint, ...]]:
    return {series: points_of(series, runs) for series, runs in sorted(followed.items())}


def write_case_page(case_id: str, followed: Followed, points: Judged) -> str:
    """The page of one case."""
    path = case_page(case_id)
    sections = [series_section(series, runs, points[series], path) for series, runs in sorted(followed.items())]
    runs = {digest.run_id for found in followed.values() for digest, _ in found}
    head: list[Part] = [
        Text(f"{count(len(runs), 'run')} on {count(len({one.device for one in followed}), 'device')}", "soft"),
        Text(METHOD, "soft"),
    ]
    return write_page(Page(f"{case_id} over time", case_id, head, sections, site_nav(path)))


METHOD: Final = (
    "Each run is compared with the run that began the current level; a run that is faster or slower begins a new "
    "level. Intervals are widened by how much runs of the same code differ here. A difference within 2 %, a run on a "
    "busy machine and another run of the same payload never count as a change."
)


def series_section(
    series: Series, runs: Sequence[tuple[Digest, CaseDigest]], points: Sequence[HistoryPoint], own: str
) -> Section:
    parts: list[Part] = [Text(f"{series.subject}, {series.unit}. {series_summary(points)}", "lead")]
    board, slim = (
        timeline_board(points, series.title, series.unit, relative=bool(series.relative_to), width=width)
        for width in (WIDTH, SLIM)
    )
    if board is not None:
        fewer = f" The newest {MOST} of {count(len(runs), 'run')}." if len(runs) > MOST else ""
        parts.append(
            Figure(
                board,
                "Each mark is a run, oldest on the left, with its 95 % interval; the line is the level that it is "
                f"compared with. At a dashed vertical line the code or a library changed.{fewer}",
                slim,
            )
        )
    practice = {digest.run_id for digest, _ in runs if digest.simulated}
    rows = [_row(point, own, practice, relative=bool(series.relative_to)) for point in reversed(points)]
    unit = f"over {series.relative_to}" if series.relative_to else "median µs"
    heads = ("run", unit, "95 % interval", "change", "what is new", "commit", "payload")
    parts.append(PageTable(f"{series.title}: runs", heads, rows, left=(3, 4, 5, 6), wrap=(3, 4), stack=True))
    return Section(series.title, parts)


def series_summary(points: Sequence[HistoryPoint]) -> str:
    changes = [point.change.value for point in points if point.change in (Verdict.FASTER, Verdict.SLOWER)]
    if len(points) < 2:
        return "One run: nothing to compare with yet."
    if not changes:
        return f"Never faster or slower in {count(len(points), 'run')}."
    often = ((changes.count(word), word) for word in ("faster", "slower"))
    numbers = " and ".join(f"{'once' if n == 1 else f'{n} times'} {word}" for n, word in often if n)
    return f"{capitalize_first(numbers)} in {count(len(points), 'run')}."


def day_of(run_id: str) -> str:
    """The day with which a run's id begins, for example `2026-11-21`."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def _row(point: HistoryPoint, own: str, practice: Container[str], *, relative: bool) -> list[Cell]:
    fingerprint, value = point.reading.fingerprint, point.reading.value
    changed = point.change in (Verdict.FASTER, Verdict.SLOWER)
    word = point.change.value if point.change is not None else "first"
    ratio = f"{point.ratio.mid:.3f}×" if changed and point.ratio is not None else ""
    dirty = "+" if fingerprint.get("git_dirty") else ""
    return [
        Word(
            point.reading.run_id,
            more="practice" if point.reading.run_id in practice else "",
            href=relative_link(run_page(point.reading.run_id), own),
        ),
        format_digits(value.mid, 4),
        format_limits(value, places=2 if relative or value.mid < 100 else 1) or UNKNOWN,
        Word(f"◆ {word} {ratio}" if changed else word, word if changed else "", point.doubt),
        "; ".join(point.split),
        f"{str(fingerprint.get('git_commit') or UNKNOWN)[:10]}{dirty}",
        str(fingerprint.get("payload_sha256") or UNKNOWN)[:8],
    ]


def case_list_page(found: Mapping[str, Followed], points: Mapping[str, Judged], digests: Sequence[Digest]) -> str:
    """The page with the list of cases; `points` is by case id."""
    rows = list(_lines(found, points))
    workloads = sorted({one.workload for one in digests if one.workload})
    heads = ("case", "device", "setting", "implementation", "runs", "newest", "what", "changes", "last change")
    choices = [PageChoice("device", "Device", 1, sorted({str(row[1]) for row in rows})),
               PageChoice("setting", "Setting", 2, sorted({str(row[2]) for row in rows}))]  # fmt: skip
    orders = [(name, place) for place, name in enumerate(heads)]
    finder = Finder("histories", [one for one in choices if len(one.values) > 1], orders)
    table = PageTable("Cases", heads, rows, left=(1, 2, 3, 6, 8), wrap=(8,), stack=True, sortable=True)
    parts: list[Part] = [finder, table] if rows else [Text("No run has measured a case yet.")]
    facts = [count(len(found), "case"), *workloads]
    meaning = "Newest: how many times as fast as the implementation beside it (×), or a time."
    head: list[Part] = [Text(" · ".join(facts), "soft"), *([Text(meaning, "soft")] if rows else [])]
    return write_page(Page("Cases", "Cases over time", head, [Section("Cases", parts)], site_nav(CASES)))


def _lines(found: Mapping[str, Followed], judged_: Mapping[str, Judged]) -> Iterator[list[Cell]]:
    for case_id, followed in found.items():
        for series, runs in sorted(followed.items()):
            points = judged_[case_id][series]
            changed = [point for point in points if point.change in (Verdict.FASTER, Verdict.SLOWER)]
            last = changed[-1] if changed else None
            anchor = Section(series.title, ()).anchor
            word = last.change.value if last is not None and last.change is not None else ""
            more = "practice" if all(digest.simulated for digest, _ in runs) else ""
            yield [
                Word(case_id, more=more, href=f"{relative_link(case_page(case_id), CASES)}#{anchor}"),
                series.device or UNKNOWN,
                Setting(series.regime, series.cache).name or UNKNOWN,
                series.subject,
                str(len(runs)),
                format_digits(points[-1].reading.value.mid, 4),
                f"× {series.relative_to}" if series.relative_to else "µs",
                str(len(changed)),
                Word(f"{word}, {day_of(last.reading.run_id)}", word, key=last.reading.run_id)
                if last is not None
                else UNKNOWN,
            ]
