"""What happens in one search: who launches what, what goes wrong, who dies when, who interrupts whom. All of it data."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from tests.search.chaos.host_weather import Host, a_host

Role = Literal["launch", "look", "stop", "reap", "relaunch", "status"]
Window = Literal["run", "day", "month", "total"]
Temper = Literal["good", "silent", "lingering", "failing", "wrong", "mute", "dying"]

TEMPERS: Final = ("good", "silent", "lingering", "failing", "wrong", "mute", "dying")
ZONES: Final = ("us-central1-a", "us-central1-b", "us-east1-b")
PHASES: Final = ("preflight", "environment", "build", "correctness", "measure")


@dataclass(frozen=True, slots=True)
class Client:
    """One `bench` process."""

    role: Role
    run: int = 0
    """Which of the scenario's runs it is about."""
    starts_s: float = 0.0
    """Simulated seconds after the scenario began."""
    dies_at: int = 0
    """Its n-th moment (each call that it makes has one before and one after it) is its last; 0: it lives."""
    dies_on: str = ""
    """Or by name: `before insert`, `after delete`; the first such moment."""
    late_s: float = 0.0
    """A request for a machine that it was about to send when it died is on its way for so long, and then arrives; 0:
    it was not sent."""
    off_s: float = 0.0
    """Its own clock is ahead by so much."""
    fits: float = 0.0
    """How many ceilings fit under its own caps; 0: the scenario's are its own."""


@dataclass(frozen=True, slots=True)
class Meddling:
    """At the n-th moment of all clients together, another client does something, in the middle of somebody's call."""

    moment: int
    client: int
    on: str = ""
    """Or by name, once: `before replace ledger/ledger.json`; `*` stands for anything."""
    turns: int = 1


@dataclass(frozen=True, slots=True)
class Junk:
    """At the n-th moment of all clients together, somebody who may write to the bucket writes a document into it, made
    from a seed of its own (`tests.search.chaos.junk`)."""

    moment: int
    seed: int


@dataclass(frozen=True, slots=True)
class Damage:
    """At the n-th moment of all clients together the ledger is damaged; after `lasts_s` it is made again, from what was
    there or (`rebuilt`) by `bench budget rebuild`."""

    moment: int
    how: Literal["gone", "empty", "torn", "newer"]
    lasts_s: float
    rebuilt: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    runs: int = 1
    attempts: int = 1
    max_minutes: int = 20
    cases: int = 3
    seconds_each: float = 20.0
    temper: Temper = "good"
    fits: float = 0.0
    """How many ceilings fit under the caps; 0: there are none."""
    windows: tuple[Window, ...] = ("day",)
    """The windows that are capped."""
    past: float = 0.0
    """How many ceilings the bucket's runs of earlier months have cost."""
    shared: bool = False
    """Whether the caps are the bucket's; else they are each client's own."""
    keep: bool = False
    """Whether machines wait for the next launch after their run."""
    flexible: bool = False
    """Whether machines are asked for as flex-start, and may wait in the cloud's queue."""
    midnight_s: float = 0.0
    """So long before the end of a month everything begins; 0: at any time of day."""
    clients: tuple[Client, ...] = (Client("launch"),)
    faults: tuple[dict[str, Any], ...] = ()
    meddlings: tuple[Meddling, ...] = field(default=())
    junk: tuple[Junk, ...] = ()
    damage: tuple[Damage, ...] = ()
    hosts: tuple[Host, ...] = ()
    """Machines of the user's own: their runs come after the `runs` on rented ones."""

    @property
    def hosted(self) -> tuple[int, ...]:
        """For each run on a host, in order, which host it is."""
        return tuple(number for number, host in enumerate(self.hosts) for _ in range(host.runs))

    def line(self) -> str:
        """Everything, as one line of JSON that `parse` reads."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, line: str) -> Scenario:
        document = json.loads(line)
        document["clients"] = tuple(Client(**client) for client in document["clients"])
        document["meddlings"] = tuple(Meddling(**one) for one in document["meddlings"])
        document["faults"] = tuple(document["faults"])
        document["windows"] = tuple(document["windows"])
        document["junk"] = tuple(Junk(**one) for one in document["junk"])
        document["damage"] = tuple(Damage(**one) for one in document.get("damage", ()))
        document["hosts"] = tuple(Host.parse(one) for one in document.get("hosts", ()))
        return cls(**document)

    def simpler(self) -> list[Scenario]:
        """Every scenario that has one thing less."""
        found = [replace(self, faults=without(self.faults, index)) for index in range(len(self.faults))]
        found += [replace(self, meddlings=without(self.meddlings, index)) for index in range(len(self.meddlings))]
        found += [replace(self, junk=without(self.junk, index)) for index in range(len(self.junk))]
        found += [replace(self, damage=without(self.damage, index)) for index in range(len(self.damage))]
        for index, client in enumerate(self.clients):
            if client.role != "launch":
                rest = self.clients[:index] + self.clients[index + 1 :]
                kept = tuple(
                    replace(one, client=one.client - (one.client > index))
                    for one in self.meddlings
                    if one.client != index
                )
                found.append(replace(self, clients=rest, meddlings=kept))
            if client.dies_at or client.dies_on:
                spared = replace(client, dies_at=0, dies_on="")
                found.append(replace(self, clients=(*self.clients[:index], spared, *self.clients[index + 1 :])))
            if client.off_s or client.fits:
                plain_one = replace(client, off_s=0.0, fits=0.0)
                found.append(replace(self, clients=(*self.clients[:index], plain_one, *self.clients[index + 1 :])))
        if self.hosts:
            clients = tuple(client for client in self.clients if client.run < self.runs)
            found.append(replace(self, hosts=(), clients=clients, meddlings=()))
            found += [
                replace(self, hosts=(*self.hosts[:index], one, *self.hosts[index + 1 :]))
                for index, host in enumerate(self.hosts)
                for one in host.simpler()
            ]
        elif self.runs > 1:
            clients = tuple(client for client in self.clients if client.run == 0)
            found.append(replace(self, runs=1, clients=clients, meddlings=()))
        plain = Scenario(0)
        names = [
            "attempts", "cases", "temper", "fits", "seconds_each", "past", "shared", "keep", "flexible", "midnight_s",
        ]  # fmt: skip
        other = [name for name in names if getattr(self, name) != getattr(plain, name)]
        found += [replace(self, **{name: getattr(plain, name)}) for name in other]
        return found


def without(things: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return things[:index] + things[index + 1 :]


def from_seed(seed: int) -> Scenario:
    """The scenario of a seed: the same on every machine and in every process."""
    made = with_hosts(on_rented_machines(seed), random.Random(f"{seed}, hosts"))
    return with_past(with_flex_start(made, random.Random(f"{seed}, flex")), random.Random(f"{seed}, past"))


def with_flex_start(scenario: Scenario, dice: random.Random) -> Scenario:
    """The scenario, and in one of six without hosts the machines are flex-start ones, most of which wait first. None is
    lost as it begins to run: where that is in the last moments of its wait, it looks like one that never ran, as
    docs/gce.md says."""
    if scenario.hosts or dice.random() >= 1 / 6:
        return scenario
    faults = tuple(f for f in scenario.faults if f["fault"] != "lost" or f.get("at", {}).get("seconds", 60) >= 20)
    waits = tuple({"fault": "queue", "seconds": dice.choice((5, 60, 89, 120, 400))} for _ in range(dice.randint(0, 2)))
    return replace(scenario, flexible=True, faults=(*faults, *waits))


def with_past(scenario: Scenario, dice: random.Random) -> Scenario:
    """The same, sometimes in a bucket that is months old: what was spent in it counts under the cap of everything."""
    counts = scenario.fits and "total" in scenario.windows and not scenario.damage  # no event could restore it
    return replace(scenario, past=dice.choice((0.0, 0.5, 3.0))) if counts else scenario


def with_hosts(scenario: Scenario, dice: random.Random) -> Scenario:
    """The same, in one of three cases with machines of the user's own beside what is rented."""
    if dice.random() > 0.35:
        return scenario
    made = replace(scenario, hosts=tuple(a_host(dice) for _ in range(dice.choice((1, 1, 2)))))
    clients = list(scenario.clients)
    for number in range(len(made.hosted)):
        run, starts_s = scenario.runs + number, dice.choice((0, 0, 3, 40, 200)) + 150 * number
        dies_on = dice.choice(HOST_DEATHS)
        dies_at = dice.choice((0, 0, 0, 0, dice.randint(1, 160)))
        clients.append(Client("launch", run, starts_s, dies_at, dies_on, off_s=_off(dice)))
        for _ in range(dice.randint(0, 3)):
            role: Role = dice.choices(("look", "stop", "reap", "relaunch", "status"), (4, 2, 2, 4, 4))[0]  # type: ignore[assignment]
            later = starts_s + dice.choice((1, 45, 90, 200, 700, 1500))
            clients.append(Client(role, run, later, dice.choice((0, 0, dice.randint(1, 60))), off_s=_off(dice)))
    moments = dice.sample(range(1, 300), dice.choice((0, 2, 6)))
    others = tuple(Meddling(moment, dice.randrange(len(clients))) for moment in sorted(moments))
    return replace(made, clients=tuple(clients), meddlings=scenario.meddlings + others)


def on_rented_machines(seed: int) -> Scenario:
    dice = random.Random(seed)
    runs = dice.choices((1, 2, 3), (5, 4, 1))[0]
    keep = dice.random() < 0.25
    runs = max(runs, 2) if keep else runs
    calm = keep and dice.random() < 0.6
    """Its first run is not disturbed, so that a machine waits for the next one; all goes wrong from there."""
    cases, seconds_each = dice.randint(1, 5), dice.choice((5.0, 20.0, 90.0))
    fits = dice.choices((0.0, 0.5, 1.5, 2.5), (4, 0 if calm else 1, 5, 3))[0]
    clients = [
        Client(
            "launch",
            run,
            starts_s=(
                _work_s(cases, seconds_each) + dice.choice((0, 20, 60, 120)) if keep else dice.choice((0, 0, 3, 40))
            )
            * run,
            dies_at=_death(dice) if run or not calm else 0,
            dies_on=dice.choice(DEATHS) if run or not calm else "",
            late_s=dice.choice((0, 20, 60, 90, 170, 400)),
            off_s=_off(dice),
            fits=dice.choice((0.0, 0.0, 0.0, 1.2, 2.2)) if fits else 0.0,
        )
        for run in range(runs)
    ]
    others = ("look", "stop", "reap", "relaunch", "status")
    for _ in range(dice.randint(0, 3)):
        role: Role = dice.choices(others, (6, 0 if calm else 1, 3, 6, 2))[0]  # type: ignore[assignment]
        dies_at = dice.choice((0, 0, dice.randint(1, 60)))
        starts_s = dice.choice((1, 10, 45, 90, 200, 700, 1500))
        clients.append(Client(role, dice.randrange(runs), starts_s, dies_at, off_s=_off(dice)))
    meddlings = tuple(
        Meddling(moment, dice.randrange(len(clients)))
        for moment in sorted(dice.sample(range(1, 160), dice.choice((0, 0, 2, 6))))
    )
    windows: tuple[tuple[Window, ...], ...] = (
        ("day",), ("month",), ("total",), ("run",), ("day", "month", "total"), ("run", "day", "month", "total"),
    )  # fmt: skip
    return Scenario(
        seed=seed,
        runs=runs,
        attempts=dice.choice((1, 1, 2, 3)),
        max_minutes=dice.choice((12, 20, 30)),
        cases=cases,
        seconds_each=seconds_each,
        temper="good" if calm else dice.choices(TEMPERS, (12, 1, 1, 1, 1, 1, 1))[0],  # type: ignore[arg-type]
        fits=fits,
        windows=dice.choice(windows),
        shared=dice.random() < 0.3,
        keep=keep,
        midnight_s=dice.choices((0.0, 15.0, 120.0, 600.0), (8, 1, 1, 1))[0],
        clients=tuple(clients),
        faults=tuple(
            (_of_requests if calm else a_fault)(dice) for _ in range(dice.choices((0, 1, 2, 4), (1, 4, 4, 2))[0])
        ),
        meddlings=meddlings,
        junk=tuple(
            Junk(moment, dice.randrange(1 << 30))
            for moment in sorted(dice.sample(range(1, 200), dice.choices((0, 3, 12), (3, 1, 1))[0]))
        ),
        damage=tuple(_damage(dice) for _ in range(dice.choices((0, 1, 2), (8, 1, 1))[0])),
    )


def _work_s(cases: int, seconds_each: float) -> float:
    """About how long a machine that nothing happens to is at work: then it waits for the next launch."""
    return 70 + cases * seconds_each


def _off(dice: random.Random) -> float:
    return dice.choice((0.0, 0.0, 0.0, 0.0, 660.0, -660.0, 7200.0, -7200.0, 86400.0, -86400.0))


SWAP: Final = "ifGenerationMatch="
"""In the address of a request that swaps a document, or creates it."""


def _damage(dice: random.Random) -> Damage:
    how: Any = dice.choice(("gone", "empty", "torn", "newer"))
    return Damage(dice.randint(20, 200), how, dice.choice((20.0, 120.0, 900.0)), dice.random() < 0.5)


DEATHS: Final = (*("",) * 5, "before insert", "before insert", "after insert", "before delete", "after delete")


HOST_DEATHS: Final = (
    *("",) * 12, "before insert", "after insert", "before ask", "after ask", "after get", "before delete",
)  # fmt: skip


def _death(dice: random.Random) -> int:
    return dice.choice((0, 0, dice.randint(1, 90)))


def a_fault(dice: random.Random) -> dict[str, Any]:
    """One fault of the weather catalogue."""
    return dice.choices(FAULTS, WEIGHTS)[0](dice)


def _of_requests(dice: random.Random) -> dict[str, Any]:
    return dice.choice((_http, _reset, _stall, _swap, _swap))(dice)


def _at(dice: random.Random) -> dict[str, Any]:
    return dice.choice(
        (
            {"seconds": dice.choice((0, 1, 30, 70, 300))},
            {"phase": dice.choice(PHASES)},
            {"case": dice.randint(1, 4)},
        )
    )


def _stockout(dice: random.Random) -> dict[str, Any]:
    hint: dict[str, Any] = {"zones_available": [dice.choice(ZONES)]} if dice.random() < 0.5 else {}
    return {"fault": "stockout", "times": dice.randint(1, 3)} | hint


def _quota(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.3:
        return {"fault": "quota", "metric": "GPUS_ALL_REGIONS", "global": True}
    return {"fault": "quota", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "region": "us-central1"}


def _request(dice: random.Random) -> dict[str, Any]:
    service = dice.choice(("compute", "storage"))
    paths = (
        ("", r"/instances\?", r"/instances/", "/operations")
        if service == "compute"
        else ("", "events", "ledger", "upload")
    )
    some: dict[str, Any] = {"service": service, "path": dice.choice(paths), "times": dice.randint(1, 4)}
    if dice.random() < 0.6:
        some["method"] = dice.choice(("GET", "POST", "DELETE") if service == "compute" else ("GET", "POST"))
    return some


def _http(dice: random.Random) -> dict[str, Any]:
    return {"fault": "http", "status": dice.choice((403, 409, 429, 500, 503))} | _request(dice)


def _swap(dice: random.Random) -> dict[str, Any]:
    """A document was swapped, or an object created, and whoever did it never hears."""
    fault = dice.choice(({"fault": "reset"}, {"fault": "http", "status": 503}))
    which = dice.choice(("[1-9]", "[1-9]", "0"))
    asked = {"service": "storage", "method": "POST", "path": f"{SWAP}{which}", "after": "response"}
    return {**fault, **asked, "times": dice.randint(1, 3)}


def _reset(dice: random.Random) -> dict[str, Any]:
    return {"fault": "reset", "after": dice.choice(("request", "response"))} | _request(dice)


def _stall(dice: random.Random) -> dict[str, Any]:
    return {"fault": "stall", "seconds": dice.choice((2, 20))} | _request(dice)


FAULTS: Final = (
    _stockout,
    _quota,
    _http,
    _reset,
    _stall,
    _swap,
    _swap,
    lambda dice: {"fault": "late_insert", "seconds": dice.choice((20, 90, 170))},
    lambda dice: {"fault": "slow_boot", "seconds": dice.choice((30, 200, 800))},
    lambda dice: {
        "fault": "preempt",
        "at": _at(dice),
        "notice_s": dice.choice((0, 5, 30)),
        "times": dice.randint(1, 2),
    },
    lambda dice: {"fault": "preempt", "at": _at(dice), "notice_s": dice.choice((0, 30))},
    lambda dice: {"fault": "lost", "at": _at(dice)},
    lambda dice: {"fault": "hang", "at": _at(dice), "target": dice.choice(("harness", "agent"))},
    lambda dice: {"fault": "kill", "at": _at(dice), "target": dice.choice(("harness", "agent"))},
    lambda dice: {"fault": "never_boots"},
    lambda dice: {"fault": "image_gone"},
)
WEIGHTS: Final = (*(4 for _ in FAULTS[:-2]), 2, 1)
"""A run whose image is gone ends before it begins, so there is little to learn from many."""
