"""The state of a fleet: a fold over one short line for each child, which is stored in an object's metadata.

A line says how far a child is. Lines of one child are merged: the later attempt wins, and within an attempt the state
that comes later in `STATES`. So the result does not depend on the order in which lines are read, nor on how often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, TypeAdapter, ValidationError

from orchestrator.core.bounds import Count, Name, Usd
from orchestrator.core.fleet.sweep import Child
from orchestrator.core.text import clean_line, count, to_ascii

State = Literal["waiting", "running", "lost", "failed", "stopped", "given_up", "wrong", "stored"]
"""The states of a child; a later one wins over an earlier one. `lost`: its machine is gone, and it is tried again;
`failed`: it ended without its measurements; `given_up`: it has a row with a reason instead; `wrong`: measured, but an
implementation was wrong; `stored`: measured."""
STATES: Final[tuple[State, ...]] = get_args(State)
OVER: Final = frozenset(("given_up", "wrong", "stored"))
"""A child in one of these states is not measured again, unless it was given up and `retry` takes it back in."""
REASON: Final = 300
ATTEMPTS: Final = 12
"""The most attempts of a child. Claims have no names for more."""


@dataclass(frozen=True, slots=True)
class ChildLine:
    """The state of one child as one line."""

    child: Count
    state: State = "waiting"
    attempt: Count = 0
    machine: Name = ""
    cases_done: Count = 0
    cases_total: Count = 0
    usd: Usd = Decimal(0)
    """What its machines have cost so far, all attempts together."""
    seconds: Count = 0
    """The time from its first machine's start to its last report."""
    reason: Annotated[str, AfterValidator(lambda text: clean_line(text, REASON))] = ""
    failed_on: tuple[Name, ...] = ()
    """The machines on which it failed, each once."""
    device: Name = ""

    @property
    def over(self) -> bool:
        return self.state in OVER


def encode_line(line: ChildLine) -> dict[str, str]:
    """The line as object metadata: printable ASCII of bounded length."""
    return {
        "v": "1",
        "child": str(line.child),
        "state": line.state,
        "attempt": str(line.attempt),
        "machine": to_ascii(line.machine, 100),
        "cases": f"{line.cases_done}/{line.cases_total}",
        "usd": str(line.usd),
        "seconds": str(line.seconds),
        "reason": to_ascii(line.reason, REASON),
        "failed-on": ",".join(to_ascii(name, 100).replace(",", "?") for name in line.failed_on[-12:]),
        "device": to_ascii(line.device, 100),
    }


def decode_line(metadata: Mapping[str, str]) -> ChildLine | None:
    """The line in `metadata`; None if it is not valid. Its texts are bounded and made harmless."""
    done, _, total = metadata.get("cases", "0/0").partition("/")
    failed_on = [name for name in metadata.get("failed-on", "").split(",") if name]
    read = {**metadata, "cases_done": done, "cases_total": total, "failed_on": failed_on}
    try:
        return _line_reader().validate_python(read)
    except ValidationError:
        return None


@cache
def _line_reader() -> TypeAdapter[ChildLine]:
    return TypeAdapter(ChildLine)


MEASURED: Final = frozenset(("wrong", "stored"))


def line_rank(line: ChildLine) -> tuple[bool, int, int, str, str, str]:
    """The sort key of lines of one child: a measured state first, then the attempt, then the state; the rest breaks
    ties."""
    return line.state in MEASURED, line.attempt, STATES.index(line.state), line.machine, line.reason, line.device


def merge_lines(one: ChildLine, other: ChildLine) -> ChildLine:
    """One line with what both lines know of a child. The operation is associative, commutative and idempotent."""
    later = max(one, other, key=line_rank)
    return replace(
        later,
        cases_done=max(one.cases_done, other.cases_done),
        cases_total=max(one.cases_total, other.cases_total),
        usd=max(one.usd, other.usd),
        seconds=max(one.seconds, other.seconds),
        failed_on=tuple(sorted({*one.failed_on, *other.failed_on})),
    )


@dataclass(frozen=True, slots=True)
class FleetState:
    """The children of a fleet and the line of each, by index."""

    children: tuple[Child, ...]
    lines: Mapping[int, ChildLine] = field(default_factory=dict)

    def line(self, child: Child) -> ChildLine:
        return self.lines.get(child.index) or ChildLine(child.index, cases_total=len(child.cases))

    @property
    def counts(self) -> Counter[State]:
        return Counter(self.line(child).state for child in self.children)

    @property
    def open(self) -> tuple[Child, ...]:
        """The children that are not over, in the order of the plan."""
        return tuple(child for child in self.children if not self.line(child).over)

    @property
    def over(self) -> bool:
        return all(self.line(child).over for child in self.children)

    @property
    def usd(self) -> Decimal:
        return sum((line.usd for line in self.lines.values()), Decimal(0))

    def by_gpu(self) -> Mapping[str, Counter[State]]:
        counts: dict[str, Counter[State]] = {}
        for child in self.children:
            counts.setdefault(child.cell.gpu, Counter())[self.line(child).state] += 1
        return counts


def fold_fleet(children: Sequence[Child], lines: Iterable[ChildLine]) -> FleetState:
    """The state of the fleet. Lines with the number of a child that it does not have are left out."""
    merged: dict[int, ChildLine] = {}
    for line in lines:
        if line.child < len(children):
            earlier = merged.get(line.child)
            merged[line.child] = line if earlier is None else merge_lines(earlier, line)
    return FleetState(tuple(children), merged)


# Decides about children without measurements: they are tried again, given up with a reason, or the fleet pauses. - A
# child whose machine was preempted or lost is tried again, up to `ATTEMPTS` times. - A wrong kernel is a
# result, and is never tried again. - A configuration that failed on three different machines, in any of its repeats,
# is given up. Every repeat that is not measured gets a row with the reason. If there are fewer machines, it is given
# up once it failed on each of them and was tried three times. - If four of the first twenty children that ended have
# failed, the fleet pauses: the cause is probably common to all.


MACHINES: Final = 3
"""A configuration that failed on this many different machines is given up."""
FIRST: Final = 20
TOO_MANY: Final = 4


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """What a fleet must do now."""

    again: tuple[int, ...]
    """The indexes of children to start again: they failed or were lost, and have attempts left."""
    given_up: Mapping[int, str]
    """The reason for each child that is given up, by index. The reason becomes its row."""
    pause: str
    """Why nothing more is started; empty: the fleet goes on."""


def judge_retry(state: FleetState, *, persisted: bool = False, machines: int = MACHINES) -> RetryVerdict:
    """Applies the rules above. `persisted`: a person has resumed the fleet after a pause, so that its first failures do
    not stop it again. `machines`: the number of machines that exist."""
    failed_on: dict[str, set[str]] = {}
    tries: dict[str, int] = {}
    reasons: dict[str, str] = {}
    for child in state.children:
        line = state.line(child)
        if line.failed_on:
            failed_on.setdefault(child.config, set()).update(line.failed_on)
            tries[child.config] = max(tries.get(child.config, 0), line.attempt)
            reasons[child.config] = line.reason or reasons.get(child.config, "")
    hopeless = {
        config
        for config, names in failed_on.items()
        if len(names) >= MACHINES or (len(names) >= machines and tries[config] >= MACHINES)
    }
    again: list[int] = []
    given_up: dict[int, str] = {}
    for child in state.open:
        line = state.line(child)
        if child.config in hopeless:
            machines_tried = count(len(failed_on[child.config]), "machine")
            given_up[child.index] = f"failed on {machines_tried}: {reasons[child.config]}"
        elif line.state in ("failed", "lost"):
            if line.attempt >= ATTEMPTS:
                given_up[child.index] = f"tried {count(line.attempt, 'time')}: {line.reason}"
            else:
                again.append(child.index)
    return RetryVerdict(tuple(again), given_up, "" if persisted else _pause(state))


def _pause(state: FleetState) -> str:
    lines = [state.line(child) for child in state.children]
    ended = [line for line in lines if line.over or line.state == "failed" or line.failed_on][:FIRST]
    failed = [line for line in ended if line.failed_on or line.state in ("failed", "given_up")]
    if len(failed) < TOO_MANY:
        return ""
    first = count(len(ended), "child", "children")
    return f"{len(failed)} of the first {first} failed; the last: {failed[-1].reason or 'no reason given'}"
