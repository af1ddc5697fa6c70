"""The objects that all parts of the embedded cloud share."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.embedded.inventory import Inventory
from orchestrator.embedded.meter import Meter
from orchestrator.embedded.operations import Ids, Operations
from orchestrator.embedded.store import Store
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.weather import Weather


@dataclass
class Commons:
    """The shared objects of one cloud."""

    project: str
    store: Store
    """The documents that outlive the process."""
    inventory: Inventory
    """What can be rented, and at which prices."""
    meter: Meter
    operations: Operations
    weather: Weather
    timeline: Timeline
    ids: Ids
    permissions: set[str] = field(default_factory=set)
    """The permissions that requests may need."""


class BodyPart(Commons):
    """The base class of a part of the cloud. It has the shared objects as attributes."""

    def __init__(self, commons: Commons) -> None:
        super().__init__(**{name: getattr(commons, name) for name in Commons.__dataclass_fields__})
