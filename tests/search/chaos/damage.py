"""A ledger that is damaged while clients are at work, and made again by somebody after a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import BenchError
from orchestrator.embedded.objects import Preconditions
from orchestrator.runs.rebuild import rebuild_from_events
from tests.search.chaos.judge import LEDGER
from tests.search.chaos.scenario import Damage

if TYPE_CHECKING:
    from tests.search.chaos.play import Play

NEWER: Final = b'{"schema": 2, "runs": {}, "from": "a newer version"}'


@dataclass(frozen=True, slots=True)
class Lost:
    """The ledger as it was, what stands there instead (nothing: it is gone), and whether it is made again from the
    runs' events."""

    data: bytes
    instead: bytes
    rebuilt: bool


def hurt(play: Play, damage: Damage) -> None:
    """The ledger is not what it was. Caps of the bucket are in no event: nobody could make them again."""
    if (damage.how in ("gone", "empty") and play.scenario.shared) or play.lost is not None:
        return
    bucket = play.quiet.bucket
    try:
        there = bucket.read(LEDGER)
        if there is None:
            return
        instead = {"gone": b"", "empty": b"{}", "torn": there.data[: len(there.data) // 2], "newer": NEWER}[damage.how]
        if damage.how == "gone":
            play.cloud.storage.store.delete(play.bucket, LEDGER, Preconditions())
        else:
            bucket.replace(LEDGER, instead, generation=None)
    except BenchError:
        return  # the weather was against it
    again = damage.rebuilt and damage.how != "newer" and not play.scenario.shared
    play.lost = Lost(there.data, instead, again)
    play.damaged += 1
    play.judge.damaged = True
    play.timeline.call_later(damage.lasts_s, lambda: mend(play))


def mend(play: Play) -> None:
    """The ledger is made again, as soon as the weather allows it; one that somebody has begun anew stays."""
    if play.lost is None:
        return
    lost, world = play.lost, play.quiet
    try:
        there = world.bucket.read(LEDGER)
        if (b"" if there is None else there.data) == lost.instead:
            if lost.rebuilt:
                rebuild_from_events(world)
            else:
                world.bucket.replace(LEDGER, lost.data, generation=None)
    except BenchError:
        play.timeline.call_later(15, lambda: mend(play))
        return
    play.lost = None
