"""What `bench status` says of money that is held for something which is not a run of its list; each command that it
names is run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.fleet import trust
from orchestrator.core.fleet.sweep import Sweep, expand_children
from orchestrator.core.images import ImageRecord, cost_of, environment_of, record_object
from orchestrator.core.ledger.budget import add_cost
from orchestrator.core.ledger.unlisted import CATEGORY, most_of
from orchestrator.core.names import spec_object
from orchestrator.core.naming import Mode, hold_key, index_object
from orchestrator.core.run import events as ev
from orchestrator.runs.engine import Engine
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench, Ran
from tests.integration.cli.test_reap import forgotten, over, settled, take
from tests.integration.cli.test_shapes import holds as is_as_its_schema_says
from tests.unit.core.builders import planned as planned_run

pytestmark = pytest.mark.usefixtures("cloud")

RUN = "20261120-010203-l4-00aa"
FLEET = "fleet-20261120-010203-00cc"
IMAGE = "bench-image-l4-20261120-010203-7f3a"
Weather = Callable[..., None]


def named(bench: Bench) -> list[dict[str, Any]]:
    """The holds in the document of `bench status`, which is as its schema says."""
    document = bench("status", "--json").document
    is_as_its_schema_says("status", document)
    found: list[dict[str, Any]] = document["holds"]
    return found


def said(bench: Bench) -> list[str]:
    return [line for line in bench("status", width=400).out.splitlines() if " held since " in line]


def pasted(bench: Bench, hold: dict[str, Any], code: int = 0) -> Ran:
    program, *words = shlex.split(hold["remedy"])
    assert program == "bench"
    return bench(*words, code=code)


@pytest.fixture
def wiring(bench: Bench) -> Wiring:
    return wire()


def test_nothing_is_said_where_nothing_is_held_but_for_runs_of_the_list(bench: Bench, wiring: Wiring) -> None:
    assert (named(bench), said(bench)) == ([], [])
    wiring.log(RUN).append(planned_run(mode="embedded"))
    take(wiring, RUN)
    wiring.log(RUN).append(ev.BudgetHeld(hold_usd=Decimal("0.18")))
    bench("status", RUN)
    assert [run["run_id"] for run in bench("status", "--json").document["runs"]] == [RUN]
    assert (named(bench), said(bench)) == ([], [])
    bench("stop", RUN)
    assert settled(wiring, RUN) == 0


# --- runs -----------------------------------------------------------------------------------------------------------


def test_a_run_without_a_folder_keeps_its_hold_while_its_machine_may_run(bench: Bench, wiring: Wiring) -> None:
    take(wiring, RUN, armed=True)
    (found,) = named(bench)
    now = wiring.clock.now()
    assert (found["kind"], found["name"], found["held_usd"]) == ("run", RUN, "0.18")
    assert found["prices_simulated"]
    assert found["remedy"] == "bench reap --yes"
    assert found["settles_at"] > now.isoformat()
    (line,) = said(bench)
    assert line == (
        f"$0.1800 (simulated) held since {found['held_at']} for run {RUN}, whose events are gone: `bench reap --yes` "
        f"deletes what is left of it, and settles this from {found['settles_at']} on"
    )
    assert "there are no runs yet" in bench("status").out
    pasted(bench, found)
    assert settled(wiring, RUN) is None


def test_reap_deletes_the_machine_of_a_run_whose_events_are_gone_before_it_settles(
    wiring: Wiring, bench: Bench, weather: Weather
) -> None:
    weather({"fault": "never_boots"})
    forgotten(wiring, RUN)
    take(wiring, RUN, age=timedelta(hours=3), armed=True)
    (found,) = named(bench)
    assert settled(wiring, RUN) is None, "its machine is there, however late it is"
    assert "1 VM alive, 1 deleted" in pasted(bench, found).out
    bench("reap", "--yes")
    assert settled(wiring, RUN) == Decimal("0.18")


def test_a_hold_beside_a_run_of_the_list_that_is_over_is_named(bench: Bench, wiring: Wiring) -> None:
    over(wiring, RUN, "failed")
    engine = Engine(wiring.world(), RUN)
    engine.write_index(engine.look())
    take(wiring, hold_key(RUN, 1))
    assert [run["phase"] for run in bench("status", "--json").document["runs"]] == ["failed"]
    (found,) = named(bench)
    assert (found["kind"], found["name"], found["settles_at"]) == ("run", RUN, None)
    assert said(bench)[0].endswith(f"for run {RUN}: `bench status {RUN}` shows it")
    assert RUN in pasted(bench, found).out


def test_a_run_that_is_missing_from_the_list_alone_is_looked_at_under_its_name(bench: Bench, wiring: Wiring) -> None:
    over(wiring, RUN, "failed")
    take(wiring, RUN, armed=True)
    assert wiring.bucket.read(index_object(RUN)) is None
    (found,) = named(bench)
    assert found["remedy"] == f"bench status {RUN}"
    assert "failed" in pasted(bench, found).out


# --- fleets ---------------------------------------------------------------------------------------------------------


def stored(wiring: Wiring, folder: Path) -> FleetStore:
    """A fleet on a cluster, as somebody's client stored it."""
    now = wiring.clock.now()
    sweep = Sweep.model_validate({"engine": "slurm", "axes": {"gpu": ["l4"]}, "slurm": {"folder": str(folder)}})
    record = FleetRecord(
        fleet=FLEET, engine="slurm", mode=Mode.HOST, user="ada", sweep=sweep, created_at=now,
        ends_at=now + timedelta(hours=4), hold_usd=Decimal(7),
    )  # fmt: skip
    store = FleetStore(wiring.bucket, wiring.clock, FLEET)
    store.create(record, expand_children(sweep, lambda _: ()))
    return store


def test_a_fleet_that_holds_money_is_named_with_the_command_that_looks_at_it(
    wiring: Wiring, bench: Bench, tmp_path: Path
) -> None:
    store = stored(wiring, tmp_path)
    take(wiring, FLEET, usd="7")
    (found,) = named(bench)
    assert (found["kind"], found["name"], found["held_usd"], found["settles_at"]) == ("fleet", FLEET, "7", None)
    assert found["remedy"] == f"bench fleet status --look {FLEET}", "it was not launched from here"
    assert FLEET in pasted(bench, found).out
    trust.remember(wiring, store)
    (found,) = named(bench)
    assert found["remedy"] == f"bench fleet status {FLEET}"
    assert said(bench)[0].endswith(f"for {FLEET}: `{found['remedy']}` shows it, and settles what is over")
    store.decide(lambda one: one.model_copy(update={"stopped": "ada"}))
    pasted(bench, found)
    assert settled(wiring, FLEET) == 0
    assert named(bench) == []


def test_a_fleet_whose_record_is_gone_is_named_and_left_to_reap(bench: Bench, wiring: Wiring) -> None:
    FleetStore(wiring.bucket, wiring.clock, FLEET).list_as({"state": "running"})
    take(wiring, FLEET, usd="7")
    (found,) = named(bench)
    assert found["remedy"] == "bench reap --yes"
    assert f"for {FLEET}, whose record is gone: " in said(bench)[0]
    pasted(bench, found)
    assert settled(wiring, FLEET) is None
    late = FLEET.replace("00cc", "00dd")
    take(wiring, late, age=timedelta(hours=3), usd="7")
    pasted(bench, found)
    assert (settled(wiring, FLEET), settled(wiring, late)) == (None, Decimal(7))


def test_a_fleet_with_an_unreadable_record_counts_as_spent_once_nothing_can_run(bench: Bench, wiring: Wiring) -> None:
    wiring.bucket.create(spec_object(FLEET), b"{")
    take(wiring, FLEET, age=timedelta(hours=3), usd="7")
    (found,) = named(bench)
    assert (found["name"], found["remedy"]) == (FLEET, f"bench fleet status --look {FLEET}")
    bench("reap", "--yes")
    assert settled(wiring, FLEET) is None, "its client may have written it so that only a newer one can read it"
    late = FLEET.replace("00cc", "00dd")
    wiring.bucket.create(spec_object(late), b"{")
    take(wiring, late, age=timedelta(hours=27), usd="6")
    bench("reap", "--yes")
    assert (settled(wiring, FLEET), settled(wiring, late)) == (None, Decimal(6))
    assert [one["name"] for one in named(bench)] == [FLEET]


# --- images ---------------------------------------------------------------------------------------------------------


def test_an_amount_for_an_image_that_is_being_made_is_named(bench: Bench, wiring: Wiring) -> None:
    now = wiring.clock.now()
    wiring.accounts().change(
        lambda ledger: add_cost(ledger, CATEGORY, Decimal("0.01"), "", now, most_of(IMAGE), pretend=True)
    )
    (found,) = named(bench)
    assert (found["kind"], found["name"], found["held_usd"]) == ("image_build", IMAGE, "0.01")
    assert said(bench)[0].endswith(f"for the build of image {IMAGE}: `bench image list` says what it waits for")
    assert f"{IMAGE}: its client may be about to begin" in pasted(bench, found).err


def test_the_storage_of_an_image_is_named_until_the_image_is_deleted(bench: Bench, wiring: Wiring) -> None:
    now = wiring.clock.now()
    record = ImageRecord(
        name=IMAGE, gpu="l4", url=f"projects/p/global/images/{IMAGE}", base="b", environment=environment_of("2.13.0"),
        disk_gb=60, archive_bytes=2**30, run=RUN, created_at=now, expires_at=now + timedelta(days=14),
        usd=Decimal("0.03"),
    )  # fmt: skip
    assert wiring.shelf is not None
    wiring.shelf.records.create(record)
    wiring.accounts().change(
        lambda ledger: add_cost(ledger, CATEGORY, record.usd, "", now, cost_of(IMAGE), pretend=True)
    )
    (found,) = named(bench)
    assert (found["kind"], found["name"], found["held_usd"]) == ("image_storage", IMAGE, "0.03")
    line = f"for storing image {IMAGE}: `bench image rm {IMAGE}` deletes it and releases the rest"
    assert said(bench)[0].endswith(line)
    pasted(bench, found)
    assert named(bench) == []


def test_the_storage_of_an_image_whose_record_cannot_be_read_is_named_too(bench: Bench, wiring: Wiring) -> None:
    now = wiring.clock.now()
    wiring.bucket.create(record_object(IMAGE), b"{")
    wiring.accounts().change(
        lambda ledger: add_cost(ledger, CATEGORY, Decimal("0.03"), "", now, cost_of(IMAGE), pretend=True)
    )
    (found,) = named(bench)
    assert (found["kind"], found["name"], found["held_usd"]) == ("image_storage", IMAGE, "0.03")
    assert said(bench)[0].endswith(
        f"for storing image {IMAGE}, whose record cannot be read: `bench image list` says why"
    )
    listed = bench("image", "list", code=16)
    assert f"the record of the image {IMAGE} cannot be read" in listed.err
    assert listed.out == "", "there may be an image"


# --- what cannot be known -------------------------------------------------------------------------------------------


def test_holds_are_named_where_the_cloud_does_not_answer_and_they_cannot_be_settled(
    bench: Bench, weather: Weather
) -> None:
    take(wire(), RUN, age=timedelta(hours=3), armed=True)
    weather({"fault": "http", "service": "compute", "path": "aggregated", "status": 403, "message": "no", "times": 9})
    ran = bench("status", "--json", code=None)
    assert ran.code != 0
    assert [one["name"] for one in ran.document["holds"]] == [RUN]
    assert bench.fired() != [0]


def test_where_the_ledger_cannot_be_read_nobody_knows_what_is_held(bench: Bench) -> None:
    wire().bucket.replace("ledger/ledger.json", b"{", generation=None)
    assert bench("status", "--json", code=16).document["holds"] is None
