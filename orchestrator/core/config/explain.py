"""Translates pydantic's errors into messages for the user who wrote the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.core.market.catalog import suggest, unknown_gpu_message

Path = tuple[str | int, ...]

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "decimal_parsing": "an amount of dollars",
    "decimal_type": "an amount of dollars",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a section with keys of its own",
    "model_type": "a section with keys of its own",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def explain_errors(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Path, str]]:
    """(path, what is wrong and what would be right) for each finding of `error` about a document of type `model`."""
    items = error.errors()
    for item in items:
        if item["type"] == "too_short" and any(len(other["loc"]) > len(item["loc"]) for other in items):
            continue  # empty only because its entries were wrong, and each of them is in the list
        path = tuple(part for part in item["loc"] if part != "[key]")
        yield path, _words(item["type"], item["msg"], item["input"], item.get("ctx", {}), model, path)


def _words(kind: str, message: str, value: Any, context: dict[str, Any], model: type[BaseModel], path: Path) -> str:
    if kind == "extra_forbidden":
        section = str(path[-2]) if len(path) > 1 else ""
        plain_name = re.sub(rf"^{re.escape(section)}s?[._-]|s$", "", str(path[-1]))
        keys = _keys(model, path[:-1])
        return f"unknown key; {suggest(plain_name if plain_name in keys else str(path[-1]), keys)}"
    if kind == "missing":
        return "required"
    if kind == "literal_error":
        if path == ("gpu",):
            return unknown_gpu_message(str(value))
        choices = re.findall("'([^']*)'", context["expected"])
        return f"'{value}' is not a choice; {suggest(str(value), choices)}"
    if kind in _BOUNDS:
        bound_text, key = _BOUNDS[kind]
        return f"must be {bound_text} {context[key]}, not {value}"
    if kind == "too_short":
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"'{value}' is not valid; expected {context['pattern']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(value)}"
    return message.removeprefix("Value error, ")


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(model: type[BaseModel], path: Path) -> tuple[str, ...]:
    """The keys that may stand at `path` of a document of type `model`."""
    for part in path:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `tuple[Shape, ...]` or `Grid | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
