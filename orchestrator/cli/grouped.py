"""Options that several commands share, declared once: a frozen dataclass in a command's signature gives the command its
fields as options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer sees it: where a parameter is a dataclass of options, each of its fields is an option in its
    place, and the command is called with the dataclass. Help, completions and order are those of the fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    members = {name: [field.name for field in fields(group)] for name, group in groups.items()}

    @wraps(command)
    def called(**given: Any) -> None:
        made = {name: group(**{one: given.pop(one) for one in members[name]}) for name, group in groups.items()}
        command(**given, **made)

    declared = [
        one
        for parameter in signature(command).parameters.values()
        for one in (
            _options_of(groups[parameter.name])
            if parameter.name in groups
            else (parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY),)
        )
    ]
    called.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in declared}
    return called


def _options_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
