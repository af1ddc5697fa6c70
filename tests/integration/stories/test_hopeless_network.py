"""A network that becomes hopeless between the plan and the machine: money comes back at once where no machine can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.network import AUTHORITIES
from orchestrator.api.outcome import error_of
from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.core.errors import LocalError
from orchestrator.core.market.machines import NOT_SENT
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine, World
from tests.integration.stories.stage import RUN, Stage, good_vm, staged, weather
from tests.integration.stories.test_half_begun import assert_paid_as_billed, held
from tests.integration.stories.test_interrupted import Telling, own_ctrl_c
from tests.support.google_site import GoogleSite, google_site
from tests.support.simulated_clock import TimelineClock

__all__ = ["own_ctrl_c"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleSite]:
    """A service whose certificate nobody trusts."""
    for name in AUTHORITIES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "site"
    folder.mkdir()
    with google_site(folder) as found:
        yield found


def hopeless(stage: Stage, site: GoogleSite) -> GoogleCloud:
    url = f"https://127.0.0.1:{site.tls_proxy_port}"
    return GoogleCloud("p", url, Bearer("secret"), TimelineClock(stage.timeline))


def launch(world: World, stage: Stage) -> None:
    follow_to_end(Driving(world, RUN, lambda: stage.begin(world), Telling(), "ada"))


def test_a_request_that_never_left_ends_the_run_and_gives_its_money_back(stage: Stage, site: GoogleSite) -> None:
    world = replace(stage.world(), cloud=lambda: hopeless(stage, site))
    run = stage.begin(world, stage.plan()).follow()
    assert run.rejected is not None
    assert (run.phase, run.rejected.code) == (Phase.FAILED, NOT_SENT)
    error = error_of(run)
    assert error is not None
    assert "certificate is not trusted" in str(error)
    assert "REQUESTS_CA_BUNDLE" in error.hint
    assert held(stage) == stage.bill() == site.requests == []
    assert_paid_as_billed(stage)


def test_a_request_that_may_have_arrived_keeps_the_money_and_says_so(home: Path, site: GoogleSite) -> None:
    lost = {"fault": "reset", "service": "compute", "method": "POST", "path": r"/instances\?", "after": "response"}
    with staged(home, good_vm(cases=1)) as stage:
        weather(stage, {**lost, "times": 5})
        google = stage.world().cloud()
        answers = iter([google])  # the one that asks for the machine; every later one is hopeless
        world = replace(stage.world(), cloud=lambda: next(answers, hopeless(stage, site)))
        with pytest.raises(LocalError, match=f"not trusted.*; a machine may exist for run {RUN}, so its money stays"):
            launch(world, stage)
        assert stage.fired() == [5]
        assert held(stage) == [RUN]
        assert len(stage.cloud.instances()) == 1
        stage.look_after()
        assert_paid_as_billed(stage)


def test_trouble_before_a_machine_is_asked_for_ends_the_run(stage: Stage) -> None:

    def unready(_: str) -> None:
        raise LocalError("the proxy refuses: 407", hint="ask its owner")

    world = replace(stage.world(), ready=unready)
    with pytest.raises(LocalError, match=f"the proxy refuses: 407; run {RUN} is ended and holds no money"):
        launch(world, stage)
    assert Engine(stage.world(), RUN).look().phase is Phase.STOPPED
    assert held(stage) == stage.bill() == []


class Unreadable:
    """The log of a client that reaches the bucket no more."""

    def read(self) -> Any:
        raise LocalError("the certificate is not trusted")


def test_a_bucket_that_cannot_be_reached_either_is_told_and_settled_later(stage: Stage) -> None:
    begun = stage.begin(stage.world())
    cut_off = Engine(stage.world(), RUN, launch=begun.launch, log=Unreadable())  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="could not be ended either, so it may still hold money: `bench status`"):
        cut_off.follow()
    assert held(stage) == [RUN]
    stage.timeline.advance(3600)
    stage.look_after()
    assert_paid_as_billed(stage)
