"""A cloud that the tests of a module share: each scenario has a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.search.chaos.play import Arena, arena


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena(tmp_path_factory.mktemp("arena")) as place:
        yield place
