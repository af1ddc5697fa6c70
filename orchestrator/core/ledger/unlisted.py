"""The holds that a list of runs does not show: of fleets, of images, and of runs that are missing from it or over.

Whoever looks at the list after a crash must not read that there are no runs while dollars are held.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.names import is_fleet_id
from orchestrator.core.images import cost_of
from orchestrator.core.ledger.arming import abandoned_from
from orchestrator.core.ledger.budget import WINDOWS, Caps, Ledger, lower_caps
from orchestrator.core.ledger.document import Cost, LedgerEntry, counted_costs
from orchestrator.core.naming import IMAGE_NAME, run_of

# Reads amounts of dollars that a person types.


AMOUNT: Final = re.compile(r"\$?(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
LARGE: Final = Decimal(1000)


def parse_dollars(text: str, *, zero: bool = False) -> Decimal:
    """The amount in `1.50` or `$1.50`. Raises `ConfigError` unless it is digits with at most six decimals, and more
    than 0 or, if `zero` is true, at least 0."""
    match = AMOUNT.fullmatch(text.strip())
    amount = Decimal(match[1]) if match else None
    if amount is None or (not amount and not zero):
        raise ConfigError(
            f"not an amount in dollars: {text}; use digits, with at most six decimals"
            + ("" if zero else ", and more than 0"),
            hint="for example: 1.50; to take back a recorded cost: `bench costs rm ID`",
        )
    return amount


def is_large(amount: Decimal, ledger: Ledger, caps: Caps) -> bool:
    """Whether an amount is so large that it may be a typing error: at least a whole cap, or a thousand dollars."""
    limits = [cap for window in WINDOWS[1:] if (cap := lower_caps(ledger, caps).of(window)) is not None]
    return amount >= min([LARGE, *limits])


# What the ledger sets aside for prepared images: while they are made, and for their storage once they are there.


CATEGORY: Final = "image"
MOST: Final = "-most"
"""What the id of an amount that is set aside for an image ends in."""
_IMAGE: Final = re.compile(rf"{IMAGE_NAME}[a-z0-9]+-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}")


def most_of(name: str) -> str:
    """The id of the amount that is set aside for an image before it is made."""
    return f"{cost_of(name)}{MOST}"


def name_of_most(key: str) -> str:
    """The image for which the amount with this id is set aside."""
    return key.removeprefix(cost_of("")).removesuffix(MOST)


def is_due(ledger: Ledger) -> bool:
    """Whether there is any hold to look after."""
    return any(entry.settled_usd is None for entry in ledger.runs.values()) or bool(outstanding_images(ledger))


def outstanding_images(ledger: Ledger) -> dict[str, datetime]:
    """The images for which an amount is set aside, and since when."""
    return {name: cost.at for name, cost in unmade_amounts(ledger).items()}


def unmade_amounts(ledger: Ledger) -> dict[str, Cost]:
    """By image that is not made yet: the amount that is set aside for it."""
    amounts = _set_aside_for_images(ledger)
    return {name.removesuffix(MOST): cost for name, cost in amounts.items() if name.endswith(MOST)}


def stored_amounts(ledger: Ledger) -> dict[str, Cost]:
    """By image that was made and not deleted since: the cost of its storage until it expires."""
    return {name: cost for name, cost in _set_aside_for_images(ledger).items() if _IMAGE.fullmatch(name)}


def _set_aside_for_images(ledger: Ledger) -> Mapping[str, Cost]:
    return {
        key.removeprefix(cost_of("")): cost for key, cost in counted_costs(ledger).items() if cost.category == CATEGORY
    }


Kind = Literal["run", "fleet", "image_build", "image_storage"]


@dataclass(frozen=True, slots=True)
class OpenHold:
    """Dollars that are held, what they are for, and the command that shows or releases them."""

    kind: Kind
    name: str
    """The run, the fleet or the image."""
    usd: Decimal
    since: datetime
    simulated: bool
    """Whether the dollars are simulated ones of the embedded cloud."""
    remedy: str
    """A command line."""
    settles_at: datetime | None = None
    """When no machine of it can run any more, so that it may be settled without a word of it; None where its run or
    fleet tells what it has cost, and of images."""

    readable: bool = True
    """Whether the record of its image can be read."""

    @property
    def lost(self) -> bool:
        """Whether its run has left no events, or its fleet no record."""
        return self.settles_at is not None


@dataclass(frozen=True, slots=True)
class KnownHolds:
    """What is there of that for which money is held, by name."""

    open_runs: frozenset[str] = frozenset()
    """The runs that the list shows as not over: it speaks for their holds."""
    lost: frozenset[str] = frozenset()
    """Runs without events, and fleets without a record."""
    foreign: frozenset[str] = frozenset()
    """Fleets on which this client does not act, as they were launched from another computer."""
    images: frozenset[str] = frozenset()
    """Images that can be deleted: their records are readable, and they are not gone."""
    odd_images: frozenset[str] = frozenset()
    """Images whose records cannot be read."""


def unlisted_runs(ledger: Ledger, open_runs: frozenset[str]) -> frozenset[str]:
    """The runs and fleets, other than `open_runs`, for which money is held."""
    return frozenset(run_of(key) for key, entry in ledger.runs.items() if entry.held) - open_runs


def unlisted_holds(ledger: Ledger, known: KnownHolds, insert_limit_s: float) -> tuple[OpenHold, ...]:
    """Every hold that the list of runs does not show, oldest first. `insert_limit_s`: the seconds for which a client
    may be about to request a machine."""
    unlisted = unlisted_runs(ledger, known.open_runs)
    image_costs = [
        _of_entry(name, entry, known, insert_limit_s)
        for key, entry in ledger.runs.items()
        if entry.held and (name := run_of(key)) in unlisted
    ]
    image_costs += _of_images(ledger, known)
    return tuple(sorted(image_costs, key=lambda one: (one.since, one.name)))


def _of_entry(name: str, entry: LedgerEntry, known: KnownHolds, insert_limit_s: float) -> OpenHold:
    fleet = is_fleet_id(name)
    kind: Kind = "fleet" if fleet else "run"
    if name in known.lost:
        over = abandoned_from(entry, insert_limit_s, asked=fleet or entry.attempt > 0)
        return OpenHold(kind, name, entry.held, entry.held_at, entry.pretend, "bench reap --yes", over)
    look = f"bench fleet status {'--look ' if name in known.foreign else ''}{name}" if fleet else f"bench status {name}"
    return OpenHold(kind, name, entry.held, entry.held_at, entry.pretend, look)


def _of_images(ledger: Ledger, known: KnownHolds) -> Iterator[OpenHold]:
    """An image that is gone holds nothing: what its storage has cost is spent."""

    def made(kind: Kind, name: str, cost: Cost, remedy: str, *, readable: bool = True) -> OpenHold:
        return OpenHold(kind, name, cost.usd, cost.at, cost.pretend, remedy, readable=readable)

    for name, cost in unmade_amounts(ledger).items():
        yield made("image_build", name, cost, "bench image list")
    for name, cost in stored_amounts(ledger).items():
        if name in known.images:
            yield made("image_storage", name, cost, f"bench image rm {name}")
        elif name in known.odd_images:
            yield made("image_storage", name, cost, "bench image list", readable=False)
