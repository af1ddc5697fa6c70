"""Reads amounts of dollars that a person types."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import WINDOWS, Caps, Ledger, binding

AMOUNT: Final = re.compile(r"\$?(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
LARGE: Final = Decimal(1000)


def dollars(text: str, *, zero: bool = False) -> Decimal:
    """The amount in `1.50` or `$1.50`. Raises `ConfigError` unless it is digits with at most six decimals, and more
    than 0 or, if `zero` is true, at least 0."""
    found = AMOUNT.fullmatch(text.strip())
    amount = Decimal(found[1]) if found else None
    if amount is None or (not amount and not zero):
        raise ConfigError(
            f"not an amount in dollars: {text}; use digits, with at most six decimals"
            + ("" if zero else ", and more than 0"),
            hint="for example: 1.50; to take back a recorded cost: `bench costs rm ID`",
        )
    return amount


def is_large(amount: Decimal, ledger: Ledger, caps: Caps) -> bool:
    """Whether an amount is so large that it may be a typing error: at least a whole cap, or a thousand dollars."""
    limits = [cap for window in WINDOWS[1:] if (cap := binding(ledger, caps).of(window)) is not None]
    return amount >= min([LARGE, *limits])
