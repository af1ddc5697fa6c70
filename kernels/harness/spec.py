"""What the harness has to do, checked strictly before anything is done. Needs neither torch nor numpy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernels import DEFAULT_WORKLOAD
from kernels.harness import workloads
from kernels.harness.own import ALL, OwnWorkload
from kernels.harness.reading import (
    BadSpec,
    read_integer,
    read_name,
    read_names,
    read_object,
    read_positive,
    shorten_value,
    text_of,
)
from kernels.harness.sanitizer import TOOLS
from kernels.harness.workload import Case, Workload

CONTROL = ":aa"
"""`NAME:aa` is `NAME` measured again under a second name. A difference between the two is noise and no result."""
BOTH = "both"
REGIMES = ("burst", "sustained", "graph", "burst+graph", BOTH)
CACHES = ("cold", "warm")
STEADY = "steady"
"""The warm-up that ends when times and clocks have become steady."""
REQUIRED = ("implementations", "measure", "correctness", "repeats", "warmup", "regime", "seed")
OPTIONAL = (
    "threads", "skip_cases", "run_id", "vm", "stop_at_relative_ci",
    "cache", "usd_per_hour", "case_budget_usd", "machine", "workload", "answer_limit_s", "profile", "session",
    "sanitizer",
)  # fmt: skip
ANSWER_LIMIT_S = 180.0
"""How long a call of our own workloads may take, unless the spec says so."""
MACHINE = ("zone", "machine_type", "image", "container")


SETS = ("roofline", "full", "trace")


@dataclass(frozen=True, slots=True)
class Profile:
    """What is profiled: cases by id, implementations by name (empty: all of the run), and how much the profiler
    collects."""

    cases: tuple[str, ...]
    implementations: tuple[str, ...] = ()
    set: str = SETS[0]


@dataclass(frozen=True, slots=True)
class Spec:
    """A judged spec of one workload. `threads` counts CPU threads, 0 for PyTorch's; `max_abs_error` is absolute.

    `repeats` is how many blocks there are in each regime, or may be at most where `stop_at_relative_ci` or
    `case_budget_s` (of the machine's time, for a case) ends one earlier. `warmup` counts calls, or is `steady`.
    `machine` is what the agent knows of the VM.
    """

    workload: Workload
    implementations: tuple[str, ...]
    measure: tuple[Case, ...]
    correctness: tuple[Case, ...]
    max_abs_error: float
    repeats: int
    warmup: int | str
    regime: str
    cache: str
    seed: int
    threads: int
    skip_cases: frozenset[str]
    stop_at_relative_ci: float | None
    case_budget_s: float | None
    machine: Mapping[str, str]
    run_id: str
    vm: str
    answer_limit_s: float | None
    """How long an implementation may take to be called once or to be measured once, and one of a user's own to load.
    None to follow the baselines."""
    """Whether the agent names each case to measure, one after another, and their end."""
    profile: Profile | None = None
    """What is profiled after the measurements; None for nothing."""
    beat: Mapping[str, float] = field(default_factory=dict)
    """For a candidate in a race, by case: the ratio to the first baseline that it has to reach."""
    text: str = ""
    """The JSON document of the spec, for processes that read it again."""
    sanitizer: str = ""
    """The tool of compute-sanitizer under which each kernel of a user is called once in each case; empty for none."""

    @property
    def planned(self) -> tuple[Case, ...]:
        """The cases to measure, in order, without those that are done already."""
        return tuple(case for case in self.measure if case.id not in self.skip_cases)


def parse_spec(text: str, read: Callable[[OwnWorkload], Mapping[str, Any]] | None = None) -> Spec:
    """The spec in a JSON document. `read` returns the description of a user's own workload; without `read` nothing is
    known of it yet. Raises `BadSpec`."""
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise BadSpec(f"the spec is not JSON: {exc}") from exc
    spec = read_object(data, "the spec", REQUIRED, OPTIONAL)
    workload = workloads.find_workload(spec.get("workload", DEFAULT_WORKLOAD))
    is_own_workload = isinstance(workload, OwnWorkload)
    if isinstance(workload, OwnWorkload) and read is not None:
        workload.read = partial(read, workload)
        workload.describe()
    keys = () if is_own_workload else (*workload.grid_keys, "max_abs_error")
    judged = read_object(spec["correctness"], "correctness", keys)
    tight, limit_s = spec.get("stop_at_relative_ci"), spec.get("answer_limit_s")
    machine = read_object(spec.get("machine", {}), "machine", (), MACHINE)
    skip = spec.get("skip_cases", [])
    if not isinstance(skip, list) or not all(isinstance(one, str) and workload.is_case(one) for one in skip):
        raise BadSpec(f"skip_cases must be a list of case ids, not {shorten_value(skip)}")
    return Spec(
        workload=workload,
        implementations=implementations_of(workload, spec["implementations"]),
        measure=grid_cases(
            workload,
            spec["measure"] if is_own_workload else read_object(spec["measure"], "measure", keys[:-1]),
            "measure",
        ),
        correctness=correctness_cases(workload, {key: judged[key] for key in keys[:-1]}),
        max_abs_error=0.0 if is_own_workload else read_positive(judged["max_abs_error"], "correctness.max_abs_error"),
        repeats=read_integer(spec["repeats"], "repeats", 1),
        warmup=read_warmup(spec["warmup"]),
        regime=read_name(spec["regime"], "regime", REGIMES),
        cache=read_name(spec.get("cache", CACHES[0]), "cache", CACHES),
        seed=read_integer(spec["seed"], "seed", 0),
        threads=read_integer(spec.get("threads", 0), "threads", 0),
        skip_cases=frozenset(skip),
        stop_at_relative_ci=None if tight is None else read_positive(tight, "stop_at_relative_ci"),
        case_budget_s=case_budget_s(spec.get("case_budget_usd"), spec.get("usd_per_hour")),
        machine={key: text_of(value, f"machine.{key}") for key, value in machine.items()},
        run_id=text_of(spec.get("run_id", ""), "run_id"),
        vm=text_of(spec.get("vm", ""), "vm"),
        answer_limit_s=None if limit_s is None else read_positive(limit_s, "answer_limit_s"),
        profile=None if spec.get("profile") is None else profile_of(spec["profile"]),
        text=text,
        sanitizer=read_sanitizer(spec.get("sanitizer"), is_own_workload=is_own_workload),
    )


def implementations_of(workload: Workload, data: object) -> tuple[str, ...]:
    """The implementations that are measured. A control needs the implementation that it controls. Raises `BadSpec`."""
    implementation_names = read_names(
        all_of(workload, data), "implementations", workload.shown(), lambda one: workload.knows(original_name(one))
    )
    for one in implementation_names:
        if one != original_name(one) and original_name(one) not in implementation_names:
            raise BadSpec(f"implementations: {one} is the control of {original_name(one)}, which is not among them")
    return implementation_names


def correctness_cases(workload: Workload, grid: Mapping[str, object]) -> tuple[Case, ...]:
    """The cases that are judged and not timed: a user's own tests, or those of a grid. Raises `BadSpec`."""
    return workload.tests() if isinstance(workload, OwnWorkload) else grid_cases(workload, grid, "correctness")


def profile_of(data: object) -> Profile:
    """What is to be profiled. Raises `BadSpec`."""
    fields = read_object(data, "profile", ("cases",), ("implementations", "set"))
    for key in ("cases", "implementations"):
        listed = fields.get(key, [])
        if not isinstance(listed, list) or not all(isinstance(one, str) and one for one in listed):
            raise BadSpec(f"profile.{key} must be a list of names, not {shorten_value(listed)}")
    return Profile(
        tuple(fields["cases"]),
        tuple(fields.get("implementations", ())),
        read_name(fields.get("set", SETS[0]), "profile.set", SETS),
    )


def read_sanitizer(data: object, *, is_own_workload: bool) -> str:
    """The name of a tool of compute-sanitizer, or an empty string. Raises `BadSpec`."""
    if data is None:
        return ""
    if not is_own_workload:
        raise BadSpec("sanitizer is for a workload of your own")
    return read_name(data, "sanitizer", TOOLS)


def read_warmup(data: object) -> int | str:
    """A number of calls, or `steady`. Raises `BadSpec`."""
    if data == STEADY:
        return STEADY
    return read_integer(data, "warmup", 0, f' or "{STEADY}"' if isinstance(data, str) else "")


def case_budget_s(usd: object, usd_per_hour: object) -> float | None:
    """The seconds that a machine runs for the dollars of one case; None where no sum is given. Raises `BadSpec`."""
    if usd is None:
        return None
    if usd_per_hour is None:
        raise BadSpec("case_budget_usd needs usd_per_hour, the machine's price")
    return 3600 * read_positive(usd, "case_budget_usd") / read_positive(usd_per_hour, "usd_per_hour")


def original_name(implementation: str) -> str:
    """The implementation behind a name: for a control the one that it controls, else the name itself."""
    return implementation.removesuffix(CONTROL)


def all_of(workload: Workload, data: object) -> object:
    """The names of the spec, where `*` is replaced by every implementation, and `*:aa` by the control of the first."""
    shown = workload.shown()
    if not isinstance(workload, OwnWorkload) or not isinstance(data, list) or ALL in shown:
        return data
    written = {ALL: list(shown), ALL + CONTROL: [shown[0] + CONTROL]}
    return [name for one in data for name in (written.get(one, [one]) if isinstance(one, str) else [one])]


def grid_cases(workload: Workload, grid: Mapping[str, object], where: str) -> tuple[Case, ...]:
    """The cases of a grid. Raises `BadSpec` for a case that occurs twice."""
    made = workload.cases(grid, where)
    ids = [case.id for case in made]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise BadSpec(f"{where} has a case twice: {twice[0]}")
    return made
