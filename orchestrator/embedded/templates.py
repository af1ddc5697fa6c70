"""Instance templates: the properties of a VM for any zone. The batch service makes its VMs from them."""

from __future__ import annotations

import copy
import re

from orchestrator.embedded.admission import NAME, admit_instance
from orchestrator.embedded.commons import BodyPart
from orchestrator.embedded.documents import google_stamp, last_name, self_link
from orchestrator.embedded.errors import ApiError, Document, invalid_field, not_found, reading_body
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.lists import list_response
from orchestrator.embedded.operations import OperationTarget
from orchestrator.embedded.routes import Route, body_of, make_routes, sender_of

KIND = "instance_template"
TOGETHER = ("maxRunDuration", "terminationTime")
URL = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/global/instanceTemplates/(?P<name>[^/]+)")


class TemplateStore(BodyPart):
    """Answers requests; raises `ApiError`. Thread-safe, because the store and the operations are."""

    def routes(self) -> list[Route]:
        return make_routes(
            "compute",
            "/compute/v1/projects/{project}/global/instanceTemplates",
            ("GET", "", self.list, "compute.instanceTemplates.list"),
            ("POST", "", self.insert, "compute.instanceTemplates.create"),
            ("GET", "/{name}", self.get, "compute.instanceTemplates.get"),
            ("DELETE", "/{name}", self.delete, "compute.instanceTemplates.delete"),
        )

    def _path(self, name: str) -> str:
        return f"projects/{self.project}/global/instanceTemplates/{name}"

    def find(self, name: str) -> Document:
        """The template. Raises the API's 404 if there is none."""
        template: Document | None = self.store.get(KIND, name)
        if template is None:
            raise not_found(self._path(name))
        return template

    def get(self, _request: HttpRequest, name: str) -> Document:
        return self.find(name)

    def list(self, request: HttpRequest) -> Document:
        path = f"projects/{self.project}/global/instanceTemplates"
        return list_response("compute#instanceTemplateList", path, self.store.all(KIND), request.query)

    def insert(self, request: HttpRequest) -> Document:
        if (replayed := self.operations.replayed("insert", sender_of(request, self.project))) is not None:
            return replayed
        body = body_of(request)
        name, properties = str(body.get("name", "")), body.get("properties")
        if not NAME.fullmatch(name):
            raise invalid_field("resource.name", name, f"Must be a match of regex '{NAME.pattern}'")
        if not isinstance(properties, dict):
            raise invalid_field("resource.properties", properties, "It must be specified.")
        if self.store.get(KIND, name) is not None:
            raise ApiError(409, f"The resource '{self._path(name)}' already exists")
        with reading_body("instanceTemplate"):
            self._check(properties)
        now = self.timeline.now()
        identity = self.operations.ids.new(now)
        document = {
            "kind": "compute#instanceTemplate",
            "id": identity,
            "creationTimestamp": google_stamp(now),
            "name": name,
            "description": str(body.get("description", "")),
            "selfLink": self_link(self._path(name)),
            "properties": properties,
        }
        self.store.put(KIND, name, document)
        return self._begin_operation("insert", name, identity, request)

    def delete(self, request: HttpRequest, name: str) -> Document:
        if (replayed := self.operations.replayed("delete", sender_of(request, self.project))) is not None:
            return replayed
        identity = str(self.find(name)["id"])
        self.store.drop(KIND, name)
        return self._begin_operation("delete", name, identity, request)

    def _begin_operation(self, kind: str, name: str, identity: str, request: HttpRequest) -> Document:
        operation = self.operations.begin(
            kind, OperationTarget("", self._path(name), identity), self.timeline.now(), sender_of(request, self.project)
        )
        self.timeline.call_later(0.05, lambda: self.operations.finish(operation, self.timeline.now()))
        return self.operations.listed[operation]

    def _check(self, properties: Document) -> None:
        """Checks the properties in one zone that has the machine type. Raises `ApiError` for mistakes, which are the
        same in every zone."""
        scheduling = properties.get("scheduling", {})
        if all(name in scheduling for name in TOGETHER):
            self.allow_both()
        machine = str(properties.get("machineType", ""))
        if "/" in machine:
            raise invalid_field("resource.properties.machineType", machine, "It must be a name, not a URL.")
        zones = self.zones(properties, self.inventory.zones)
        if not zones:
            raise invalid_field("resource.properties.machineType", machine, "There is no such machine type.")
        admit_instance(body_in(properties, zones[0], "template", self.project), self.project, zones[0], self.inventory)

    def allow_both(self) -> None:
        """Raises `ApiError` (400) if the weather refuses a template with both time limits: Google's documentation
        describes only one or the other."""
        if self.weather.holds("insert", "one_time_limit"):
            why = "Only one of maxRunDuration and terminationTime can be specified."
            raise invalid_field("resource.properties.scheduling.terminationTime", "", why)

    def zones(self, properties: Document, among: tuple[str, ...]) -> tuple[str, ...]:
        """The zones of `among` that have the machine type and the GPU that is attached to it, sorted."""
        machine = self.inventory.machine_types.get(str(properties.get("machineType", "")))
        if machine is None:
            return ()
        standing = {zone for zone in among if machine in self.inventory.machine_types_in(zone)}
        for accelerator in properties.get("guestAccelerators", []):
            name = last_name(str(accelerator.get("acceleratorType", "")))
            standing &= {zone for zone in among if name in {one.name for one in self.inventory.accelerators_in(zone)}}
        return tuple(sorted(standing))


def template_name(url: str, project: str) -> str:
    """The name in a template's full or partial URL, or the name itself. Raises `ApiError` (400)."""
    match = URL.fullmatch(url)
    if match is None and "/" in url:
        raise ApiError(400, f"The instance template {url} is malformed or of another kind.")
    if match is not None and match["project"] != project:
        raise ApiError(400, f"The instance template {url} is not of project {project}.")
    return match["name"] if match is not None else url


def body_in(properties: Document, zone: str, name: str, project: str) -> Document:
    """The body of a request for one VM in a zone, made from a template. Names in the template become URLs."""
    body: Document = copy.deepcopy({key: value for key, value in properties.items() if key != "description"})
    body |= {"name": name, "machineType": f"zones/{zone}/machineTypes/{properties['machineType']}"}
    for disk in body.get("disks", []):
        given = disk.get("initializeParams", {})
        if given.get("diskType"):
            given["diskType"] = f"zones/{zone}/diskTypes/{last_name(given['diskType'])}"
    for accelerator in body.get("guestAccelerators", []):
        kind = last_name(accelerator["acceleratorType"])
        accelerator["acceleratorType"] = f"projects/{project}/zones/{zone}/acceleratorTypes/{kind}"
    return body
