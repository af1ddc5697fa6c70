"""The base class of facts, and the facts about images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.core.bounds import Count, Name
from orchestrator.core.foreign import plain


class Fact(BaseModel):
    """Something that happened to a run. Unknown keys are ignored, so that an older client can read a newer run."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    kind: ClassVar[str]
    advice: ClassVar[str] = ""
    """The key with advice to the user, if there is one. Only the client that wrote the fact shows it. It is dropped
    when a fact is read from the bucket, because anybody may have written it."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """The fact in a stored `body`, without its advice. Raises `ValidationError`."""
        return cls.model_validate({key: value for key, value in body.items() if key != cls.advice})

    @property
    def harmless(self) -> Self:
        """The same fact with every text made harmless, because texts from the cloud may be in it."""
        return self.model_validate(plain(self.model_dump(mode="json")))


class ImageReplaced(Fact):
    """The plan's image was gone when a machine was requested. The machine boots from another image."""

    kind = "image_replaced"
    image: Name
    instead: Name
    generation: Count = 0


class SealRequested(Fact):
    """A client is about to copy the disk of the machine into an image. It writes this before it requests the image."""

    kind = "seal_requested"
    image: Name


class ImagePrepared(Fact):
    """The machine's disk is ready to become an image, and nothing writes to it any more."""

    kind = "image_prepared"
    torch: Name = ""
    driver: Name = ""
    kernel: Name = ""
    ncu: Name = ""
