"""The routes of Compute Engine's v1 REST API, and the port that it shares with the APIs of a project."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import self_link
from orchestrator.embedded.errors import ApiError, Document, not_found, reading_body
from orchestrator.embedded.fleet import Fleet
from orchestrator.embedded.images import ImageStore
from orchestrator.embedded.listener import HttpRequest, Reset
from orchestrator.embedded.lists import aggregated_response, find_named, list_response
from orchestrator.embedded.operations import DONE
from orchestrator.embedded.permissions import admit_insert, held_permissions
from orchestrator.embedded.resources import Resources, Zones, advise_capacity, capacity_history
from orchestrator.embedded.routes import RPC, Route, body_of, make_routes, sender_of

PROJECT = "/compute/v1/projects/{project}"
WAIT_S = 120.0


def unknown_request(request: HttpRequest, path_exists: bool) -> ApiError:
    """The error for a request that no route of this port answers."""
    rpc = request.path.startswith(RPC)
    if not rpc and not request.path.startswith("/compute/v1/"):
        return ApiError(404, f"The requested URL {request.path} was not found on this server.")
    status = 405 if path_exists and not rpc else 501
    return ApiError(status, f"{request.method} {request.path} is not something this cloud can do.")


class Compute(BodyPart):
    """Answers requests about instances, operations and what no request changes. Thread-safe."""

    def __init__(
        self, commons: Commons, *, fleet: Fleet, images: ImageStore, resources: Resources, advised: Zones | None
    ) -> None:
        super().__init__(commons)
        self.fleet = fleet
        self.images = images
        self.resources = resources
        self.advised = advised

    def check_place(self, parts: dict[str, str], request: HttpRequest) -> None:
        """Checks the project, zone and region in a path, and removes the project. Raises `ApiError` (404)."""
        project = parts.pop("project")
        owners = {image.project for image in self.inventory.images}
        of_images = {"family", "image", "images"} & set(parts)
        foreign = project != self.project and not (project in owners and of_images)
        if foreign or (project == self.project and self.weather.holds(request.target, "project_missing")):
            raise not_found(f"projects/{project}")
        if of_images:
            parts["owner"] = project
        if "zone" in parts and parts["zone"] not in self.inventory.zones:
            raise not_found(f"projects/{project}/zones/{parts['zone']}")
        if "region" in parts and parts["region"] not in self.inventory.regions:
            raise not_found(f"projects/{project}/regions/{parts['region']}")

    def routes(self) -> list[Route]:
        zone, instances, instance = "/zones/{zone}", "/zones/{zone}/instances", "/zones/{zone}/instances/{name}"
        kinds = "machineTypes|acceleratorTypes|diskTypes|disks"
        return make_routes(
            "compute",
            PROJECT,
            ("GET", "", self.get_project, "compute.projects.get"),
            ("GET", "/zones", self.list_zones, "compute.zones.list"),
            ("GET", zone, lambda _, zone: self.resources.zone(zone)),
            ("GET", "/regions", self.list_regions, "compute.regions.list"),
            ("GET", "/regions/{region}", self.get_region, "compute.regions.get"),
            ("GET", "/aggregated/{kind:instances}", self.list_aggregated, "compute.instances.list"),
            ("GET", "/aggregated/{kind:operations}", self.list_aggregated, "compute.globalOperations.list"),
            ("GET", f"/aggregated/{{kind:{kinds}}}", self.list_aggregated),
            ("GET", "/aggregated/{kind:subnetworks}", self.list_regional, "compute.subnetworks.list"),
            ("GET", "/aggregated/{kind:routers}", self.list_regional, "compute.routers.list"),
            ("GET", "/regions/{region}/{kind:subnetworks}", self.list_regional, "compute.subnetworks.list"),
            ("GET", "/regions/{region}/{kind:routers}", self.list_regional, "compute.routers.list"),
            ("GET", "/zones/{zone}/{kind:instances}", self.list_kind, "compute.instances.list"),
            ("POST", instances, self.insert, "compute.instances.create"),
            ("GET", instance, lambda _, zone, name: self.fleet.find(zone, name).document(), "compute.instances.get"),
            ("DELETE", instance, self._acting("delete"), "compute.instances.delete"),
            ("GET", instance + "/serialPort", self.serial_port, "compute.instances.getSerialPortOutput"),
            ("POST", instance + "/setLabels", self._acting("setLabels"), "compute.instances.setLabels"),
            ("POST", instance + "/setMetadata", self._acting("setMetadata"), "compute.instances.setMetadata"),
            ("POST", instance + "/stop", self._acting("stop"), "compute.instances.stop"),
            ("POST", instance + "/start", self._acting("start"), "compute.instances.start"),
            ("POST", instance + "/simulateMaintenanceEvent", self._acting("simulateMaintenanceEvent")),
            ("POST", instance + "/testIamPermissions", self.test_permissions),
            ("GET", "/global/operations", self.list_operations),
            ("GET", "/global/operations/{name}", self.get_operation),
            ("POST", "/global/operations/{name}/wait", self.wait),
            ("GET", zone + "/operations", self.list_operations, "compute.zoneOperations.list"),
            ("GET", zone + "/operations/{name}", self.get_operation, "compute.zoneOperations.get"),
            ("POST", zone + "/operations/{name}/wait", self.wait, "compute.zoneOperations.get"),
            ("GET", zone + f"/{{kind:{kinds}}}", self.list_kind),
            ("GET", zone + f"/{{kind:{kinds}}}/{{name}}", self.get_kind),
            ("GET", "/global/firewalls", lambda request: self._list(request, "firewalls", [], "/global")),
            ("GET", "/global/networks", self.list_networks),
            ("GET", "/global/networks/{name}", self.get_network, "compute.networks.get"),
            ("POST", "/regions/{region}/advice/capacity", self.advise, "compute.advice.capacity"),
            ("POST", "/regions/{region}/advice/capacityHistory", self.advise_history, "compute.advice.capacityHistory"),
            ("POST", r"/regions/{region}/advice/(?P<kind>\w+)", self.no_advice),
        )

    # Instances
    def insert(self, request: HttpRequest, zone: str) -> Document:
        body, sender = body_of(request), sender_of(request, self.project)

        def begin() -> Document:
            with reading_body("instance"):
                admit_insert(self.weather, self.project, body)
                for disk in body.get("disks", []):
                    self.images.about_to_boot(str(disk.get("initializeParams", {}).get("sourceImage", "")))
            return self.fleet.insert(body, zone, sender)

        def arrive() -> None:
            with suppress(ApiError):  # nobody waits for the answer
                begin()

        late = self.weather.take(
            request.target, lambda fault: fault.kind == "late_insert" and fault.params.get("zone", zone) == zone
        )
        if late is None:
            return begin()
        # The client gets no answer, and the request still takes effect later.
        self.timeline.call_later(float(late.params["seconds"]), arrive)
        raise Reset

    def _acting(self, kind: str) -> Callable[..., Document]:
        """The function that answers a request for an action on an instance."""
        return lambda request, zone, name: self.fleet.act(
            kind, zone, name, body_of(request), sender_of(request, self.project)
        )

    def test_permissions(self, request: HttpRequest, zone: str, name: str) -> Document:
        self.fleet.find(zone, name)
        return held_permissions(self.weather, map(str, body_of(request).get("permissions", [])), request.target)

    def serial_port(self, request: HttpRequest, zone: str, name: str) -> Document:
        vm = self.fleet.find(zone, name)
        try:
            port, start = int(request.query.get("port", 1)), int(request.query.get("start", 0))
        except ValueError as exc:
            raise ApiError(400, "port and start must be whole numbers") from exc
        if not 1 <= port <= 4:
            raise ApiError(400, f"Invalid value for field 'port': '{port}'. Must be between 1 and 4")
        contents, begin, end = vm.guest.console.read(start) if port == 1 else ("", 0, 0)
        where = {"start": str(begin), "next": str(end)}
        link_ = self_link(vm.path, "serialPort")
        return {"kind": "compute#serialPortOutput", "selfLink": link_, "contents": contents, **where}

    # Operations
    def list_operations(self, request: HttpRequest, zone: str = "") -> Document:
        """The operations of a zone, or the global ones."""
        path = self.operations.place(zone) + "/operations"
        return list_response("compute#operationList", path, self.operations.in_zone(zone), request.query)

    def get_operation(self, _request: HttpRequest, name: str, zone: str = "") -> Document:
        operation = self.operations.get(zone, name)
        if operation is None:
            raise not_found(f"{self.operations.place(zone)}/operations/{name}")
        return operation

    def wait(self, request: HttpRequest, name: str, zone: str = "") -> Document:
        """The operation, once it is done or after two minutes, as at Google."""
        self.get_operation(request, name, zone)
        self.timeline.wait_until(lambda: self.get_operation(request, name, zone)["status"] == DONE, WAIT_S)
        return self.get_operation(request, name, zone)

    # The project, its zones and regions, and their resources
    def _list(self, request: HttpRequest, kind: str, items: list[Document], at: str = "") -> Document:
        return list_response(f"compute#{kind[:-1]}List", f"projects/{self.project}{at}/{kind}", items, request.query)

    def get_project(self, _request: HttpRequest) -> Document:
        return self.resources.project_document(self.fleet.usage(None))

    def list_zones(self, request: HttpRequest) -> Document:
        return self._list(request, "zones", [self.resources.zone(zone) for zone in self.inventory.zones])

    def list_regions(self, request: HttpRequest) -> Document:
        return self._list(request, "regions", [self.get_region(request, name) for name in self.inventory.regions])

    def get_region(self, _request: HttpRequest, region: str) -> Document:
        return self.resources.region(region, self.fleet.usage(region))

    def _of_kind(self, kind: str, zone: str) -> list[Document]:
        match kind:
            case "operations":
                return self.operations.in_zone(zone)
            case "disks":
                return [vm.disk_document() for vm in self.fleet.in_zone(zone)]
            case "instances":
                return [vm.document() for vm in self.fleet.in_zone(zone)]
            case _:
                return self.resources.of_kind(kind, zone)

    def list_kind(self, request: HttpRequest, zone: str, kind: str) -> Document:
        return self._list(request, kind, self._of_kind(kind, zone), f"/zones/{zone}")

    def get_kind(self, _request: HttpRequest, zone: str, kind: str, name: str) -> Document:
        return find_named(self._of_kind(kind, zone), f"projects/{self.project}/zones/{zone}/{kind}/{name}")

    def list_aggregated(self, request: HttpRequest, kind: str) -> Document:
        scopes = {f"zones/{zone}": self._of_kind(kind, zone) for zone in self.inventory.zones}
        return aggregated_response(f"projects/{self.project}/aggregated/{kind}", kind, scopes, request.query)

    def list_regional(self, request: HttpRequest, kind: str, region: str = "") -> Document:
        """Those of one region, or of all."""
        of_kind = {"subnetworks": self.resources.subnetworks, "routers": self.resources.routers}[kind]
        if region:
            return self._list(request, kind, of_kind(region, request.target), f"/regions/{region}")
        scopes = {f"regions/{region}": of_kind(region, request.target) for region in self.inventory.regions}
        return aggregated_response(f"projects/{self.project}/aggregated/{kind}", kind, scopes, request.query)

    def list_networks(self, request: HttpRequest) -> Document:
        return self._list(request, "networks", self.resources.networks(request.target), "/global")

    def get_network(self, request: HttpRequest, name: str) -> Document:
        return find_named(self.resources.networks(request.target), f"projects/{self.project}/global/networks/{name}")

    def advise(self, request: HttpRequest, region: str) -> Document:
        if self.advised is None:
            return self.no_advice(request, region, "capacity")
        return advise_capacity(body_of(request), self.advised, self.inventory)

    def advise_history(self, request: HttpRequest, region: str) -> Document:
        if self.advised is None:
            return self.no_advice(request, region, "capacityHistory")
        return capacity_history(body_of(request), self.advised, self.inventory, self.timeline.now())

    def no_advice(self, _request: HttpRequest, region: str, kind: str) -> Document:
        raise ApiError(501, f"This cloud has no advice on {kind} in {region}.")
