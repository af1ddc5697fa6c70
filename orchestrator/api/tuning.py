"""Tries combinations of parameters in a session, and measures the winner again on fresh samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from orchestrator.api.sessions import DROPPED, LOST, REFUSED, SessionDesk, VersionLine, merit
from orchestrator.core.candidates import (
    Candidate,
    Strategy,
    TuneSpace,
    Values,
    dump_winner,
    parse_winner,
    promising_combination,
    with_values,
)
from orchestrator.core.config.model import Config
from orchestrator.core.errors import NotFound
from orchestrator.core.market.catalog import gpu_of
from orchestrator.core.naming import tuned_object
from orchestrator.wiring import Wiring, new_run_id

RUNNERS_UP: Final = 2
"""How many combinations beside the winner are measured again."""
FIRST_TRIES: Final = 5
"""So many combinations of a race are tried before their times choose the next."""
LEFT_OUT: Final = "leaves out these values"


@dataclass(frozen=True, slots=True)
class Trial:
    """One combination: its line in the search, and the line of its second measurement, on fresh samples."""

    values: Values
    line: VersionLine
    again: VersionLine | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search came to. `winner` and `runners_up` were measured again; `stopped` says why the search ended early,
    and is empty if every combination was tried."""

    trials: tuple[Trial, ...]
    winner: Trial | None
    runners_up: tuple[Trial, ...]
    stopped: str = ""

    @property
    def dropped(self) -> int:
        """How many combinations lost the race."""
        return sum(one.line.verdict == DROPPED for one in self.trials)

    @property
    def left_out(self) -> int:
        """How many combinations the file's own `valid` leaves out."""
        return sum(is_left_out(one.line) for one in self.trials)


@dataclass
class Search:
    """Tries the combinations of one file. `is_over` says why the search should end now, or nothing."""

    desk: SessionDesk
    space: TuneSpace
    source: str
    strategy: Strategy = "racing"
    seed: int = 1
    is_over: Callable[[], str] = lambda: ""
    show: Callable[[Trial], None] = lambda _: None
    trials: list[Trial] = field(default_factory=list)

    def run(self) -> Tuning:
        """Tries combinations until all are tried or the search is over, and measures the best ones again."""
        config, name, base = self.desk.read()
        stopped, untried = "", self.space.ordered(self.strategy, self.seed)
        while untried:
            stopped = self.is_over() or self._refusal()
            if stopped:
                break
            values = self._choose(untried)
            untried.remove(values)
            candidate = self._candidate(base, values, self._beat(), self._foresee(untried))
            trial = Trial(values, self.desk.measure_candidate(config, name, candidate))
            self.trials.append(trial)
            self.show(trial)
        best = self._best()[: 1 + RUNNERS_UP]
        again = [self._again(config, name, base, *pair) for pair in zip_longest(best, best[1:])]
        return Tuning(tuple(self.trials), again[0] if again else None, tuple(again[1:]), stopped)

    def _best(self) -> list[Trial]:
        """The trials that were right and timed in every case, best first."""
        complete = [one for one in self.trials if one.line.is_complete]
        return sorted(complete, key=lambda one: merit(one.line), reverse=True)

    def _choose(self, untried: Sequence[Values]) -> Values:
        """The combination to try next. A race begins with some at random, and goes on with what may be the fastest by
        the times of those before it."""
        lines = [(trial.values, trial.line) for trial in self.trials if self.strategy == "racing"]
        measured = [(values, time) for values, line in lines if (time := line.relative_time)]
        return promising_combination(untried, measured) if len(measured) >= FIRST_TRIES else untried[0]

    def _beat(self) -> Mapping[str, float]:
        """In a race, what the next combination has to reach in each case: the lower limits of the best one."""
        best = self._best()[:1] if self.strategy == "racing" else []
        return best[0].line.case_ratios if best else {}

    def _refusal(self) -> str:
        """Why nothing more can be tried, where the last combination was refused or lost."""
        last = self.trials[-1].line if self.trials else None
        return last.reason if last is not None and last.verdict in (REFUSED, LOST) else ""

    def _foresee(self, untried: Sequence[Values]) -> Values | None:
        """What may come after the combination that is tried now; None if that is not known."""
        best = self._best()[:1]
        return self._choose(untried) if untried else best[0].values if best else None

    def _candidate(self, base: Candidate, values: Values, beat: Mapping[str, float], then: Values | None) -> Candidate:
        text = with_values(self.source, self.space, values)
        ahead = {} if then is None else {base.path: with_values(self.source, self.space, then).encode()}
        return replace(base, files={**base.files, base.path: text.encode()}, beat=beat, ahead=ahead)

    def _again(self, config: Config, name: str, base: Candidate, trial: Trial, following: Trial | None) -> Trial:
        """The trial with a second measurement, which no selection has made lucky."""
        then = None if following is None else following.values
        line = self.desk.measure_candidate(config, name, self._candidate(base, trial.values, {}, then))
        again = replace(trial, again=line)
        self.show(again)
        return again


def remember_winner(wiring: Wiring, space: TuneSpace, made: Tuning, session: str) -> None:
    """Stores the winner's values for the session's GPU, if it was right in its second measurement."""
    again = None if made.winner is None else made.winner.again
    if made.winner is not None and again is not None and again.is_complete:
        ratio = 0.0 if again.ratio is None else again.ratio.mid
        data = dump_winner(made.winner.values, session, ratio)
        wiring.bucket.replace(tuned_object(gpu_of(session), space.digest), data, generation=None)


def recall_winner(desk: SessionDesk, space: TuneSpace) -> Values:
    """The values that were found before on the GPU that a session would have. Raises `NotFound` without any, and
    `ConfigError` for values that the file does not declare."""
    config, name, _ = desk.read()
    gpu = gpu_of(new_run_id(desk.wiring.clock.now(), desk.wiring.plan(config, name).label_on(desk.wiring.here)))
    blob = desk.wiring.bucket.read(tuned_object(gpu, space.digest))
    if blob is None:
        raise NotFound(f"{space.file} was not tuned on {gpu} yet", hint="`bench tune` without --remembered measures")
    return parse_winner(blob.data, space)


def is_left_out(line: VersionLine) -> bool:
    """Whether the file's own `valid` leaves this combination out."""
    return LEFT_OUT in line.reason
