"""Candidates of a session and what a machine says about them. What comes from a machine is checked and bounded."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from orchestrator.core.bounds import LenientModel
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.reading import NotPython, parse_python
from orchestrator.core.names import CaseId
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.text import clean_line, parse_document

MOST_BYTES: Final = 1 << 20
"""The most that the files of a candidate may have together."""
MOST_CASES: Final = 1_000
MOST_NAMES: Final = 200
"""The most cases, kernels and baselines of a verdict."""
ROWS_BYTES: Final = 64 << 20
"""The most bytes that are read of all rows of a candidate."""
UNSEEN_S: Final = 30.0
"""How long the first candidate of a session is assumed to take, in seconds."""
END_S: Final = 90.0
"""The time before a machine's deadline in which it stores what it has, and takes no new candidate."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One version of a workload. `files` are by their places in a payload, and `path` is the workload's."""

    label: str
    path: str
    files: Mapping[str, bytes]
    beat: Mapping[str, float] = field(default_factory=dict)
    """In a race, by case: the ratio to the first baseline below which it is dropped."""
    ahead: Mapping[str, bytes] = field(default_factory=dict)
    """The files in which the candidate that may come next differs from this one. The machine may prepare that one."""

    def document(self, number: int) -> bytes:
        """The object in the bucket; what would make it too large of `ahead` is left out. Raises `ConfigError` for files
        that are too large."""
        size = sum(map(len, self.files.values()))
        if size > MOST_BYTES:
            raise ConfigError(
                f"{self.label} and the files beside it have {size >> 10} KiB; a candidate may have "
                f"{MOST_BYTES >> 10} KiB",
                hint="move what the kernel does not need to another folder, or use `bench launch`",
            )
        parts: dict[str, Any] = {"files": self.files}
        if self.ahead and size + sum(map(len, self.ahead.values())) <= MOST_BYTES:
            parts["ahead"] = self.ahead
        texts = {key: {name: data.hex() for name, data in sorted(files.items())} for key, files in parts.items()}
        return json.dumps({"schema": 1, "number": number, "path": self.path, **texts, "beat": dict(self.beat)}).encode()


CLOSING: Final = json.dumps({"schema": 1, "closes": True}).encode()
"""Stored in the place of a candidate, it ends the session."""

Name = Annotated[str, Field(max_length=200)]


class CandidateCase(LenientModel):
    """One measured case of a candidate; `file` holds its rows."""

    case_id: CaseId
    file: Annotated[str, Field(pattern=r"^case-[0-9]{1,5}\.csv$")]
    skipped: dict[Name, Annotated[str, Field(max_length=1000)]] = Field(default_factory=dict)
    stopped: dict[Name, Name] = Field(default_factory=dict)


class CandidateVerdict(LenientModel):
    """What a machine says about a candidate. `reason` is why it could not be judged at all."""

    number: int
    reason: Annotated[str, Field(max_length=1000)] = ""
    kernels: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMES)] = ()
    baselines: Annotated[tuple[Name, ...], Field(max_length=MOST_NAMES)] = ()
    cases: Annotated[tuple[CandidateCase, ...], Field(max_length=MOST_CASES)] = ()
    seconds: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    def fault(self, kernel: str) -> str:
        """Why a kernel was not timed in a case; empty where it was timed in all."""
        return next((clean_line(case.skipped[kernel], 400) for case in self.cases if kernel in case.skipped), "")

    @property
    def dropped(self) -> bool:
        """Whether it lost a race, so that it was not measured further."""
        return any("race" in case.stopped.values() for case in self.cases)


def parse_verdict(data: bytes, number: int) -> CandidateVerdict:
    """The verdict in an object. Raises `ResultsUnreadable`."""
    try:
        verdict = CandidateVerdict.model_validate_json(data)
    except ValidationError as exc:
        raise ResultsUnreadable(
            f"the verdict on candidate {number} cannot be read: {exc.error_count()} faults"
        ) from exc
    if verdict.number != number:
        raise ResultsUnreadable(f"the verdict on candidate {number} is about candidate {verdict.number}")
    return verdict


def time_refusal(deadline: datetime, now: datetime, taken_s: Sequence[float]) -> str:
    """Why there is no time for one more candidate before the machine's deadline, which its hold pays for; empty where
    there is. `taken_s` has the seconds that earlier candidates took."""
    needed = timedelta(seconds=END_S + 1.5 * max(taken_s, default=UNSEEN_S))
    if now + needed <= deadline:
        return ""
    seconds = max(0.0, (deadline - now).total_seconds())
    needed_s = needed.total_seconds()
    return f"{seconds:.0f} s are left of what the hold pays for, and one more candidate needs {needed_s:.0f} s"


def session_settings(harness: Mapping[str, Any], idle_s: float) -> dict[str, Any]:
    """The harness's part of a run spec, for a session."""
    return {**harness, "implementations": ["*"], "session": {"idle_s": idle_s}}


# Parameters to tune, as a workload's file declares them: `tune`, `best`, and the source text with other values.


Strategy = Literal["exhaustive", "random", "racing"]
HINT: Final = "`bench docs sessions` has an example"
MOST: Final = 10_000
"""The most combinations of a file."""
SHRINKAGE: Final = 0.3
HOPE: Final = 0.2
FITTING_ROUNDS: Final = 10
Scalar = str | int | float | bool
Values = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class TuneSpace:
    """The parameters of a file, each with the values that it declares, and the values in its `best`."""

    file: str
    values: Mapping[str, tuple[Scalar, ...]]
    best: Values

    def __len__(self) -> int:
        return math.prod(map(len, self.values.values()))

    def combinations(self) -> Iterator[Values]:
        """Every combination, in the order of the file."""
        for values in itertools.product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))

    def ordered(self, strategy: Strategy, seed: int) -> list[Values]:
        """The combinations in the order in which a strategy tries them, but for the choices that `racing` makes on the
        way; that of `random` and `racing` is drawn from the seed. What is in `best` comes first."""
        listed = list(self.combinations())
        if strategy != "exhaustive":
            listed.sort(key=lambda one: hashlib.sha256(f"{seed} {sorted(one.items())}".encode()).digest())
        listed.sort(key=lambda one: dict(one) != dict(self.best))
        return listed

    def allows(self, values: Values) -> bool:
        """Whether values are a combination that the file declares."""
        return set(values) == set(self.values) and all(
            any((type(value), value) == (type(one), one) for one in self.values[name]) for name, value in values.items()
        )

    @property
    def digest(self) -> str:
        """What tells the parameters of this file from those of others: its name, and what it declares."""
        declared = {name: list(values) for name, values in self.values.items()}
        return hashlib.sha256(json.dumps([self.file, declared], sort_keys=True).encode()).hexdigest()[:32]


def promising_combination(untried: Sequence[Values], measured: Sequence[tuple[Values, float]]) -> Values:
    """The combination that may be the fastest by the times of others. A time is taken for a product of one factor a
    value; the factors are fitted to what was measured, as if each value had `SHRINKAGE` more measurements at the mean.
    Of a value that was tried n times, a factor of exp(-`HOPE` / (n + 1)) is hoped for besides."""
    logs = [(values, math.log(time)) for values, time in measured]
    mean = math.fsum(log for _, log in logs) / len(logs)
    tries = Counter(item for values, _ in logs for item in values.items())
    factors: defaultdict[tuple[str, Scalar], float] = defaultdict(float)
    for _ in range(FITTING_ROUNDS):
        for name in measured[0][0]:
            sums: defaultdict[tuple[str, Scalar], float] = defaultdict(float)
            for values, log in logs:
                by_the_others = sum(factors[item] for item in values.items() if item[0] != name)
                sums[name, values[name]] += log - mean - by_the_others
            factors.update({item: total / (tries[item] + SHRINKAGE) for item, total in sums.items()})
    return min(untried, key=lambda one: sum(factors[item] - HOPE / (1 + tries[item]) for item in one.items()))


def dump_winner(values: Values, session: str, ratio: float) -> bytes:
    """The object in the bucket: the best values, and the session and published ratio that they come from."""
    return json.dumps({"schema": 1, "values": dict(values), "session": session, "ratio": ratio}).encode()


def parse_winner(data: bytes, space: TuneSpace) -> Values:
    """The values in an object of the bucket. Raises `ConfigError` unless they are values that the file declares."""
    try:
        values = parse_document(data)["values"]
        allowed = isinstance(values, dict) and space.allows(values)
    except (ValueError, KeyError, TypeError):
        allowed = False
    if not allowed:
        raise ConfigError(
            f"the bucket has values for {space.file} that the file does not declare, so nothing is written",
            hint="`bench tune` without --remembered measures again",
        )
    return dict(values)


def read_space(source: str, file: str) -> TuneSpace:
    """The parameters that a file declares. Raises `ConfigError` with file and line."""
    tree = _parsed(source, file)
    node = _assigned(tree, "tune")
    if node is None:
        raise ConfigError(f'{file} declares no parameters: tune = {{"block": [64, 128]}} does', hint=HINT)
    declared, best = _literal(node.value, file), {}
    if (chosen := _assigned(tree, "best")) is not None:
        best = _literal(chosen.value, file)
    if not isinstance(declared, dict) or not declared:
        raise ConfigError(f"{file}:{node.lineno}: tune must be a mapping of names to lists", hint=HINT)
    for name, values in declared.items():
        scalars = isinstance(values, list | tuple) and all(isinstance(one, str | int | float | bool) for one in values)
        if not isinstance(name, str) or not scalars or not values:
            raise ConfigError(f"{file}:{node.lineno}: tune: {name!r} must have a list of values", hint=HINT)
    space = TuneSpace(file, {name: tuple(values) for name, values in declared.items()}, best)
    if len(space) > MOST:
        raise ConfigError(f"{file}:{node.lineno}: {len(space)} combinations are more than {MOST}", hint=HINT)
    return space


def with_values(source: str, space: TuneSpace, values: Values) -> str:
    """The source with these values as its `best`, which is added after `tune` if there is none; nothing else changes.
    Raises `ConfigError` for values that the file does not declare."""
    if not space.allows(values):
        raise ConfigError(f"{space.file} does not declare the values {dict(values)}", hint=HINT)
    tree = _parsed(source, space.file)
    text = "{" + ", ".join(f"{name!r}: {value!r}" for name, value in values.items()) + "}"
    lines = source.splitlines(keepends=True)
    node = _assigned(tree, "best")
    if node is not None:
        value = node.value
        assert value is not None, "it was read before"
        assert value.end_lineno is not None, "as CPython's own parser made it"
        head = lines[value.lineno - 1].encode()[: value.col_offset].decode()
        rest = lines[value.end_lineno - 1].encode()[value.end_col_offset :].decode()
        return "".join([*lines[: value.lineno - 1], head + text + rest, *lines[value.end_lineno :]])
    after = _assigned(tree, "tune")
    assert after is not None, "a space was read from it"
    assert after.end_lineno is not None, "as CPython's own parser made it"
    last = lines[after.end_lineno - 1]
    ending = last if last.endswith("\n") else last + "\n"
    return "".join([*lines[: after.end_lineno - 1], ending, f"best = {text}\n", *lines[after.end_lineno :]])


def _parsed(source: str, file: str) -> ast.Module:
    try:
        return parse_python(source)
    except NotPython as exc:
        raise ConfigError(f"{file}:{exc.line}: {exc}", hint=HINT) from exc


def _assigned(tree: ast.Module, name: str) -> ast.Assign | ast.AnnAssign | None:
    """The last statement at the top of a file that gives a name its value."""
    statement: ast.Assign | ast.AnnAssign | None = None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        is_value = isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None)
        if is_value and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            statement = node  # type: ignore[assignment]
    return statement


def _literal(node: ast.expr | None, file: str) -> dict[str, Any]:
    try:
        assert node is not None, "an assignment"
        value: dict[str, Any] = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        line = getattr(node, "lineno", 1)
        raise ConfigError(f"{file}:{line}: tune and best must be written out as constants", hint=HINT) from exc
    return value
