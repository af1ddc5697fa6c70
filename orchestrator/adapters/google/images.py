"""Images of the user's own project at Compute Engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import google.api_core.exceptions as api
from google.auth.credentials import Credentials

from orchestrator.adapters.google.compute_calls import Calls
from orchestrator.adapters.google.compute_library import compute_v1
from orchestrator.adapters.google.credentials import credentials_for
from orchestrator.adapters.google.errors import FOREIGN, translate_error
from orchestrator.adapters.google.market import PATIENCE, CallPatience, parse_time
from orchestrator.adapters.google.network import Session
from orchestrator.core.errors import ProviderError, Unavailable
from orchestrator.core.images import CloudImage
from orchestrator.core.naming import TOOL, TOOL_LABEL
from orchestrator.ports import Clock, ImageRequest

SEAL_S = 1500.0
"""How long an image may take; a disk of 100 GB took some minutes wherever somebody wrote it down."""


class GoogleImages:
    """See `ports.Images`."""

    def __init__(
        self,
        *,
        project: str,
        clock: Clock,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        patience: CallPatience = PATIENCE,
    ) -> None:
        self._project = project
        self._clock = clock
        self._calls = Calls(project, Session(credentials or credentials_for(endpoint), endpoint), clock, patience)

    def seal(self, request: ImageRequest) -> CloudImage:
        doing = f"make the image {request.name}"
        resource = compute_v1.Image(
            name=request.name,
            family=request.family,
            source_disk=f"projects/{self._project}/zones/{request.zone}/disks/{request.disk}",
            labels=dict(request.labels),
            description=request.description,
        )
        message = compute_v1.InsertImageRequest(
            project=self._project,
            image_resource=resource,
            force_create=True,  # the machine lives, for its end would take the disk
            request_id=request.request_id,
        )
        try:
            self._calls.persist(lambda: self._images.insert_unary(message, **self._calls.once))
        except api.Conflict:  # an earlier request made it, and its answer was lost
            pass
        except FOREIGN as exc:
            raise translate_error(exc, doing) from exc
        return self._ready(request, doing)

    def _ready(self, request: ImageRequest, doing: str) -> CloudImage:
        """Waits by the image's own word: its operation may be forgotten, or never be done."""
        until = self._clock.now() + timedelta(seconds=min(SEAL_S, request.patience_s))
        while True:
            image = self.image(request.name)
            if image is not None and image.status == "READY":
                return image
            if image is None or image.status == "FAILED":
                what = "it was deleted meanwhile" if image is None else "its status in the cloud is FAILED"
                raise ProviderError(f"cannot {doing}: {what}", hint="run the same `bench image build` again")
            if self._clock.now() >= until:
                raise Unavailable(
                    f"cannot {doing}: it was still {image.status} after {request.patience_s:.0f} s",
                    hint="`bench reap --yes` deletes what is left of it; then run the same `bench image build` again",
                )
            self._clock.sleep(5)

    def images(self) -> tuple[CloudImage, ...]:
        wanted = compute_v1.ListImagesRequest(
            project=self._project, filter=f"labels.{TOOL_LABEL}={TOOL}", max_results=500
        )
        doing = "list the images"
        listed_images = self._calls.ask(lambda: list(self._images.list(wanted, **self._calls.once)), doing)
        return tuple(_image(image, self._project) for image in listed_images)

    def image(self, name: str) -> CloudImage | None:
        found: compute_v1.Image | None = self._calls.unless_gone(
            lambda: self._images.get(project=self._project, image=name, **self._calls.once), f"look at the image {name}"
        )
        return None if found is None else _image(found, self._project)

    def newest(self, family: str) -> CloudImage | None:
        found: compute_v1.Image | None = self._calls.unless_gone(
            lambda: self._images.get_from_family(project=self._project, family=family, **self._calls.once),
            f"find the newest image of {family}",
        )
        return None if found is None else _image(found, self._project)

    def deprecate(self, name: str) -> None:
        message = compute_v1.DeprecateImageRequest(
            project=self._project,
            image=name,
            deprecation_status_resource=compute_v1.DeprecationStatus(state="DEPRECATED"),
            request_id=_request_id("deprecate", name, self._clock.now()),
        )
        self._calls.unless_gone(
            lambda: self._images.deprecate_unary(message, **self._calls.once), f"deprecate the image {name}"
        )

    def delete(self, name: str) -> None:
        message = compute_v1.DeleteImageRequest(
            project=self._project, image=name, request_id=_request_id("delete", name, self._clock.now())
        )
        doing = f"delete the image {name}"
        self._calls.unless_gone(lambda: self._images.delete_unary(message, **self._calls.once), doing)
        until = self._clock.now() + timedelta(seconds=PATIENCE.operation_s)
        while self.image(name) is not None:
            if self._clock.now() >= until:
                raise Unavailable(f"cannot {doing}: it is still there", hint="`bench reap --yes` tries again")
            self._clock.sleep(2)

    @property
    def _images(self) -> Any:
        return self._calls.client(compute_v1.ImagesClient)


def _request_id(verb: str, name: str, now: datetime) -> str:
    """The same for retries within an hour."""
    return str(uuid5(NAMESPACE_URL, f"spotbench:image/{verb}/{name}/{now:%Y%m%d%H}"))


def _image(found: compute_v1.Image, project: str) -> CloudImage:
    state = found.deprecated.state
    return CloudImage(
        name=found.name,
        url=f"projects/{project}/global/images/{found.name}",
        id=str(found.id),
        status=found.status,
        created_at=parse_time(found.creation_timestamp) or datetime.fromtimestamp(0, UTC),
        labels=dict(found.labels),
        disk_gb=int(found.disk_size_gb),
        archive_bytes=int(found.archive_size_bytes),
        deprecated="" if state in ("", "ACTIVE") else state,
    )
