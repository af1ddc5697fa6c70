"""The routes of images in Compute Engine's v1 REST API."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.embedded.errors import ApiError, Document, not_found, reading
from orchestrator.embedded.images import Images
from orchestrator.embedded.listener import Request
from orchestrator.embedded.listing import listing
from orchestrator.embedded.requests import body_of, request_id
from orchestrator.embedded.resources import Resources
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.weather import Weather

Route = tuple[str, str, Callable[..., Document]]


class ImageApi:
    """Answers requests about images. The project's own images can be made and deleted; those of other projects can only
    be read."""

    def __init__(
        self,
        images: Images,
        resources: Resources,
        weather: Weather,
        timeline: Timeline,
        caller: Callable[[Request], str],
    ) -> None:
        self.images = images
        self.resources = resources
        self.weather = weather
        self.timeline = timeline
        self.caller = caller

    def routes(self, at: str) -> list[Route]:
        """(method, pattern of the path, function that answers). `at` is the pattern of a project's path."""
        return [
            ("GET", at + r"/global/(?P<images>images)", self.list_images),
            ("POST", at + r"/global/images", self.insert_image),
            ("DELETE", at + r"/global/images/(?P<image>[^/]+)", self.delete_image),
            ("POST", at + r"/global/images/(?P<image>[^/]+)/deprecate", self.deprecate_image),
            ("GET", at + r"/global/images/family/(?P<family>[^/]+)", self.image_from_family),
            ("GET", at + r"/global/images/(?P<image>[^/]+)", self.get_image),
        ]

    def list_images(self, request: Request, owner: str, images: str) -> Document:
        path = f"projects/{owner}/global/{images}"
        own_images = self.images.documents() if owner == self.images.project else []
        items = [*self.resources.images(owner, request.target), *own_images]
        return listing("compute#imageList", path, items, request.query)

    def insert_image(self, request: Request) -> Document:
        with reading("image"):
            return self.images.insert(body_of(request), dict(request.query), request_id(request), self.caller(request))

    def delete_image(self, request: Request, owner: str, image: str) -> Document:
        self._own(owner)
        return self.images.delete(image, request_id(request), self.caller(request))

    def deprecate_image(self, request: Request, owner: str, image: str) -> Document:
        self._own(owner)
        return self.images.deprecate(image, body_of(request), request_id(request), self.caller(request))

    def _own(self, owner: str) -> None:
        if owner != self.images.project:
            raise ApiError(403, f"Required permission on 'projects/{owner}' is missing.", "forbidden")

    def image_from_family(self, request: Request, owner: str, family: str) -> Document:
        """The newest image that is not deprecated."""
        gone = self.weather.take(
            request.target, lambda fault: fault.kind == "image_gone" and fault.params.get("family", family) == family
        )
        own_image = self.images.newest(family) if owner == self.images.project and not gone else None
        if own_image is not None:
            return own_image
        of_family = [image for image in self.resources.images(owner, request.target) if image["family"] == family]
        current = [image for image in of_family if image.get("deprecated", {}).get("state", "ACTIVE") == "ACTIVE"]
        if gone or not current:
            raise not_found(f"projects/{owner}/global/images/family/{family}")
        return max(current, key=lambda image: str(image["name"]))

    def get_image(self, _request: Request, owner: str, image: str) -> Document:
        if owner == self.images.project:
            return self.images.find(image)
        found = self.images.inventory.image(owner, image)
        if found is None:
            raise not_found(f"projects/{owner}/global/images/{image}")
        return self.resources.image(found)
