"""What a fact of a run is, and those of images."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from orchestrator.core.bounds import Count, Name


class Fact(BaseModel):
    """What happened. Unknown keys are ignored, so that an older client can read a newer run."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    kind: ClassVar[str]


class ImageReplaced(Fact):
    """The image of the plan was gone when a machine was asked for: the machine boots from another."""

    kind = "image_replaced"
    image: Name
    instead: Name
    generation: Count = 0


class ImagePrepared(Fact):
    """The machine's disk is as an image should be, and nothing writes to it: it can be sealed."""

    kind = "image_prepared"
    torch: Name = ""
    driver: Name = ""
    kernel: Name = ""
    ncu: Name = ""
