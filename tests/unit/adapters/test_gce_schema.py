"""What is sent is checked against Google's own description of its API, not against our memory of it."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

from orchestrator.adapters.google.instance_body import instance_body
from orchestrator.core.market.machines import InstanceRequest
from tests.support.machine_requests import L4, T4


@cache
def schemas() -> dict[str, Any]:
    document = files("googleapiclient").joinpath("discovery_cache/documents/compute.v1.json").read_text()
    found: dict[str, Any] = json.loads(document)["schemas"]
    return found


def problems(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """What Google would find wrong with `value`."""
    schema = schemas()[schema["$ref"]] if "$ref" in schema else schema
    if schema.get("readOnly"):
        return [f"{where} is output only"]
    kind = schema.get("type")
    if kind == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        found = []
        for key, part in value.items():
            if key not in known and others is None:
                found.append(f"{where}.{key} is unknown")
            else:
                found += problems(part, known.get(key, others), f"{where}.{key}")
        return found
    if kind == "array":
        return [problem for part in value for problem in problems(part, schema["items"], where)]
    python = {"string": str, "boolean": bool, "integer": int, "number": float}[str(kind)]
    if type(value) is not python:
        return [f"{where} is {value!r}, not {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}, not one of {schema['enum']}"]
    return []


@pytest.mark.parametrize("request_", [L4, T4], ids=["l4", "t4"])
def test_what_is_sent_is_what_google_describes(request_: InstanceRequest) -> None:
    assert problems(instance_body(request_, "bench-project"), {"$ref": "Instance"}, "instance") == []


def test_the_check_finds_what_is_wrong() -> None:
    body = instance_body(L4, "bench-project")
    body["status"] = "RUNNING"
    body["scheduling"]["provisioningModel"] = "SPOTTY"
    body["disks"][0]["initializeParams"]["diskSizeGb"] = 60
    body["colour"] = "red"
    assert len(problems(body, {"$ref": "Instance"}, "instance")) == 4
