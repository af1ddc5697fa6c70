"""What the ledger sets aside for prepared images that are not made yet."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from orchestrator.core.images import cost_of
from orchestrator.core.ledger.document import Ledger, counted

CATEGORY: Final = "image"
MOST: Final = "-most"
"""What the id of an amount that is set aside for an image ends in."""


def most_of(name: str) -> str:
    """The id of the amount that is set aside for an image before it is made."""
    return f"{cost_of(name)}{MOST}"


def outstanding(ledger: Ledger) -> dict[str, datetime]:
    """The images for which an amount is set aside, and since when."""
    return {
        key.removeprefix(cost_of("")).removesuffix(MOST): cost.at
        for key, cost in counted(ledger).items()
        if cost.category == CATEGORY and key.endswith(MOST)
    }
