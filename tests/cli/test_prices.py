"""`bench prices`: the table that runs are held at, and how far it can be trusted."""

from __future__ import annotations

from decimal import Decimal

from tests.cli.conftest import Bench


def test_every_gpu_has_prices_and_spot_is_never_dearer(bench: Bench) -> None:
    document = bench("prices", "--json").document
    assert {row["gpu"] for row in document["prices"]} == {"l4", "t4", "a100", "h100", "cpu"}
    for row in document["prices"]:
        spot, standard = row["spot_usd_per_hour"], row["standard_usd_per_hour"]
        assert spot is None or standard is None or Decimal(spot) <= Decimal(standard)
    assert document["stale"] is (document["age_days"] > 90)


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
