"""Lists that Google's own libraries read page by page have an end, whatever answers in Google's place."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from orchestrator.adapters.gce_calls import PATIENCE, Calls
from orchestrator.adapters.gce_images import GoogleImages
from orchestrator.core import rest
from orchestrator.core.errors import Unavailable
from tests.support.scripted_server import Reply, scripted_server
from tests.support.simulated_clock import SimulatedClock

PROJECT = "bench-project"


def images(url: str) -> object:
    return GoogleImages(project=PROJECT, endpoint=url, clock=SimulatedClock()).images()


def operations(url: str) -> object:
    return Calls(PROJECT, url, None, SimulatedClock(), PATIENCE).list_operations("us-central1-a", "")


@pytest.mark.parametrize("listing", [images, operations])
def test_pages_that_do_not_end_are_an_error(listing: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "MOST_PAGES", 20)
    numbers = count()
    with scripted_server(lambda _: Reply(json={"items": [], "nextPageToken": f"{next(numbers)}"})) as server:
        with pytest.raises(Unavailable, match="list of pages does not end"):
            listing(server.url)
        assert len(server.requests) == 21
    with scripted_server(lambda _: Reply(json={"items": [], "nextPageToken": "again"})) as server:
        with pytest.raises(Unavailable, match="list of pages does not end"):
            listing(server.url)
        assert len(server.requests) == 2


@pytest.mark.parametrize("listing", [images, operations])
def test_pages_are_read_to_the_last(listing: Callable[[str], object]) -> None:
    answers = iter(
        [{"items": [{"name": "a"}], "nextPageToken": "2"}, {"nextPageToken": "3"}, {"items": [{"name": "b"}]}]
    )
    with scripted_server(lambda _: Reply(json=next(answers))) as server:
        assert [one.name for one in listing(server.url)] == ["a", "b"]  # type: ignore[attr-defined]
