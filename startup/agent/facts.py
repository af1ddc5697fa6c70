"""Handles the facts of the harness: stores the file of a fact in the bucket, then appends its event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from startup.agent.clock import Patience
from startup.agent.diagnosis import Diagnosis, halt_for
from startup.agent.events import EventWriter
from startup.agent.logs import Log
from startup.agent.stop import Stop
from startup.agent.storage import AgentStorage, StorageError

CONTENT_TYPES = {".csv": "text/csv", ".json": "application/json"}
VERDICT = "verdict.json"
ARTIFACTS = ("environment.json", "build.json", "correctness.csv")

# The cause of a failed gate when the harness gives no more exact one.
GATE_CAUSES = {
    "torch_imports": "torch_missing",
    "numpy_matches": "numpy_mismatch",
    "cuda_answers": "no_cuda",
    "kernel_loads": "build_failed",
    "smoke_test": "kernel_wrong",
}

SIMPLE = {
    "environment": ("environment_recorded", ("device", "device_kind", "torch")),
    "built": ("kernel_built", ("seconds", "compiler", "cached")),
    "correctness": ("correctness_finished", ("checked", "failed")),
    "case_started": ("case_started", ("case_id", "index", "of")),
    "case_observed": ("case_observed", ("case_id", "place", "seconds")),
    "case_finished": ("case_measured", ("case_id", "index", "of", "rows", "seconds", "median_us", "skipped")),
}
CHECKED = ("implementation", "case_id", "passed", "max_abs_error", "limit", "reason")


class Files:
    """Stores what the harness wrote below `out`, under the run's prefix in the bucket."""

    def __init__(self, run_id: str, out: Path, storage: AgentStorage) -> None:
        self.prefix = f"runs/{run_id}/"
        self.out = out
        self.storage = storage
        self.announced: set[str] = set()
        self.stored: set[str] = set()

    def put(self, path: str, patience: Patience) -> None:
        """Stores one file. A case is stored once and for all; an artifact is replaced by a later attempt's. Raises
        StorageError, and ValueError for a path that leads out of `out`."""
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{path!r} leads out of the results' directory")
        self.announced.add(path)
        body = (self.out / path).read_bytes()
        content_type = CONTENT_TYPES.get(relative.suffix, "application/octet-stream")
        if relative.parts[0] == "cases":
            self.storage.create(self.prefix + path, body, content_type, patience)
        elif relative.parts[0] == "candidates":  # the verdict is stored last: without it an earlier attempt was cut off
            create = self.storage.create if relative.name == VERDICT else self.storage.replace
            create(f"{self.prefix}artifacts/{path}", body, content_type, patience)
        else:
            self.storage.replace(f"{self.prefix}artifacts/{path}", body, content_type, patience)
        self.stored.add(path)

    def put_rest(self, patience: Patience) -> list[str]:
        """Stores what exists but could not be stored so far, and returns what still could not be.

        A case that the harness has not announced may be half written: it is left out.
        """
        lost = []
        for path in sorted((self.announced | set(ARTIFACTS)) - self.stored):
            if (self.out / path).is_file():
                try:
                    self.put(path, patience)
                except (StorageError, OSError):
                    lost.append(path)
        return lost


@dataclass
class RecordedFacts:
    """Receives the facts of one step. `diagnosis` is the cause that they show when the step fails."""

    files: Files
    events: EventWriter
    log: Log
    patience: Callable[[], Patience]
    stop: Stop
    candidates: Callable[[], Mapping[str, Any]] | None = None
    failed_gates: list[Diagnosis] = field(default_factory=list)
    problems: list[Diagnosis] = field(default_factory=list)

    def receive(self, fact: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Stores the fact's file, then appends its event, then waits until the bucket has both. Returns the next
        candidate for a session that is ready. Raises Halt (storage_unreachable) when the bucket stays away, and Halt
        (harness_crashed) for a fact that is not as the contract has it."""
        try:
            if "path" in fact:
                self.files.put(str(fact["path"]), self.patience())
            if fact["fact"] == "ready" and self.candidates is not None:
                return self.candidates()
            self.report(str(fact["fact"]), fact)
        except StorageError as error:
            self.stop.check()
            raise halt_for("storage_unreachable", str(error)) from error
        except (KeyError, TypeError, ValueError, OSError) as error:
            reason = f"the harness's fact {fact.get('fact')!r} cannot be used: {type(error).__name__} {error}"
            raise halt_for("harness_crashed", reason) from error
        # Interrupted, the wait ends early too; then the stop that interrupted it is the reason, not the bucket.
        if "path" in fact and not self.events.flush(self.patience()):
            self.stop.check()
            raise halt_for("storage_unreachable", "the event of a finished file could not be stored")
        return None

    def report(self, name: str, fact: Mapping[str, Any]) -> None:
        if name in SIMPLE:
            kind, keys = SIMPLE[name]
            self.events.append(kind, **{key: fact[key] for key in keys})
            self.log.say(describe_fact(name, fact))
        elif name == "gate":
            self.gate(str(fact["name"]), bool(fact["passed"]), str(fact.get("detail", "")))
        elif name == "checked":
            if not fact["passed"]:
                self.events.append("case_checked", **{key: fact.get(key) for key in CHECKED})
                self.log.say(f"WRONG {fact['implementation']} on {fact['case_id']}: {fact.get('reason', '')}")
        elif name == "planned":
            cases, total = len(fact["cases"]), fact["total"]
            per_implementation = fact["measurements_per_implementation"]
            self.events.append(
                "measurement_planned", cases=cases, total=total, measurements_per_implementation=per_implementation
            )
            self.log.say(f"{cases} of {total} cases to measure, {per_implementation} measurements each")
        elif name == "profiled":
            self.log.say(f"profiled {fact['implementation']} {fact['case_id']}: {fact['path']}".replace("  ", " "))
        elif name == "second_clock":
            self.log.say(f"CUPTI was asked about {fact['cells']} cells; see {fact['path']}")
        elif name == "candidate_judged":
            self.log.say(f"candidate {fact['number']} judged in {fact['seconds']:g} s")
        elif name == "candidate_case":
            self.log.say(f"candidate {fact['number']}: {fact['case_id']}")
        elif name == "problem":
            self.problems.append(Diagnosis(str(fact["cause"]), str(fact.get("detail", ""))))
            self.log.say(f"problem: {fact['cause']}: {fact.get('detail', '')}")
        else:
            self.log.say(f"the harness says {name!r}, which this agent does not know")

    def gate(self, name: str, passed: bool, detail: str) -> None:
        self.log.say(f"gate {name}: {'passed' if passed else 'FAILED'} {detail}")
        if passed:
            self.events.append("gate_passed", name=name, detail=detail)
        else:
            self.failed_gates.append(Diagnosis(GATE_CAUSES.get(name, "gate_failed"), f"gate {name} failed: {detail}"))

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The most exact cause that is known: the one that the harness reports, else that of a failed gate."""
        return next(iter(self.problems + self.failed_gates), None)


def describe_fact(name: str, fact: Mapping[str, Any]) -> str:
    """One line for the log, for people."""
    if name == "case_finished":
        medians = ", ".join(f"{key} {value:g} us" for key, value in fact["median_us"].items())
        return f"case {fact['index']}/{fact['of']} {fact['case_id']}: {medians or 'nothing timed'}"
    if name == "case_started":
        return f"case {fact['index']}/{fact['of']} {fact['case_id']} started"
    if name == "case_observed":
        return f"{fact['case_id'] or 'the step'}: at {fact['place']} after {fact['seconds']:g} s"
    if name == "correctness":
        return f"correctness: {fact['checked']} checked, {fact['failed']} failed"
    if name == "built":
        return f"kernel built in {fact['seconds']:g} s with {fact['compiler']}"
    return f"environment: {fact['device']}, torch {fact['torch']}"
