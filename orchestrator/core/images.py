"""Prepared images: the record of each, whether a launch may boot from it, and what its storage costs.

An image saves a machine its first minutes. The cloud does not delete it by itself, so its record and its label say when
it expires, and `bench reap` deletes it then. The ledger has the cost of its storage until then from the day it is made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from orchestrator.core.bounds import Count, LenientModel, Moment, Name, Usd
from orchestrator.core.errors import DocumentUnreadable
from orchestrator.core.market.pricing import round_up
from orchestrator.core.naming import IMAGE_NAME, bare_name
from orchestrator.core.text import count, parse_document

USD_PER_GIB_MONTH: Final = Decimal("0.05")
"""The price of an image's archive. It is recalled from Google's price list, as configs/prices.yaml says of its
prices."""
MONTH_S: Final = 730 * 3600
VALID_FOR: Final = timedelta(hours=48)
"""For this long after its last validation an image is used without another one."""
STALE_AFTER: Final = timedelta(days=30)
EXPIRES_LABEL: Final = "bench-expires"
GPU_LABEL: Final = "bench-gpu"
PREFIX: Final = "images/"


class ImageRecord(LenientModel):
    """The object `images/<name>.json`: what the run that made an image reported about it, and its state since."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal[1] = Field(default=1, alias="schema")
    name: Name
    gpu: Name
    url: Name
    image_id: Name = ""
    base: Name
    """The dated image that it was made from, as a partial URL."""
    torch: Name = ""
    """The version of torch on it. The next four are versions too."""
    driver: Name = ""
    kernel: Name = ""
    ncu: Name = ""
    environment: Name
    """`environment_of` the packages that it was asked to have."""
    requirements: tuple[Name, ...] = Field(default=(), max_length=200)
    """A workload's packages on it, in addition to torch: `pip triton==3.4`, `apt libnuma-dev`."""
    disk_gb: Count
    archive_bytes: int = Field(ge=0, le=2**60)
    run: Name
    created_at: Moment
    expires_at: Moment
    usd: Usd
    """What its storage costs until it expires; the ledger has this under `cost_of(name)`."""
    validated_at: Moment | None = None
    validated_by: Name = ""
    """The run that passed every check on it."""
    broken: Name = ""
    """Why no launch may use it; empty if there is no reason."""
    gone_at: Moment | None = None

    @classmethod
    def parse(cls, name: str, data: bytes) -> ImageRecord:
        """The record in `data`. Raises `DocumentUnreadable`."""
        try:
            return cls.model_validate(parse_document(data))
        except (ValueError, ValidationError) as error:
            raise DocumentUnreadable(
                f"the record of the image {name} cannot be read: {error}".splitlines()[0],
                hint=f"`bench image rm {name}` deletes the image, and launches take the base image meanwhile",
            ) from error

    def dump(self) -> bytes:
        return self.model_dump_json(by_alias=True, indent=1).encode()


@dataclass(frozen=True, slots=True)
class CloudImage:
    """An image as the cloud lists it."""

    name: str
    url: str
    """The partial URL `projects/P/global/images/NAME`."""
    id: str
    status: str
    """Google's status: PENDING, READY, FAILED, DELETING."""
    created_at: datetime
    labels: Mapping[str, str]
    disk_gb: int = 0
    archive_bytes: int = 0
    deprecated: str = ""
    """DEPRECATED, OBSOLETE or DELETED; empty if it is none of these."""


@dataclass(frozen=True, slots=True)
class Usable:
    """A launch may boot from this image. `validates`: why the checks of that launch validate the image; empty: its last
    validation is still valid."""

    record: ImageRecord
    url: str
    """The URL that the cloud reports, in this project. The URL in the record is not trusted."""
    validates: str = ""


@dataclass(frozen=True, slots=True)
class Unusable:
    """No launch may boot from this image, and why. A `stale` image should be made again; another one is gone, or was
    never fit for such a launch."""

    record: ImageRecord
    why: str
    stale: bool = False


def judge_image(
    record: ImageRecord, seen: CloudImage | None, base: str, environments: Sequence[str], now: datetime
) -> Usable | Unusable:
    """Whether a launch may boot from an image. `base` is the base image from which the launch would boot otherwise,
    `environments` are those that it can use, and `seen` is the image's present state in the cloud (None: it is
    gone)."""
    gone = _gone(record, seen, now)
    if gone is not None:
        return gone
    if record.base != base:
        return Unusable(record, f"its base is {short_url(record.base)}, and {short_url(base)} is newer", stale=True)
    if now - record.created_at > STALE_AFTER:
        return Unusable(record, f"it is {count((now - record.created_at).days, 'day')} old", stale=True)
    if record.environment not in environments:
        if record.requirements:
            return Unusable(record, f"it was made for a workload that needs {', '.join(record.requirements)}")
        return Unusable(record, "something else is to be on it by now", stale=True)
    assert seen is not None, "what is gone was told apart above"
    if record.validated_at is None:
        return Usable(record, seen.url, "no run has passed the checks on it yet")
    if now - record.validated_at > VALID_FOR:
        hours = (now - record.validated_at) / timedelta(hours=1)
        return Usable(record, seen.url, f"it was validated {hours:.0f} h ago")
    return Usable(record, seen.url)


def _gone(record: ImageRecord, seen: CloudImage | None, now: datetime) -> Unusable | None:
    if record.gone_at is not None or seen is None:
        return Unusable(record, "it is gone")
    if seen.status != "READY":
        return Unusable(record, f"its status in the cloud is {seen.status}")
    if seen.deprecated:
        return Unusable(record, f"it is {seen.deprecated.lower()}")
    if now >= record.expires_at:
        return Unusable(record, f"it expired on {record.expires_at:%Y-%m-%d}")
    if record.broken:
        return Unusable(record, record.broken)
    return None


def choose_image(
    records: Sequence[ImageRecord],
    seen: Mapping[str, CloudImage],
    gpu: str,
    base: str,
    environments: Sequence[str],
    now: datetime,
) -> tuple[Usable | None, tuple[Unusable, ...]]:
    """(image to boot from, images that a launch may not boot from). The first is the newest of those with the earliest
    possible entry of `environments`; None if there is none. The others are in order, newest first."""
    of_gpu = sorted((one for one in records if one.gpu == gpu), key=lambda one: one.created_at, reverse=True)
    verdicts = [judge_image(one, seen.get(one.name), base, environments, now) for one in of_gpu]
    usable_images = [one for one in verdicts if isinstance(one, Usable)]
    usable = min(usable_images, key=lambda one: environments.index(one.record.environment), default=None)
    return usable, tuple(one for one in verdicts if isinstance(one, Unusable))


def first_difference(record: ImageRecord, reported: Mapping[str, object]) -> str:
    """The first difference between the versions that a run on an image reports and those of the image's record, as
    text; empty if there is none. A version that one of the two does not know is not a difference."""
    for key in ("kernel", "driver", "torch"):
        was, now_is = str(getattr(record, key) or ""), str(reported.get(key) or "")
        if was and now_is and was.partition("+")[0] != now_is.partition("+")[0]:
            return f"it now has {key} {now_is}, but it was made with {was}"
    return ""


def environment_of(torch: str, requirements: Sequence[str] = ()) -> str:
    """A digest of the packages that an image is asked to have: 16 hexadecimal digits."""
    text = "\n".join([torch, *sorted(requirements)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def environments_for(torch: str, requirements: Sequence[str]) -> tuple[str, ...]:
    """The environments that a launch can use, best first: with its workload's requirements, or with torch alone, so
    that the machine installs them."""
    return tuple(dict.fromkeys((environment_of(torch, requirements), environment_of(torch))))


def image_name(gpu: str, run_id: str) -> str:
    """The name of the image that a run makes, such as `bench-image-l4-20261122-040506-7f3a`. Names of one GPU sort by
    time."""
    return f"{family_of(gpu)}-{run_id[:15]}-{run_id.rpartition('-')[2]}"


def is_image_of(run_id: str, name: str) -> bool:
    return name.endswith(image_name("", run_id).removeprefix(IMAGE_NAME))


def family_of(gpu: str) -> str:
    return f"{IMAGE_NAME}{bare_name(gpu)}"


def record_object(name: str) -> str:
    return f"{PREFIX}{name}.json"


def image_recorded_in(name: str) -> str:
    """The image whose record an object is, by the object's name."""
    return name.removeprefix(PREFIX).removesuffix(".json")


def cost_of(name: str) -> str:
    """The id of the cost of an image's storage in the ledger."""
    return f"cost-{name}"


def storage_usd(archive_bytes: int, seconds: float) -> Decimal:
    """What an image's archive costs for `seconds`, in dollars, rounded up."""
    share = Fraction(archive_bytes, 2**30) * Fraction(max(seconds, 0.0)) / MONTH_S
    return round_up(Fraction(USD_PER_GIB_MONTH) * share)


def usd_per_month(archive_bytes: int) -> Decimal:
    return storage_usd(archive_bytes, MONTH_S)


def expires_label(at: datetime) -> str:
    """The value of the expiry label: seconds since 1970, because a label allows neither colons nor capitals."""
    return str(int(at.timestamp()))


def is_expired(labels: Mapping[str, str], now: datetime) -> bool:
    """Whether an image's own label says that it has expired. An image without a readable label never expires."""
    text = labels.get(EXPIRES_LABEL, "")
    return text.isascii() and text.isdigit() and len(text) < 13 and int(text) <= now.timestamp()


def short_url(url: str) -> str:
    return url.rpartition("/")[2]


# Containers: which references may be run, and the recipe of a container with the contents of a prepared image. Pure.


REFERENCE: Final = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}", re.ASCII)
HINT: Final = "`docker buildx imagetools inspect NAME:TAG --format '{{.Manifest.Digest}}'` prints the digest of a tag"
BASE: Final = "docker.io/library/python:3.12-slim"
"""Debian with a Python that pip may install into. Torch's wheels contain CUDA's libraries; the machine has the
driver's."""
TOOLS: Final = ("ca-certificates", "g++")
LABEL: Final = "org.spotbench.environment"
PIP: Final = "python3 -m pip install --no-cache-dir --disable-pip-version-check --no-input"

RELEASE: Final = re.compile(
    r"(\d{1,9}(\.\d{1,9}){1,3}((a|b|rc)\d{1,9})?(\.(post|dev)\d{1,9})?(\+[a-z0-9]{1,20})?)?", re.ASCII
)
"""The version of a package, or nothing. It is strict because the version becomes part of commands that a person pastes
and of what pip installs."""


def require_digest(reference: str) -> str:
    """Returns a reference that has a digest, or is empty. Raises `ValueError` for a tag alone: a second machine could
    get another image under the same tag."""
    if reference and not REFERENCE.fullmatch(reference):
        raise ValueError(f"expected NAME@sha256:… with 64 digits; {HINT}")
    return reference


def require_release(text: str) -> str:
    """Returns `text` if it is a package version or empty. Raises `ValueError` if not."""
    if not RELEASE.fullmatch(text):
        raise ValueError(f"expected a version such as 2.13.0, or '' for the newest, not {text[:40]!r}")
    return text


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile, and the text of the requirements.txt beside it. `wheels` are files to put beside it too."""

    dockerfile: str
    requirements: str
    wheels: tuple[str, ...] = ()


def container_recipe(torch: str, environment: str, needs: Sequence[str] = ()) -> Recipe:
    """The recipe of a container with what `bench image build` installs on an image: torch, a compiler, and a workload's
    needs (`pip triton==3.4`, `apt libnuma-dev`). `environment` is the digest of these, stored as a label."""
    pip = [one.partition(" ")[2] for one in needs if one.startswith("pip ")]
    apt = sorted({*TOOLS, *(one.partition(" ")[2] for one in needs if one.startswith("apt "))})
    wheels = tuple(one for one in pip if one.endswith(".whl"))
    requirements = [f"torch=={torch}" if torch else "torch", "numpy", *(one for one in pip if one not in wheels)]
    lines = [
        "# syntax=docker/dockerfile:1",
        "# Written by `bench image build --container`. Agent and harness are not in it: every run brings its own.",
        f"ARG BASE={BASE}",
        "FROM ${BASE}",
        f'LABEL {LABEL}="{environment}"',
        "ENV PYTHONUNBUFFERED=1 \\",
        "    NVIDIA_VISIBLE_DEVICES=all \\",
        "    NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "RUN apt-get update && \\",
        f"    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(apt)} && \\",
        "    rm -rf /var/lib/apt/lists/*",
        "COPY requirements.txt /opt/bench/",
        f"RUN {PIP} -r /opt/bench/requirements.txt",
    ]
    if wheels:
        lines += [f"COPY {' '.join(wheels)} /opt/bench/wheels/", f"RUN {PIP} /opt/bench/wheels/*.whl"]
    lines.append('RUN python3 -c "import numpy, torch; print(torch.__version__)"')
    return Recipe("\n".join(lines) + "\n", "\n".join(requirements) + "\n", wheels)
