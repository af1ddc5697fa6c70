"""What every part of the embedded cloud works with."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.embedded.inventory import Inventory
from orchestrator.embedded.meter import Meter
from orchestrator.embedded.operations import Ids, Operations
from orchestrator.embedded.store import Store
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.weather import Weather


@dataclass(frozen=True, slots=True)
class Commons:
    """One of each in a cloud."""

    project: str
    store: Store
    """What outlives the process."""
    inventory: Inventory
    """What there is to rent, and at which prices."""
    meter: Meter
    operations: Operations
    weather: Weather
    timeline: Timeline
    ids: Ids


class Part:
    """A part of the cloud, with all of that at hand."""

    def __init__(self, commons: Commons) -> None:
        self.project = commons.project
        self.store = commons.store
        self.inventory = commons.inventory
        self.meter = commons.meter
        self.operations = commons.operations
        self.weather = commons.weather
        self.timeline = commons.timeline
        self.ids = commons.ids
