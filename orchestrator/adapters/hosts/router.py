"""Rented machines and hosts behind one port: the zone tells which it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.adapters.hosts.cloud import HostCloud
from orchestrator.core.hosts import is_host
from orchestrator.core.market.machines import (
    Accepted,
    CloudRefusal,
    Instance,
    InstanceRequest,
    Operation,
    Quota,
    SerialChunk,
)
from orchestrator.core.market.offers import Offer, ZoneAdvice
from orchestrator.core.names import ImageName, ImageUrl, MachineName, ProjectId, Region, ResourceId, Zone
from orchestrator.ports import Cloud, Market


@dataclass
class ZoneRouter:
    """Rented machines and hosts as one `Cloud`: the zone tells which it is. Google's client is made when needed."""

    rented: Callable[[], Cloud]
    hosts: HostCloud
    market: Callable[[], Market]
    """Answers the questions of a plan, without the client that makes machines."""

    def _of(self, zone: str) -> Cloud:
        return self.hosts if is_host(zone) else self.rented()

    def ready(self, zone: str) -> None:
        """Makes the client that a machine in this zone is asked of."""
        self._of(zone)

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        return self._of(request.zone).insert(request)

    def delete(self, zone: Zone, name: MachineName, request_id: str) -> None:
        self._of(zone).delete(zone, name, request_id)

    def instance(self, zone: Zone, name: MachineName) -> Instance | None:
        return self._of(zone).instance(zone, name)

    def instances(self) -> tuple[Instance, ...]:
        return (*self.rented().instances(), *self.hosts.instances())

    def operations(self, zone: Zone, instance_id: ResourceId) -> tuple[Operation, ...]:
        return self._of(zone).operations(zone, instance_id)

    def operations_by_name(self, zone: Zone, name: MachineName) -> tuple[Operation, ...]:
        return self._of(zone).operations_by_name(zone, name)

    def serial_output(self, zone: Zone, name: MachineName, start: int) -> SerialChunk | None:
        return self._of(zone).serial_output(zone, name, start)

    def image(self, project: ProjectId, family: ImageName) -> ImageUrl:
        return self.market().image(project, family)

    def advice(self, offers: Sequence[Offer]) -> tuple[ZoneAdvice, ...]:
        rented = [offer for offer in offers if not is_host(offer.zone)]
        return self.market().advice(rented) if rented else ()

    def quotas(self, region: Region) -> tuple[Quota, ...]:
        return self.market().quotas(region)
