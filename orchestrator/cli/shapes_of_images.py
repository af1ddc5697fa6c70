"""The shapes of what `bench image` prints; see `shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrator.cli.shaping import Usd, shape


@dataclass
class Image:
    """What is known of a prepared image, whatever the cloud says of it today."""

    name: str
    gpu: str
    base: str
    torch: str
    driver: str
    kernel: str
    ncu: str
    archive_bytes: int
    usd_per_month: Usd
    usd_until_expiry: Usd
    created_at: str
    expires_at: str
    validated_at: str | None
    run_id: str
    requirements: list[str]


@dataclass
class ImageBuilt(Image):
    schema: Literal[1]


@dataclass
class ImageJudged(ImageBuilt):
    state: Literal["valid", "unproven", "stale", "unusable"]
    why: str


@dataclass
class ImageGone(ImageBuilt):
    cost_usd: Usd


@dataclass
class ImageListed(Image):
    state: Literal["valid", "unproven", "stale", "unusable"]
    why: str
    age_s: int
    minutes_saved: float | None


IMAGES: Final[dict[str, Any]] = {
    "image build": ImageBuilt,
    "image list": shape(images=list[ImageListed], left_out=dict[str, str], prices_simulated=bool),
    "image rm": ImageGone,
    "image validate": ImageJudged,
}
