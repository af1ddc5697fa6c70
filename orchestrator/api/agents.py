"""What an agent may do with a session: plan it and measure versions of one file, within a sum that a person fixed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal

from orchestrator.api.sessions import Leaderboard, SessionDesk, VersionLine, rank_versions
from orchestrator.core.candidates import Candidate
from orchestrator.core.config.model import Config
from orchestrator.core.errors import BudgetExceeded, ConfigError, NotFound
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.runs.engine import Engine, is_done
from orchestrator.runs.sessions import session_plan


@dataclass
class AgentDesk:
    """A session desk whose runs together hold and spend at most `max_usd`. Its methods may be called from any thread;
    one works at a time."""

    desk: SessionDesk
    max_usd: Decimal
    runs: dict[str, tuple[Engine, Decimal]] = field(default_factory=dict)
    """By id, each run that was begun, and the most that it may cost."""
    candidates: dict[int, Candidate] = field(default_factory=dict)
    """What each version consists of, by its number."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def plan(self) -> LaunchPlan:
        """What the next session would ask for and the most that it could cost. Raises what a launch raises."""
        with self.lock:
            config, name, _ = self.read()
            return session_plan(self.desk.wiring.plan(config, name), self.desk.idle_s)

    def measure(self, source: str) -> VersionLine:
        """Judges and times one version: this text of the workload's file, or without a text the files as they are.
        Raises `BudgetExceeded` when nothing is left, and what a launch raises when a machine is requested."""
        with self.lock:
            config, name, base = self.read()
            candidate = self.desk.parse_source(base, source.encode()) if source else base
            before = self.desk.live
            try:
                line = self.desk.measure_candidate(config, name, candidate)
            finally:
                live = self.desk.live
                if live is not None and live is not before:
                    self.runs[live.id] = live.engine, self.desk.ceiling_usd
            self.candidates[line.version] = candidate
            return line

    def version(self, number: int) -> VersionLine:
        """A version by its number; 0 is the best one. Raises `NotFound`."""
        with self.lock:
            line = self.desk.best if number == 0 else None
            matches = [line] if line is not None else [one for one in self.desk.lines if one.version == number]
            if not matches:
                raise NotFound(
                    f"there is no version {number or 'that is right'}", hint="measure one first; versions count from 1"
                )
            return matches[0]

    def leaderboard(self) -> Leaderboard:
        """Every version so far, with verdicts corrected over all of them."""
        with self.lock:
            return rank_versions(self.desk.lines, self.spent_usd)

    def give_back(self) -> None:
        """Ends the session: its machine is given back, and its cost is settled."""
        with self.lock:
            self.desk.close()
            self.desk.live = None

    @contextmanager
    def paid_run(self) -> Iterator[Config]:
        """Gives the machine back, so that one run may use what is left. Yields the session's configuration with that
        cap; `add_run` tells of the run."""
        with self.lock:
            self.give_back()
            yield self.read()[0]

    def add_run(self, engine: Engine, ceiling_usd: Decimal) -> None:
        """Counts a run that was begun outside the session."""
        self.runs[engine.run_id] = engine, ceiling_usd

    def read(self) -> tuple[Config, str, Candidate]:
        """The workload as it is now, and the configuration with what is remaining as the cap of a run. Raises
        `BudgetExceeded` and `ConfigError`."""
        live = self.desk.live
        if live is not None and not live.is_open():
            self.desk.live = live = None
        config, name, base = self.desk.read()
        remaining = self.left_usd
        if remaining <= 0 and live is None:
            raise BudgetExceeded(
                f"the ${self.max_usd} of this server are spent",
                hint="the person who started it can allow more: --max-usd",
            )
        budget = config.budget.model_copy(update={"per_run_usd": remaining})
        return config.model_copy(update={"budget": budget}), name, base

    @property
    def spent_usd(self) -> Decimal:
        """What machines have cost until now."""
        now = self.desk.wiring.clock.now()
        return sum((engine.look().cost(now) for engine, _ in self.runs.values()), Decimal(0))

    @property
    def held_usd(self) -> Decimal:
        """The most that runs which are not over may cost, with what they have cost already."""
        return sum((most for engine, most in self.runs.values() if not is_done(engine.look())), Decimal(0))

    @property
    def left_usd(self) -> Decimal:
        """What is neither spent by runs that are over nor held by one that is not."""
        now = self.desk.wiring.clock.now()
        done = [engine.look() for engine, _ in self.runs.values() if is_done(engine.look())]
        return self.max_usd - self.held_usd - sum((run.cost(now) for run in done), Decimal(0))

    @property
    def simulated(self) -> bool:
        """Whether none of its dollars is real."""
        return self.desk.wiring.mode.simulated


def open_agent_desk(desk: SessionDesk, max_usd: Decimal | None) -> AgentDesk:
    """The desk of an agent. Raises `ConfigError` without a sum, and where the agent's kernels would run on this machine
    although nobody named it."""
    wiring, options = desk.wiring, desk.options
    if wiring.mode.simulated and not options.hosts:
        raise ConfigError(
            "without a project, an agent's kernels would run on this machine",
            hint="`--host local` allows that; `bench init` sets up a project to rent machines from",
        )
    config, _, _ = desk.read()
    most = max_usd if max_usd is not None else config.budget.per_run_usd
    if most is None:
        raise ConfigError("nothing says how much an agent may spend", hint="for example --max-usd 2")
    if max_usd is not None:
        desk.options = replace(options, overrides=(*options.overrides, f"budget.per_run_usd={max_usd}"))
    return AgentDesk(desk, most)
