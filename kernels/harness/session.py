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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kernels.harness import environment, measuring, rows
from kernels.harness.arena import Arena
from kernels.harness.contenders import Crew
from kernels.harness.facts import Silent, log_line
from kernels.harness.hands import Hand
from kernels.harness.judging import Session, build_all
from kernels.harness.own import OwnWorkload
from kernels.harness.processes import Answered, Lost
from kernels.harness.starting import make_reader, worker_starter
from kernels.harness.stopping import RACE
from kernels.harness.workload import Unavailable

CASE_S, BLOCKS = 20.0, 30
"""How long a case is timed at most: seconds where the plan has no budget for it, and blocks."""
READ_LIMIT_S = 60.0
"""How long a candidate may take to be read, in seconds, where the plan gives no limit for an answer."""
PRECISION = 0.01
"""The relative interval at which the timing of a case ends, where the plan gives none."""


READER = "@reader"
"""Whose user reads a candidate: no implementation has such a name."""


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

    @property
    def baselines(self) -> tuple[str, ...]:
        """The baselines that are timed beside each candidate."""
        return tuple(name for name in self.session.spec.implementations if name in self.arena.baselines)

    def judge_candidate(self, number: int, path: str, beat: Mapping[str, float]) -> dict[str, Any]:
        """Judges and times one candidate. Returns its verdict, whatever goes wrong with it. In a race, `beat` has by
        case the ratio to the first baseline that it has to reach."""
        began = time.monotonic()
        verdict: dict[str, Any] = {"schema": 1, "number": number, "reason": "", "kernels": [], "cases": []}
        verdict |= {"baselines": list(self.baselines), "seed": secrets.randbits(31)}
        kernels: list[str] = []
        try:
            kernels = self.admit(path)
            verdict["kernels"] = kernels
            verdict["cases"] = self.measure(number, kernels, verdict["seed"], beat)
        except (Lost, Answered, Unavailable) as exc:
            verdict["reason"] = str(exc) if isinstance(exc, Unavailable) else exc.reason("while it was read")
        except Exception as exc:  # a fault of one candidate must not end the session
            verdict["reason"] = f"it could not be judged: {type(exc).__name__}: {exc}"[:400]
            log_line(f"candidate {number}: {verdict['reason']}")
        finally:
            self.dismiss(kernels)
        if changed := self.sealed.restored():
            verdict["reason"] = f"untrusted: it changed files of the session: {', '.join(changed[:3])}"
        return {**verdict, "seconds": round(time.monotonic() - began, 3)}

    def admit(self, path: str) -> list[str]:
        """Reads a candidate and makes a hand for each of its kernels. Returns their names. Raises `Lost`, `Answered`
        and `Unavailable`."""
        spec, workload = self.session.spec, self.session.spec.workload
        assert isinstance(workload, OwnWorkload), "only workloads of users have sessions"
        candidate = OwnWorkload(workload.form, path)
        reader = make_reader(candidate, spec.answer_limit_s or READ_LIMIT_S, READER)
        try:
            description = reader.ask("describe")
        finally:
            reader.end()
            self.arena.release(READER)
        names = [str(name) for name in description["implementations"] if name not in description["baselines"]]
        taken = [name for name in names if name in self.arena.baselines]
        if taken:
            raise Unavailable(f"its kernel {taken[0]} has the name of a baseline of the session")
        if not names:
            raise Unavailable("it has no kernel")
        start = worker_starter(candidate, self.session.device, spec.threads)
        for name in names:
            self.arena.hands[name] = Hand(name, partial(start, name), self.arena.limits)
            self.arena.hands[name].begin()
        return names

    def measure(
        self, number: int, kernels: Sequence[str], seed: int, beat: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        """Measures a candidate case by case, and stops after a case in which none of its kernels could be timed, or in
        which it has lost the race."""
        spec, made = self.session.spec, []
        self.arena.seed = seed
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
            hand.hangs, hand.fault = 0, None


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
        number = int(request["number"])
        verdict = referee.judge_candidate(number, str(request["path"]), request.get("beat", {}))
        path = f"candidates/{number:06d}/verdict.json"
        write_verdict(session.out / path, verdict)
        session.facts.send("candidate_judged", path=path, number=number, seconds=verdict["seconds"])
    return 0


def write_verdict(path: Path, verdict: Mapping[str, Any]) -> None:
    """Writes the verdict on a candidate."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text(path, json.dumps(verdict, indent=1) + "\n")
