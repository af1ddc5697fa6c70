"""The keys of a configuration, for a shell to offer after --set."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from orchestrator.core.config import model
from orchestrator.core.config.model import Config, Grid


class ConfigKey(NamedTuple):
    """A key that a person sets, its default in plain types (None where there is none), and the class that has it."""

    key: str
    default: Any
    section: str

    @property
    def about(self) -> str:
        """What it does, in a sentence."""
        return _sentences()[self.section, self.key.rpartition(".")[2]]


@cache
def _sentences() -> Mapping[tuple[str, str], str]:
    """By class and field of the configuration, the first sentence of what is written below it in the source."""
    sections = [node for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    return {
        (section.name, ast.unparse(field.target)): re.split(r"(?<=\.)\s", inspect.cleandoc(str(text.value.value)))[0]
        for section in sections
        for field, text in pairwise(section.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def walk(section: type[BaseModel], above: str = "") -> list[ConfigKey]:
    """Every key below a section."""
    keys: list[ConfigKey] = []
    for name, field in section.model_fields.items():
        if field.exclude or f"{above}{name}" in ("workload.name", "workload.form", "workload.cases"):
            continue  # read from the workload itself
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is not None and below is not Grid:  # a grid is taken by its name
            keys += walk(below, f"{above}{name}.")
            continue
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        keys.append(ConfigKey(f"{above}{name}", _flat(value), section.__name__))
    return keys


def to_yaml(value: Any) -> str:
    """A value as a configuration has it: `true`, `null`, `[bench]`."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _flat(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | dict):
        return value
    return list(value) if isinstance(value, tuple) else str(value)


def known_keys(incomplete: str) -> list[str]:
    """Every key with the sign that follows it."""
    return [f"{one.key}=" for one in walk(Config) if one.key.startswith(incomplete)]
