"""The keys of a configuration, for a shell to offer after --set."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from orchestrator.core.config.grids import Grid
from orchestrator.core.config.model import Config


def walk(section: type[BaseModel], above: str = "") -> list[tuple[str, Any]]:
    """Every key below a section with its default, in plain types; None where there is none."""
    keys: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is not None and below is not Grid:  # a grid is taken by its name
            keys += walk(below, f"{above}{name}.")
            continue
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        keys.append((f"{above}{name}", _flat(value)))
    return keys


def _flat(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | dict):
        return value
    return list(value) if isinstance(value, tuple) else str(value)


def known_keys(incomplete: str) -> list[str]:
    """Every key with the sign that follows it."""
    return [f"{key}=" for key, _ in walk(Config) if key.startswith(incomplete)]
