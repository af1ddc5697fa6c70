"""A fleet in the bucket, written by whoever can write there: nothing that it asks for is done by this client."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.fleet.context import Desk, begin_fleet, plan_sweep
from orchestrator.core.errors import ConfigError, DocumentUnreadable
from orchestrator.core.fleet.sweep import Sweep, expand_children, parse_sweep
from orchestrator.core.names import plan_object, spec_object
from orchestrator.core.naming import Mode
from orchestrator.runs.fleet.follow import with_jobs
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.fleets import FleetRecord, FleetStore, JobRecord
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.support.simulated_clock import SimulatedClock

pytestmark = pytest.mark.usefixtures("cloud")

FLEET = "fleet-20261122-040506-0bad"


def sweep(**fields: Any) -> Sweep:
    return parse_sweep("{axes: {gpu: [l4]}}", source="test", overrides=fields)


def planted(wiring: Wiring, asked: Sweep, *, fleet: str = FLEET) -> None:
    """A fleet as anybody who can write to the bucket can make one up."""
    now = wiring.clock.now()
    record = FleetRecord(
        fleet=FLEET, engine=asked.engine, mode=Mode.HOST if asked.engine in ("slurm", "hosts") else Mode.EMBEDDED,
        user="mallory", sweep=asked, created_at=now, ends_at=now + timedelta(hours=4), hold_usd=Decimal(0),
    )  # fmt: skip
    record = record.model_copy(update={"fleet": fleet})  # unchecked, as it is stored by whoever made it up
    store = FleetStore(wiring.bucket, wiring.clock, FLEET)
    store.create(record, expand_children(asked, lambda _: ()))
    store.list_as({"state": "running"})


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_no_setting_of_a_fleet_that_was_found_in_the_bucket_is_followed(
    bench: Bench, tmp_path: Path, command: str
) -> None:
    proof = tmp_path / "PWNED"
    evil = {"alerts.command": f"touch {proof}", "machine.service_account": "owner@p.iam.gserviceaccount.com"}
    planted(wire(), sweep(settings=evil))
    refused = bench("fleet", command, code=2).err
    assert "was not launched from this computer" in refused
    assert "machine.service_account=owner@" in refused.replace("\n", ""), "who decides about it is told what it asks"
    assert not proof.exists()
    assert bench.alive() == []


def test_no_command_is_run_in_a_folder_that_a_fleet_in_the_bucket_names(bench: Bench, tmp_path: Path) -> None:
    proof, folder = tmp_path / "PWNED", tmp_path / "shared"
    code = folder / FLEET / "node" / "startup" / "host"
    code.mkdir(parents=True)
    for package in (code.parent, code):
        (package / "__init__.py").touch()
    (code / "cluster.py").write_text(f"open({str(proof)!r}, 'w')\n")
    planted(wire(), sweep(engine="slurm", slurm={"folder": str(folder)}))
    for command in ("status", "watch", "stop", "resume", "retry"):
        assert "was not launched from this computer" in bench("fleet", command, code=2).err
    assert bench("fleet", "status", "--look", "--json").document["fleet"] == FLEET
    assert not proof.exists()


def test_a_fleet_is_believed_where_it_was_launched_until_somebody_rewrites_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wiring = wire()
    desk = begin_fleet(wiring, plan_sweep(wiring, sweep(repeats=2)))
    fleet = desk.record.fleet
    assert Desk.of(wire(), fleet).believed().record == desk.record
    monkeypatch.setenv("BENCH_HOME", str(tmp_path / "another"))
    stranger = Wiring(wire().settings)
    stranger.__dict__["bucket"] = wiring.bucket
    stranger.__dict__["clock"] = wiring.clock
    with pytest.raises(ConfigError, match="not launched from this computer"):
        Desk.of(stranger, fleet).believed()
    monkeypatch.setenv("BENCH_HOME", str(bench.home))
    for name in (spec_object(fleet), plan_object(fleet)):
        blob = wiring.bucket.read(name)
        assert blob is not None
        wiring.bucket.replace(name, blob.data + b" ", generation=None)
        with pytest.raises(ConfigError, match="not launched from this computer"):
            Desk.of(wire(), fleet).believed()
        wiring.bucket.replace(name, blob.data, generation=None)
    Desk.of(wire(), fleet).believed()


def test_no_price_in_a_record_that_somebody_rewrote_is_what_a_fleet_is_settled_at(bench: Bench, tmp_path: Path) -> None:
    wiring = wire()
    asked = sweep(engine="slurm", usd_per_hour="0.05", slurm={"folder": str(tmp_path)})
    desk = begin_fleet(wiring, plan_sweep(wiring, asked))
    fleet, hold = desk.record.fleet, desk.record.hold_usd
    desk.store.decide(lambda one: with_jobs(one, [JobRecord(number=0, gpu="l4", children=(0,), parallel=1)], 0))
    cheap = desk.record.model_copy(update={"usd_per_hour": {"l4": Decimal("0.000001")}, "hold_usd": Decimal(0)})
    wiring.bucket.replace(spec_object(fleet), cheap.model_dump_json(by_alias=True).encode(), generation=None)
    for command in ("status", "watch", "stop", "resume"):
        assert "was not launched from this computer" in bench("fleet", command, fleet, code=2).err
    world = wiring.world()
    for hours, settled in ((5, None), (30, hold)):
        later = replace(world, clock=SimulatedClock(desk.record.created_at + timedelta(hours=hours)))
        reconcile_holds(later, eager=True)
        assert wiring.ledger.read().runs[fleet].settled_usd == settled, "nobody can say what it cost: all of it"


def test_a_digest_from_the_command_line_is_what_lets_a_fleet_of_others_be_driven(bench: Bench) -> None:
    wiring = wire()
    planted(wiring, sweep())
    desk = Desk.of(wiring, FLEET)
    digest = desk.store.digest
    assert "at least 32 digits" in bench("fleet", "stop", "--accept", digest[:31], code=2).err
    assert digest[:32] in bench("fleet", "stop", "--accept", "0" * 64, code=2).err
    with pytest.raises(ConfigError):
        desk.believed()
    bench("fleet", "stop", "--accept", digest[:32])
    desk.believed()


def test_a_fleet_that_calls_itself_by_the_name_of_a_folder_is_refused(bench: Bench, tmp_path: Path) -> None:
    planted(wire(), sweep(), fleet=str(tmp_path / "elsewhere"))
    assert "is not a document that this version writes" in bench("fleet", "fetch", FLEET, code=None).err
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("gpu", ["../../x", "\x1b[2J", "[/red]"])
def test_a_cell_on_a_gpu_that_nobody_sells_is_refused(bench: Bench, gpu: str) -> None:
    wiring = wire()
    planted(wiring, sweep())
    blob = wiring.bucket.read(plan_object(FLEET))
    assert blob is not None
    forged = json.loads(blob.data)
    forged["cells"][0]["gpu"] = gpu
    wiring.bucket.replace(plan_object(FLEET), json.dumps(forged).encode(), generation=None)
    with pytest.raises(DocumentUnreadable):
        Desk.of(wiring, FLEET)
