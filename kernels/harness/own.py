"""A user's own workload as the harness sees it: plain data, which a separate process has read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.harness.reading import BadSpec, read_object, shorten_value
from kernels.harness.workload import Implementation, Problem, Site, Unavailable

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
LONGEST_ID = 160
DTYPE = "dtype"
ALL = "*"


@dataclass(frozen=True, slots=True)
class OwnCase:
    """A case: one value of each axis. `skip` says why it cannot be measured here; empty where it can."""

    values: Mapping[str, Any]
    id: str
    skip: str = ""
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def axes(self) -> dict[str, str]:
        """The cells of its row: `dtype` in the column of that name, any other axis as `axis:<name>`."""
        return {axis_column(name): value_text(value) for name, value in self.values.items()}


def axis_column(axis: str) -> str:
    """The name of the column of an axis. Its prefix keeps it apart from other columns of a file."""
    return axis if axis == DTYPE else f"axis:{axis}"


def value_text(value: object) -> str:
    """A value as it is written in rows and ids. None, which stands for an argument that is not passed, is empty."""
    if isinstance(value, list):
        return "x".join(map(value_text, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def case_id(values: Mapping[str, Any]) -> str:
    """The id of a case, for example `rows64-cols256-float32`. Characters that do not fit a file name are replaced, and
    then a digest makes the id unique."""
    parts = [("" if name == DTYPE else name) + value_text(value) for name, value in values.items() if value is not None]
    plain = "-".join(parts) or "all"
    safe = "-".join(re.sub(r"[^A-Za-z0-9._+]", "_", part) for part in parts) or "all"
    if safe != plain or not safe[0].isalnum() or len(safe) > LONGEST_ID:
        safe = f"case{safe[:LONGEST_ID]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    return safe


@dataclass
class OwnWorkload:
    """A workload that a separate process reads. `read` asks that process. Before it is called nothing is known of the
    workload, and any case or implementation is taken for one of it."""

    form: str
    path: str
    read: Callable[[], Mapping[str, Any]] | None = None
    description: Mapping[str, Any] = field(default_factory=dict)

    grid_keys = ()

    def describe(self) -> Mapping[str, Any]:
        """The description of the workload. Raises `BadSpec` with file and line where it cannot be read."""
        if not self.description and self.read is not None:
            self.description = self.read()
        return self.description

    @property
    def name(self) -> str:
        """The file's own name."""
        return str(self.description.get("name", ""))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its axes."""
        return tuple(axis_column(axis) for axis in self.describe().get("axes", ()))

    def cases(self, grid: Mapping[str, Any], where: str) -> tuple[OwnCase, ...]:
        """All of the workload's cases, or those that have one of the values that `grid` gives for its axes."""
        description = self.describe()
        chosen = read_object(grid, where, (), ("axes",)).get("axes", {})
        if not description:
            return ()
        if not isinstance(chosen, Mapping) or not all(isinstance(values, list) for values in chosen.values()):
            raise BadSpec(f"{where}.axes must be an object of lists, not {shorten_value(chosen)}")
        unknown = sorted(set(chosen) - set(description["axes"]))
        if unknown:
            raise BadSpec(
                f"{where}.axes: {description['file']} has no axis {unknown[0]}; it has {', '.join(description['axes'])}"
            )
        rows = zip(description["cases"], description["skip"], description["flops"], description["bytes"], strict=True)
        cases = tuple(
            OwnCase(values, case_id(values), skip, flops or 0.0, moved or 0.0)
            for values, skip, flops, moved in rows
            if all(value_text(values[axis]) in map(value_text, wanted) for axis, wanted in chosen.items())
        )
        if not cases:
            raise BadSpec(f"{where}.axes leave no case of {description['file']}")
        return cases

    def tests(self) -> tuple[OwnCase, ...]:
        """The cases that are judged and not timed."""
        return tuple(OwnCase(values, case_id(values)) for values in self.describe().get("tests", ()))

    def is_case(self, case: str) -> bool:
        """Whether an id may be one of this workload's."""
        return SAFE.fullmatch(case) is not None

    def shown(self) -> tuple[str, ...]:
        """Its implementations."""
        return tuple(self.describe().get("implementations", ())) or (ALL,)

    def builds(self) -> tuple[str, ...]:
        """Its implementations that have something to build before their first call."""
        return tuple(self.describe().get("builds", ()))

    def knows(self, implementation: str) -> bool:
        """Whether the workload has an implementation of that name."""
        return implementation in self.shown() or not self.description

    def implementation(self, name: str, _site: Site) -> Implementation:
        """A placeholder, as no implementation of the workload runs in the harness's process."""
        raise Unavailable(f"{name} runs in a process of its own")

    def problem(self) -> Problem:
        """A placeholder, as the workload's tensors are in other processes."""
        raise Unavailable("its tensors are in other processes")
