"""A VM that works, and what a stage shows of the weather that befell it."""

from __future__ import annotations

from typing import Any

from tests.support import keyed as requests
from tests.unit.embedded.builders import Stage


def forecast(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"faults": list(faults)}


def objects(stage: Stage) -> list[str]:
    """The kinds of the events in the bucket, in order."""
    url = f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o"
    items = requests.get(url, timeout=600).json().get("items", [])
    return [item["name"].rpartition("-")[2].removesuffix(".json") for item in items]
