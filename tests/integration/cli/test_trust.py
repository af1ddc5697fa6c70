"""A plan in the bucket, written by whoever can write there: nothing of it is run, and none of its money is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.choices import consented_plan
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Approved, Ledger, LedgerEntry, authorize
from orchestrator.core.naming import LEDGER, plan_object
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.run import events as ev
from orchestrator.core.workload import template_text
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.unit.core.builders import planned as planned_run

pytestmark = pytest.mark.usefixtures("cloud")

RUN = "20260921-090000-l4-0bad"


def planted(wiring: Wiring, **settings: Any) -> None:
    """A run that was cut short, as anybody who can write to the bucket can make one up."""
    config, name = wiring.configured(LaunchOptions("l4", None, ()))
    made = wiring.plan(config, name)
    document = plan_document(made) | {"ceiling_usd": "0.000001", "usd_per_hour": "0.000000", "ttl_s": 604800}
    document["settings"] |= settings
    document["offers"] = [offer | {"usd_per_hour": "0.000000"} for offer in document["offers"]]
    wiring.bucket.replace(plan_object(RUN), json.dumps(document).encode(), generation=None)
    log = wiring.log(RUN)
    log.append(planned_run(user="mallory", mode="embedded", ceiling_usd=Decimal("0.000001"), ttl_s=604800))
    log.append(ev.RunClosed(outcome="preempted", detail="made up", generation=0))


def test_a_command_in_a_stored_plan_is_never_run(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwned = tmp_path / "PWNED"
    wiring = wire()
    planted(
        wiring,
        alerts={"command": f"touch {pwned}", "webhook": None},
        budget={"per_run_usd": "100000", "per_day_usd": "100000", "per_month_usd": None, "total_usd": None},
    )
    now = wiring.clock.now()
    spent = LedgerEntry(hold_usd=Decimal(60000), held_at=now, settled_usd=Decimal(60000), settled_at=now)
    wiring.bucket.replace(LEDGER, Ledger(runs={RUN: spent}).dump(), generation=None)
    monkeypatch.setenv("BENCH_PER_DAY_USD", "1")
    monkeypatch.setenv("BENCH_PER_RUN_USD", "0.01")
    refused = bench("launch", "--resume", RUN, "--detach", code=3)
    assert "cap" in refused.err
    assert not pwned.exists()
    assert bench.alive() == []


@pytest.mark.parametrize("window", ["PER_RUN", "PER_DAY", "PER_MONTH", "TOTAL"])
def test_a_resumption_is_refused_under_the_caps_of_today(
    bench: Bench, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(wire())
    monkeypatch.setenv(f"BENCH_{window}_USD", "0")
    assert "cap $0" in bench("launch", "--resume", RUN, "--detach", code=3).err
    assert bench.alive() == []


def test_a_stored_ceiling_only_lowers_ours_and_a_stored_time_never_lengthens_it(bench: Bench) -> None:
    wiring = wire()
    config, name = wiring.configured(LaunchOptions("l4", None, ()))
    ours = wiring.plan(config, name)
    stored = plan_document(ours)
    for change, lower in (
        ({"ceiling_usd": "100000"}, False),
        ({"ceiling_usd": str(ours.ceiling_usd / 2)}, True),
        ({"ttl_s": 604800, "attempts": 20}, False),
        ({"ttl_s": ours.ttl_s // 2}, True),
    ):
        wiring.bucket.replace(plan_object(RUN), json.dumps(stored | change).encode(), generation=None)
        made = wiring.plan_again(wiring.stored_plan(RUN, LaunchOptions("", None, ())))
        assert made.ceiling_usd <= ours.ceiling_usd
        assert made.ttl_s <= ours.ttl_s
        assert made.attempts <= ours.attempts
        assert ((made.ceiling_usd, made.ttl_s) != (ours.ceiling_usd, ours.ttl_s)) is lower
        assert made.usd_per_hour == ours.usd_per_hour


def test_secrets_are_not_stored(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_ALERT_WEBHOOK", "https://hooks.example.com/T0KEN")
    monkeypatch.setenv("BENCH_ALERT_COMMAND", "notify-send T0KEN")
    assert "T0KEN" not in bench("plan", "--gpu", "l4", "--json").out


def test_a_run_that_has_cost_something_goes_on_under_the_same_caps(bench: Bench) -> None:
    """What it cost before counts against the cap of a run, and not against the ceiling of what is still to come."""
    wiring = wire()
    config, name = wiring.configured(LaunchOptions("l4", None, ()))
    ours = wiring.plan(config, name)
    wiring.bucket.replace(plan_object(RUN), json.dumps(plan_document(ours)).encode(), generation=None)
    now, spent = wiring.clock.now(), Decimal("0.004283")
    entry = LedgerEntry(hold_usd=ours.ceiling_usd, held_at=now, settled_usd=spent, settled_at=now, pretend=True)
    wiring.bucket.replace(LEDGER, Ledger(runs={RUN: entry}).dump(), generation=None)
    made = wiring.plan_again(wiring.stored_plan(RUN, LaunchOptions("", None, ())))
    assert (made.ceiling_usd, made.ttl_s) == (ours.ceiling_usd, ours.ttl_s)
    fits = authorize(wiring.ledger.read(), made.config.budget.caps(), made.ceiling_usd, now, run_id=f"{RUN}+1")
    assert isinstance(fits, Approved)


def test_no_files_are_sent_from_a_path_that_a_stored_plan_names(bench: Bench, tmp_path: Path) -> None:
    """As somebody makes it up who wants to read what lies on the computer of whoever profiles the run."""
    private = tmp_path / "private.py"
    private.write_text(template_text("private"))
    wiring = wire()
    planted(wiring, workload={"path": str(private), "name": "private", "form": "file", "cases": ["n16"]})
    blob = wiring.bucket.read(plan_object(RUN))
    assert blob is not None
    stored = json.loads(blob.data) | {"ceiling_usd": "100"}
    wiring.bucket.replace(plan_object(RUN), json.dumps(stored).encode(), generation=None)
    refused = bench("profile", RUN, "--case", "n16", code=2).err
    assert "nothing is sent" in refused
    assert list(wiring.bucket.list("payloads/")) == []
    assert bench.alive() == []


def follow_plan_of_another(wiring: Wiring, **changes: Any) -> str:
    """Stores a plan of l4 that no launch of this home has made, and returns its digest."""
    config, name = wiring.configured(LaunchOptions("l4", None, ()))
    document = plan_document(wiring.plan(config, name))
    for section, values in changes.items():
        document["settings"][section] |= values
    data = json.dumps(document).encode()
    wiring.bucket.replace(plan_object(RUN), data, generation=None)
    wiring.log(RUN).append(planned_run(user="mallory", mode="embedded"))
    wiring.log(RUN).append(ev.RunClosed(outcome="preempted", detail="made up", generation=0))
    return hashlib.sha256(data).hexdigest()


CHOICES = {
    "placement": {"fallback_gpus": ["h100"], "on_demand_after": 0},
    "machine": {"type": "g2-standard-32", "provisioning": "standard"},
    "correctness": {"max_abs_error": 1e300},
    "environment": {"torch": "1.0.0"},
}
"""What a plan in the bucket would have rented, installed and called correct."""


@pytest.mark.parametrize("command", [("launch", "--resume", RUN, "--detach"), ("profile", RUN, "--case", "b1")])
def test_no_stored_plan_chooses_a_machine_or_a_tolerance_unasked(bench: Bench, command: tuple[str, ...]) -> None:
    follow_plan_of_another(wire(), **CHOICES)
    refused = " ".join(bench(*command, code=2).err.split())
    assert "was not launched from this computer" in refused
    for told in ("fallback_gpus is h100", "type is g2-standard-32", "max_abs_error is 1e+300", "torch is 1.0.0"):
        assert told in refused
    assert "--accept" in refused
    assert bench.alive() == []
    assert bench("budget", "--json").document["windows"][0]["held_usd"] in ("0", 0, "0.000000")


@pytest.mark.parametrize(
    ("name", "value"),
    [("machine", {"type": "g2-standard-8"}), ("correctness", {"max_abs_error": 0.5}), ("environment", {"torch": ""})],
)
def test_a_digest_lets_a_plan_of_others_be_followed_and_is_then_remembered(
    bench: Bench, name: str, value: dict[str, Any]
) -> None:
    wiring = wire()
    digest = follow_plan_of_another(wiring, **{name: value})
    options = LaunchOptions("", None, ())
    wrong = {"bench launch --resume {}": digest[:31], "bench profile {}": "0" * 64}
    for text, accept in wrong.items():
        with pytest.raises(ConfigError, match="does not match"):
            consented_plan(wiring, RUN, RUN, options, accept, text)
    made = consented_plan(wiring, RUN, RUN, options, digest[:32], "")()
    assert getattr(made.config, name).model_dump().items() >= value.items()
    assert consented_plan(wiring, RUN, RUN, options, "", "")().config == made.config, "asked once"
    own = wiring.stored_plan(RUN, options).today.machine
    for key in ("image_project", "image_family", "service_account", "network", "container"):
        assert getattr(made.config.machine, key) == getattr(own, key)


def test_a_plan_that_chooses_as_this_user_does_is_resumed_without_a_question(bench: Bench) -> None:
    wiring = wire()
    follow_plan_of_another(wiring, measure={"repeats": 7})
    made = consented_plan(wiring, RUN, RUN, LaunchOptions("", None, ()), "", "")()
    assert made.config.measure.repeats == 7, "what is measured is the stored plan's"
    with pytest.raises(ConfigError, match="its GPU is l4, and none was named"):
        consented_plan(wiring, "last", RUN, LaunchOptions("", None, ()), "", "bench launch --resume {}")


def test_a_launch_remembers_its_plan_until_somebody_rewrites_it(
    bench: Bench, paced: Callable[..., tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench("launch", "--gpu", "l4", "--detach", *paced("build"), "--set", "placement.on_demand_after=1", "--json")
    run_id = run.document["run_id"]
    options, wiring = LaunchOptions("", None, ()), wire()
    assert wiring.stored_plan(run_id, options).is_own
    blob = wiring.bucket.read(plan_object(run_id))
    assert blob is not None
    wiring.bucket.replace(plan_object(run_id), blob.data + b" ", generation=None)
    assert not wiring.stored_plan(run_id, options).is_own
    bench("stop", run_id)
