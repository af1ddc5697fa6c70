"""The names of a fleet's objects in the bucket, of its jobs on a scheduler, and of its runs."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final

from orchestrator.core.names import FleetId, JobName, RunId
from orchestrator.core.naming import bare_name

FLEETS_PREFIX: Final = "fleets/"
FLEET_LABEL: Final = "bench-fleet"
MOST_CHILDREN: Final = 65_536
"""A child's number has four hexadecimal digits in the name of its run."""
SHARDS: Final = "0123456789abcdef"
"""The object of a child's line is stored under one digit of a hash. This spreads the names, and sixteen listings read
all of them."""


def fleet_id(now: datetime, entropy: str) -> FleetId:
    """The id of a new fleet, such as `fleet-20261122-040506-7f3a`."""
    return FleetId(f"fleet-{now.astimezone(UTC):%Y%m%d-%H%M%S}-{entropy[:4].lower()}")


def is_fleet_id(text: str) -> bool:
    return FleetId.fits(text)


def child_run(fleet: str, gpu: str, index: int) -> RunId:
    """The run id of child number `index`, which is the same on every machine and attempt: such as
    `20261122-040506-l4x7f3a-002a`. Raises `ValueError` if `fleet` is not a fleet id or the index is out of range."""
    if not is_fleet_id(fleet) or not 0 <= index < MOST_CHILDREN:
        raise ValueError(f"child {index} of {fleet!r} has no name")
    stamp, entropy = fleet.removeprefix("fleet-").rsplit("-", 1)
    return RunId(f"{stamp}-{bare_name(gpu)}x{entropy}-{index:04x}")


def job_name(fleet: FleetId, number: int) -> JobName:
    """The name of a job on a scheduler. We choose it, so that a job is found even if the answer to its submission was
    lost."""
    return JobName(f"bench-{fleet}-{number}")


def fleet_prefix(fleet: str) -> str:
    return f"{FLEETS_PREFIX}{fleet}/"


def listing_object(fleet: str) -> str:
    """The object of a fleet in the list of fleets. `bench fleet ls` reads its metadata."""
    return f"fleet-index/{fleet}.json"


def spec_object(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}spec.json"


def plan_object(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}plan.json"


def control_object(fleet: str) -> str:
    """The object with what was decided after the launch, by a person or a rule: paused, stopped, given up."""
    return f"{fleet_prefix(fleet)}control.json"


def shard_digit(index: int) -> str:
    """The digit under which a child's line is stored."""
    return hashlib.sha256(str(index).encode()).hexdigest()[0]


def lines_prefix(fleet: str, digit: str) -> str:
    return f"{fleet_prefix(fleet)}index/{digit}/"


def line_object(fleet: str, index: int) -> str:
    return f"{lines_prefix(fleet, shard_digit(index))}{index}.json"


def rows_prefix(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}rows/"


def rows_object(fleet: str, index: int) -> str:
    """The object with a child's rows: one gzip member, without a header line."""
    return f"{rows_prefix(fleet)}{index}.csv.gz"
