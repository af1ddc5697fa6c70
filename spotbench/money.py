"""Dollars as the library takes and returns them, and hints in its own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.errors import BenchError


def exact(value: Any) -> Any:
    """A float as the decimal number that is written for it; anything else as it is."""
    return Decimal(repr(value)) if isinstance(value, float) else value


class Dollars(Decimal):
    """An amount of dollars: a `Decimal` with which floats can be used too, as in `0.50 - plan.ceiling_usd`."""

    def __add__(self, other: Any) -> Dollars:
        return Dollars(Decimal.__add__(self, exact(other)))

    def __sub__(self, other: Any) -> Dollars:
        return Dollars(Decimal.__sub__(self, exact(other)))

    def __rsub__(self, other: Any) -> Dollars:
        return Dollars(Decimal.__rsub__(self, exact(other)))

    def __mul__(self, other: Any) -> Dollars:
        return Dollars(Decimal.__mul__(self, exact(other)))

    def __truediv__(self, other: Any) -> Dollars:
        return Dollars(Decimal.__truediv__(self, exact(other)))

    __radd__, __rmul__ = __add__, __mul__


def dollars(amount: float | str | Decimal) -> Dollars:
    """An amount that a caller gave, exactly as it is written."""
    return Dollars(exact(amount))


WORDS: Final = (
    (r"--set budget\.per_run_usd=([\w.]+)", r"max_usd=\1"),
    (r"budget\.per_run_usd", "max_usd"),
    (r"--set ([\w.]+)=([\w.\[\],-]+\w\]?)", r'settings={"\1": "\2"}'),
    (r"--(gpu|host) ([\w@:.-]*\w)", r'\1="\2"'),
    (r"--set\b", "settings"),
    (r"--(gpu|host|config)\b", r"\1"),
)
"""What the command line calls it, and what the library does."""


def translate_hint(hint: str) -> str:
    """A hint of the command line in the library's words. Whole commands `between backticks` stay: a shell runs them."""
    parts = re.split(r"(`bench [^`]*`)", hint)
    for place in range(0, len(parts), 2):
        for pattern, instead in WORDS:
            parts[place] = re.sub(pattern, instead, parts[place])
    return "".join(parts)


@contextmanager
def own_words() -> Iterator[None]:
    """Give errors of the block hints in the library's words."""
    try:
        yield
    except BenchError as exc:
        exc.hint = translate_hint(exc.hint)
        exc.args = tuple(translate_hint(one) if isinstance(one, str) else one for one in exc.args)
        raise
