"""A listing that has ever another page does not hold the agent for longer than it is patient."""

from __future__ import annotations

from itertools import count

import pytest

from startup.agent.clock import AgentClock, Patience
from startup.agent.metadata import Metadata
from startup.agent.spec import PhaseTiming
from startup.agent.storage import AgentStorage, StorageError
from tests.support.scripted_server import Reply, Request, scripted_server


def test_a_listing_that_has_ever_another_page_is_given_up_when_patience_is_over() -> None:
    clock, numbers = AgentClock(), count()

    def handle(request: Request) -> Reply:
        if request.path.startswith("/computeMetadata/"):
            return Reply(json={"access_token": "t", "expires_in": 3600}, headers={"Metadata-Flavor": "Google"})
        return Reply(json={"nextPageToken": f"{next(numbers)}"})

    with scripted_server(handle) as server:
        metadata = Metadata(server.url.removeprefix("http://"), clock)
        storage = AgentStorage(server.url, "bench", metadata, PhaseTiming())
        with pytest.raises(StorageError, match="its list of pages does not end"):
            storage.names("runs/", Patience(clock, 0.2))
