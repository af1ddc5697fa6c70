"""Opens sessions and reads the verdicts on their candidates, for the command line and the library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from itertools import combinations
from typing import Final

from orchestrator.analysis.bootstrap import LIMIT, Interval
from orchestrator.analysis.ranks import holm, two_sided
from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import Case, Study, study
from orchestrator.analysis.verdicts import MARGIN, SIGNIFICANT, Mean, Noise, NoiseSource, Verdict, decide_verdict
from orchestrator.core.candidates import Candidate, CandidateVerdict
from orchestrator.core.config.model import Config
from orchestrator.core.errors import BudgetExceeded, ConfigError, DocumentUnreadable, NotFound
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.run.fold import Run
from orchestrator.core.text import clean_line
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.runs.planning import LaunchOptions, plan_for_launch
from orchestrator.runs.sessions import LiveSession, lost_reason, session_plan
from orchestrator.wiring import Wiring, files_of, launch_context, new_run_id, payload_of

WRONG, UNREADABLE, REFUSED, LOST, TIMED = "wrong", "unreadable", "refused", "lost", "timed"
"""What can be said of a version besides the verdict on its ratio; `timed` where there is no baseline."""
DROPPED: Final = "dropped"
"""The verdict on a version that lost a race."""


@dataclass(frozen=True, slots=True)
class VersionLine:
    """What a session says of one version: its fastest kernel against the fastest baseline, over all cases."""

    version: int
    verdict: str
    """`faster`, `slower`, `same`, `inconclusive`, or one of the words above."""
    kernel: str = ""
    baseline: str = ""
    time_us: float | None = None
    """The geometric mean of the kernel's medians over the cases, in microseconds."""
    ratio: Interval | None = None
    """The baseline's time over the kernel's; over 1 the kernel is faster."""
    reason: str = ""
    seconds: float = 0.0
    case_ratios: Mapping[str, float] = field(default_factory=dict)
    """By case, the lower limit of the ratio to the session's first baseline."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """By name, why other kernels of the version were not timed."""
    usd: Decimal = Decimal(0)
    """What the machine's time for it costs."""
    relative_time: float | None = None
    """The kernel's time over that of the session's first baseline, the geometric mean over the cases in which it was
    timed; its time in microseconds where there is no baseline."""

    @property
    def is_complete(self) -> bool:
        """Whether it was right and timed in every case."""
        return not self.reason and self.time_us is not None and self.verdict != DROPPED

    @property
    def chance(self) -> float:
        """The chance of such a ratio between equals; 1 without an interval."""
        error = log_error(self)
        return two_sided(abs(math.log(self.ratio.mid)) / error) if self.ratio is not None and error else 1.0


def log_error(line: VersionLine) -> float:
    """The standard error of the logarithm of a ratio, from its interval; 0 without one."""
    if line.ratio is None or not line.ratio.known:
        return 0.0
    return math.log(line.ratio.high / line.ratio.low) / 2 / LIMIT


def read_line(version: int, found: CandidateVerdict, rows: Iterable[tuple[str, bytes]]) -> VersionLine:
    """The line of a candidate, from what the machine says and from the rows that it stored."""
    if found.reason:
        kind = WRONG if found.reason.startswith("untrusted") else UNREADABLE
        return VersionLine(version, kind, reason=clean_line(found.reason, 400), seconds=found.seconds)
    reader = Reader()
    for case_id, data in rows:
        try:
            reader.read(data.decode(errors="replace").splitlines(keepends=True), case_id)
        except ResultsUnreadable as exc:
            return VersionLine(version, UNREADABLE, reason=str(exc), seconds=found.seconds)
    result = study(reader.groups(), reader.told())
    lines = [kernel_line(version, result, kernel, found) for kernel in found.kernels]
    best = max(lines, key=merit, default=VersionLine(version, UNREADABLE, reason="it has no kernel"))
    return replace(best, faults={line.kernel: line.reason for line in lines if line.reason and line is not best})


def merit(line: VersionLine) -> tuple[bool, float, float]:
    """A key that is larger for a better line."""
    return not line.reason, line.ratio.mid if line.ratio is not None else 0.0, -(line.time_us or math.inf)


def kernel_line(version: int, result: Study, kernel: str, found: CandidateVerdict) -> VersionLine:
    """The line of one kernel of a candidate."""
    settings = result.parts()[0] if result.settings else result
    fault, time_us = found.fault(kernel), mean_time_us(settings.cases, kernel)
    if fault or time_us is None:
        return VersionLine(version, WRONG, kernel, reason=fault or "it was not timed", seconds=found.seconds)
    first = found.baselines[:1]
    timed = [case for case in settings.cases if mean_time_us([case], kernel) is not None]
    first_us = mean_time_us(timed, *first) if first else 1.0
    relative = None if first_us is None else time_us / first_us
    line = VersionLine(version, DROPPED, kernel, time_us=time_us, seconds=found.seconds, relative_time=relative)
    if found.dropped:
        return line
    (alone,) = [one for one in settings.of_kernels() if one.subject == kernel] or [settings]
    means = {name: mean for name in settings.baselines if (mean := alone.mean(name)) is not None}
    if not means:  # there is no baseline, or there are too few blocks for an interval
        return replace(line, verdict=Verdict.INCONCLUSIVE.value if settings.baselines else TIMED)
    baseline = min(means, key=lambda name: means[name].ratio.mid)
    verdict, ratio = judge_mean(means[baseline]).value, means[baseline].ratio
    ratios = {one.case_id: one.ratio.low for one in settings.contrasts if (one.baseline,) == first}
    return replace(line, verdict=verdict, baseline=baseline, ratio=ratio, case_ratios=ratios)


def mean_time_us(cases: Sequence[Case], name: str) -> float | None:
    """The geometric mean of an implementation's medians over the cases in which it was timed; None if there is none."""
    timings = [timing for case in cases if (timing := case.timing(name)) is not None and timing.timed]
    return math.exp(math.fsum(math.log(one.median_us.mid) for one in timings) / len(timings)) if timings else None


def judge_mean(mean: Mean) -> Verdict:
    """The verdict on the mean ratio of one candidate, among no others: by its interval, which contains the noise."""
    return decide_verdict(mean.ratio, 0.0, Noise(0.0, NoiseSource.CONTROL))


def correct_verdicts(lines: Sequence[VersionLine]) -> list[VersionLine]:
    """The lines with verdicts that are corrected for how many candidates were compared (Holm)."""
    decided = [line for line in lines if line.verdict in (Verdict.FASTER, Verdict.SLOWER)]
    compared = [line for line in lines if line.ratio is not None]
    chances = dict(zip((line.version for line in compared), holm([line.chance for line in compared]), strict=True))
    doubtful = {line.version for line in decided if chances[line.version] >= SIGNIFICANT}
    return [replace(line, verdict=Verdict.INCONCLUSIVE.value) if line.version in doubtful else line for line in lines]


@dataclass
class SessionDesk:
    """Measures versions of one workload one after another. It opens a session when the first one comes, and again when
    one comes after the machine was given back."""

    wiring: Wiring
    options: LaunchOptions
    idle_s: float = 600.0
    watch: Callable[[Run], None] = lambda _: None
    live: LiveSession | None = None
    lines: list[VersionLine] = field(default_factory=list)
    ceiling_usd: Decimal = Decimal(0)
    """The most that the session which was opened last may cost."""

    def read(self) -> tuple[Config, str, Candidate]:
        """The workload as it is now. Raises `ConfigError` with file and line."""
        config, name = self.wiring.configured(self.options)
        if config.workload is None:
            raise ConfigError("a session needs a workload of your own", hint="`bench new NAME` writes one")
        candidate = Candidate(config.workload.name, config.workload.place, files_of(config.workload))
        return config, name, candidate

    def measure(self) -> VersionLine:
        """The line of the workload as it is now. A version that cannot be read, or for which money or time does not
        suffice, is a line too."""
        version = len(self.lines) + 1
        try:
            config, name, candidate = self.read()
        except ConfigError as exc:
            return self._added(VersionLine(version, UNREADABLE, reason=str(exc)))
        return self.measure_candidate(config, name, candidate)

    def measure_candidate(self, config: Config, name: str, candidate: Candidate) -> VersionLine:
        """The line of a candidate; see `measure`."""
        version = len(self.lines) + 1
        try:
            if self.live is None or not self.live.is_open():
                self.open(config, name)
            assert self.live is not None, "it was just opened"
            number = self.live.submit(candidate)
        except (BudgetExceeded, ConfigError) as exc:
            return self._added(VersionLine(version, REFUSED, reason=str(exc)))
        except ResultsUnreadable as exc:
            return self._added(VersionLine(version, UNREADABLE, reason=str(exc)))
        return self._added(self._judged(version, number, self.live))

    def _judged(self, version: int, number: int, live: LiveSession, since: datetime | None = None) -> VersionLine:
        """The line of a candidate that was submitted, now or by another client `since` then. What the machine stored
        that cannot be read costs this line alone."""
        try:
            verdict = live.wait(number, since)
            rows = {} if verdict is None else live.rows(verdict)
        except (ResultsUnreadable, DocumentUnreadable) as exc:
            return VersionLine(version, UNREADABLE, reason=str(exc))
        if verdict is None:
            return VersionLine(version, LOST, reason=lost_reason(live.engine.look()))
        return self._read(version, verdict, rows, live)

    def _read(self, version: int, found: CandidateVerdict, rows: Mapping[str, bytes], live: LiveSession) -> VersionLine:
        vm = live.engine.look().vm
        hourly = Decimal(0) if vm is None else vm.usd_per_hour
        usd = (hourly * Decimal(found.seconds) / 3600).quantize(Decimal("0.000001"))
        return replace(read_line(version, found, rows.items()), usd=usd)

    def attach(self, run_id: str) -> None:
        """Goes on with a session whose client was killed: its versions become this desk's, and it judges the next ones.
        Raises `NotFound` if it is over, and `ConfigError` if it judges another file."""
        _, _, candidate = self.read()
        world = self.wiring.world()
        live = LiveSession(world, Engine(world, run_id), self.wiring.user)
        if not live.is_open():
            raise NotFound(f"session {run_id} is over", hint="without --attach a new one begins")
        path = live.candidate_path()
        if path != candidate.path:
            raise ConfigError(
                f"session {run_id} judges {clean_line(path or 'nothing yet', 200)}, not {candidate.path}",
                hint="`bench status` lists the sessions; without --attach a new one begins",
            )
        self.live = live
        began_at = live.engine.look().created_at
        for number in range(1, live.find_candidates() + 1):
            self._added(self._judged(len(self.lines) + 1, number, live, began_at))

    def parse_source(self, base: Candidate, text: bytes) -> Candidate:
        """The candidate with this text as its workload's file. Raises `ConfigError` for a workload of several files."""
        if base.path not in base.files:
            raise ConfigError("a workload of several files has no single source text", hint="change its files instead")
        return replace(base, files={**base.files, base.path: text})

    @property
    def cost_usd(self) -> Decimal:
        """What the machines of the present session have cost until now."""
        return Decimal(0) if self.live is None else self.live.engine.look().cost(self.wiring.clock.now())

    def open(self, config: Config, name: str) -> LiveSession:
        """Holds the money for a session, and gets its machine. Raises as a launch does."""
        wiring, world = self.wiring, self.wiring.world(config)
        made, refused = plan_for_launch(world, config, lambda one: wiring.plan(one, name), cold=True, say=wiring.say)
        plan = session_plan(made, self.idle_s)
        self.ceiling_usd = plan.ceiling_usd
        order = RunOrder(
            new_run_id(wiring.clock.now(), plan.label_on(wiring.here)),
            plan,
            payload_of(config),
            launch_context(wiring, plan),
        )
        engine = begin_launch(world, order, say=wiring.say, cold=True, refused=refused)
        self.live = LiveSession(world, engine, wiring.user)
        self.live.begin(self.watch)
        return self.live

    def close(self) -> Run | None:
        """Gives the machine back. The last state of the session; None if there was none."""
        return None if self.live is None else self.live.close()

    def _added(self, line: VersionLine) -> VersionLine:
        self.lines.append(line)
        return line

    @property
    def best(self) -> VersionLine | None:
        """The version with the best ratio, or time where there is no baseline; None if none was timed."""
        good = [line for line in self.lines if line.is_complete]
        return max(good, key=merit, default=None)


@dataclass(frozen=True, slots=True)
class VersionRank:
    """The place of one version. Its true rank lies in `first` to `last` with 95 % confidence over all versions.
    `improves` says that it was better, with that confidence, than every improvement before it."""

    line: VersionLine
    first: int
    last: int
    improves: bool = False


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Every version that has a ratio, best first. `cost_usd` is what the session cost, with starting and waiting."""

    standings: tuple[VersionRank, ...]
    cost_usd: Decimal

    @property
    def improvements(self) -> int:
        """How many versions improved on all before them."""
        return sum(standing.improves for standing in self.standings)

    @property
    def usd_per_improvement(self) -> Decimal | None:
        """The session's cost for each improvement; None without one."""
        return (self.cost_usd / self.improvements).quantize(Decimal("0.0001")) if self.improvements else None


def rank_versions(lines: Sequence[VersionLine], cost_usd: Decimal) -> Leaderboard:
    """The leaderboard of a session. Every pair of versions is compared, with Holm's correction over all pairs."""
    compared = [line for line in correct_verdicts(lines) if line.is_complete and line.ratio is not None]
    better = surely_better(compared)
    standings, best_so_far = [], compared[:1]
    for line in compared:  # in the order in which they were measured
        above = sum((other.version, line.version) in better for other in compared)
        below = sum((line.version, other.version) in better for other in compared)
        improves = all((line.version, other.version) in better for other in best_so_far) and line is not compared[0]
        if improves:
            best_so_far = [line]
        standings.append(VersionRank(line, 1 + above, len(compared) - below, improves))
    standings.sort(key=lambda standing: -standing.line.ratio.mid if standing.line.ratio is not None else 0.0)
    return Leaderboard(tuple(standings), cost_usd)


def surely_better(lines: Sequence[VersionLine]) -> set[tuple[int, int]]:
    """The pairs (better version, worse version) whose ratios differ by more than 1 %, with 95 % confidence in all of
    them together."""
    pairs = [(one, other) for one, other in combinations(lines, 2) if log_error(one) and log_error(other)]
    gaps = [log_gap(one, other) for one, other in pairs]
    errors = [math.hypot(log_error(one), log_error(other)) for one, other in pairs]
    chances = [two_sided(abs(gap) / error) for gap, error in zip(gaps, errors, strict=True)]
    certain = set()
    for (one, other), gap, chance in zip(pairs, gaps, holm(chances), strict=True):
        if chance < SIGNIFICANT and abs(gap) > math.log1p(MARGIN):
            certain.add((one.version, other.version) if gap > 0 else (other.version, one.version))
    return certain


def log_gap(one: VersionLine, other: VersionLine) -> float:
    """The logarithm of one version's ratio over another's."""
    assert one.ratio is not None, "only versions with a ratio are compared"
    assert other.ratio is not None, "only versions with a ratio are compared"
    return math.log(one.ratio.mid / other.ratio.mid)
