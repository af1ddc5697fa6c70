"""Google's own descriptions of its APIs, as judges of requests and responses.

`Discovery.load()` reads `compute.v1.json` (or another) from google-api-python-client. A `Recorder` is an observer for an `EmbeddedCloud`:

    recorder = Recorder()
    with EmbeddedCloud(home, observer=recorder) as cloud: ...
    recorder.assert_all_valid()
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

DOCUMENTS = "discovery_cache/documents"
OTHERS = (
    "serviceusage.v1", "cloudresourcemanager.v3", "cloudresourcemanager.v1", "iam.v1", "cloudbilling.v1", "storage.v1",
    "batch.v1",
)  # fmt: skip
"""The APIs around Compute Engine."""
INTEGERS = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
QUOTED_INTEGERS = {"int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
# Parameters that every method takes.
COMMON = frozenset({"$.xgafv", "access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint",
                    "quotaUser", "uploadType", "upload_protocol", "userIp", "$alt"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """One method: its id, e.g. `compute.instances.insert`, and what it takes and gives."""

    id: str
    verb: str
    pattern: re.Pattern[str]
    variables: tuple[str, ...]
    parameters: Mapping[str, Any]
    request: str | None
    response: str | None
    flat: bool = False
    """Matched by a template whose variables are pieces of the documented ones: they are not judged one by one."""


class Discovery:
    """The document, indexed."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.schemas: Mapping[str, Any] = document["schemas"]
        self.prefix = "/" + document["servicePath"]
        self.numbers = document["name"] == "batch"
        """Whether enums are also spoken of by number, which is their place in the document (asserted in test_batch)."""
        self.methods = list(self._walk(document["resources"]))
        self.of_shape: dict[tuple[str, int], list[Method]] = {}
        """By verb and number of slashes: no variable has one in it."""
        for method in self.methods:
            slashes = method.pattern.pattern.count("/") - len(method.variables)  # each variable is matched by a [^/]
            self.of_shape.setdefault((method.verb, slashes), []).append(method)

    @staticmethod
    @cache
    def load(api: str = "compute.v1") -> Discovery:
        spec = importlib.util.find_spec("googleapiclient")
        assert spec is not None, "google-api-python-client, a development dependency, is not installed"
        assert spec.submodule_search_locations
        path = Path(spec.submodule_search_locations[0]) / DOCUMENTS / f"{api}.json"
        return Discovery(json.loads(path.read_text("utf-8")))

    def _walk(self, resources: Mapping[str, Any]) -> list[Method]:
        found: list[Method] = []
        for resource in resources.values():
            for entry in resource.get("methods", {}).values():
                flat = "{+" in entry["path"]
                template = entry["flatPath"] if flat else entry["path"]
                variables = tuple(re.findall(r"\{\+?(\w+)\}", template))
                pattern = re.compile(
                    re.sub(r"\\\{\\?\+?\w+\\\}", "([^/:]+)" if flat else "([^/]+)", re.escape(template))
                )
                found.append(
                    Method(
                        entry["id"],
                        entry["httpMethod"],
                        pattern,
                        variables,
                        entry.get("parameters", {}),
                        entry.get("request", {}).get("$ref"),
                        entry.get("response", {}).get("$ref"),
                        flat,
                    )
                )
            found += self._walk(resource.get("resources", {}))
        return found

    def method(self, verb: str, path: str) -> tuple[Method, dict[str, str]] | None:
        """The method that a request is for, and its path parameters."""
        if not path.startswith(self.prefix):
            return None
        rest = path[len(self.prefix) :]
        # A template with more fixed text is the better match: `images/family/x` is not the image `family`.
        matches = [
            (method, found)
            for method in self.of_shape.get((verb, rest.count("/")), ())
            if (found := method.pattern.fullmatch(rest))
        ]
        if not matches:
            return None
        method, found = min(matches, key=lambda match: len(match[0].variables))
        return method, dict(zip(method.variables, map(unquote, found.groups()), strict=True))

    def problems_of_request(self, verb: str, path: str, query: Mapping[str, str], body: Any) -> list[str]:
        """What is wrong with a request; empty when Google would understand all of it."""
        found = self.method(verb, path)
        if found is None:
            return [f"{verb} {path}: no such method"]
        method, variables = found
        problems: list[str] = []
        if method.flat:
            variables = {}
        for name, value in [*variables.items(), *query.items()]:
            if name in method.parameters:
                parameter = method.parameters[name]
                problems += self._parameter(f"{method.id}?{name}", parameter, value)
            elif name not in COMMON:
                problems.append(f"{method.id}?{name}: unknown parameter")
        given = set(variables) | set(query)
        problems += [
            f"{method.id}?{name}: required"
            for name, parameter in method.parameters.items()
            if parameter.get("required") and name not in given and not (method.flat and parameter["location"] == "path")
        ]
        if method.request:
            if body is None:
                problems.append(f"{method.id}: a body is required")
            else:
                problems += self.problems(method.request, body, method.request, outgoing=True)
        elif body is not None:
            problems.append(f"{method.id}: takes no body")
        return problems

    def problems_of_response(self, verb: str, path: str, status: int, body: Any) -> list[str]:
        """What is wrong with a response; empty when it is as Google documents it."""
        if status >= 400:
            return problems_of_error(status, body) if self.prefix != "/" else problems_of_rpc_error(status, body)
        found = self.method(verb, path)
        if found is None:
            return [f"{verb} {path}: no such method"]
        if found[0].response is None:
            return [] if body is None else [f"{found[0].id}: answers with nothing"]
        return self.problems(str(found[0].response), body, str(found[0].response), outgoing=False)

    def _parameter(self, place: str, parameter: Mapping[str, Any], text: str) -> list[str]:
        problems = []
        if "pattern" in parameter and not re.fullmatch(parameter["pattern"], text):
            problems.append(f"{place}: {text!r} is not {parameter['pattern']}")
        if parameter["type"] == "integer" and not re.fullmatch(r"-?\d+", text):
            problems.append(f"{place}: {text!r} is not a number")
        if parameter["type"] == "boolean" and text not in ("true", "false"):
            problems.append(f"{place}: {text!r} is not a boolean")
        if "enum" in parameter and text not in parameter["enum"]:
            problems.append(f"{place}: {text!r} is not in the enum")
        return problems

    def problems(self, schema: str, value: Any, place: str, *, outgoing: bool) -> list[str]:
        """What is wrong with a value of a named schema. `outgoing`: sent to Google, so nothing may be output only."""
        return self._value(self.schemas[schema], value, place, outgoing)

    def _value(self, schema: Mapping[str, Any], value: Any, place: str, outgoing: bool) -> list[str]:
        if "$ref" in schema:
            return self._value(self.schemas[schema["$ref"]], value, place, outgoing)
        match schema["type"]:
            case "object":
                return self._object(schema, value, place, outgoing)
            case "array":
                if not isinstance(value, list):
                    return [f"{place}: {value!r} is not an array"]
                return [
                    problem
                    for index, item in enumerate(value)
                    for problem in self._value(schema["items"], item, f"{place}[{index}]", outgoing)
                ]
            case "string":
                return self._string(schema, value, place)
            case "boolean":
                return [] if isinstance(value, bool) else [f"{place}: {value!r} is not a boolean"]
            case "integer":
                low, high = INTEGERS[schema.get("format", "int32")]
                good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
                return [] if good else [f"{place}: {value!r} is not an integer"]
            case "number":
                good = isinstance(value, (int, float)) and not isinstance(value, bool)
                return [] if good else [f"{place}: {value!r} is not a number"]
            case _:
                return []

    def _object(self, schema: Mapping[str, Any], value: Any, place: str, outgoing: bool) -> list[str]:
        if not isinstance(value, dict):
            return [f"{place}: {value!r} is not an object"]
        problems: list[str] = []
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            here = f"{place}.{name}"
            if name in properties:
                expected = properties[name]
                text = expected.get("description", "")
                if outgoing and text.startswith(("[Output Only]", "Output only.")):
                    problems.append(f"{here}: is output only")
                problems += self._value(expected, inner, here, outgoing)
            elif others is not None:
                problems += self._value(others, inner, here, outgoing)
            else:
                problems.append(f"{here}: unknown field")
        return problems

    def _string(self, schema: Mapping[str, Any], value: Any, place: str) -> list[str]:
        if "enum" in schema and self.numbers and isinstance(value, int) and not isinstance(value, bool):
            return [] if 0 <= value < len(schema["enum"]) else [f"{place}: {value!r} is not in the enum"]
        if not isinstance(value, str):
            return [f"{place}: {value!r} is not a string"]
        form = schema.get("format", "")
        if form in QUOTED_INTEGERS:
            low, high = QUOTED_INTEGERS[form]
            if not re.fullmatch(r"-?\d+", value) or not low <= int(value) <= high:
                return [f"{place}: {value!r} is not a decimal {form}"]
        if form == "byte" and not re.fullmatch(r"[A-Za-z0-9+/_-]*={0,2}", value):
            return [f"{place}: {value!r} is not base64"]
        if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
            return [f"{place}: {value!r} is not {schema['pattern']}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{place}: {value!r} is not in the enum"]
        return []


def problems_of_error(status: int, body: Any) -> list[str]:
    """Google's error envelope, which the document does not describe."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or error.get("code") != status or not isinstance(error.get("message"), str):
        return [f"error {status}: {body!r} is not an error document"]
    listed = error.get("errors")
    good = isinstance(listed, list) and listed and all({"message", "domain", "reason"} <= set(item) for item in listed)
    return [] if good else [f"error {status}: errors[] is missing or incomplete"]


def problems_of_rpc_error(status: int, body: Any) -> list[str]:
    """The error envelope of the younger APIs: a status word, and details."""
    error = body.get("error") if isinstance(body, dict) else None
    good = isinstance(error, dict) and error.get("code") == status and isinstance(error.get("message"), str)
    if not good or not re.fullmatch(r"[A-Z_]+", str(error.get("status", ""))):
        return [f"error {status}: {body!r} is not an error document"]
    return []


@dataclass(slots=True)
class Recorder:
    """Judges every exchange with an embedded cloud as it happens."""

    discovery: Discovery = field(default_factory=Discovery.load)
    exchanges: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)

    def __call__(self, verb: str, path: str, query: dict[str, str], body: Any, status: int, answer: Any) -> None:
        self.exchanges += 1
        judge = self.discovery
        if judge.method(verb, path) is None:
            judge = next((one for one in map(Discovery.load, OTHERS) if one.method(verb, path)), judge)
        found = judge.method(verb, path)
        if found is not None:
            self.methods[found[0].id] += 1
        if status >= 400:
            self.refused[status] += 1
        # A request that was refused as malformed is wrong on purpose.
        if status != 400:
            self.problems += judge.problems_of_request(verb, path, query, body)
        self.problems += judge.problems_of_response(verb, path, status, answer)

    def assert_all_valid(self) -> None:
        """Every request and every response was as Google's document has it, and there were some."""
        assert self.exchanges, "nothing was exchanged"
        assert not self.problems, "\n".join(self.problems)
