"""The hosts of a scenario: which run is on which, how it is launched there, and what becomes of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError
from orchestrator.core.hosts import record_object
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.runs.engine import World
from orchestrator.runs.host_planning import plan_for_hosts
from tests.search.chaos.boxes import Box
from tests.search.chaos.clients import hosts_of
from tests.search.chaos.host_weather import RecordDamage

if TYPE_CHECKING:
    from tests.search.chaos.play import Play

INSTEAD: Final = {
    "torn": b'{"schema": 1, "targ',
    "newer": b'{"schema": 2, "address": "me@box", "runs": {}}',
    "no UTF-8": b"\xff\xfe",
    "empty": b"",
    "another's": b'{"schema": 1, "target": "you@elsewhere", "runs": {}}',
    "nonsense": b"[" * 50_000,
}


class Hosted:
    def __init__(self, play: Play) -> None:
        self.play = play
        script = play.arena.rules.make_guest("good", play.scenario.cases, play.scenario.seconds_each, play.deeds)
        stored = play.cloud.storage.store.find
        self.boxes = {
            (name := f"box{number}"): Box(
                name, host, play.timeline, play.deeds, script, play.run_ids, lambda one: stored(play.bucket, one) is not None
            )
            for number, host in enumerate(play.scenario.hosts)
        }  # fmt: skip
        mine = play.run_ids[play.scenario.runs :]
        self.by_run = {run: self.boxes[f"box{host}"] for run, host in zip(mine, play.scenario.hosted, strict=True)}
        self.damages = [(box, one) for box in self.boxes.values() for one in box.host.damage]
        self.broken: dict[str, tuple[bytes, bytes]] = {}
        """By object: what a record was, and what stands in its place."""

    def settings(self, run_id: str) -> tuple[str, ...]:
        """What a launch on a run's host says beside everything else."""
        box = self.by_run[run_id]
        return (f'host.targets=["{box.target}"]', f"host.hourly_usd={box.host.usd_per_hour}", "run.keep=false")

    def planned(self, world: World, config: Config) -> LaunchPlan:
        hosts = hosts_of(world)
        assert hosts is not None
        return plan_for_hosts(world, hosts, config, "chaos", say=lambda _: None)

    def bring_home(self, world: World, run_id: str) -> None:
        """As `bench fetch` does, before it fetches."""
        hosts = hosts_of(world)
        if hosts is not None and run_id in self.by_run:
            hosts.bring_home(run_id)

    def busy(self) -> bool:
        return any(box.busy for box in self.boxes.values())

    def clears_up(self) -> None:
        for box in self.boxes.values():
            box.clears_up()
        for name in tuple(self.broken):
            self.mend(name)

    # --- records ----------------------------------------------------------------------------------------------------

    def weather(self, moments: int) -> None:
        """What is due after so many moments."""
        for box, damage in [one for one in self.damages if one[1].moment <= moments]:
            if self.hurt(record_object(box.target.zone), damage):
                self.damages.remove((box, damage))

    def hurt(self, name: str, damage: RecordDamage) -> bool:
        """Whether it was there to be damaged."""
        bucket = self.play.quiet.bucket
        try:
            there = bucket.read(name)
            if there is None or name in self.broken:
                return False
            bucket.replace(name, INSTEAD[damage.how], generation=None)
        except BenchError:
            return False  # the weather was against it
        self.broken[name] = (there.data, INSTEAD[damage.how])
        self.play.deeds.hosts["records damaged"] += 1
        self.play.timeline.call_later(damage.lasts_s, lambda: self.mend(name))
        return True

    def mend(self, name: str) -> None:
        if name not in self.broken:
            return
        was, instead = self.broken[name]
        try:
            bucket = self.play.quiet.bucket
            there = bucket.read(name)
            if there is not None and there.data == instead:
                bucket.replace(name, was, generation=None)
        except BenchError:
            self.play.timeline.call_later(15, lambda: self.mend(name))
            return
        del self.broken[name]
