"""Reads measurements line by line into one group for each run, case, setting and implementation.

Lines that cannot be used are counted and reported with the first line where each fault occurred; the others are kept.
Memory grows by about a hundred bytes a measurement.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.regimes import Setting
from orchestrator.core.results import ResultsUnreadable, axes_of, is_latency

Vector = NDArray[np.float64]
Places = NDArray[np.intp]

NEEDED: Final = ("case_id", "implementation", "latency_us")
PEAK: Final = "peak_memory_bytes"
SENSORS: Final = (
    "sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "position", "calls", "energy_j",
    "cpu_mhz", "load_1m", "steal_percent", "timer_overhead_us", "host_us", "joules_per_call", PEAK,
)  # fmt: skip
"""Optional columns of numbers. Any row may lack a value, which is then NaN."""


WORDS: Final = (
    "stopped", "warmed", "definition", "role", "fault", "flop", "bytes", "roof_flops", "roof_bytes", "ranking",
)  # fmt: skip
"""Columns of text that is the same in all rows of a group: why the measurement stopped, how the warm-up ended, where
and as what the workload defines the implementation, the kind of a fault, the work of a call, measured peaks, and how
the problem's score counts the case."""
BROKEN: Final = {
    "hung": "hung", "crashed": "crashed", "was killed": "crashed", "out of memory": "memory", "untrusted": "untrusted",
    "raised": "raised",
}  # fmt: skip
"""For files without the column `fault`: words of a reason, and the kind of it."""


@dataclass(frozen=True, slots=True)
class Key:
    run_id: str
    case_id: str
    setting: Setting
    implementation: str


@dataclass(frozen=True, slots=True)
class Group:
    """The measurements of one implementation on one case in one setting, by block. All vectors have the same length."""

    key: Key
    device: str
    backend: str
    axes: Mapping[str, str]
    block: NDArray[np.int64]
    latency_us: Vector
    at: Vector
    """When each measurement was taken, in seconds since 1970; NaN where the file does not say."""
    sensors: Mapping[str, Vector]
    throttled: NDArray[np.bool_]
    max_abs_error: float
    skipped: str
    """Why there are no measurements; empty where there are some."""
    words: Mapping[str, str]
    """The known values of the columns `WORDS`."""
    fault: str = ""
    """The kind of the reason in `skipped` (`wrong`, `hung`, `unavailable`, ...); empty where nothing was skipped."""
    exposed: bool = False
    """Whether the file records if launches were hidden and no measurement of the group had a hidden launch. If some had
    one, the measurements without one are left out and this is False."""
    disturbed: int = 0
    """In how many measurements something else used the device, however often they were taken again."""

    @property
    def count(self) -> int:
        return int(self.latency_us.size)

    @property
    def is_hidden(self) -> bool:
        """Whether launches were hidden, as far as the file says."""
        return not self.exposed

    def shared(self, other: Group) -> tuple[Places, Places]:
        """Where the blocks that both have are in this one and in the other, by block."""
        block, other_block = self.block, other.block
        if block.size == other_block.size and (block == other_block).all() and (block[1:] > block[:-1]).all():
            return (places := np.arange(block.size)), places
        _, mine, its = np.intersect1d(block, other_block, assume_unique=True, return_indices=True)
        return mine, its


@dataclass(slots=True)
class _Growing:
    first: Mapping[str, str]
    block: array[int] = field(default_factory=lambda: array("q"))
    latency_us: array[float] = field(default_factory=lambda: array("d"))
    at: array[float] = field(default_factory=lambda: array("d"))
    throttled: array[int] = field(default_factory=lambda: array("b"))
    disturbed: array[int] = field(default_factory=lambda: array("b"))
    exposed: array[int] = field(default_factory=lambda: array("b"))
    sensors: dict[str, array[float]] = field(default_factory=dict)
    backends: dict[str, None] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    max_abs_error: float = math.nan
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class _Places:
    """The index of each column in a row of a file; `nowhere` is the index after the last cell."""

    run_id: int
    case_id: int
    regime: int
    cache: int
    implementation: int
    max_abs_error: int
    backend: int
    skipped: int
    latency_us: int
    block: int
    started_at: int
    throttle: int
    hidden: int
    shared: int
    nowhere: int
    sensors: tuple[int, ...]
    words: tuple[tuple[str, int], ...]
    first: tuple[tuple[str, int], ...]
    """The columns of axes and device, which are taken from the first row of a group."""

    @classmethod
    def of(cls, header: Sequence[str]) -> _Places:
        place = {name: index for index, name in enumerate(header)}
        none = len(place)
        ones = {name: place.get(name, none) for name in cls.__slots__ if name not in ("sensors", "words", "first")}
        return cls(
            **ones | {"nowhere": none},
            sensors=tuple(place.get(name, none) for name in SENSORS),
            words=tuple((name, place[name]) for name in WORDS if name in place),
            first=tuple((name, place.get(name, none)) for name in (*axes_of(header), "device")),
        )


REPEATS: Final = "rows repeat a block that is already there"
EXPOSED: Final = "rows were measured with the launch not hidden"
ALONE: Final = (
    ("rows are", "row is"), ("rows have", "row has"), ("rows name", "row names"), ("rows repeat", "row repeats"),
    ("rows were", "row was"),
    ("lines are", "line is"),
)  # fmt: skip
"""Pairs of words for a sentence about several things and about one thing."""


@dataclass(slots=True)
class Reader:
    """Reads files one after another; `groups` returns the measurements of all of them."""

    growing: dict[Key, _Growing] = field(default_factory=dict)
    known: dict[tuple[str, ...], _Growing] = field(default_factory=dict)
    """The groups again, by the cells of a row that name a group."""
    faults: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By fault: how often it occurred, and the place of the first."""
    rows: int = 0
    settings: dict[tuple[str, str], Setting] = field(default_factory=dict)
    axes: tuple[str, ...] = ()
    """The axes of the file that is being read."""

    def read(self, lines: Iterable[str], source: str) -> None:
        """Reads one CSV. Raises `ResultsUnreadable` where the header is not that of a result file."""
        reader = csv.reader(lines)
        try:
            header = next(reader, None)
        except csv.Error as exc:
            raise ResultsUnreadable(f"{source}: not a result file: {exc}") from exc
        if header is None:
            raise ResultsUnreadable(f"{source} is empty", hint="the run stored nothing; `bench logs RUN` says why")
        if missing := [name for name in NEEDED if name not in header]:
            raise ResultsUnreadable(
                f"{source}: not a result file: no column {', '.join(missing)}", hint="fetch it with `bench fetch RUN`"
            )
        places = _Places.of(header)
        self.axes = axes_of(header)
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as exc:
                self._fault(f"lines are not CSV ({exc})", source, reader.line_num)
                continue
            if cells is None:
                return
            if cells:
                self._row(cells, places, source, reader.line_num)

    def _row(self, cells: list[str], at: _Places, source: str, line: int) -> None:
        self.rows += 1
        if len(cells) != at.nowhere:
            self._fault("rows are incomplete: more or fewer cells than the header", source, line)
            return
        cells.append("")  # the cell at `nowhere`, for columns that the file lacks
        group = self._group(cells, at)
        if group is None:
            self._fault("rows name no case or no implementation", source, line)
            return
        error = parse_cell(cells[at.max_abs_error])
        if not error <= group.max_abs_error and not math.isnan(error):
            group.max_abs_error = error
        if backend := cells[at.backend]:
            group.backends[backend] = None
        for name, place in at.words:
            if word := cells[place]:
                group.words[name] = max(word, group.words.get(name, ""))
        if reason := cells[at.skipped]:
            group.skipped = max(reason, group.skipped)
            return
        latency = parse_cell(cells[at.latency_us])
        if not is_latency(latency):
            self._fault("rows have no usable latency", source, line)
            return
        block = parse_cell(cells[at.block])
        group.block.append(int(block) if block == block and abs(block) < 2**53 else -1 - len(group.block))
        group.latency_us.append(latency)
        group.at.append(parse_moment(cells[at.started_at]))
        group.throttled.append(cells[at.throttle] not in ("", "none"))
        group.exposed.append(cells[at.hidden] == "false")
        group.disturbed.append(cells[at.shared] == "true")
        for values, place in zip(group.sensors.values(), at.sensors, strict=True):
            values.append(parse_cell(text) if (text := cells[place]) else math.nan)

    def _group(self, cells: Sequence[str], at: _Places) -> _Growing | None:
        """The group that a row belongs to; None where the row names no case or no implementation."""
        cells_of_key = (
            cells[at.run_id],
            cells[at.case_id],
            cells[at.regime],
            cells[at.cache],
            cells[at.implementation],
        )
        if (found := self.known.get(cells_of_key)) is not None:
            return found
        run, case, regime, cache, implementation = cells_of_key
        if not case or not implementation:
            return None
        first = {name: text for name, place in at.first if (text := cells[place])}
        sensors = {name: array("d") for name in SENSORS}
        group = self.known[cells_of_key] = _Growing(first, sensors=sensors)
        self.growing[Key(run, case, self._setting(regime, cache), implementation)] = group
        return group

    def _setting(self, regime: str, cache: str) -> Setting:
        """The setting for a pair. Equal pairs share one object, as a million rows have only a few pairs."""
        setting = self.settings.get((regime, cache))
        if setting is None:
            setting = self.settings[regime, cache] = Setting(regime, cache)
        return setting

    def _fault(self, what: str, source: str, line: int, times: int = 1) -> None:
        count, where = self.faults.get(what, (0, f"{source}:{line}" if line else source))
        self.faults[what] = (count + times, where)

    def groups(self) -> tuple[Group, ...]:
        """The groups that were read, in the order of their first rows. Rows that repeat a block are left out and
        reported. The reader is empty afterwards, so that memory does not hold everything twice."""
        groups = []
        self.known.clear()
        while self.growing:
            key = next(iter(self.growing))
            group = self.growing.pop(key)
            block = np.frombuffer(group.block, dtype=np.int64)
            _, kept = np.unique(block, return_index=True)
            if repeated := block.size - kept.size:
                self._fault(REPEATS, _named(key), 0, repeated)
                order = np.lexsort((np.frombuffer(group.at), np.frombuffer(group.latency_us), block))
                kept = order[np.unique(block[order], return_index=True)[1]]
            open_ = np.frombuffer(group.exposed, dtype=np.bool_)[kept]
            exposed = bool(open_.size and open_.all())
            if not exposed and open_.any():
                self._fault(EXPOSED, _named(key), 0, int(open_.sum()))
                kept = kept[~open_]
            wrong = bool(group.skipped)
            if wrong and kept.size:
                kept = kept[:0]
            groups.append(
                Group(
                    key=key,
                    device=group.first.get("device", ""),
                    backend=" ".join(sorted(group.backends)),
                    axes={name: value for name, value in group.first.items() if name != "device"},
                    block=block[kept],
                    latency_us=np.frombuffer(group.latency_us)[kept],
                    at=np.frombuffer(group.at)[kept],
                    sensors={name: np.frombuffer(values)[kept] for name, values in group.sensors.items()},
                    throttled=np.frombuffer(group.throttled, dtype=np.bool_)[kept],
                    disturbed=int(np.frombuffer(group.disturbed, dtype=np.bool_)[kept].sum()),
                    max_abs_error=group.max_abs_error,
                    skipped=group.skipped if wrong or kept.size else "no usable measurement",
                    words=group.words,
                    fault=fault_kind(group) if wrong or not kept.size else "",
                    exposed=exposed,
                )
            )
        return tuple(groups)

    def told(self) -> tuple[str, ...]:
        """A sentence for each fault: what was left out and where it occurred first. Complete once `groups` was
        called."""
        return tuple(f"{_counted(count, what)} (first at {where})" for what, (count, where) in self.faults.items())


def fault_kind(group: _Growing) -> str:
    """The kind of a skip's reason: as its row has it, or for files of older versions by the error and the words."""
    if fault := group.words.get("fault"):
        return fault
    match = re.search(rf"\b({'|'.join(BROKEN)})\b", group.skipped)
    return BROKEN[match[1]] if match else "unavailable" if math.isnan(group.max_abs_error) else "wrong"


def _named(key: Key) -> str:
    where = f", {key.setting.name}" if key.setting.name else ""
    return f"{key.implementation} on {key.case_id}{where}"


def _counted(count: int, what: str) -> str:
    if count == 1:
        for plural, singular in ALONE:
            what = what.replace(plural, singular)
    return f"{count} {what}"


def parse_cell(cell: str) -> float:
    """The number in a cell; NaN for none."""
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan


def parse_moment(cell: str) -> float:
    """Seconds since 1970 of an ISO 8601 time; NaN for none."""
    try:
        return datetime.fromisoformat(cell).timestamp() if cell else math.nan
    except ValueError:
        return math.nan
