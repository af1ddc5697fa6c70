"""The price catalogue, read as a stranger would read Google's: with requests, page by page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.documents import load_yaml
from orchestrator.embedded.meter import TARIFF
from orchestrator.embedded.server import EmbeddedCloud
from tests.support import keyed as requests
from tests.support.discovery import Recorder
from tests.support.simulated_timeline import SimulatedTimeline

COMPUTE = "6F81-5844-456A"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    recorder = Recorder()
    home: Path = tmp_path_factory.mktemp("catalogue") / "cloud"
    with EmbeddedCloud(home, timeline=SimulatedTimeline(), observer=recorder) as cloud:
        requests.know(cloud)
        yield cloud
    recorder.assert_all_valid()


def ask(cloud: EmbeddedCloud, path: str, **query: Any) -> tuple[int, Any]:
    reply = requests.get(cloud.compute_url + path, params=query, timeout=600)
    return reply.status_code, reply.json()


def skus(cloud: EmbeddedCloud, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        status, answer = ask(cloud, f"/v1/services/{COMPUTE}/skus", pageToken=token, currencyCode="USD", **query)
        assert status == 200, answer
        found += answer["skus"]
        token = answer["nextPageToken"]
        if not token:
            return found


def price(found: list[dict[str, Any]], name: str, region: str, usage: str) -> Decimal:
    """Of the last tier of the one SKU whose description is that name and a place."""
    (sku,) = [
        sku
        for sku in found
        if re.fullmatch(re.escape(name) + r"( running)?( in .+)?", sku["description"])
        and region in sku["serviceRegions"]
        and sku["category"]["usageType"] == usage
    ]
    rate = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    assert rate["currencyCode"] == "USD"
    return Decimal(rate["units"]) + Decimal(rate["nanos"]) / 10**9


# machine type: family's name, cores, GiB, the GPU's name; as Google documents its machines
SHAPES = {
    "g2-standard-4": ("G2 Instance", 4, 16, "Nvidia L4 GPU"),
    "n1-standard-4": ("N1 Predefined Instance", 4, 15, "Nvidia Tesla T4 GPU"),
    "a2-highgpu-1g": ("A2 Instance", 12, 85, "Nvidia Tesla A100 GPU"),
    "a3-highgpu-1g": ("A3 Instance", 26, 234, "Nvidia H100 80GB GPU"),
    "a2-ultragpu-1g": ("A2 Instance", 12, 170, "Nvidia Tesla A100 80GB GPU"),
    "a3-ultragpu-8g": ("A3Ultra Instance", 224, 2952, "H200 141GB GPU"),
    "a4-highgpu-8g": ("", 224, 3968, "A4 Nvidia B200 (1 gpu slice)"),
    "g4-standard-48": ("", 48, 180, "RTX 6000 96GB"),
    "e2-standard-4": ("E2 Instance", 4, 16, None),
    "n2-standard-4": ("N2 Instance", 4, 16, None),
}


def test_the_parts_of_every_machine_add_up_to_what_the_meter_charges(cloud: EmbeddedCloud) -> None:
    found, tariff = skus(cloud), load_yaml(TARIFF)
    assert set(tariff["machines"]) == set(SHAPES)
    for machine, (family, cores, gib, gpu) in SHAPES.items():
        for region, prices in tariff["machines"][machine]["regions"].items():
            for provisioning, usage, before in (
                ("standard", "OnDemand", ""),
                ("spot", "Preemptible", "Spot Preemptible "),
            ):
                if provisioning not in prices or (machine == "a3-highgpu-1g" and provisioning == "standard"):
                    continue  # not sold
                core = price(found, f"{before}{family} Core", region, usage) if family else 0
                ram = price(found, f"{before}{family} Ram", region, usage) if family else 0
                figure = Decimal(prices[provisioning]["machine"])
                assert abs(cores * core + gib * ram - figure) < Decimal("1e-7"), (machine, region)
                if gpu:
                    name = gpu + (" attached to Spot Preemptible VMs" if before else "")
                    assert price(found, name, region, usage) == Decimal(prices[provisioning]["gpu"])


def test_disks_and_addresses_are_there_with_their_free_tiers(cloud: EmbeddedCloud) -> None:
    found = skus(cloud)
    assert price(found, "Balanced PD Capacity", "us-central1", "OnDemand") == Decimal("0.10")
    assert price(found, "Balanced PD Capacity", "asia-south1", "OnDemand") == Decimal("0.10")
    assert price(found, "External IP Charge on a Standard VM", "global", "OnDemand") == Decimal("0.005")
    assert price(found, "External IP Charge on a Spot Preemptible VM", "global", "Preemptible") == Decimal("0.0025")
    (address,) = [sku for sku in found if sku["description"] == "External IP Charge on a Standard VM"]
    tiers = address["pricingInfo"][0]["pricingExpression"]["tieredRates"]
    assert [tier["startUsageAmount"] for tier in tiers] == [0, 744]
    assert tiers[0]["unitPrice"] == {"currencyCode": "USD", "units": "0", "nanos": 0}


def test_what_looks_alike_is_there_to_be_confused_with(cloud: EmbeddedCloud) -> None:
    said = {sku["description"]: sku["category"]["usageType"] for sku in skus(cloud)}
    assert said["Commitment v1: G2 Cpu in Americas for 1 Year"] == "Commit1Yr"
    for trap in ("Reserved Nvidia L4 GPU in Americas", "G2 Custom Instance Core running in Americas",
                 "G2 Sole Tenancy Instance Core running in Americas", "Regional Balanced PD Capacity",
                 "Nvidia Tesla A100 GPU attached to DWS Defined Duration VMs running in Americas"):  # fmt: skip
        assert said[trap] == "OnDemand"


def test_pages_of_any_size_hold_every_sku_once(cloud: EmbeddedCloud) -> None:
    whole = [sku["skuId"] for sku in skus(cloud)]
    assert len(set(whole)) == len(whole) > 200
    assert [sku["skuId"] for sku in skus(cloud, pageSize=37)] == whole
    assert [sku["skuId"] for sku in skus(cloud, pageSize=5000)] == whole
    _, first = ask(cloud, f"/v1/services/{COMPUTE}/skus", pageSize=5000)
    assert first["nextPageToken"]  # a page may be shorter than asked for


def test_services_are_listed_and_everything_says_that_it_is_simulated(cloud: EmbeddedCloud) -> None:
    _, answer = ask(cloud, "/v1/services", pageSize=2)
    _, rest = ask(cloud, "/v1/services", pageToken=answer["nextPageToken"])
    named = {entry["serviceId"]: entry["displayName"] for entry in answer["services"] + rest["services"]}
    assert named[COMPUTE] == "Compute Engine"
    for sku in skus(cloud):
        assert "simulated" in sku["serviceProviderName"]
        assert sku["pricingInfo"][0]["summary"] == "simulated"


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/v1/services/0000-0000-0000/skus", {}, 404),
        (f"/v1/services/{COMPUTE}/skus", {"pageToken": "no token"}, 400),
        (f"/v1/services/{COMPUTE}/skus", {"pageSize": "5001"}, 400),
        (f"/v1/services/{COMPUTE}/skus", {"pageSize": "-1"}, 400),
        (f"/v1/services/{COMPUTE}/skus", {"currencyCode": "EUR"}, 400),
    ],
)
def test_what_cannot_be_meant_is_refused(cloud: EmbeddedCloud, path: str, query: dict[str, str], status: int) -> None:
    assert ask(cloud, path, **query)[0] == status


def test_an_api_that_is_off_says_so_as_google_does(cloud: EmbeddedCloud) -> None:
    cloud.weather.add({"fault": "api_disabled", "api": "cloudbilling.googleapis.com"})
    try:
        status, answer = ask(cloud, "/v1/services")
    finally:
        cloud.weather.end("api_disabled", api="cloudbilling.googleapis.com")
    assert status == 403
    assert answer["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
