"""`bench doctor`, `image`, `reap` and `fleet` where something else answers in Google's place: a verdict or an error of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from orchestrator.cli.fleet.context import begin_fleet, plan_sweep
from orchestrator.core.fleet.sweep import of_flags
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.support.mangled import WHOLE, Mangler
from tests.support.scripted_server import scripted_server

pytestmark = pytest.mark.usefixtures("cloud")
MARKS = ("Traceback", "Error:", "object is not", "has no attribute")
"""What Python says of its own."""


@pytest.fixture
def mangler(bench: Bench) -> Iterator[Mangler]:
    """Stands between the commands and the cloud."""
    file = bench.home / "cloud" / "cloud.json"
    address = json.loads(file.read_text())
    made = Mangler(address["compute"], address["storage"])
    with scripted_server(made) as server:
        file.write_text(json.dumps({**address, "compute": server.url, "storage": server.url}))
        yield made
        file.write_text(json.dumps(address))


@pytest.mark.parametrize("command", [("doctor", "--gpu", "l4"), ("image", "list"), ("reap",)], ids=" ".join)
def test_no_answer_is_too_strange_for_a_command(bench: Bench, mangler: Mangler, command: tuple[str, ...]) -> None:
    usual = bench(*command, code=None).code
    requests, names = mangler.seen, sorted(WHOLE)
    assert requests > 0
    for at in range(1, requests + 1):
        for how in (names[at % len(names)], at):
            mangler.again(at, how)
            ran = bench(*command, code=None)
            assert ran.code in (usual, 1, 2, 3, 4, 5, 6, 7, 10), mangler.done
            said = " ".join((ran.out + ran.err).split())
            ours = "not one that the service gives" in said
            assert ours or not any(mark in said for mark in MARKS), f"{mangler.done}\n{said}"


@pytest.fixture
def fleet(bench: Bench) -> str:
    """A fleet whose client died before it started anything."""
    wiring = wire()
    desk = begin_fleet(wiring, plan_sweep(wiring, of_flags(["l4"], ["measure.seed=1,2"], {"cap_usd": "50"})))
    return desk.record.fleet


@pytest.mark.parametrize("command", ["status", "stop", "costs", "ls"])
def test_no_answer_is_too_strange_for_a_command_about_a_fleet(
    bench: Bench, mangler: Mangler, fleet: str, command: str
) -> None:
    asked = ("fleet", command) if command == "ls" else ("fleet", command, fleet)
    bench(*asked)
    requests, names = mangler.seen, sorted(WHOLE)
    assert requests > 0
    for at in range(1, requests + 1, 2):
        mangler.again(at, names[at % len(names)] if at % 4 == 1 else at)
        ran = bench(*asked, code=None)
        assert ran.code in (0, 1, 2, 3, 6, 10, 16), f"{mangler.done}\n{ran.err}"
        said = " ".join((ran.out + ran.err).split())
        assert "not one that the service gives" in said or not any(mark in said for mark in MARKS), mangler.done
    mangler.again(0, 0)
    assert wire().ledger.read().runs == {}
