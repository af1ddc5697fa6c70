"""Judges and times candidates as they come, beside the baselines of a session, in processes that stay warm.

A session has one workload: its cases, inputs, reference and baselines judge every candidate. A candidate is another
version of the workload, of which only the kernels are used. Each candidate is timed on inputs from a seed that no
earlier one saw, and its processes end with it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kernels.harness import environment, measuring, rows
from kernels.harness.arena import Arena
from kernels.harness.candidates import LOWEST, CandidateProcesses, can_prepare
from kernels.harness.contenders import Crew
from kernels.harness.facts import Silent, log_line
from kernels.harness.hands import Hand
from kernels.harness.judging import Session, build_all
from kernels.harness.own import OwnWorkload
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.starting import worker_starter
from kernels.harness.stopping import RACE
from kernels.harness.workload import Unavailable

CASE_S, BLOCKS = 20.0, 30
"""How long a case is timed at most: seconds where the plan has no budget for it, and blocks."""
READ_LIMIT_S = 60.0
"""How long a candidate may take to be imported, in seconds, where the plan gives no limit for an answer."""
PRECISION = 0.01
"""The relative interval at which the timing of a case ends, where the plan gives none."""


@dataclass
class SealedFiles:
    """The files of the session's own workload. A candidate runs as the same user, so they are compared after each."""

    folder: Path
    content: dict[Path, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.content = {path: path.read_bytes() for path in self.folder.rglob("*") if self.is_source(path)}

    @staticmethod
    def is_source(path: Path) -> bool:
        """Whether a file is one that the workload came with, and not one that Python made of it."""
        return path.is_file() and "__pycache__" not in path.parts

    def restored(self) -> list[str]:
        """Gives changed files their content again, removes new ones, and returns the names of both."""
        changed = []
        for path in self.folder.rglob("*"):
            if self.is_source(path) and path not in self.content:
                path.unlink()
                changed.append(path.name)
        for path, content in self.content.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                changed.append(path.name)
        return changed


@dataclass
class Referee:
    """What stays warm between candidates."""

    session: Session
    arena: Arena
    origin: rows.Origin
    sealed: SealedFiles
    crew: Crew
    next: CandidateProcesses | None = None
    """What is prepared while a candidate is judged."""

    def __post_init__(self) -> None:
        self.arena.quiet = self.quiet

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Stops all that is prepared, while the block measures times."""
        if self.next is not None and not self.next.pause():
            self.end_next()
        try:
            yield
        finally:
            if self.next is not None:
                self.next.resume()

    @property
    def baselines(self) -> tuple[str, ...]:
        """The baselines that are timed beside each candidate."""
        return tuple(name for name in self.session.spec.implementations if name in self.arena.baselines)

    def judge_candidate(self, number: int, path: str, beat: Mapping[str, float], ahead: str = "") -> dict[str, Any]:
        """Judges and times one candidate. Returns its verdict, whatever goes wrong with it. In a race, `beat` has by
        case the ratio to the first baseline that it has to reach. The candidate at `ahead`, which may come next, is
        prepared meanwhile."""
        began = time.monotonic()
        verdict: dict[str, Any] = {"schema": 1, "number": number, "reason": "", "kernels": [], "cases": []}
        verdict |= {"baselines": list(self.baselines), "seed": secrets.randbits(31)}
        kernels: list[str] = []
        try:
            kernels = verdict["kernels"] = self.admit(path)
            self.prepare_next(ahead, kernels)
            cases = self.measure(number, kernels, verdict["seed"], beat)
            if self.next is not None and lacks_memory(cases):
                log_line(f"candidate {number}: memory ran out; once more, with nothing beside it")
                self.end_next()
                self.dismiss(kernels)
                kernels = verdict["kernels"] = self.admit(path)
                verdict["seed"] = secrets.randbits(31)  # it has seen the inputs of the first
                cases = self.measure(number, kernels, verdict["seed"], beat)
            verdict["cases"] = cases
        except (Lost, Answered, Unavailable) as exc:
            verdict["reason"] = str(exc) if isinstance(exc, Unavailable) else exc.reason("while it was read")
        except Exception as exc:  # a fault of one candidate must not end the session
            verdict["reason"] = f"it could not be judged: {type(exc).__name__}: {exc}"[:400]
            log_line(f"candidate {number}: {verdict['reason']}")
        finally:
            self.dismiss(kernels)
            if self.next is not None:
                self.next.load()
        if changed := self.sealed.restored():
            verdict["reason"] = f"untrusted: it changed files of the session: {', '.join(changed[:3])}"
        return {**verdict, "seconds": round(time.monotonic() - began, 3)}

    def admit(self, path: str) -> list[str]:
        """Makes a hand for each kernel of a candidate. Returns their names. Raises `Lost`, `Answered` and
        `Unavailable`."""
        processes, names = self.import_candidate(path)
        try:
            kernels = self.kernels_of(names)
            start = self.starter(path)
            for name in kernels:
                hand = processes.take(name, partial(start, name))
                self.arena.hands[name] = hand or Hand(name, partial(start, name), self.arena.limits)
                self.arena.hands[name].begin()
            return kernels
        finally:
            processes.end()

    def import_candidate(self, path: str) -> tuple[CandidateProcesses, Mapping[str, Any]]:
        """The processes of a candidate, and the names of its implementations and baselines. What was prepared for it is
        used, and what was prepared for another is ended. What was prepared has its whole limit from now on, at full
        priority: the time ahead does not count, because it stood still for a part of it. So what hangs is not imported
        again, and other failures are. Raises `Lost` and `Answered`."""
        limit_s = self.session.spec.answer_limit_s or READ_LIMIT_S
        if self.next is not None and self.next.path == path:
            prepared, self.next = self.next, None
            try:
                return prepared, prepared.names(limit_s)
            except (Lost, Answered) as exc:
                prepared.end()
                if isinstance(exc, Lost) and exc.hung:
                    raise
        processes = CandidateProcesses(path, self.arena.users)
        try:
            processes.begin([""], self.starter(path), self.arena.limits)
            self.end_next()
            return processes, processes.names(limit_s)
        except BaseException:
            processes.end()
            raise

    def starter(self, path: str, niceness: int = 0) -> Callable[[str], Worker]:
        """A function that starts processes for the candidate at `path`, each with the user of a name."""
        spec, workload = self.session.spec, self.session.spec.workload
        assert isinstance(workload, OwnWorkload), "only workloads of users have sessions"
        return worker_starter(OwnWorkload(workload.form, path), self.session.device, spec.threads, niceness=niceness)

    def kernels_of(self, names: Mapping[str, Any]) -> list[str]:
        """The names of the kernels of a candidate. Raises `Unavailable` if it cannot be judged."""
        kernels = [str(name) for name in names["implementations"] if name not in names["baselines"]]
        taken = [name for name in kernels if name in self.arena.baselines]
        if taken:
            raise Unavailable(f"its kernel {taken[0]} has the name of a baseline of the session")
        if not kernels:
            raise Unavailable("it has no kernel")
        return kernels

    def prepare_next(self, path: str, kernels: Sequence[str]) -> None:
        """Begins to prepare the candidate at `path`, which may come next and probably has the same kernels."""
        if path and can_prepare(self.arena.users):
            self.next = CandidateProcesses(path, self.arena.users, is_ahead=True)
            try:
                self.next.begin(kernels, self.starter(path, LOWEST), self.arena.limits)
            except OSError as exc:  # as without a number for one more user
                log_line(f"the next candidate is not prepared: {exc}")
                self.end_next()

    def end_next(self) -> None:
        """Ends what is prepared."""
        if self.next is not None:
            self.next.end()
            self.next = None

    def measure(
        self, number: int, kernels: Sequence[str], seed: int, beat: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        """Measures a candidate case by case, and stops after a case in which none of its kernels could be timed, or in
        which it has lost the race."""
        spec, made = self.session.spec, []
        self.arena.seed, self.arena.last_seed = seed, ("", 0)
        out = Path(f"candidates/{number:06d}")
        session = replace(
            self.session,
            out=self.session.out / out,
            facts=Silent(),  # type: ignore[arg-type]
            spec=replace(spec, seed=seed, implementations=(*self.baselines, *kernels), beat=beat),
        )
        for index, case in enumerate(spec.measure, start=1):
            done = measuring.measure_case(session, self.crew, case, self.origin, self.arena.timer)
            path = out / f"case-{index}.csv"
            (session.out / "cases" / f"{case.id}.csv").rename(self.session.out / path)
            self.session.facts.send("candidate_case", path=str(path), number=number, case_id=case.id)
            made.append(
                {
                    "case_id": case.id,
                    "file": path.name,
                    "median_us": done.median_us,
                    "skipped": done.skipped,
                    "stopped": done.stopped,
                }
            )
            if not set(kernels) & set(done.median_us) or RACE in done.stopped.values():
                break
            self.arena.trusted |= {name for name in self.baselines if name in done.median_us}
        return made

    def dismiss(self, kernels: Sequence[str]) -> None:
        """Ends the processes of a candidate, and forgets the failures that it may have caused elsewhere."""
        for name in kernels:
            self.arena.release(name)
            self.arena.proven.discard(name)
        for hand in (*self.arena.hands.values(), self.arena.judge):
            hand.hangs, hand.fault, hand.load_failure = 0, None, None


def make_referee(session: Session) -> Referee:
    """Loads the baselines of a session, and makes everything that its candidates share."""
    spec, arena = session.spec, session.arena
    assert isinstance(arena, Arena), "only workloads of users have sessions"
    assert isinstance(spec.workload, OwnWorkload), "and so this is one"
    names = tuple(name for name in spec.implementations if name in arena.baselines)
    path = Path(spec.workload.path)
    budget_s = CASE_S if spec.case_budget_s is None else spec.case_budget_s
    precision = PRECISION if spec.stop_at_relative_ci is None else spec.stop_at_relative_ci
    rule = {"case_budget_s": budget_s, "stop_at_relative_ci": precision, "repeats": min(spec.repeats, BLOCKS)}
    session = replace(session, spec=replace(spec, implementations=names, **rule))  # type: ignore[arg-type]
    origin = environment.row_origin(session.device, spec)
    sealed = SealedFiles(path if path.is_dir() else path.parent)
    crew = build_all(session)
    if arena.users is not None:
        with contextlib.suppress(Lost, Answered):
            arena.judge.ask("compile_helpers")
    return Referee(session, arena, origin, sealed, crew)


def serve_candidates(session: Session) -> int:
    """Judges each candidate that the agent names, until there is none. Returns the exit code."""
    referee = make_referee(session)
    while (request := session.facts.request_next()) is not None:
        number, ahead = int(request["number"]), str(request.get("ahead", ""))
        verdict = referee.judge_candidate(number, str(request["path"]), request.get("beat", {}), ahead)
        path = f"candidates/{number:06d}/verdict.json"
        write_verdict(session.out / path, verdict)
        session.facts.send("candidate_judged", path=path, number=number, seconds=verdict["seconds"])
    referee.end_next()
    return 0


def lacks_memory(cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether memory may be why a kernel was not timed in a case."""
    return any("memory" in reason for case in cases for reason in case["skipped"].values())


def write_verdict(path: Path, verdict: Mapping[str, Any]) -> None:
    """Writes the verdict on a candidate."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text(path, json.dumps(verdict, indent=1) + "\n")
