from tests.unit.embedded.conftest import recorder, stage, wire  # noqa: F401
