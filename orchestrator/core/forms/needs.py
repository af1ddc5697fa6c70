"""Reads what a workload needs on the machine in addition to torch. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.core.errors import ConfigError

APT: Final = re.compile(r"[a-z0-9][a-z0-9.+-]+", re.ASCII)
LONGEST_LIMIT_S: Final = 3600.0
KEYS: Final = ("requirements", "apt", "build", "build_limit_s")
OBJECT: Final = "own.requirements.json"

Wrong = Callable[[str, str], ConfigError]
"""Makes the error for (what is wrong, key)."""


@dataclass(frozen=True, slots=True)
class WorkloadNeeds:
    """What a workload needs. `pip` has requirements, and names of wheel files beside the workload. `apt` has packages.
    `build` is a line for /bin/sh, and `build_limit_s` its time limit in seconds."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    build: str = ""
    build_limit_s: float = 300.0

    @property
    def anything(self) -> bool:
        return bool(self.pip or self.apt or self.build)

    @property
    def wheels(self) -> tuple[str, ...]:
        """The wheel files that must be beside the workload."""
        return tuple(one for one in self.pip if one.endswith(".whl"))

    def installed(self) -> tuple[str, ...]:
        """The packages to install, each with its installer: `pip triton==3.4`, `apt libnuma-dev`."""
        return tuple(sorted([*(f"pip {one}" for one in self.pip), *(f"apt {one}" for one in self.apt)]))

    def as_json(self) -> dict[str, Any]:
        """The needs as JSON data for the machine."""
        return {"schema": 1, **asdict(self)}


NOTHING: Final = WorkloadNeeds()


def parse_needs(values: Mapping[str, Any], wrong: Wrong) -> WorkloadNeeds:
    """The needs in a workload's `values`, under the keys `KEYS`. Raises the error that `wrong` makes if one is
    invalid."""
    pip = _words(values, "requirements", '["triton>=3"]', wrong)
    for package in pip:
        if package.startswith("-") or (package.endswith(".whl") and "/" in package):
            raise wrong(
                f"requirements: {package!r} must be a package, or the name of a wheel beside the file", "requirements"
            )
    apt = _words(values, "apt", '["libnuma-dev"]', wrong)
    for package in apt:
        if not APT.fullmatch(package):
            raise wrong(f"apt: {package!r} is not the name of a package", "apt")
    build = values.get("build", "")
    if not isinstance(build, str):
        raise wrong(f"build must be a line for /bin/sh, not {build!r}", "build")
    limit = values.get("build_limit_s", 300.0)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= LONGEST_LIMIT_S:
        raise wrong(
            f"build_limit_s must be a number of seconds up to {LONGEST_LIMIT_S:g}, not {limit!r}", "build_limit_s"
        )
    return WorkloadNeeds(pip, apt, build, float(limit))


def _words(values: Mapping[str, Any], key: str, example: str, wrong: Wrong) -> tuple[str, ...]:
    listed = values.get(key, ())
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise wrong(f"{key} must be a list of strings, as {example}", key)
    return tuple(one.strip() for one in listed)
