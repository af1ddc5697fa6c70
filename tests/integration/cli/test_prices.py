"""`bench prices`: the table that runs are held at, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.market.catalog import GPU_NAMES
from tests.integration.cli.conftest import Bench
from tests.support.local_cloud import start_cloud


def test_every_gpu_has_prices_and_spot_is_never_dearer(bench: Bench) -> None:
    document = bench("prices", "--json").document
    assert {row["gpu"] for row in document["prices"]} == set(GPU_NAMES)
    for row in document["prices"]:
        spot, standard = row["spot_usd_per_hour"], row["standard_usd_per_hour"]
        assert spot is None or standard is None or Decimal(spot) <= Decimal(standard)
    assert document["stale"] is (document["age_days"] > 30)


@pytest.mark.usefixtures("cloud")
def test_a_plan_is_held_at_the_price_that_is_shown(bench: Bench) -> None:
    (row,) = bench("prices", "--gpu", "l4", "--region", "us-central1", "--json").document["prices"]
    offers = bench("plan", "--gpu", "l4", "--set", "zones=[us-central1-a]", "--json").document["offers"]
    assert Decimal(row["spot_usd_per_hour"]) == Decimal(str(offers[0]["usd_per_hour"]))


def test_the_age_and_the_doubtful_source_are_said(bench: Bench) -> None:
    out = bench("prices", "--gpu", "h100").out
    assert "recalled: " in out
    assert "not a record" in out
    assert "days old" in out


def test_what_has_no_price_is_said(bench: Bench) -> None:
    assert "no price is known for l4 mars" in bench("prices", "--gpu", "l4", "--region", "mars", code=2).err


# --- refreshed ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cloud")
def test_a_refreshed_table_is_dated_today_names_its_source_and_is_planned_with(bench: Bench) -> None:
    before = bench("prices", "--json").document
    document = bench("prices", "--refresh", "--json").document
    assert document["refreshed"] is True
    assert (document["stale"], document["age_days"], document["left_out"]) == (False, 0, [])
    assert {row["source"] for row in document["prices"]} == {"billing-catalog"}
    assert "simulated" in document["sources"]["billing-catalog"]
    assert len(document["prices"]) >= len(before["prices"])
    again = bench("prices", "--gpu", "l4", "--region", "us-central1", "--json").document
    offers = bench("plan", "--gpu", "l4", "--set", "zones=[us-central1-a]", "--json").document["offers"]
    assert again["as_of"] == document["as_of"]
    assert Decimal(again["prices"][0]["spot_usd_per_hour"]) == Decimal(str(offers[0]["usd_per_hour"]))
    assert not (bench.home / "prices.gce.yaml").exists(), "simulated prices are no prices of Google's"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"fault": "api_disabled", "api": "cloudbilling.googleapis.com"}, "gcloud services enable cloudbilling"),
        (
            {"fault": "http", "service": "cloudbilling", "path": "/skus", "status": 503, "times": 9},
            "cannot read the price",
        ),
        ({"fault": "reset", "service": "cloudbilling", "path": "/skus", "times": 9}, "cannot read the price"),
    ],
)
@pytest.mark.usefixtures("cloud")
def test_when_the_catalogue_cannot_be_read_the_old_table_is_kept_and_said_so(
    bench: Bench, weather: Callable[..., None], fault: dict[str, Any], said: str
) -> None:
    before = bench("prices", "--json").document
    weather(fault)
    err = bench("prices", "--refresh", code=6).err
    assert said in err
    assert f"the table of {before['as_of']} is kept" in " ".join(err.split())
    assert bench("prices", "--json").document == before
    assert bench.fired()[0] > 0


@pytest.mark.usefixtures("cloud")
def test_a_damaged_table_is_named_by_plan_and_stops_no_command_that_protects_money(bench: Bench) -> None:
    bench("prices", "--refresh")
    path = bench.home / "prices.embedded.yaml"
    path.write_text("schema: 9\n")
    assert str(path) in "".join(bench("plan", "--gpu", "l4", code=2).err.split())
    bench("status")
    bench("reap")
    bench("prices", "--refresh")
    bench("plan", "--gpu", "l4")


def test_leaving_out_is_part_of_refreshing(bench: Bench) -> None:
    assert "bench prices --refresh --leave-out" in bench("prices", "--leave-out", code=2).err


def test_the_last_weeks_of_spot_machines_stand_beside_the_tables_price_with_dates(bench: Bench) -> None:
    advice = {
        "us-central1-a": {"obtainability": 0.8, "preemption_rate": 0.125, "list_usd": 0.3612},
        "us-central1-b": {},
    }
    start_cloud(bench.home / "cloud", advice)
    command = ("prices", "--gpu", "l4", "--region", "us-central1", "--history")
    document = bench(*command, "--json").document
    first, *others = document["history"]
    machine_alone = Decimal(first.pop("spot_usd_per_hour"))
    assert 0 < machine_alone < Decimal(document["prices"][0]["spot_usd_per_hour"]), "without disk and address"
    since = first.pop("list_since")
    assert since.endswith("-01")
    listed = {"list_usd_per_hour": "0.361200000", "list_usd_per_hour_before": "0.397320000"}
    assert first == {"zone": "us-central1-a", **listed, "preemption_rate": 0.125}
    assert {row["zone"] for row in others} == {"us-central1-b", "us-central1-c"}
    assert {row["list_usd_per_hour"] for row in others} == {None}
    assert since in bench(*command).out
    assert "12%" in bench(*command).out
    assert bench("prices", "--gpu", "l4", "--json").document["history"] == []


def test_a_gpu_that_is_attached_is_asked_about_and_has_no_history(bench: Bench) -> None:
    start_cloud(
        bench.home / "cloud", {"us-central1-a": {"obtainability": 0.8, "preemption_rate": 0.1, "list_usd": 0.3}}
    )
    rows = bench("prices", "--gpu", "t4", "--region", "us-central1", "--history", "--json").document["history"]
    assert "us-central1-a" in {row["zone"] for row in rows}
    assert {(row["list_usd_per_hour"], row["preemption_rate"]) for row in rows} == {(None, None)}


@pytest.mark.usefixtures("cloud")
def test_where_google_gives_no_history_that_is_said(bench: Bench) -> None:
    assert "no history of these machines" in bench("prices", "--gpu", "l4", "--history").out
    assert "bench prices --history --gpu l4" in bench("prices", "--history", code=2).err
