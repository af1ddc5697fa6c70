"""Named baselines: the run of each device that later runs are compared with (docs/contracts.md, section 1).

A name (`main`) has one baseline for each device, so that a T4 and an H100 do not displace each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, TypeAdapter

from orchestrator.core.errors import ConfigError, DocumentUnreadable
from orchestrator.core.text import Newer, clean_line, parse_document

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class BaselinesUnreadable(DocumentUnreadable):
    """The object stored under a baseline's name does not follow the contract."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The run that a name refers to on one device."""

    run_id: str
    device: str
    """The name that the device reports."""
    git_commit: Annotated[str, BeforeValidator(lambda commit: commit or "")] = ""
    """The commit of the kernels that were measured; empty if it is not known."""
    git_dirty: bool | None = None
    fingerprint: Annotated[Mapping[str, Any], BeforeValidator(lambda facts: facts or {})] = field(default_factory=dict)
    """What was recorded of the environment. Values that are not plain JSON are left out."""
    set_at: str = ""
    set_by: str = ""


_BY_DEVICE: Final[TypeAdapter[dict[str, Baseline]]] = TypeAdapter(
    dict[str, Baseline], config=ConfigDict(defer_build=True)
)


Baselines = Mapping[str, Baseline]
"""The baselines of one name, by `device_key`."""


@dataclass(frozen=True, slots=True)
class Older:
    """A refusal: the baseline that is `there` has a newer run."""

    there: Baseline


def device_key(device: str) -> str:
    """The key of a device in a stored baseline: `nvidia-l4` for `NVIDIA L4`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"


def checked_name(name: str) -> str:
    """Returns `name` if it is a valid name for a baseline. Raises `ConfigError` if not."""
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            (
                f"not a valid name for a baseline: {name!r}; use small letters, digits, dots, hyphens and "
                "underscores, at most 63"
            ),
            hint="for example: main, release-1.2",
        )
    return name


def place_baseline(baselines: Baselines, new: Baseline, *, back: bool = False) -> dict[str, Baseline] | Older:
    """The baselines with `new` as its device's baseline. A run that is older than the present one is refused unless
    `back` is true, because two pushes may finish in the wrong order. Run ids sort by time."""
    key = device_key(new.device)
    present = baselines.get(key)
    if present is not None and present.run_id > new.run_id and not back:
        return Older(present)
    return {**baselines, key: new}


def remove_devices(baselines: Baselines, keys: frozenset[str]) -> dict[str, Baseline]:
    """The baselines without those of the devices in `keys`."""
    return {key: one for key, one in baselines.items() if key not in keys}


def dump_baselines(name: str, baselines: Baselines) -> bytes:
    """The stored JSON document of the baselines of one name."""
    written = {
        "schema": 1,
        "name": name,
        "devices": {
            key: {**asdict(one), "fingerprint": plain_entries(one.fingerprint)}
            for key, one in sorted(baselines.items())
        },
    }
    return json.dumps(written, indent=1).encode() + b"\n"


def plain_entries(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a fingerprint whose values are text, numbers or booleans."""
    return {key: value for key, value in sorted(fingerprint.items()) if isinstance(value, (str, int, float, bool))}


def parse_baselines(name: str, data: bytes) -> dict[str, Baseline]:
    """The baselines stored under a name. Raises `BaselinesUnreadable`."""
    try:
        return _BY_DEVICE.validate_python(parse_document(data)["devices"])
    except Newer as exc:
        raise BaselinesUnreadable(f"the baseline {name}: {exc}", hint="use the version of bench that wrote it") from exc
    except (ValueError, KeyError) as exc:  # a ValidationError is a ValueError
        raise BaselinesUnreadable(
            f"the baseline {name} cannot be read: {clean_line(repr(exc), 200)}",
            hint=f"`bench baseline rm {name} --broken` empties it",
        ) from exc
