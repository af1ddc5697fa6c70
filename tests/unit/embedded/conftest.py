from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.discovery import Recorder
from tests.unit.embedded.builders import Stage
from tests.unit.embedded.wired import wire  # noqa: F401


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture(autouse=True)
def _fair_weather(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test puts into the weather of the cloud that its module shares ends with the test."""
    stage = request.getfixturevalue("stage") if "stage" in request.fixturenames else None
    yield
    if isinstance(stage, Stage):
        stage.cloud.weather.replace({"faults": []})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
