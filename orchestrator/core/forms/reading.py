"""A description in YAML as typed values; what is wrong with it is told with file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core import yamltext
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import closest


@dataclass(frozen=True, slots=True)
class Description:
    """The keys of a description. `hint` goes with every complaint."""

    file: str
    hint: str
    data: Mapping[str, Any]
    document: yamltext.Document

    @classmethod
    def read(cls, text: str, file: str, hint: str, known: Sequence[str]) -> Description:
        """The description in `text`. Raises `ConfigError` where it is no mapping, or has a key that is not known."""
        document = yamltext.read(text)
        for line, key, what in document.problems:
            raise ConfigError(f"{file}:{line}: {f'{key}: ' if key else ''}{what}", hint=hint)
        if not isinstance(document.data, dict):
            raise ConfigError(f"{file}:1: expected keys and values", hint=hint)
        made = cls(file, hint, document.data, document)
        for key in document.data:
            if key not in known:
                near = closest(str(key), known)
                suggestion = f"; did you mean {near}?" if near else f"; there are {', '.join(known)}"
                raise made.wrong(f"unknown key {key}{suggestion}", str(key))
        return made

    def wrong(self, words: str, *path: str | int) -> ConfigError:
        """A complaint about the place that `path` leads to."""
        return ConfigError(f"{self.file}:{self.document.line(path) or 1}: {words}", hint=self.hint)

    def text(self, key: str, default: str | None = None) -> str:
        """A key's words. Raises `ConfigError` where they are none, or missing without a `default`."""
        told = self.data.get(key, default)
        if told is None:
            raise self.wrong(f"there is no {key}")
        if not isinstance(told, str) or not told.strip():
            raise self.wrong(f"{key} must be text, not {told!r}", key)
        return told

    def positive(self, key: str, default: float) -> float:
        """A key's number above zero. Raises `ConfigError`."""
        told = self.data.get(key, default)
        if not isinstance(told, (int, float)) or isinstance(told, bool) or not 0 < told < 1e9:
            raise self.wrong(f"{key} must be a number above 0, not {told!r}", key)
        return float(told)

    def listed(self, key: str) -> list[Any]:
        """A key's list; an empty one where there is none. Raises `ConfigError`."""
        told = self.data.get(key, [])
        if not isinstance(told, list):
            raise self.wrong(f"{key} must be a list, not {told!r}", key)
        return told
