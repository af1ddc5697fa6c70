"""An open list of implementations by name; new implementations are added as entries."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kernels.harness.workload import Implementation, Site

NAME = re.compile(r"([a-z][a-z0-9_-]*)([@:].*)?", re.ASCII)

Maker = Callable[[str, "Site"], "Implementation"]
"""Makes the implementation of a full name, not yet built. Raises `Unavailable` where it cannot be had."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation and its variants.

    `maker` is `module:function` of a `Maker`, imported when it is first needed. `variants` is what may follow the name,
    as a regular expression (`(@sm_[0-9]+)?(:lse)?`); `listed` are the full names that messages and defaults show.
    """

    name: str
    maker: str
    variants: str = ""
    listed: tuple[str, ...] = ()

    def make(self) -> Maker:
        """The maker, imported."""
        module, _, function = self.maker.partition(":")
        return cast(Maker, getattr(importlib.import_module(module), function))


@dataclass
class Registry:
    """Entries by name, in the order in which they were added."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Adds an entry. Raises `ValueError` for a name that is taken or not valid."""
        parts = NAME.fullmatch(entry.name)
        if parts is None or parts.group(2) or entry.name in self.entries:
            raise ValueError(f"{entry.name!r} is already in use, or is not a valid name for an implementation")
        self.entries[entry.name] = entry

    def find(self, name: str) -> Entry | None:
        """The entry that a full name belongs to, or None."""
        parts = NAME.fullmatch(name)
        entry = self.entries.get(parts.group(1)) if parts else None
        if entry is None or parts is None:
            return None
        return entry if re.fullmatch(entry.variants, parts.group(2) or "") else None

    def shown(self) -> tuple[str, ...]:
        """All names for a message."""
        return tuple(name for entry in self.entries.values() for name in entry.listed or (entry.name,))
