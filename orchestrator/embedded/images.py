"""The project's own images. They are made from the disk of a running machine, deprecated and deleted, and cost money
for as long as they exist.

As at Google, no image is deleted by itself, whatever its labels say.
"""

from __future__ import annotations

import re
import threading

from orchestrator.embedded.admission import check_labels
from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import document_fingerprint, google_stamp, last_name, self_link
from orchestrator.embedded.errors import ApiError, Document, OperationError, invalid_field, not_found, reading_body
from orchestrator.embedded.fleet import Fleet
from orchestrator.embedded.inventory import InventoryImage
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.lists import list_response
from orchestrator.embedded.operations import GLOBAL, OperationTarget, Sender
from orchestrator.embedded.resources import Resources
from orchestrator.embedded.routes import Route, body_of, make_routes, sender_of
from orchestrator.embedded.vm import EmbeddedVm
from orchestrator.embedded.weather import Fault, condition_matches

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SEAL_S = 90.0
"""The time from the request until the image is READY, in simulated time."""
REAL_SEAL_S = 0.3
"""The same in real time."""
ARCHIVED = 0.4
"""The size of an image's archive as a share of the disk. The archive's size is paid for."""
STATES = ("ACTIVE", "DEPRECATED", "OBSOLETE", "DELETED")


class ImageStore(BodyPart):
    """The project's images. Thread-safe. A PENDING image becomes FAILED if its source disk is deleted."""

    def __init__(self, commons: Commons, fleet: Fleet, resources: Resources) -> None:
        super().__init__(commons)
        self.fleet = fleet
        self.resources = resources
        self.lock = threading.RLock()
        self.listed: dict[str, Document] = {document["name"]: document for document in self.store.all("image")}
        for document in self.listed.values():
            self._boot(document)

    # Finding images

    def documents(self) -> list[Document]:
        """All images, oldest first."""
        with self.lock:
            return list(self.listed.values())

    def find(self, name: str) -> Document:
        """The image. Raises the API's 404 if there is none."""
        with self.lock:
            image = self.listed.get(name)
        if image is None:
            raise not_found(f"projects/{self.project}/global/images/{name}")
        return image

    def newest(self, family: str) -> Document | None:
        """The newest image of a family that is READY and not deprecated, or None."""
        current = [
            image
            for image in self.documents()
            if image.get("family") == family and image["status"] == "READY" and is_active(image)
        ]
        return max(current, key=lambda image: str(image["creationTimestamp"]), default=None)

    # Requests

    def insert(self, request: HttpRequest) -> Document:
        """Begins to make an image. Returns the operation, which may still fail. Raises `ApiError`."""
        with self.lock, reading_body("image"):
            body, sender = body_of(request), sender_of(request, self.project)
            if (replayed := self.operations.replayed("insert", sender)) is not None:
                return replayed
            name = str(body.get("name", ""))
            if not NAME.fullmatch(name):
                raise invalid_field("resource.name", name, "Must be a match of regex '[a-z]([-a-z0-9]{0,61}[a-z0-9])?'")
            labels = check_labels(body.get("labels", {}), "resource.labels")
            vm = self._source(str(body.get("sourceDisk", "")))
            path = f"projects/{self.project}/global/images/{name}"
            if name in self.listed:
                raise ApiError(409, f"The resource '{path}' already exists")
            if request.query.get("forceCreate", "false") != "true":
                disk = f"projects/{self.project}/zones/{vm.zone}/disks/{vm.name}"
                raise ApiError(400, f"The disk resource '{disk}' is already being used by '{vm.path}'", "resourceInUse")
            now = self.timeline.now()
            number = self.ids.new(now)
            operation = self.operations.begin("insert", OperationTarget(GLOBAL, path, number), now, sender)
            document: Document = {
                "kind": "compute#image",
                "id": number,
                "creationTimestamp": google_stamp(now),
                "name": name,
                "selfLink": self_link(path),
                "status": "PENDING",
                "diskSizeGb": str(vm.admitted.disk_gib),
                "sourceType": "RAW",
                "sourceDisk": self_link("projects", self.project, "zones", vm.zone, "disks", vm.name),
                "architecture": "X86_64",
                "labels": labels,
                "labelFingerprint": document_fingerprint(labels),
            } | {key: body[key] for key in ("family", "description", "storageLocations") if key in body}
            self._keep(document)
            seal_s = SEAL_S if self.timeline.simulated else REAL_SEAL_S
            self.timeline.call_later(seal_s, lambda: self._ripe(name, number, vm, operation))
        return self.operations.listed[operation]

    def deprecate(self, request: HttpRequest, owner: str, image: str) -> Document:
        """Sets an image's deprecation state; the image stays. Returns the operation. Raises `ApiError`."""
        self._check_owner(owner)
        body = body_of(request)
        with self.lock:
            state = str(body.get("state", "ACTIVE"))
            if state not in STATES:
                raise invalid_field("resource.state", state, f"Must be one of {', '.join(STATES)}.")
            operation = self._begin("deprecate", image, sender_of(request, self.project))
            kept = {key: str(body[key]) for key in ("replacement", "deleted", "obsolete") if key in body}
            self._keep({**self.find(image), "deprecated": {"state": state, **kept}})
            self.operations.finish(operation, self.timeline.now())
        return self.operations.listed[operation]

    def delete(self, request: HttpRequest, owner: str, image: str) -> Document:
        """Deletes an image. Returns the operation. Raises `ApiError`."""
        self._check_owner(owner)
        sender = sender_of(request, self.project)
        with self.lock:
            if (replayed := self.operations.replayed("delete", sender)) is not None:
                return replayed
            operation = self._begin("delete", image, sender)
            self._drop(image)
            self.operations.finish(operation, self.timeline.now())
        return self.operations.listed[operation]

    def about_to_boot(self, url: str) -> None:
        """Called when a machine is requested with this image. The weather may delete the image first."""
        name = last_name(url)
        if name not in self.listed:
            return
        if self._struck("image_vanishes", name) is not None:
            with self.lock:
                self._drop(name)

    def _struck(self, kind: str, name: str) -> Fault | None:
        """The fault of this kind that befalls an image now, if the weather has one."""
        return self.weather.take(name, lambda fault: fault.kind == kind and condition_matches(fault.params, image=name))

    # Making an image

    def _source(self, url: str) -> EmbeddedVm:
        match = re.search(r"zones/([^/]+)/disks/([^/]+)$", url)
        if match is None:
            raise invalid_field("resource.sourceDisk", url, "The URL is malformed.")
        try:
            return self.fleet.find(match[1], match[2])
        except ApiError:
            raise not_found(f"projects/{self.project}/zones/{match[1]}/disks/{match[2]}") from None

    def _ripe(self, name: str, number: str, vm: EmbeddedVm, operation: str) -> None:
        """Finishes an image, once the time that it takes is over."""
        with self.lock:
            document = self.listed.get(name)
            now = self.timeline.now()
            if document is None or document["id"] != number:
                self.operations.finish(operation, now)
                return
            if self._struck("image_pending", name):
                return  # its operation is never done
            failed = self._struck("image_failed", name)
            if failed is not None or vm not in self.fleet.all():
                why = "The source disk was deleted." if failed is None else "Internal error. Please try again."
                self._keep({**document, "status": "FAILED"})
                self.operations.finish(
                    operation,
                    now,
                    OperationError(
                        "INTERNAL_ERROR", why, http_status=500, http_message="INTERNAL SERVER ERROR", details=[]
                    ),
                )
                return
            size = int(vm.admitted.disk_gib * ARCHIVED * 2**30)
            ready = {**document, "status": "READY", "archiveSizeBytes": str(size)}
            self._keep(ready)
            self._boot(ready)
            self.meter.image_made(number, name, dict(document["labels"]).get("bench-run"), size, now)
            self.operations.finish(operation, now)

    def _begin(self, kind: str, name: str, sender: Sender) -> str:
        document = self.find(name)
        path = f"projects/{self.project}/global/images/{name}"
        target = OperationTarget(GLOBAL, path, document["id"])
        return self.operations.begin(kind, target, self.timeline.now(), sender)

    def _keep(self, document: Document) -> None:
        self.listed[document["name"]] = document
        self.store.owe("image", document["name"], document)

    def _boot(self, document: Document) -> None:
        """Adds a READY image to the inventory, so that machines can boot from it."""
        if document["status"] == "READY":
            family = str(document.get("family", ""))
            self.inventory.own[document["name"]] = InventoryImage(
                self.project, family, document["name"], int(document["diskSizeGb"])
            )

    def _drop(self, name: str) -> None:
        document = self.listed.pop(name)
        self.inventory.own.pop(name, None)
        self.store.owe("image", name, None)
        self.meter.image_gone(document["id"], self.timeline.now())

    # Answers
    def routes(self) -> list[Route]:
        """The routes of images. The project's own can be made and deleted; those of other projects can only be read."""
        return make_routes(
            "compute",
            "/compute/v1/projects/{project}/global/",
            ("GET", "{images:images}", self.list_images, "compute.images.list"),
            ("POST", "images", self.insert, "compute.images.create"),
            ("DELETE", "images/{image}", self.delete, "compute.images.delete"),
            ("POST", "images/{image}/deprecate", self.deprecate, "compute.images.deprecate"),
            ("GET", "images/family/{family}", self.image_from_family, "compute.images.getFromFamily"),
            ("GET", "images/{image}", self.get_image, "compute.images.get"),
        )

    def list_images(self, request: HttpRequest, owner: str, images: str) -> Document:
        path = f"projects/{owner}/global/{images}"
        own_images = self.documents() if owner == self.project else []
        items = [*self.resources.images(owner, request.target), *own_images]
        return list_response("compute#imageList", path, items, request.query)

    def _check_owner(self, owner: str) -> None:
        if owner != self.project:
            raise ApiError(403, f"Required permission on 'projects/{owner}' is missing.", "forbidden")

    def image_from_family(self, request: HttpRequest, owner: str, family: str) -> Document:
        """The newest image that is not deprecated."""
        gone = self.weather.take(
            request.target, lambda fault: fault.kind == "image_gone" and condition_matches(fault.params, family=family)
        )
        own_image = self.newest(family) if owner == self.project and not gone else None
        if own_image is not None:
            return own_image
        of_family = [image for image in self.resources.images(owner, request.target) if image["family"] == family]
        current = [image for image in of_family if is_active(image)]
        if gone or not current:
            raise not_found(f"projects/{owner}/global/images/family/{family}")
        return max(current, key=lambda image: str(image["name"]))

    def get_image(self, _request: HttpRequest, owner: str, image: str) -> Document:
        if owner == self.project:
            return self.find(image)
        listed_image = self.inventory.image(owner, image)
        if listed_image is None:
            raise not_found(f"projects/{owner}/global/images/{image}")
        return self.resources.image(listed_image)


def is_active(image: Document) -> bool:
    """Whether an image is not deprecated."""
    return bool(image.get("deprecated", {}).get("state", "ACTIVE") == "ACTIVE")
