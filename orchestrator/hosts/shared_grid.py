"""One grid on several machines of the user's own: a run on each, and a client that hands out the cases by lease.

The leases are one document in the bucket, changed by compare-and-swap (`core.leases`); so any number of clients may
hand out the same grid, and one that dies is followed by another. A machine has no word in it: it measures what it is
granted, stores it, and waits. A heartbeat is written for a machine only after it was reached, and the bucket's own
clock says how old it is: a machine that is dead or cut off for too long loses what it had in hand to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrator.core.errors import BudgetExceeded, Unavailable
from orchestrator.core.market.pricing import ceiling
from orchestrator.core.naming import beats_prefix, grid_object
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.fold import Run
from orchestrator.core.run.leases import SharedGrid, complete, give_up, hand_out, living
from orchestrator.hosts.cloud import HostCloud
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import LaunchContext, Payload, begin
from orchestrator.store.grids import read_grid, update_grid

RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""When a machine that was not to be reached is tried again: connecting to one that is gone takes seconds each time."""
GIVE_UP_S = 600.0
"""A client that has reached none of the machines for so long has nothing to hand out to."""


@dataclass
class Member:
    """One machine's run, as this client sees it."""

    run_id: str
    target: str
    engine: Engine
    run: Run | None = None
    trouble: str = ""
    """Why it cannot be reached; empty while it can."""
    failures: int = 0
    retry_at: datetime | None = None
    told: tuple[tuple[str, ...], bool] = ((), False)
    """What it was granted last, and whether it knows that the grid is over."""

    @property
    def closed(self) -> bool:
        return self.run is not None and self.run.over and self.run.settled is not None

    @property
    def at_work(self) -> bool:
        """Whether it has a machine that can be told what to do."""
        run = self.run
        return not self.trouble and run is not None and run.closed is None and run.vm is not None and run.vm.open


def shares(plan: LaunchPlan) -> tuple[LaunchPlan, ...]:
    """The plans of the runs that measure the grid of `plan` together: one for each machine, each with its own hold."""
    return tuple(
        replace(
            plan,
            offers=(offer,),
            attempts=1,
            ceiling_usd=ceiling(offer.usd_per_hour, plan.ttl_s, 1),
            harness={**plan.harness, "on_request": True},
        )
        for offer in plan.offers
    )


def begin_grid(
    world: World,
    plan: LaunchPlan,
    payload: Payload,
    *,
    run_ids: Sequence[str],
    where: LaunchContext,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Member, ...]:
    """Plans and holds a run for each machine. One that the budget has nothing left for is left out; raises
    `BudgetExceeded` when that is so of all."""
    plans, lead = shares(plan), run_ids[0]
    members: list[Member] = []
    refused: BudgetExceeded | None = None
    for run_id, one in zip(run_ids, plans, strict=True):
        target = one.offers[0].host
        try:
            engine = begin(world, one, payload, run_id=run_id, where=where, cold=True, grid=lead)
        except BudgetExceeded as exc:
            refused = exc
            say(f"{target} is left out: {exc}")
            continue
        members.append(Member(run_id, target, engine))
    if not members:
        assert refused is not None
        raise refused
    grid = SharedGrid(cases=plan.cases, members={member.run_id: member.target for member in members})
    world.bucket.create(grid_object(lead), grid.dump())
    return tuple(members)


@dataclass
class GridDispatcher:
    """A client that hands out one grid."""

    world: World
    hosts: HostCloud
    lead: str
    members: tuple[Member, ...]
    say: Callable[[str], None] = lambda _: None
    grid: SharedGrid = field(init=False)

    def __post_init__(self) -> None:
        self.grid = read_grid(self.world.bucket, self.lead)

    def follow(self, watch: Callable[[Sequence[Member], SharedGrid], None] = lambda *_: None) -> SharedGrid:
        """Turns until every machine is done with; one that cannot be reached keeps nobody when the grid is over.
        Raises `Unavailable` when none was reached for long."""
        reached = self.world.clock.now()
        while True:
            pause = self.turn()
            watch(self.members, self.grid)
            open_members = [member for member in self.members if not member.closed]
            if not open_members or (self.grid.over and all(member.trouble for member in open_members)):
                return self.grid
            if any(not member.trouble for member in open_members):
                reached = self.world.clock.now()
            elif (self.world.clock.now() - reached).total_seconds() > GIVE_UP_S:
                raise Unavailable(
                    f"none of {', '.join(member.target for member in open_members)} can be reached",
                    hint=f"what they measured is kept there: `bench launch --resume {self.lead}` goes on",
                )
            self.world.clock.sleep(pause)

    def turn(self) -> float:
        """Looks at every machine, writes the heartbeats of those that were reached, and hands out what is free. For how
        long nothing needs doing."""
        pauses = [self._look(member) for member in self.members if not member.closed]
        reached = [member for member in self.members if member.at_work]
        beats, now = self._beat(reached)
        self._lease(reached, living(beats, now, timedelta(seconds=self.world.policy.lease_ttl_s)))
        for member in reached:
            self._tell(member)
        return max(min(pauses, default=0.0), self.world.policy.poll_s / 2)

    def _look(self, member: Member) -> float:
        now = self.world.clock.now()
        if member.retry_at is not None and now < member.retry_at:
            return (member.retry_at - now).total_seconds()
        try:
            member.run, pause = member.engine.step()
        except Unavailable as exc:
            if not member.trouble:
                self.say(f"{member.target} cannot be reached: {exc}")
            wait = RETRY_S[min(member.failures, len(RETRY_S) - 1)]
            member.trouble, member.failures = str(exc), member.failures + 1
            member.retry_at = self.world.clock.now() + timedelta(seconds=wait)
            return wait
        if member.trouble:
            self.say(f"{member.target} is there again")
            member.told = ((), False)
        member.trouble, member.failures, member.retry_at = "", 0, None
        return pause

    def _beat(self, reached: Sequence[Member]) -> tuple[Mapping[str, datetime], datetime]:
        """Every member's last heartbeat, and what time it is, both as the bucket has it."""
        prefix = beats_prefix(self.lead)
        for member in reached:
            self.world.bucket.replace(prefix + member.run_id, b"{}", generation=None)
        now = self.world.clock.now()
        beats = {entry.name.removeprefix(prefix): entry.updated or now for entry in self.world.bucket.list(prefix)}
        # Without one of our own, no beat tells what time it is; then nothing is handed out either.
        return beats, max((beats[member.run_id] for member in reached if member.run_id in beats), default=now)

    def _lease(self, reached: Sequence[Member], alive: frozenset[str]) -> None:
        """Records what was done, frees what the ended had in hand, and hands out what is free."""

        def change(grid: SharedGrid) -> SharedGrid:
            for member in self.members:
                if member.run is not None:
                    grid = complete(grid, member.run_id, {fact.case_id for fact in member.run.measured})
                    grid = give_up(grid, member.run_id) if member.run.closed is not None else grid
            for member in reached:
                if member.run is not None and member.run.booted_at is not None and member.run.finished is None:
                    grid = hand_out(grid, member.run_id, alive)
            return grid

        self.grid = update_grid(self.world.bucket, self.world.clock, self.lead, change)

    def _tell(self, member: Member) -> None:
        """Grants a machine what is its own now, if that is news to it."""
        wanted = (self.grid.held_by(member.run_id), self.grid.over)
        run = member.run
        if wanted == member.told or run is None or run.vm is None:
            return
        try:
            self.hosts.grant(run.vm.zone, run.vm.name, wanted[0], over=wanted[1])
        except Unavailable:
            return  # the next look says so, and the one after that it is told
        member.told = wanted
