"""A session: a run whose machine stays warm and judges candidates as they come.

It is held, followed, preempted and settled as every run is, by the same engine. Candidates are objects that clients
create once; verdicts are objects that the machine creates once, after the candidate's rows. So whoever is killed, no
candidate with a verdict is lost or measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from orchestrator.core.candidates import (
    CLOSING,
    ROWS_BYTES,
    Candidate,
    CandidateVerdict,
    parse_verdict,
    session_settings,
    time_refusal,
)
from orchestrator.core.errors import BudgetExceeded, ConfigError, NotFound, Unavailable
from orchestrator.core.hosts import is_host
from orchestrator.core.naming import candidate_object, candidates_prefix, verdict_object
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.run.fold import Run
from orchestrator.core.text import clean_line, parse_document
from orchestrator.runs.engine import Engine, World, is_done

LOOK_S: Final = 0.4
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
"""How often a client looks for a verdict, in seconds."""
TURN_S: Final = 3.0
"""How often the machine is looked at, in seconds. A host is looked at each time, as that brings verdicts."""
CLOSE_S: Final = 30.0
"""How long a session that is told to end may take before its machine is deleted all the same."""


def session_plan(plan: LaunchPlan, idle_s: float) -> LaunchPlan:
    """The plan of a session from that of a run. Raises `ConfigError` for what has no candidates."""
    if plan.config.workload is None or plan.config.workload.form == "program":
        raise ConfigError(
            "a session needs a workload of your own, in Python",
            hint="`bench new NAME` writes one; `bench launch` measures everything else",
        )
    changed = {"cases": (), "measurements_per_implementation": 0}
    fallbacks = tuple(session_plan(one, idle_s) for one in plan.fallbacks)
    harness = session_settings(plan.harness, idle_s)
    return replace(plan, harness=harness, fallbacks=fallbacks, **changed)  # type: ignore[arg-type]


@dataclass
class LiveSession:
    """A client's view of one session. `taken_s` has the seconds that candidates took so far."""

    world: World
    engine: Engine
    user: str
    trouble: Callable[[Unavailable, float], None] | None = None
    taken_s: list[float] = field(default_factory=list)
    next_number: int = 1
    turned_at: float = 0.0

    @property
    def id(self) -> str:
        return self.engine.run_id

    def find_candidates(self) -> int:
        """How many candidates the session has; the next one comes after them."""
        entries = self.world.bucket.list(candidates_prefix(self.id))
        self.next_number = len(entries) + 1
        return len(entries)

    def candidate_path(self) -> str:
        """The path of the workload of the first candidate, as its client stored it; empty if there is none."""
        blob = self.world.bucket.read(candidate_object(self.id, 1))
        return "" if blob is None else str(parse_document(blob.data).get("path", ""))

    def begin(self, watch: Callable[[Run], None]) -> Run:
        """Follows the session until its machine works or it is over."""
        return self.engine.follow(
            watch=watch, trouble=self.trouble, until=lambda run: run.current.booted_at is not None
        )

    def is_open(self) -> bool:
        """Whether its machine may still take candidates, after one turn of the engine."""
        return not is_done(self._turn()) and self.engine.look().current.finished is None

    def submit(self, candidate: Candidate) -> int:
        """Stores a candidate, and returns its number. Raises `BudgetExceeded` if the time that the hold pays for does
        not suffice for it: nothing is queued then. Raises `NotFound` if the session is over, and `ResultsUnreadable`
        if there was a verdict on the candidate before it was stored: then it may not be measured."""
        run = self.engine.look()
        if run.over or run.current.finished is not None:
            raise NotFound(f"session {self.id} is over", hint="a new one begins with the next candidate")
        if run.vm is not None and run.vm.deadline_at is not None:
            why = time_refusal(run.vm.deadline_at, self.world.clock.now(), self.taken_s)
            if why:
                raise BudgetExceeded(why, hint="run.max_minutes and the budget decide how long a session may last")
        is_early, is_stored = False, False
        while not is_stored:
            number, self.next_number = self.next_number, self.next_number + 1
            is_early = self.world.bucket.read(verdict_object(self.id, number)) is not None
            is_stored = self.world.bucket.create(candidate_object(self.id, number), candidate.document(number))
        if is_early:
            raise ResultsUnreadable(
                f"a verdict on candidate {number} of {self.id} was stored before the candidate: it is not believed"
            )
        return number

    def verdict(self, number: int) -> CandidateVerdict | None:
        """The verdict on a candidate; None if there is none yet. Raises `ResultsUnreadable`."""
        blob = self.world.bucket.read(verdict_object(self.id, number))
        return None if blob is None else parse_verdict(blob.data, number)

    def wait(self, number: int, since: datetime | None = None) -> CandidateVerdict | None:
        """The verdict on a candidate once there is one; None if the session ends without it. Meanwhile the session is
        driven on: a machine that is lost is replaced under the same hold. It took no longer than this client waited or,
        if it was submitted before, than the time `since` then: the machine may say any number of seconds."""
        begun = self.world.clock.now().timestamp()
        while True:
            run = self._turn(waits=True)
            verdict = self.verdict(number)
            if verdict is not None:
                now = self.world.clock.now().timestamp()
                self.taken_s.append(min(verdict.seconds, now - begun))
                longest_s = max(0.0, now - (begun if since is None else since.timestamp()))
                return verdict.model_copy(update={"seconds": min(verdict.seconds, longest_s)})
            if is_done(run):
                return None
            self.world.clock.sleep(self._pause_s(self.world.clock.now().timestamp() - begun))

    def _pause_s(self, waited_s: float) -> float:
        """The seconds until the next look: few about when the quickest candidate so far had its verdict."""
        early_s = 0.9 * min(self.taken_s, default=0.0) - waited_s
        return min(MOST_PAUSE_S, max(LEAST_PAUSE_S, early_s, -early_s / 5))

    def rows(self, found: CandidateVerdict) -> Mapping[str, bytes]:
        """The files of rows of a candidate, by case id. Raises `ResultsUnreadable` if one of them is missing, or has
        more bytes than its share of `ROWS_BYTES`: a ratio over the other cases would not be the candidate's."""
        names = {verdict_object(self.id, found.number, case.file): case.case_id for case in found.cases}
        share = ROWS_BYTES // max(len(names), 1)
        blobs = self.world.bucket.read_many(list(names), largest=share)
        missing = [names[name] for name in names if name not in blobs]
        if missing:
            raise ResultsUnreadable(
                f"the rows of {missing[0]} of candidate {found.number} are missing, or more than {share} bytes"
            )
        return {names[name]: blob.data for name, blob in blobs.items()}

    def close(self) -> Run:
        """Ends the session, gives its machine back and settles its hold. Work that is under way is not waited for."""
        run = self.engine.look()
        if is_done(run):
            return run
        busy = self.next_number > 1 and self.verdict(self.next_number - 1) is None
        if not busy and run.current.booted_at is not None:
            self.world.bucket.create(candidate_object(self.id, self.next_number), CLOSING)
            until = self.world.clock.now().timestamp() + CLOSE_S
            run = self.engine.follow(trouble=self.trouble, until=lambda _: self.world.clock.now().timestamp() > until)
            if is_done(run):
                return run
        self.engine.request_stop(self.user, "the session is over")
        return self.engine.follow(trouble=self.trouble)

    def _turn(self, *, waits: bool = False) -> Run:
        """One turn of the engine, unless the last one is recent; to whoever `waits`, each turn on a host brings
        verdicts. A service that is away for a moment is reported, and the next turn tries again."""
        now, run = self.world.clock.now().timestamp(), self.engine.look()
        brings_verdicts = waits and run.vm is not None and is_host(run.vm.zone)
        if now < self.turned_at + TURN_S and not brings_verdicts:
            return run
        self.turned_at = now
        try:
            return self.engine.step()[0]
        except Unavailable as exc:
            if self.trouble is not None:
                self.trouble(exc, LOOK_S)
            return self.engine.look()


def lost_reason(run: Run) -> str:
    """Why a session ended without a verdict, in words."""
    detail = clean_line(run.closed.detail, 200) if run.closed is not None else ""
    return f"the session {run.phase.value.replace('_', ' ')}" + (f": {detail}" if detail else "")
