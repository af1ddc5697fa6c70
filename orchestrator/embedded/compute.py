"""The routes of Compute Engine's v1 REST API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from orchestrator.embedded import advice
from orchestrator.embedded.buckets import aggregated_response, find_named, list_response
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.console import Output
from orchestrator.embedded.errors import ApiError, Document, not_found, reading_body
from orchestrator.embedded.fleet import Fleet
from orchestrator.embedded.guard import PREFIX as BEARER
from orchestrator.embedded.images import ImageApi, ImageStore
from orchestrator.embedded.links import self_link
from orchestrator.embedded.listener import HttpRequest, Reply, Reset, json_reply
from orchestrator.embedded.management import Management, serves_path
from orchestrator.embedded.operations import DONE
from orchestrator.embedded.permissions import admit_insert, check_permission, held_permissions
from orchestrator.embedded.requests import body_of, fault_document, request_id
from orchestrator.embedded.resources import Resources
from orchestrator.embedded.templates import TemplateStore
from orchestrator.embedded.weather import hits_request

PREFIX = "/compute/v1/"
WAIT_S = 120.0
NOTHING_SAID = Output("", 0, 0)
"""The output of every serial port except the first."""
INSERT = re.compile(r"/compute/v1/projects/[^/]+/zones/([^/]+)/instances")

Observer = Callable[[str, str, dict[str, str], Any, int, Any], None]
"""Called for every answered request, with method, path, query, request body, status and response body."""


class Compute(BodyPart):
    """Answers requests. Thread-safe."""

    def __init__(
        self,
        commons: Commons,
        *,
        fleet: Fleet,
        management: Management,
        templates: TemplateStore,
        images: ImageStore,
        observer: Observer | None = None,
        advised: advice.Zones | None = None,
    ) -> None:
        super().__init__(commons)
        self.fleet = fleet
        self.management = management
        self.templates = templates
        self.observer = observer
        self.advised = advised
        self.resources = Resources(self.project, self.inventory, self.weather)
        self.images = images
        self.image_api = ImageApi(
            images, self.resources, self.weather, self.timeline, lambda request: self._caller(request)[0]
        )
        self.routes = [(method, re.compile(pattern), answer) for method, pattern, answer in self._routes()]

    def answer(self, request: HttpRequest) -> Reply:
        """The answer to one request. Raises `Reset` if the weather cuts the connection."""
        service = self.management.service_of(request.path) if serves_path(request.path) else "compute"
        fault = self.weather.take(
            request.target, lambda fault: hits_request(fault, service, request.method, request.target)
        )
        if fault is not None and fault.kind == "reset" and fault.params.get("after", "request") == "request":
            raise Reset
        if fault is not None and fault.kind == "stall":
            self.timeline.sleep(float(fault.params["seconds"]))
        self._lose(request)
        late = fault is not None and fault.params.get("after", "request") == "response"
        if fault is None or fault.kind != "http" or late:
            status, document = self._attempt(request)
        if fault is not None and fault.kind == "http":
            status, document = fault_document(fault.params)
        if self.observer is not None:
            try:
                body = json.loads(request.body) if request.body else None
            except ValueError:
                body = None
            self.observer(request.method, request.path, dict(request.query), body, status, document)
        if fault is not None and fault.kind == "reset":
            raise Reset
        return json_reply(status, document)

    def _lose(self, request: HttpRequest) -> None:
        """Delays a request for an instance if the weather says so: its client gets no answer (raises `Reset`), and the
        request still takes effect later."""
        match = INSERT.fullmatch(request.path)
        if request.method != "POST" or match is None:
            return
        late = self.weather.take(
            request.target,
            lambda fault: fault.kind == "late_insert" and fault.params.get("zone", match[1]) == match[1],
        )
        if late is not None:

            def arrive() -> None:
                self._attempt(request)

            self.timeline.call_later(float(late.params["seconds"]), arrive)
            raise Reset

    def _attempt(self, request: HttpRequest) -> tuple[int, Document]:
        is_management = serves_path(request.path)
        try:
            return 200, self.management.answer(request) if is_management else self._dispatch(request)
        except ApiError as error:
            return error.status, error.rpc_document() if is_management else error.document()

    def _dispatch(self, request: HttpRequest) -> Document:
        if not request.path.startswith(PREFIX):
            raise ApiError(404, f"The requested URL {request.path} was not found on this server.")
        path = request.path[len(PREFIX) :]
        allowed = False
        for method, pattern, answer in self.routes:
            match = pattern.fullmatch(path)
            if match:
                if method == request.method:
                    parts = {key: unquote(value) for key, value in match.groupdict().items()}
                    if self._caller(request)[1] == "client":
                        check_permission(self.weather, self.project, "compute", method, path, self.timeline.now())
                    self._check(parts, request.target)
                    return answer(request, **parts)
                allowed = True
        raise ApiError(405 if allowed else 501, f"{request.method} {request.path} is not something this cloud can do.")

    def _check(self, parts: dict[str, str], victim: str) -> None:
        project = parts.pop("project")
        owners = {image.project for image in self.inventory.images}
        of_images = {"family", "image", "images"} & set(parts)
        foreign = project != self.project and not (project in owners and of_images)
        if foreign or (project == self.project and self.weather.holds(victim, "project_missing")):
            raise not_found(f"projects/{project}")
        if of_images:
            parts["owner"] = project
        if "zone" in parts and parts["zone"] not in self.inventory.zones:
            raise not_found(f"projects/{project}/zones/{parts['zone']}")
        if "region" in parts and parts["region"] not in self.inventory.regions:
            raise not_found(f"projects/{project}/regions/{parts['region']}")

    def _routes(self) -> list[tuple[str, str, Callable[..., Document]]]:
        at = r"projects/(?P<project>[^/]+)"
        zone = at + r"/zones/(?P<zone>[^/]+)"
        instance_path = zone + r"/instances/(?P<name>[^/]+)"
        return [
            ("GET", at, self.get_project),
            ("GET", at + "/zones", self.list_zones),
            ("GET", zone, self.get_zone),
            ("GET", at + "/regions", self.list_regions),
            ("GET", at + r"/regions/(?P<region>[^/]+)", self.get_region),
            (
                "GET",
                at + r"/aggregated/(?P<kind>instances|machineTypes|acceleratorTypes|disks|operations)",
                self.list_aggregated,
            ),
            ("GET", at + r"/aggregated/(?P<kind>subnetworks|routers)", self.list_regional),
            ("POST", zone + "/instances", self.insert),
            ("GET", instance_path, self.get_instance),
            ("DELETE", instance_path, self.delete),
            ("GET", instance_path + "/serialPort", self.serial_port),
            ("POST", instance_path + "/setLabels", self._acting_with_body(self.fleet.set_labels)),
            ("POST", instance_path + "/setMetadata", self._acting_with_body(self.fleet.set_metadata)),
            ("POST", instance_path + "/stop", self._acting(self.fleet.stop)),
            ("POST", instance_path + "/start", self._acting(self.fleet.start)),
            ("POST", instance_path + "/simulateMaintenanceEvent", self._acting(self.fleet.simulate_maintenance)),
            ("POST", instance_path + "/testIamPermissions", self.test_permissions),
            *self.templates.routes(at),
            ("GET", at + "/global/operations", self.list_operations),
            ("GET", at + r"/global/operations/(?P<name>[^/]+)", self.get_operation),
            ("POST", at + r"/global/operations/(?P<name>[^/]+)/wait", self.wait),
            ("GET", zone + "/operations", self.list_operations),
            ("GET", zone + r"/operations/(?P<name>[^/]+)", self.get_operation),
            ("POST", zone + r"/operations/(?P<name>[^/]+)/wait", self.wait),
            ("GET", zone + r"/(?P<kind>instances|machineTypes|acceleratorTypes|diskTypes|disks)", self.list_kind),
            ("GET", zone + r"/(?P<kind>machineTypes|acceleratorTypes|diskTypes|disks)/(?P<name>[^/]+)", self.get_kind),
            *self.image_api.routes(at),
            ("GET", at + "/global/firewalls", self.list_firewalls),
            ("GET", at + "/global/networks", self.list_networks),
            ("GET", at + r"/global/networks/(?P<name>[^/]+)", self.get_network),
            ("POST", at + r"/regions/(?P<region>[^/]+)/advice/(?P<kind>\w+)", self.advice),
        ]

    # The sender of a request

    def _caller(self, request: HttpRequest) -> tuple[str, str]:
        """(the user that operations name, the sender's kind in the bill: `vm` or `client`)."""
        vm = self.fleet.by_token(request.headers.get("authorization", "").removeprefix(BEARER))
        if vm is not None:
            return str(vm.admitted.service_account), "vm"
        return f"user@{self.project}.example", "client"

    # Instances

    def insert(self, request: HttpRequest, zone: str) -> Document:
        user, _ = self._caller(request)
        body = body_of(request)
        with reading_body("instance"):
            admit_insert(self.weather, self.project, body)
            for disk in body.get("disks", []):
                self.images.about_to_boot(str(disk.get("initializeParams", {}).get("sourceImage", "")))
        return self.fleet.insert(body, zone, request_id(request), user)

    def delete(self, request: HttpRequest, zone: str, name: str) -> Document:
        user, by = self._caller(request)
        return self.fleet.delete(zone, name, request_id(request), user, by)

    def _acting(self, act: Callable[[str, str, str, str], Document]) -> Callable[..., Document]:
        """The function that answers a request by a method of the fleet that acts on an instance."""
        return lambda request, zone, name: act(zone, name, request_id(request), self._caller(request)[0])

    def _acting_with_body(self, act: Callable[[str, str, Any, str, str], Document]) -> Callable[..., Document]:
        """As `_acting`, for a method that takes the request's body."""
        return lambda request, zone, name: act(
            zone, name, body_of(request), request_id(request), self._caller(request)[0]
        )

    def test_permissions(self, request: HttpRequest, zone: str, name: str) -> Document:
        self.fleet.find(zone, name)
        requested = body_of(request).get("permissions", [])
        return held_permissions(self.weather, [str(one) for one in requested], request.target)

    def get_instance(self, _request: HttpRequest, zone: str, name: str) -> Document:
        return self.fleet.find(zone, name).document()

    def serial_port(self, request: HttpRequest, zone: str, name: str) -> Document:
        vm = self.fleet.find(zone, name)
        try:
            port, start = int(request.query.get("port", 1)), int(request.query.get("start", 0))
        except ValueError as exc:
            raise ApiError(400, "port and start must be whole numbers") from exc
        if not 1 <= port <= 4:
            raise ApiError(400, f"Invalid value for field 'port': '{port}'. Must be between 1 and 4")
        output = vm.guest.console.read(start) if port == 1 else NOTHING_SAID
        where = {"start": str(output.start), "next": str(output.next)}
        link_ = self_link(vm.path, "serialPort")
        return {"kind": "compute#serialPortOutput", "selfLink": link_, "contents": output.contents, **where}

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

    def get_project(self, _request: HttpRequest) -> Document:
        return self.resources.project_document(self.fleet.usage(None))

    def list_zones(self, request: HttpRequest) -> Document:
        items = [self.resources.zone(zone) for zone in self.inventory.zones]
        return list_response("compute#zoneList", f"projects/{self.project}/zones", items, request.query)

    def get_zone(self, _request: HttpRequest, zone: str) -> Document:
        return self.resources.zone(zone)

    def list_regions(self, request: HttpRequest) -> Document:
        items = [self.resources.region(name, self.fleet.usage(name)) for name in self.inventory.regions]
        return list_response("compute#regionList", f"projects/{self.project}/regions", items, request.query)

    def get_region(self, _request: HttpRequest, region: str) -> Document:
        return self.resources.region(region, self.fleet.usage(region))

    def _of_kind(self, kind: str, zone: str) -> list[Document]:
        match kind:
            case "machineTypes":
                return self.resources.machine_types(zone)
            case "acceleratorTypes":
                return self.resources.accelerator_types(zone)
            case "diskTypes":
                return self.resources.disk_types(zone)
            case "operations":
                return self.operations.in_zone(zone)
            case "disks":
                return [vm.disk_document() for vm in self.fleet.in_zone(zone)]
            case _:
                return [vm.document() for vm in self.fleet.in_zone(zone)]

    def list_kind(self, request: HttpRequest, zone: str, kind: str) -> Document:
        path = f"projects/{self.project}/zones/{zone}/{kind}"
        return list_response(f"compute#{kind[:-1]}List", path, self._of_kind(kind, zone), request.query)

    def get_kind(self, _request: HttpRequest, zone: str, kind: str, name: str) -> Document:
        return find_named(self._of_kind(kind, zone), f"projects/{self.project}/zones/{zone}/{kind}/{name}")

    def list_aggregated(self, request: HttpRequest, kind: str) -> Document:
        scopes = {zone: self._of_kind(kind, zone) for zone in self.inventory.zones}
        path = f"projects/{self.project}/aggregated/{kind}"
        return aggregated_response(f"compute#{kind[:-1]}AggregatedList", path, kind, scopes, request.query)

    def list_regional(self, request: HttpRequest, kind: str) -> Document:
        of_kind = {"subnetworks": self.resources.subnetworks, "routers": self.resources.routers}[kind]
        scopes = {region: of_kind(region, request.target) for region in self.inventory.regions}
        path = f"projects/{self.project}/aggregated/{kind}"
        title = f"compute#{kind[:-1]}AggregatedList"
        return aggregated_response(title, path, kind, scopes, request.query, level="regions")

    def list_networks(self, request: HttpRequest) -> Document:
        path = f"projects/{self.project}/global/networks"
        return list_response("compute#networkList", path, self.resources.networks(request.target), request.query)

    def list_firewalls(self, request: HttpRequest) -> Document:
        return list_response("compute#firewallList", f"projects/{self.project}/global/firewalls", [], request.query)

    def get_network(self, request: HttpRequest, name: str) -> Document:
        return find_named(self.resources.networks(request.target), f"projects/{self.project}/global/networks/{name}")

    def advice(self, request: HttpRequest, region: str, kind: str) -> Document:
        if self.advised is not None and kind == "capacity":
            return advice.advise_capacity(body_of(request), self.advised, self.inventory)
        if self.advised is not None and kind == "capacityHistory":
            return advice.capacity_history(body_of(request), self.advised, self.inventory, self.timeline.now())
        raise ApiError(501, f"This cloud has no advice on {kind} in {region}.")
