"""What befalls machines of the user's own in a scenario, as data."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

How = Literal["off", "power", "steward", "slow", "deaf", "lies", "stop"]
HOWS: Final = ("off", "power", "steward", "slow", "deaf", "lies", "stop")
Broken = Literal["torn", "newer", "no UTF-8", "empty", "another's", "nonsense"]
BROKEN: Final = ("torn", "newer", "no UTF-8", "empty", "another's", "nonsense")


@dataclass(frozen=True, slots=True)
class Blow:
    """Something that befalls a host for a while. `off`: it cannot be reached, and works on. `power`: it goes dark, and
    what ran there is gone. `steward`: what ran there is gone. `slow`: each operation takes half a minute. `deaf`: what
    is asked is done, and no answer comes. `lies`: answers are nonsense. `stop`: it is switched off when it is next
    asked to stop a run, whenever that is."""

    at_s: float
    how: How
    lasts_s: float


@dataclass(frozen=True, slots=True)
class RecordDamage:
    """At the n-th moment of all clients together what the bucket keeps of a host is damaged; it is put back after
    `lasts_s`."""

    moment: int
    how: Broken
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """A machine of the user's own, for so many runs of the scenario."""

    runs: int = 1
    usd_per_hour: str = "0"
    off_s: float = 0.0
    """Its own clock is ahead by so much."""
    hostile: int = 0
    """The seed of what it offers that is not its to store; 0: nothing."""
    blows: tuple[Blow, ...] = ()
    damage: tuple[RecordDamage, ...] = ()

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Host:
        blows = tuple(Blow(**one) for one in document["blows"])
        return cls(**{**document, "blows": blows, "damage": tuple(RecordDamage(**one) for one in document["damage"])})

    def simpler(self) -> list[Host]:
        """Every host that has one thing less."""
        found = [replace(self, blows=(*self.blows[:n], *self.blows[n + 1 :])) for n in range(len(self.blows))]
        found += [replace(self, damage=(*self.damage[:n], *self.damage[n + 1 :])) for n in range(len(self.damage))]
        plain = Host(runs=self.runs, blows=self.blows, damage=self.damage)
        for name in ("hostile", "off_s", "usd_per_hour"):
            if getattr(self, name) != getattr(plain, name):
                found.append(replace(self, **{name: getattr(plain, name)}))
        return found


def a_host(dice: random.Random) -> Host:
    return Host(
        runs=dice.choice((1, 1, 2)),
        usd_per_hour=dice.choice(("0", "0", "0.3")),
        off_s=dice.choice((0.0, 0.0, 7200.0, -86400.0)),
        hostile=dice.choice((0, dice.randrange(1, 1 << 30))),
        blows=tuple(_blow(dice) for _ in range(dice.choices((0, 1, 2, 3), (1, 4, 4, 2))[0])),
        damage=tuple(_damage(dice) for _ in range(dice.choices((0, 1), (4, 1))[0])),
    )


def _blow(dice: random.Random) -> Blow:
    lasts_s = dice.choice((20.0, 120.0, 900.0, 4000.0))
    return Blow(dice.choice((0.0, 30.0, 70.0, 120.0, 200.0, 300.0)), dice.choice(HOWS), lasts_s)  # type: ignore[arg-type]


def _damage(dice: random.Random) -> RecordDamage:
    return RecordDamage(dice.randint(5, 200), dice.choice(BROKEN), dice.choice((20.0, 120.0, 900.0)))  # type: ignore[arg-type]
