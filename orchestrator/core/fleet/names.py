"""Names that a fleet has in the bucket, on a scheduler and in a listing."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Final

FLEETS_PREFIX: Final = "fleets/"
FLEET_LABEL: Final = "bench-fleet"
FLEET_ID = re.compile(r"fleet-\d{8}-\d{6}-[0-9a-f]{4}")
MOST_CHILDREN: Final = 65_536
"""A child's number has four hexadecimal digits in the name of its run."""
SHARDS: Final = "0123456789abcdef"
"""Lines of children lie under one digit of a hash, so that their names are spread and sixteen listings read them."""


def fleet_id(now: datetime, entropy: str) -> str:
    """`fleet-20261122-040506-7f3a`."""
    return f"fleet-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{entropy[:4].lower()}"


def is_fleet_id(text: str) -> bool:
    return FLEET_ID.fullmatch(text) is not None


def child_run(fleet: str, gpu: str, index: int) -> str:
    """The run that child number `index` is, on whichever machine and however often it is tried:
    `20261122-040506-l4x7f3a-002a`. Raises `ValueError` for what is no fleet or has more digits than a name holds."""
    if not is_fleet_id(fleet) or not 0 <= index < MOST_CHILDREN:
        raise ValueError(f"child {index} of {fleet!r} has no name")
    stamp, entropy = fleet.removeprefix("fleet-").rsplit("-", 1)
    return f"{stamp}-{re.sub('[^a-z0-9]', '', gpu.lower())}x{entropy}-{index:04x}"


def job_name(fleet: str, number: int) -> str:
    """What a scheduler knows a job by. Ours, so that a job whose answer was lost is found by it."""
    return f"bench-{fleet}-{number}"


def fleet_prefix(fleet: str) -> str:
    return f"{FLEETS_PREFIX}{fleet}/"


def listing_object(fleet: str) -> str:
    """The one object of a fleet in the list of fleets: `bench fleet ls` reads its metadata."""
    return f"fleet-index/{fleet}.json"


def spec_object(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}spec.json"


def plan_object(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}plan.json"


def control_object(fleet: str) -> str:
    """What a person or a law of the fleet has decided since: paused, stopped, given up."""
    return f"{fleet_prefix(fleet)}control.json"


def shard(index: int) -> str:
    """The digit under which a child's line lies."""
    return hashlib.sha256(str(index).encode()).hexdigest()[0]


def lines_prefix(fleet: str, digit: str) -> str:
    return f"{fleet_prefix(fleet)}index/{digit}/"


def line_object(fleet: str, index: int) -> str:
    return f"{lines_prefix(fleet, shard(index))}{index}.json"


def rows_prefix(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}rows/"


def rows_object(fleet: str, index: int) -> str:
    """A child's rows: one gzip member without a header."""
    return f"{rows_prefix(fleet)}{index}.csv.gz"
