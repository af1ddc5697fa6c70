"""What the harness is asked to do, judged strictly before anything is done. Needs neither torch nor numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.attention.case import CASE_ID, DTYPE_NAMES, Case, Shape

IMPLEMENTATIONS = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
CONTROL = ":aa"
"""`bench:aa` is `bench` once more under a second name: what the two differ by is noise, and no result."""
BOTH = "both"
REGIMES = ("burst", "sustained", "graph", BOTH)
CACHES = ("cold", "warm")
STEADY = "steady"
"""A warm-up that ends when nothing moves any more."""
SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
REQUIRED = ("implementations", "measure", "correctness", "repeats", "warmup", "regime", "seed")
OPTIONAL = (
    "threads", "skip_cases", "run_id", "vm", "stop_at_relative_ci",
    "cache", "usd_per_hour", "case_budget_usd", "machine", "on_request",
)  # fmt: skip
MACHINE = ("zone", "machine_type", "image")


class BadSpec(Exception):
    """The spec cannot be obeyed. The message names the key, what was found and what would do."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A judged spec. `threads` counts CPU threads, 0 for PyTorch's default; `max_abs_error` is absolute.

    `repeats` is how many blocks there are in each regime, or may be at most where `stop_at_relative_ci` or
    `case_budget_s` (of the machine's time, for a case) ends one earlier. `warmup` counts calls, or is `steady`.
    `machine` is what the agent knows of the VM.
    """

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
    on_request: bool
    """Whether the agent names each case to measure, one after another, and their end."""

    @property
    def planned(self) -> tuple[Case, ...]:
        """The cases to measure, in order, without those that are done already."""
        return tuple(case for case in self.measure if case.id not in self.skip_cases)

    @property
    def measurements_per_implementation(self) -> int:
        """At most, over all cases and both regimes."""
        return len(self.measure) * self.repeats * (2 if self.regime == BOTH else 1)


def parse(text: str) -> Spec:
    """The spec in a JSON document. Raises `BadSpec`."""
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise BadSpec(f"the spec is not JSON: {exc}") from exc
    spec = table(data, "the spec", REQUIRED, OPTIONAL)
    judged = table(spec["correctness"], "correctness", ("shapes", "dtypes", "max_abs_error"))
    implementations = names(spec["implementations"], "implementations", (*IMPLEMENTATIONS, *map(twin, IMPLEMENTATIONS)))
    for one in implementations:
        if one != original(one) and original(one) not in implementations:
            raise BadSpec(f"implementations: {one} is the control of {original(one)}, which is not among them")
    tight = spec.get("stop_at_relative_ci")
    machine = table(spec.get("machine", {}), "machine", (), MACHINE)
    skip = spec.get("skip_cases", [])
    if not isinstance(skip, list) or not all(isinstance(one, str) and CASE_ID.fullmatch(one) for one in skip):
        raise BadSpec(f"skip_cases must be a list of case ids, not {shown(skip)}")
    return Spec(
        implementations=implementations,
        measure=cases(table(spec["measure"], "measure", ("shapes", "dtypes")), "measure"),
        correctness=cases(judged, "correctness"),
        max_abs_error=positive(judged["max_abs_error"], "correctness.max_abs_error"),
        repeats=integer(spec["repeats"], "repeats", 1),
        warmup=warmup(spec["warmup"]),
        regime=name(spec["regime"], "regime", REGIMES),
        cache=name(spec.get("cache", CACHES[0]), "cache", CACHES),
        seed=integer(spec["seed"], "seed", 0),
        threads=integer(spec.get("threads", 0), "threads", 0),
        skip_cases=frozenset(skip),
        stop_at_relative_ci=None if tight is None else positive(tight, "stop_at_relative_ci"),
        case_budget_s=case_budget_s(spec.get("case_budget_usd"), spec.get("usd_per_hour")),
        machine={key: text_of(told, f"machine.{key}") for key, told in machine.items()},
        run_id=text_of(spec.get("run_id", ""), "run_id"),
        vm=text_of(spec.get("vm", ""), "vm"),
        on_request=truth(spec.get("on_request", False), "on_request"),
    )


def warmup(data: object) -> int | str:
    """A number of calls, or `steady`. Raises `BadSpec`."""
    if data == STEADY:
        return STEADY
    return integer(data, "warmup", 0, f' or "{STEADY}"' if isinstance(data, str) else "")


def case_budget_s(usd: object, usd_per_hour: object) -> float | None:
    """How long a machine runs for the dollars of one case; None where no sum is given. Raises `BadSpec`."""
    if usd is None:
        return None
    if usd_per_hour is None:
        raise BadSpec("case_budget_usd needs usd_per_hour, the machine's price")
    return 3600 * positive(usd, "case_budget_usd") / positive(usd_per_hour, "usd_per_hour")


def original(implementation: str) -> str:
    """What a name stands for: a control's implementation, or the implementation itself."""
    return implementation.removesuffix(CONTROL)


def twin(implementation: str) -> str:
    """The name of an implementation's control."""
    return implementation + CONTROL


def cases(grid: Mapping[str, Any], where: str) -> tuple[Case, ...]:
    """Every shape in every dtype, shape by shape. Raises `BadSpec` for a case that occurs twice."""
    shapes = grid["shapes"]
    if not isinstance(shapes, list):
        raise BadSpec(f"{where}.shapes must be a list, not {shown(shapes)}")
    dtypes = names(grid["dtypes"], f"{where}.dtypes", DTYPE_NAMES)
    made = tuple(Case(shape(one, f"{where}.shapes[{i}]"), dtype) for i, one in enumerate(shapes) for dtype in dtypes)
    ids = [case.id for case in made]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise BadSpec(f"{where} has a case twice: {twice[0]}")
    return made


def shape(data: object, where: str) -> Shape:
    """One full shape; nothing is defaulted here. Raises `BadSpec`."""
    given = table(data, where, (*SIZES, "causal"))
    sizes = {key: integer(given[key], f"{where}.{key}", 1) for key in SIZES}
    if not isinstance(given["causal"], bool):
        raise BadSpec(f"{where}.causal must be true or false, not {shown(given['causal'])}")
    if sizes["heads"] % sizes["kv_heads"]:
        raise BadSpec(f"{where}: heads {sizes['heads']} is not a multiple of kv_heads {sizes['kv_heads']}")
    return Shape(**sizes, causal=given["causal"])


def table(data: object, where: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """A JSON object with these keys and no others. Raises `BadSpec`."""
    if not isinstance(data, dict):
        raise BadSpec(f"{where} must be an object, not {shown(data)}")
    missing = [key for key in required if key not in data]
    unknown = sorted(set(data) - {*required, *optional})
    if missing or unknown:
        lacks = f" lacks {', '.join(missing)}" if missing else ""
        extra = f" has unknown {', '.join(unknown)}" if unknown else ""
        raise BadSpec(f"{where}{lacks}{' and' if lacks and extra else ''}{extra}")
    return data


def names(data: object, where: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """A list, not empty and without repetition, of known names. Raises `BadSpec`."""
    if not isinstance(data, list) or not data:
        raise BadSpec(f"{where} must be a list with at least one of {', '.join(known)}, not {shown(data)}")
    found = tuple(name(one, where, known) for one in data)
    if len(set(found)) < len(found):
        raise BadSpec(f"{where} repeats a name: {', '.join(found)}")
    return found


def name(data: object, where: str, known: tuple[str, ...]) -> str:
    """One known name. Raises `BadSpec`."""
    if not isinstance(data, str) or data not in known:
        raise BadSpec(f"{where}: {shown(data)} is none of {', '.join(known)}")
    return data


def integer(data: object, where: str, least: int, otherwise: str = "") -> int:
    """An integer of at least `least`; true and 1.0 are not integers. Raises `BadSpec`, naming what else does."""
    if not isinstance(data, int) or isinstance(data, bool) or data < least:
        raise BadSpec(f"{where} must be an integer >= {least}{otherwise}, not {shown(data)}")
    return data


def positive(data: object, where: str) -> float:
    """A finite number above 0. Raises `BadSpec`."""
    if not isinstance(data, (int, float)) or isinstance(data, bool) or not 0 < data < float("inf"):
        raise BadSpec(f"{where} must be a positive number, not {shown(data)}")
    return float(data)


def truth(data: object, where: str) -> bool:
    """True or false. Raises `BadSpec`."""
    if not isinstance(data, bool):
        raise BadSpec(f"{where} must be true or false, not {shown(data)}")
    return data


def text_of(data: object, where: str) -> str:
    """A string. Raises `BadSpec`."""
    if not isinstance(data, str):
        raise BadSpec(f"{where} must be a string, not {shown(data)}")
    return data


def shown(data: object) -> str:
    """A value as the message shows it: JSON, cut short."""
    words = json.dumps(data, default=str)
    return words if len(words) <= 60 else words[:57] + "..."
