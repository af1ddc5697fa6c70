"""Lists that Google's own libraries read page by page are read to the last."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.auth.credentials import AnonymousCredentials

from orchestrator.adapters.google.compute_calls import Calls
from orchestrator.adapters.google.images import GoogleImages
from orchestrator.adapters.google.market import PATIENCE
from orchestrator.adapters.google.network import Session
from tests.support.scripted_server import Reply, scripted_server
from tests.support.simulated_clock import SimulatedClock

PROJECT = "bench-project"


def images(url: str) -> object:
    return GoogleImages(project=PROJECT, endpoint=url, clock=SimulatedClock()).images()


def operations(url: str) -> object:
    return Calls(PROJECT, Session(AnonymousCredentials(), url), SimulatedClock(), PATIENCE).list_operations(
        "us-central1-a", ""
    )


@pytest.mark.parametrize("listing", [images, operations])
def test_pages_are_read_to_the_last(listing: Callable[[str], object]) -> None:
    answers = iter(
        [{"items": [{"name": "a"}], "nextPageToken": "2"}, {"nextPageToken": "3"}, {"items": [{"name": "b"}]}]
    )
    with scripted_server(lambda _: Reply(json=next(answers))) as server:
        assert [one.name for one in listing(server.url)] == ["a", "b"]  # type: ignore[attr-defined]
