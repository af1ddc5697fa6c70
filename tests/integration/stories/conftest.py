from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.stories.stage import Stage, staged


@pytest.fixture
def stage(home: Path) -> Iterator[Stage]:
    """A cloud whose machines do well."""
    with staged(home) as made:
        yield made
