"""What a fact of a run is, and those of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from orchestrator.core.bounds import Count, Name
from orchestrator.core.foreign import plain


class Fact(BaseModel):
    """What happened. Unknown keys are ignored, so that an older client can read a newer run."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    kind: ClassVar[str]
    advice: ClassVar[str] = ""
    """The key under which it tells a person what to do. Only the client that wrote it believes that; whoever reads it
    in the bucket gets it empty."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """The fact as anybody may have written it. Raises `ValidationError`."""
        return cls.model_validate({key: value for key, value in body.items() if key != cls.advice})

    @property
    def harmless(self) -> Self:
        """The same with every text in it as it is stored and read: what the cloud said may be in it."""
        return self.model_validate(plain(self.model_dump(mode="json")))


class ImageReplaced(Fact):
    """The image of the plan was gone when a machine was asked for: the machine boots from another."""

    kind = "image_replaced"
    image: Name
    instead: Name
    generation: Count = 0


class SealRequested(Fact):
    """Appended by the client that makes an image, before the image is asked for: somebody came to copy the disk."""

    kind = "seal_requested"
    image: Name


class ImagePrepared(Fact):
    """The machine's disk is as an image should be, and nothing writes to it: it can be sealed."""

    kind = "image_prepared"
    torch: Name = ""
    driver: Name = ""
    kernel: Name = ""
    ncu: Name = ""
