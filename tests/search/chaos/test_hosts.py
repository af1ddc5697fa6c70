"""Machines of the user's own in the searcher's weather: it strikes, breaks no promise, and what is planted is found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.hosts.cloud import HostCloud
from orchestrator.core.errors import BenchError
from orchestrator.core.host_answers import sort_spool
from orchestrator.core.hosts import HostRun, HostTarget
from orchestrator.core.market.machines import Operation
from tests.search.chaos.clients import Rules
from tests.search.chaos.host_weather import BROKEN, Blow, Host, RecordDamage
from tests.search.chaos.judge import FOREIGN, MISSING, RENTED, Broken
from tests.search.chaos.play import Arena, arena
from tests.search.chaos.scenario import Client, Scenario, from_seed

BESIDE = (Client("launch"), Client("launch", 1, starts_s=3.0), Client("look", 1, starts_s=200.0))


def scenario(*blows: Blow, clients: tuple[Client, ...] = BESIDE, **host: Any) -> Scenario:
    """One run on a rented machine, one on a host."""
    return Scenario(0, cases=2, clients=clients, hosts=(Host(blows=blows, **host),))


STRIKES = {
    "out of reach": scenario(Blow(60.0, "off", 120.0)),
    "lost": scenario(Blow(75.0, "power", 120.0)),
    "slow": scenario(Blow(20.0, "slow", 120.0)),
    "unheard": scenario(Blow(60.0, "deaf", 120.0)),
    "lies": scenario(Blow(60.0, "lies", 20.0)),
    "switched off at stop": scenario(
        Blow(0.0, "stop", 4000.0), clients=(*BESIDE[:2], Client("stop", 1, starts_s=90.0), Client("look", 1, 200.0))
    ),
    "hostile files": scenario(hostile=7),
    "records damaged": scenario(damage=(RecordDamage(160, "torn", 120.0),)),
}


@pytest.mark.parametrize("kind", STRIKES)
def test_all_weather_of_hosts_strikes_and_breaks_no_promise(shared: Arena, kind: str) -> None:
    seen = shared.play(STRIKES[kind])
    assert seen.hosts[kind] > 0
    assert seen.hosted >= 1
    assert seen.outcomes[0] == "succeeded"


@pytest.mark.parametrize("how", BROKEN)
def test_a_record_of_any_damage_stops_no_other_run(shared: Arena, how: Any) -> None:
    seen = shared.play(scenario(damage=(RecordDamage(45, how, 900.0),)))
    assert (seen.hosts["records damaged"], seen.outcomes[0]) == (1, "succeeded")


def test_a_host_at_its_owners_price_settles_its_time_though_its_client_died_early(shared: Arena) -> None:
    dying = (Client("launch"), Client("launch", 1, starts_s=3.0, dies_on="after insert"))
    assert shared.play(scenario(clients=dying, usd_per_hour="0.3")).outcomes == ("succeeded", "succeeded")


def test_nonsense_from_a_host_keeps_no_client_from_the_runs_of_others(shared: Arena) -> None:
    asking = tuple(Client("status", starts_s=at) for at in (40.0, 61.0, 75.0))
    seen = shared.play(scenario(Blow(30.0, "lies", 60.0), clients=(*BESIDE, *asking)))
    assert seen.hosts["lies"] > 0


def test_two_runs_do_not_share_a_host_and_the_second_costs_nothing(shared: Arena) -> None:
    clients = (Client("launch"), Client("launch", 1, starts_s=3.0), Client("launch", 2, starts_s=30.0))
    seen = shared.play(scenario(clients=clients, runs=2, usd_per_hour="0.3"))
    assert (seen.hosted, seen.outcomes[1]) == (1, "succeeded")


def test_hosts_are_in_the_seeds() -> None:
    """Of a thousand: about a third with hosts, and each kind of weather on many of them."""
    hosts = [host for seed in range(1, 1001) for host in from_seed(seed).hosts]
    assert len(hosts) > 300
    assert sum(bool(host.hostile) for host in hosts) > 100
    assert sum(bool(host.damage) for host in hosts) > 40
    kinds = [blow.how for host in hosts for blow in host.blows]
    assert all(kinds.count(how) > 30 for how in ("off", "power", "steward", "slow", "deaf", "lies", "stop"))


# --- the searcher itself --------------------------------------------------------------------------------------------


class Credulous(HostCloud):
    """Stores whatever a host offers, under the name that it has there."""

    def _bring_home(self, target: HostTarget, run: HostRun, answer: Mapping[str, Any]) -> None:
        for name, *_ in (file for file in answer.get("files") or () if isinstance(file, list) and len(file) == 3):
            data = self._shell(target).get(f"{answer['spool']}/{name}", limit=1 << 20)
            try:
                self.bucket.replace(str(name), data or b"", generation=None)
            except BenchError:
                continue


class Replacing(HostCloud):
    """Checks names and sizes, and stores a case again when it has changed."""

    def _bring_home(self, target: HostTarget, run: HostRun, answer: Mapping[str, Any]) -> None:
        for one in sort_spool(run.run_id, answer["files"]).taken:
            data = self._shell(target).get(f"{answer['spool']}/{one.name}", limit=one.limit)
            self.bucket.replace(one.name, data or b"", generation=None)


class Hasty(HostCloud):
    """Has a run removed on its host before everything of it was brought home."""

    def _bring_home(self, target: HostTarget, run: HostRun, answer: Mapping[str, Any]) -> None:
        if answer.get("status") != "gone":
            super()._bring_home(target, run, answer)


class Renting(HostCloud):
    """Believes of a run that it costs nothing, whatever its owner said."""

    def _ended(self, run: HostRun) -> tuple[Operation, ...]:
        return ()


HOSTILE = scenario(hostile=7)
PLANTED: dict[str, tuple[Any, Scenario, str]] = {
    "the names of a host are not looked at": (Credulous, HOSTILE, FOREIGN),
    "what is in the bucket is replaced by a host": (Replacing, scenario(hostile=7), FOREIGN),
    "a host is cleared before everything is home": (Hasty, scenario(), MISSING),
    "a run that nobody saw is free": (
        Renting,
        scenario(clients=(BESIDE[0], Client("launch", 1, dies_on="after insert")), usd_per_hour="0.3"),
        RENTED,
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_of_hosts_is_found(tmp_path: Path, defect: str) -> None:
    hosts, played, promise = PLANTED[defect]
    with arena(tmp_path / "planted", Rules(hosts=hosts)) as place, pytest.raises(Broken) as broken:
        place.play(played)
    assert broken.value.promise == promise
