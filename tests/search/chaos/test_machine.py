"""The promises against a searcher that chooses its next step by what the last ones led to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.search.chaos.aftermath import aftermath
from tests.search.chaos.play import Actor, Arena, Play
from tests.search.chaos.scenario import PHASES, ZONES, Client, Scenario

FAULTS: tuple[dict[str, Any], ...] = (
    {"fault": "stockout", "zones_available": [ZONES[2]]},
    {"fault": "http", "service": "compute", "method": "POST", "status": 503},
    {"fault": "reset", "service": "compute", "method": "POST", "after": "response"},
    {"fault": "reset", "service": "storage", "method": "POST", "after": "response"},
    {"fault": "http", "service": "storage", "path": "ledger", "status": 503},
    {"fault": "slow_boot", "seconds": 100},
    {"fault": "never_boots"},
    *({"fault": "lost", "at": {"phase": phase}} for phase in PHASES),
    {"fault": "hang", "at": {"case": 2}},
)


class Bench(RuleBasedStateMachine):
    """Any number of clients, in any order, for two runs under a cap that has room for one and a half."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="bench-machine-")
        self.arena = Arena(Path(self.folder.name) / "home")

    @initialize(fits=st.sampled_from((0.0, 1.5)), attempts=st.integers(1, 2))
    def begin(self, fits: float, attempts: int) -> None:
        self.play = Play(self.arena, Scenario(0, runs=2, fits=fits, attempts=attempts, clients=()), "machine")
        self.launched: set[int] = set()

    def of_them(self, choice: int) -> Actor | None:
        there = [actor for actor in self.play.actors if not actor.over]
        return there[choice % len(there)] if there else None

    @precondition(lambda self: len(self.launched) < 2)
    @rule()
    def somebody_launches(self) -> None:
        run = len(self.launched)
        self.launched.add(run)
        self.play.turn(self.play.enter(Client("launch", run)))

    @rule(run=st.integers(0, 1), role=st.sampled_from(("look", "look", "reap", "relaunch", "stop")))
    def somebody_comes(self, run: int, role: Any) -> None:
        if run in self.launched:
            self.play.turn(self.play.enter(Client(role, run)))

    @rule(choice=st.integers(0, 7), turns=st.integers(1, 12))
    def somebody_goes_on(self, choice: int, turns: int) -> None:
        for _ in range(turns):
            actor = self.of_them(choice)
            if actor is not None:
                self.play.turn(actor)

    @rule(choice=st.integers(0, 7))
    def somebody_is_killed(self, choice: int) -> None:
        actor = self.of_them(choice)
        if actor is not None:
            actor.over = True

    @rule(choice=st.integers(0, 7), moments=st.integers(1, 12))
    def somebody_is_killed_in_the_middle(self, choice: int, moments: int) -> None:
        actor = self.of_them(choice)
        if actor is not None:
            actor.doomed = actor.moments + moments
            self.play.turn(actor)

    @rule(seconds=st.sampled_from((1, 5, 20, 60, 300, 1300)))
    def time_passes(self, seconds: int) -> None:
        self.play.let_pass(seconds)

    @rule(fault=st.sampled_from(FAULTS))
    def the_weather_turns(self, fault: dict[str, Any]) -> None:
        self.arena.cloud.weather.add(fault)

    @rule(notice_s=st.sampled_from((0, 5, 30)))
    def a_machine_is_taken_back(self, notice_s: int) -> None:
        for vm in self.arena.cloud.instances()[:1]:
            self.arena.cloud.preempt(vm["name"], notice_s)

    @invariant()
    def the_promises_hold(self) -> None:
        if hasattr(self, "play"):
            self.play.judge.at_every_moment()

    def teardown(self) -> None:
        try:
            if hasattr(self, "play"):
                aftermath(self.play)
        finally:
            self.arena.close()
            self.folder.cleanup()


TestTheBench = Bench.TestCase
TestTheBench.settings = settings(
    max_examples=12, stateful_step_count=18, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
