"""What a workload needs on the machine beside torch, as its text says it. Pure."""

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
"""A complaint about a key."""


@dataclass(frozen=True, slots=True)
class Needs:
    """`pip` holds requirements, and names of wheels beside the workload; `build` is a line for /bin/sh."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    build: str = ""
    build_limit_s: float = 300.0

    @property
    def anything(self) -> bool:
        return bool(self.pip or self.apt or self.build)

    @property
    def wheels(self) -> tuple[str, ...]:
        """The wheels that must lie beside the workload."""
        return tuple(one for one in self.pip if one.endswith(".whl"))

    def installed(self) -> tuple[str, ...]:
        """What is to be installed, a word each: `pip triton==3.4`, `apt libnuma-dev`."""
        return tuple(sorted([*(f"pip {one}" for one in self.pip), *(f"apt {one}" for one in self.apt)]))

    def as_json(self) -> dict[str, Any]:
        """What the machine is told."""
        return {"schema": 1, **asdict(self)}


NOTHING: Final = Needs()


def needs(told: Mapping[str, Any], wrong: Wrong) -> Needs:
    """What a workload says of its needs, under `KEYS`. Raises what `wrong` makes."""
    pip = _words(told, "requirements", '["triton>=3"]', wrong)
    for one in pip:
        if one.startswith("-") or (one.endswith(".whl") and "/" in one):
            raise wrong(
                f"requirements: {one!r} must be a package, or the name of a wheel beside the file", "requirements"
            )
    apt = _words(told, "apt", '["libnuma-dev"]', wrong)
    for one in apt:
        if not APT.fullmatch(one):
            raise wrong(f"apt: {one!r} is not the name of a package", "apt")
    build = told.get("build", "")
    if not isinstance(build, str):
        raise wrong(f"build must be a line for /bin/sh, not {build!r}", "build")
    limit = told.get("build_limit_s", 300.0)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= LONGEST_LIMIT_S:
        raise wrong(
            f"build_limit_s must be a number of seconds up to {LONGEST_LIMIT_S:g}, not {limit!r}", "build_limit_s"
        )
    return Needs(pip, apt, build, float(limit))


def _words(told: Mapping[str, Any], key: str, example: str, wrong: Wrong) -> tuple[str, ...]:
    listed = told.get(key, ())
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise wrong(f"{key} must be a list of strings, as {example}", key)
    return tuple(one.strip() for one in listed)
