"""Names that go into requests, argument lists, paths and URLs. Each kind is a type, and only text of its form is one.

Any machine, host or object in the bucket may have written the text. It is checked where it is decoded, so what is
passed on has a form that no service, shell or file system reads as more than a name: no slash, space, quote, `@` or
leading hyphen.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Self

from pydantic_core import core_schema

from orchestrator.core.naming import RUN_ID, bare_name, run_prefix
from orchestrator.core.text import clean_line

LABEL: Final = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
"""A name of RFC 1035, as Compute Engine has for machines, zones and images."""


class CheckedName(str):
    """A text of the form `FORM`. Making one of any other text raises `ValueError`."""

    __slots__ = ()
    FORM: ClassVar[str] = LABEL
    KIND: ClassVar[str] = "name"

    def __new__(cls, text: str) -> Self:
        if type(text) is not cls and not cls.fits(text):
            raise ValueError(f"{clean_line(text, 80)!r} is not the form of a {cls.KIND}")
        return super().__new__(cls, text)

    @classmethod
    def fits(cls, text: str) -> bool:
        """Whether `text` has the form."""
        return re.fullmatch(cls.FORM, text) is not None

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


class MachineName(CheckedName):
    """A VM, such as `bench-20261121-040506-l4-7f3a-1`."""

    KIND = "machine"


class Zone(CheckedName):
    """A zone of a cloud, or of a host of the user's (`host-…`)."""

    KIND = "zone"


class Region(CheckedName):
    """A region of a cloud; of a host of the user's, `host`."""

    KIND = "region"


class MachineType(CheckedName):
    """A machine type, such as `g2-standard-4`; `host` of a host of the user's."""

    KIND = "machine type"


class ResourceId(CheckedName):
    """The id that a cloud gave to a machine."""

    FORM = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)?"
    KIND = "machine's id"


class ProjectId(CheckedName):
    """A project, whose id may begin with a domain."""

    FORM = r"(?:[a-z0-9](?:[a-z0-9.-]{0,80}[a-z0-9])?:)?[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
    KIND = "project"


class ImageName(CheckedName):
    """A boot image or the family of some."""

    KIND = "image"


class ImageUrl(CheckedName):
    """A boot image as a full or partial URL; empty if there is none."""

    FORM = (
        r"(?:(?:https://[a-z.]+/compute/[a-z0-9]+/)?"
        rf"(?:projects/{ProjectId.FORM}/)?(?:global/)?(?:images/)?(?:family/)?{LABEL})?"
    )
    KIND = "image"


class RunId(CheckedName):
    """A run, such as `20261121-040506-l4-7f3a`."""

    FORM = RUN_ID.pattern
    KIND = "run"


class CaseId(CheckedName):
    """A case: the name of its file below `cases/`."""

    FORM = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}"
    KIND = "case"


class FleetId(CheckedName):
    """A fleet, such as `fleet-20261122-040506-7f3a`."""

    FORM = r"fleet-\d{8}-\d{6}-[0-9a-f]{4}"
    KIND = "fleet"


class JobName(CheckedName):
    """A job of a fleet, as a scheduler knows it."""

    FORM = rf"bench-{FleetId.FORM}-\d{{1,6}}"
    KIND = "job"


NO_ID: Final = ResourceId("")
NO_IMAGE: Final = ImageUrl("")
NO_ZONE: Final = str.__new__(Zone, "")
"""Of a machine that a scheduler chose. No text becomes it, so no request can be sent to it."""


# The names of a fleet's objects in the bucket, of its jobs on a scheduler, and of its runs.


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


def runs_prefix(fleet: str, gpu: str) -> str:
    """Where the objects of all children of a fleet on a GPU lie."""
    return run_prefix(child_run(fleet, gpu, 0)[:-4])[:-1]


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


def lines_prefix(fleet: str, digit: str) -> str:
    return f"{fleet_prefix(fleet)}index/{digit}/"


def line_object(fleet: str, index: int) -> str:
    return f"{lines_prefix(fleet, hashlib.sha256(str(index).encode()).hexdigest()[0])}{index}.json"


def rows_prefix(fleet: str) -> str:
    return f"{fleet_prefix(fleet)}rows/"


def rows_object(fleet: str, index: int) -> str:
    """The object with a child's rows: one gzip member, without a header line."""
    return f"{rows_prefix(fleet)}{index}.csv.gz"
