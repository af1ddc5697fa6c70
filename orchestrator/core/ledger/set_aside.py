"""What the ledger sets aside for prepared images: while they are made, and for their storage once they are there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from orchestrator.core.images import cost_of
from orchestrator.core.ledger.document import Cost, Ledger, counted
from orchestrator.core.naming import IMAGE_NAME

CATEGORY: Final = "image"
MOST: Final = "-most"
"""What the id of an amount that is set aside for an image ends in."""
_IMAGE: Final = re.compile(rf"{IMAGE_NAME}[a-z0-9]+-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}")


def most_of(name: str) -> str:
    """The id of the amount that is set aside for an image before it is made."""
    return f"{cost_of(name)}{MOST}"


def outstanding(ledger: Ledger) -> dict[str, datetime]:
    """The images for which an amount is set aside, and since when."""
    return {name: cost.at for name, cost in amounts(ledger).items()}


def amounts(ledger: Ledger) -> dict[str, Cost]:
    """By image that is not made yet: the amount that is set aside for it."""
    found = _of_images(ledger)
    return {name.removesuffix(MOST): cost for name, cost in found.items() if name.endswith(MOST)}


def stored(ledger: Ledger) -> dict[str, Cost]:
    """By image that was made and not deleted since: the cost of its storage until it expires."""
    return {name: cost for name, cost in _of_images(ledger).items() if _IMAGE.fullmatch(name)}


def _of_images(ledger: Ledger) -> Mapping[str, Cost]:
    return {key.removeprefix(cost_of("")): cost for key, cost in counted(ledger).items() if cost.category == CATEGORY}
