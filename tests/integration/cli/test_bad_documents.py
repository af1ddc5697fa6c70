"""One bad object of any kind stops no command: it is named, the rest is shown or done, and the exit code says so."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from google.cloud.storage import Client
from typer.testing import CliRunner, Result

import spotbench
from orchestrator.cli.app import app
from orchestrator.core.errors import BenchError
from orchestrator.core.fleet.sweep import Sweep, expand_children
from orchestrator.core.names import listing_object, spec_object
from orchestrator.core.names import plan_object as fleets_plan
from orchestrator.core.naming import Mode, artifacts_prefix, cases_prefix, events_prefix, index_object, plan_object
from orchestrator.runs.engine import Engine
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench, at_home
from tests.integration.cli.test_reap import over

GOOD = "20261120-010203-l4-00aa"
BAD = "20261120-010203-l4-00bb"
FLEET = "fleet-20261120-010203-00cc"

OBJECTS: dict[str, tuple[str, bytes]] = {
    "a host's record, torn": ("hosts/host-box-123456.json", b'{"schema": 1, "targ'),
    "a host's record of a newer version": ("hosts/host-box-123456.json", b'{"schema": 2, "address": "me@box"}'),
    "an event that is none": (f"{events_prefix(BAD)}x.json", b"\xff\xfe"),
    "an event nested too deeply": (f"{events_prefix(GOOD)}y.json", b"[" * 60_000),
    "an event of another run": (f"{events_prefix(GOOD)}z.json", b'{"run_id": "x", "kind": "finished", "data": {}}'),
    "a plan": (plan_object(GOOD), b'{"settings": {"alerts": {"command": "touch pwned"}}}'),
    "a plan nested too deeply": (plan_object(GOOD), b"[" * 60_000),
    "an environment nested too deeply": (f"{artifacts_prefix(GOOD)}environment.json", b"[" * 60_000),
    "an odd baseline": ("baselines/[bad].json", b"{}"),
    "a baseline, torn": ("baselines/main.json", b"{"),
    "a slot": ("machines/bench-x-1.json", b"\x00"),
    "stock-outs": ("placement/g2-standard-4.json", b'{"stock_outs": {"z": {"SPOT": "2026-11-21T00:00:00"}}}'),
    "a case that is torn": (f"{cases_prefix(GOOD)}torn.csv", b"run_id,vm\n1\n"),
    "a case that is not UTF-8": (f"{cases_prefix(GOOD)}latin.csv", b"\xff\xfe\xfd"),
    "an artifact called cases": (f"{artifacts_prefix(GOOD)}cases", b"x"),
    "an artifact that programs obey": (f"{artifacts_prefix(GOOD)}.git/config", b"[core]\n\tfsmonitor = touch pwned\n"),
    "a log with escapes": (f"{artifacts_prefix(GOOD)}log.txt", b"\x1b]0;x\x07 [/x] \xff"),
    "a fleet's line": (f"fleet-index/{FLEET}.json", b"\xff"),
    "a fleet's list, nested too deeply": (f"fleets/{FLEET}/plan.json", b"[" * 60_000),
    "a fleet's list that is another's": (f"fleets/{FLEET}/plan.json", b'{"cells": [], "children": [[0, 0, 0]]}'),
    "a fleet's record, torn": (f"fleets/{FLEET}/spec.json", b'{"schema": 1, "fle'),
    "a fleet's decisions": (f"fleets/{FLEET}/control.json", b'{"schema": 1, "jobs": [{"number": -1}]}'),
    "a child's line under another's name": (f"fleets/{FLEET}/index/0/99.json", b"{}"),
    "a child's cost, nested too deeply": (f"machines/batch/{FLEET}/costs/0-1.json", b"[" * 60_000),
    "a child's rows that are none": (f"fleets/{FLEET}/rows/0.csv.gz", b"\x1f\x8b\x00 not gzip"),
    "an image's record": ("images/bench-l4-0123456789ab.json", b'{"schema": 1, "name": "[/x]"}'),
    "an image's record, nested too deeply": ("images/x.json", b"[" * 60_000),
    "a profile that is none": (f"{artifacts_prefix(GOOD)}profiles/x.json", b"[" * 60_000),
    "pages that somebody else stored": ("site/index.html", b"<script>alert(1)</script>"),
    "the state of the pages": ("site/state.json", b"\x00"),
    "a ledger of a newer version": ("ledger/ledger.json", b'{"schema": 2, "runs": {}}'),
    "a ledger that is garbage": ("ledger/ledger.json", b"\x00garbage"),
}
LINES: dict[str, dict[str, str]] = {
    "an index line whose cost is NaN": {"cost_usd": "NaN"},
    "an index line without a zone": {"created_at": "2026-11-20T01:02:03"},
    "an index line of the year 9999": {"created_at": "9999-12-31T23:59:59+00:00", "seconds": "9" * 30},
    "an index line with markup": {"device": "[/x]\x1b[2J", "phase": "[bold", "vm": "[/]/x"},
}
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "status --json": ("status", "--json"),
    "status RUN": ("status", GOOD),
    "reap": ("reap",),
    "reap --yes": ("reap", "--yes"),
    "stop": ("stop", GOOD),
    "logs": ("logs", GOOD),
    "diagnose": ("diagnose", GOOD),
    "fetch": ("fetch", GOOD),
    "costs": ("costs",),
    "budget": ("budget",),
    "baseline list": ("baseline", "list"),
    "history": ("history", "--case", "b1"),
}
RARER: dict[str, tuple[str, ...]] = {
    "fleet ls": ("fleet", "ls"),
    "fleet status": ("fleet", "status", FLEET),
    "fleet costs": ("fleet", "costs", FLEET),
    "fleet fetch": ("fleet", "fetch", FLEET),
    "fleet report": ("fleet", "report", FLEET),
    "fleet sql": ("fleet", "sql", FLEET, "FROM rows"),
    "fleet stop": ("fleet", "stop", FLEET),
    "fleet retry": ("fleet", "retry", FLEET),
    "image list": ("image", "list"),
    "image validate": ("image", "validate", "bench-l4-0123456789ab"),
    "image rm": ("image", "rm", "x"),
    "profile": ("profile", GOOD),
    "site": ("site", "--out", "pages"),
    "site --publish": ("site", "--out", "pages", "--publish", "site"),
    "cases": ("cases", GOOD),
    "report": ("report", GOOD),
    "compare": ("compare", GOOD, GOOD),
    "baseline show": ("baseline", "show", "main"),
    "baseline set": ("baseline", "set", "main", GOOD),
    "plan": ("plan", "--gpu", "l4"),
    "prices": ("prices",),
    "costs add": ("costs", "add", "0.01", "--note", "x"),
    "budget set": ("budget", "set", "--day", "100"),
    "cloud bill": ("cloud", "bill"),
    "budget rebuild": ("budget", "rebuild"),
}
"""Those that came later or are asked less often: each meets all kinds at once."""
CODES = {0, 2, 6, 10, 13, 16}
"""Of the README: done, or what these documents can rightly cause. 1 is none of them, and neither is a traceback."""
SHOWN = {"status": GOOD, "status --json": GOOD, "status RUN": GOOD, "reap": "0 VMs alive", "reap --yes": "0 VMs alive"}
"""What must be there all the same: the commands that protect money."""


@pytest.fixture(autouse=True)
def garbage_waits() -> Iterator[None]:
    """Lists nested 60,000 deep call for a collection where the stack is at its end; what earlier tests left would be
    finalized there, and fail."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Wiring]]:
    """One embedded cloud with one run in it that went well; what a test puts into the bucket it takes out again."""
    home = tmp_path_factory.mktemp("home")
    with at_home(home):
        wiring = wire()
        over(wiring, GOOD, "succeeded")
        yield Bench(home), wiring


def put(wiring: Wiring, kind: str) -> str:
    """Puts one bad object there, and gives its name."""
    if kind in OBJECTS:
        name, data = OBJECTS[kind]
        wiring.bucket.replace(name, data, generation=None)
        return name
    name = index_object(GOOD)
    line = {"run_id": GOOD, "phase": "succeeded", "created_at": "2026-11-20T01:02:03Z", **LINES[kind]}
    metadata = {key: "".join(c if " " <= c <= "~" else "?" for c in value) for key, value in line.items()}
    wiring.bucket.replace(name, b"{}", generation=None, metadata=metadata)
    return name


def unharmed(title: str, command: Sequence[str]) -> Result:
    """What a command says that neither falls over what it reads nor sends it to the terminal as it is."""
    ran = CliRunner().invoke(app, command, prog_name="bench", env={"COLUMNS": "80"})
    assert ran.exception is None or isinstance(ran.exception, SystemExit), (title, ran.exception)
    assert ran.exit_code in CODES, (title, ran.exit_code, ran.stderr)
    assert "\x1b" not in ran.stdout + ran.stderr, title
    return ran


@pytest.mark.parametrize("kind", [*OBJECTS, *LINES])
def test_no_bad_object_stops_a_command_and_the_rest_is_shown(shop: tuple[Bench, Wiring], kind: str) -> None:
    bench, wiring = shop
    engine = Engine(wiring.world(), GOOD)
    engine.write_index(engine.look())  # a test before this one may have taken it away
    name = put(wiring, kind)
    try:
        for title, command in COMMANDS.items():
            ran = unharmed(title, command)
            assert SHOWN.get(title, "") in ran.stdout, (title, ran.stdout, ran.stderr)
            if ran.exit_code:
                assert "error: " in ran.stderr
        assert not Path(bench.home, "pwned").exists()
        assert not list(bench.home.rglob(".git"))
    finally:
        forget(wiring, name)


def forget(wiring: Wiring, name: str) -> None:
    """Deletes an object with Google's own client: the product's bucket cannot."""
    assert wiring.address is not None
    client = Client(
        project=wiring.project, credentials=wiring.credentials, client_options={"api_endpoint": wiring.address.storage}
    )
    client.bucket(wiring.address.bucket).blob(name).delete()


def many(turn: int) -> list[str]:
    """Every kind of bad object, but one of those that share a name."""
    places: dict[str, list[str]] = {}
    for kind, (name, _) in OBJECTS.items():
        places.setdefault(name, []).append(kind)
    return [*(kinds[turn % len(kinds)] for kinds in places.values()), list(LINES)[turn % len(LINES)]]


def fleet_of(wiring: Wiring) -> None:
    """A fleet in the bucket, all of whose documents can be read."""
    sweep = Sweep.model_validate({"axes": {"gpu": ["l4"], "measure.seed": [0, 1]}})
    record = FleetRecord(
        fleet=FLEET, engine="cloud", mode=Mode.EMBEDDED, user="ada", sweep=sweep, created_at=wiring.clock.now(),
        ends_at=wiring.clock.now(), hold_usd=Decimal(0),
    )  # fmt: skip
    FleetStore(wiring.bucket, wiring.clock, FLEET).create(record, expand_children(sweep, lambda _: ()))


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("whole_fleet", [True, False], ids=["a fleet that can be read", "no such fleet"])
def test_no_command_that_came_later_falls_over_bad_objects(
    shop: tuple[Bench, Wiring], turn: int, whole_fleet: bool
) -> None:
    bench, wiring = shop
    engine = Engine(wiring.world(), GOOD)
    engine.write_index(engine.look())
    kinds = [
        kind for kind in many(turn) if not (whole_fleet and kind.startswith(("a fleet's list", "a fleet's record")))
    ]
    names = [put(wiring, kind) for kind in kinds]
    if whole_fleet:
        fleet_of(wiring)
        names += [spec_object(FLEET), fleets_plan(FLEET)]
    try:
        for title, command in RARER.items():
            unharmed(title, command)
        ran_of_the_library(GOOD)
        assert not Path(bench.home, "pwned").exists()
        assert not list(bench.home.rglob(".git"))
    finally:
        for name in {*names, *(entry.name for entry in wiring.bucket.list("ledger/")), listing_object(FLEET)}:
            if wiring.bucket.read(name) is not None:
                forget(wiring, name)


def ran_of_the_library(run_id: str) -> None:
    """The same from Python: an error of ours, or an answer."""
    for call in (lambda: spotbench.find(run_id).status, lambda: spotbench.results(run_id).headlines):
        try:
            call()
        except BenchError:
            continue


def test_what_is_left_out_is_named_and_the_exit_code_is_16(shop: tuple[Bench, Wiring]) -> None:
    bench, wiring = shop
    name = put(wiring, "a host's record, torn")
    try:
        for command in (["status"], ["reap", "--yes"]):
            ran = bench(*command, code=16)
            assert f"note: {name} cannot be read" in ran.err
            assert "error: 1 object could not be read; everything else was done" in ran.err
        assert bench("status", "--json", code=16).document["left_out"].keys() == {name}
    finally:
        forget(wiring, name)
