"""Documents that somebody who may write to the bucket could put there, valid and not: each is made from a seed.

A machine's account may write below `runs/` (but no plan) and `machines/`; the other prefixes are what a newer version,
a torn upload or a person leaves there. `ledger/` is not among them: who may write there is trusted (docs/threat-model.md).
Measured cases and stored events are not replaced: a machine could destroy its own results in many other ways.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tests.search.chaos.scenario import ZONES
from tests.support.hostile_events import hostile_event

CANARY: Final = "touch bench-chaos-was-here"
"""Nothing that is found in the bucket is run: this would start a process, and none may be started."""
NASTY: Final[tuple[Any, ...]] = (
    "NaN", "Infinity", "1e400", -1, 10**30, 1e308, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z",
    "2026-11-21T04:05:06", "", "\x1b[2J", "[/x]", [], {}, None, True, "x" * 5000, 0, "0.000001", "../../../etc",
)  # fmt: skip
KINDS: Final = (
    "vm_booted", "phase_started", "phase_finished", "healed", "environment_recorded", "case_started", "case_measured",
    "case_checked", "preempted", "diagnosed", "finished", "kept", "lent", "machine_taken", "vm_exiting",
    "budget_held", "settled", "run_closed", "instance_gone", "instance_created", "instance_requested", "instance_queued",
    "stop_requested", "zone_exhausted", "run_resumed", "run_planned", "payload_stored", "no_such_kind",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """What the writer knows: the runs of the bucket, the machines there may be, the time, and what stands there."""

    runs: Sequence[str]
    now: datetime
    read: Callable[[str], bytes | None]


@dataclass(frozen=True, slots=True)
class Written:
    name: str
    data: bytes
    metadata: dict[str, str] = field(default_factory=dict)


def written(seed: int, place: Place) -> Written | None:
    """The document of a seed; None where it would change something that is not there."""
    dice = random.Random(seed)
    made = dice.choices(MAKERS, (5, 4, 3, 3, 2, 2, 8))[0](dice, place)
    if made is not None and dice.random() < 0.25:  # torn, or not what its name says at all
        half = made.data[: dice.randrange(len(made.data) + 1)]
        return Written(made.name, dice.choice((half, b"\xff\xfe\x00", b"[" * 60_000, b"null", b"{}")), made.metadata)
    return made


def _event(dice: random.Random, place: Place) -> Written:
    """A word of a machine, or what would like to be one."""
    run, kind = dice.choice(place.runs), dice.choice(KINDS)
    writer, seq = dice.choice(("vm-1-deadbeef", "vm-2-deadbeef", "vm-9", "boot-1", "vm-")), dice.randint(100, 99999)
    inside = dice.choice((writer, writer, "client-00beef"))
    at = place.now + timedelta(seconds=dice.choice((-3600, -5, 0, 5, 86400)))
    data: dict[str, Any] = {
        "attempt": 1, "vm": f"bench-{dice.choice(place.runs)}-1", "zone": dice.choice(ZONES), "outcome": "succeeded",
        "exit_code": 0, "case_id": "no-such-case", "index": 1, "of": 3, "phase": "measure", "limit_s": 1, "to": run,
        "idle_limit_s": 999999, "hold_usd": "0", "cost_usd": "0", "released_usd": "0", "how": "deleted", "by": "eve",
        "ended_at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "usd_per_hour": "0", "max_run_s": 999999, "owner": run, "reason": "x",
        "cause": "unknown", "detail": "\x1b]0;x\x07 [/x]", "remedy": CANARY, "generation": dice.choice((0, 1, 7)),
    }  # fmt: skip
    for key in dice.sample(sorted(data), dice.randint(0, 3)):
        data[key] = dice.choice(NASTY)
    stamp = f"{at:%Y%m%dT%H%M%S.%fZ}"
    event = {"schema": 1, "run_id": run, "kind": kind, "time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "writer": inside,
             "seq": seq, "data": data}  # fmt: skip
    name = f"runs/{run}/events/{stamp}-{writer}-{seq:06d}-{kind}.json"
    return Written(dice.choice((name, name, name, f"runs/{run}/events/{seq}.json")), json.dumps(event).encode())


def _plan(dice: random.Random, place: Place) -> Written | None:
    """The plan of a run, with wishes of its own: commands, prices, limits."""
    name = f"runs/{dice.choice(place.runs)}/plan.json"
    there = place.read(name)
    if there is None:
        return None
    try:
        plan = json.loads(there)
        changes = {
            "ceiling_usd": dice.choice(("0.000001", "1e9", "NaN")), "ttl_s": dice.choice((60, 604800, -1)),
            "attempts": dice.choice((1, 20, 10**9)), "payload": CANARY,
        }  # fmt: skip
        for key in dice.sample(sorted(changes), dice.randint(0, 3)):
            if key in plan:
                plan[key] = changes[key]
        for offer in plan.get("offers", ()) if dice.random() < 0.5 else ():
            offer["usd_per_hour"] = dice.choice(("0", "0.000001", "1e9"))
        settings = plan.get("settings", {})
        settings["alerts"] = {"command": CANARY, "webhook": "http://127.0.0.1:9/x"}
        settings["budget"] = dict.fromkeys(("per_run_usd", "per_day_usd", "per_month_usd", "total_usd"), "1000000")
        settings.setdefault("payload", {})["root"] = "/tmp"
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None  # somebody was here before
    return Written(name, json.dumps(plan).encode())


def _slot(dice: random.Random, place: Place) -> Written:
    """The slot of a machine that may or may not be: idle for ever, claimed by nobody, or nonsense."""
    run = dice.choice(place.runs)
    vm = dice.choice((f"bench-{run}-1", f"bench-{run}-2", "bench-x-1", f"bench-{place.now:%Y%m%d-%H%M%S}-l4-ffff-1"))
    slot: dict[str, Any] = {
        "schema": 1, "state": dice.choice(("idle", "claimed", "running", "closed")), "vm": vm,
        "zone": dice.choice(ZONES), "owner": dice.choice((run, "20261121-040000-l4-ffff")),
        "idle_until": f"{place.now + timedelta(days=dice.choice((-1, 1))):%Y-%m-%dT%H:%M:%SZ}", "claim": None,
    }  # fmt: skip
    if dice.random() < 0.5:
        slot["claim"] = {"run_id": "x", "by": "eve", "spec": {"run_id": CANARY}, "payload": {"sha256": "00" * 32}}
    for key in dice.sample(sorted(slot), dice.choice((0, 0, 1))):
        slot[key] = dice.choice(NASTY)
    return Written(f"machines/{vm}.json", json.dumps(slot).encode())


def _result(dice: random.Random, place: Place) -> Written:
    """Something among the results of a run that is none."""
    below = ("cases/junk.csv", "cases/[x].csv", "artifacts/log.txt", "artifacts/.git/config", "artifacts/cases",
             "artifacts/environment.json", "artifacts/serial-1.txt", "grants.json", "x")  # fmt: skip
    data = (
        b"run_id,vm\n1\n", b'=cmd|"/c calc"!A1\x1b[2J', b"[core]\n\tfsmonitor = " + CANARY.encode(), b"\xff\xfe", b"",
    )  # fmt: skip
    return Written(f"runs/{dice.choice(place.runs)}/{dice.choice(below)}", dice.choice(data))


def _line(dice: random.Random, place: Place) -> Written:
    """A line of the index that says what is not so."""
    run = dice.choice((*place.runs, "20261120-010203-l4-00bb", "no-run"))
    line = {"run_id": run, "phase": dice.choice(("succeeded", "measuring", "[bold")), "cost_usd": "0.1",
            "created_at": "2026-11-20T01:02:03Z", "mode": "gce"}  # fmt: skip
    for key in dice.sample(sorted(line), dice.randint(0, 2)):
        text = str(dice.choice(NASTY))[:200]
        line[key] = "".join(c if " " <= c <= "~" else "?" for c in text)
    return Written(f"index/{run}.json", b"{}", line)


def _elsewhere(dice: random.Random, place: Place) -> Written:
    """Under every other prefix."""
    names = ("hosts/host-box-123456.json", "baselines/main.json", "baselines/[bad].json", "placement/g2-standard-4.json",
             "payloads/x.tar.gz", f"payloads/{'00' * 32}.tar.gz", "x",
             "runs/x", "runs/20261121-040000-l4-ffff/events/x.json")  # fmt: skip
    stock = {"stock_outs": {dice.choice(ZONES): {"SPOT": dice.choice(NASTY)}}}
    bodies = (
        {"schema": 1, "targ": "x"},
        {"schema": 2, "address": "me@box"},
        stock,
        [],
        dice.choice(NASTY),
        {"runs": {}},
    )
    return Written(dice.choice(names), json.dumps(dice.choice(bodies)).encode())


def _own_event(dice: random.Random, place: Place) -> Written:
    """An event of a run's own machine, of the right name, with hostile values: a grammar over all facts."""
    run = dice.choice(place.runs)
    known: dict[str, Any] = {
        "vm": (f"bench-{run}-1", f"bench-{run}-2", f"bench-{dice.choice(place.runs)}-1"), "zone": ZONES, "attempt": (1, 2),
        "owner": tuple(place.runs), "to": tuple(place.runs), "generation": (0, 1), "phase": ("build", "measure"),
        "outcome": ("succeeded", "failed", "incorrect"), "exit_code": (0, 1), "of": 3, "index": (1, 2, 3),
    }  # fmt: skip
    at = place.now + timedelta(seconds=dice.choice((-60, -1, 0, 0, 30)))
    return Written(*hostile_event(run, at, dice, known, attempt=dice.choice((1, 1, 1, 2))))


MAKERS: Final = (_event, _plan, _slot, _result, _line, _elsewhere, _own_event)
