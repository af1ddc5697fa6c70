"""A server between a client and the embedded cloud: it passes everything on, and mangles one answer."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from orchestrator.core.rest_form import misshapen
from tests.support.scripted_server import Answer, Reply, Request

GARBAGE: Final[tuple[Any, ...]] = (
    None, 5, -1, 1e308, True, "x", "", [], [1], [None], ["x"], {}, {"a": 1}, [[]], [{}], {"name": 5}, "9" * 5000,
    float("inf"),
)  # fmt: skip
WHOLE: Final[dict[str, bytes]] = {
    "a page": b"<html>log in to this network</html>",
    "nothing": b"",
    "null": b"null",
    "a list": b"[1]",
    "a text": b'"x"',
    "an empty object": b"{}",
    "half a document": b'{"name": "x", "sta',
    "no text": b'{"name": "\xff\xfe"}',
    "a pit of lists": b"[" * 100_000,
    "a pit of objects": b'{"a":' * 500 + b"1" + b"}" * 500,
}
PASSED: Final = ("content-type", "date", "etag", "location", "metadata-flavor", "x-goog-generation", "x-goog-hash")


@dataclass
class Mangler:
    """Mangles the answer number `at`, the first being 1; at 0 none. `how` is one of `WHOLE`, or a seed by which one
    part of the document is replaced with garbage."""

    compute: str
    storage: str
    at: int = 0
    how: str | int = 0
    seen: int = 0
    asked: list[str] = field(default_factory=list)
    done: str = ""
    """What was mangled."""
    a_lie: bool = False
    """It has the form of an answer all the same: nobody can tell."""

    def again(self, at: int, how: str | int) -> None:
        self.at, self.how, self.seen, self.asked, self.done, self.a_lie = at, how, 0, [], "", False

    def __call__(self, request: Request) -> Answer:
        base = self.storage if request.path.startswith(("/storage/", "/upload/", "/download/", "/b/")) else self.compute
        headers = {key: value for key, value in request.headers.items() if key.lower() not in ("host", "connection")}
        answer = requests.request(
            request.method,
            base + request.target,
            data=request.body,
            headers=headers,
            timeout=600,
            allow_redirects=False,
        )
        self.seen += 1
        self.asked.append(f"{request.method} {request.path}")
        data = answer.content
        if self.seen == self.at:
            data = self.mangled(data, self.asked[-1])
        kept = {key: value for key, value in answer.headers.items() if key.lower() in PASSED}
        return Reply(answer.status_code, data=data, headers=kept)

    def mangled(self, data: bytes, what: str) -> bytes:
        self.done = f"{what}: {self.how}"
        if isinstance(self.how, str):
            return WHOLE[self.how]
        try:
            document = json.loads(data)
        except ValueError:
            return WHOLE["a list"]
        chance = random.Random(f"{what}/{self.how}")
        places = list(places_in(document))
        if not places:
            return json.dumps(chance.choice(GARBAGE)).encode()
        path, garbage = chance.choice(places), chance.choice(GARBAGE)
        self.done = f"{what}: {'.'.join(map(str, path))} is {str(garbage)[:40]}"
        made = put(document, path, garbage)
        self.a_lie = not misshapen(made)
        return json.dumps(made).encode()


def places_in(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, by the keys that lead there."""
    entries = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in entries:
        yield (*path, key)
        yield from places_in(value, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed
