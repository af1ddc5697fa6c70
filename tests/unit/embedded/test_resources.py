"""What stands there can be listed and looked up."""

from __future__ import annotations

from tests.unit.embedded.builders import ZONE, Stage


def test_zones_lie_in_regions_and_regions_have_zones(stage: Stage) -> None:
    zones = stage.rest.get("/zones")["items"]
    regions = {region["name"]: region for region in stage.rest.get("/regions")["items"]}
    for zone in zones:
        region = regions[zone["region"].rpartition("/")[2]]
        assert zone["selfLink"] in region["zones"]
    assert stage.rest.get(f"/zones/{ZONE}") in zones
    assert stage.rest.get("/regions/us-central1")["name"] == "us-central1"


def test_every_region_has_quotas_of_every_gpu_on_offer(stage: Stage) -> None:
    metrics = {quota["metric"] for quota in stage.rest.get("/regions/us-east4")["quotas"]}
    assert {f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS" for gpu in ("L4", "T4", "A100", "H100")} <= metrics
    assert [quota["metric"] for quota in stage.rest.get("")["quotas"]] == ["GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS"]


def test_a_quota_can_be_set_for_one_region_only(stage: Stage) -> None:
    inventory = stage.cloud.fleet.inventory
    inventory.overrides["us-east4/SPECIAL"] = 3
    try:
        east = {quota["metric"]: quota["limit"] for quota in stage.rest.get("/regions/us-east4")["quotas"]}
        west = {quota["metric"] for quota in stage.rest.get("/regions/us-west1")["quotas"]}
    finally:
        del inventory.overrides["us-east4/SPECIAL"]
    assert east["SPECIAL"] == 3
    assert "SPECIAL" not in west


def test_a_machine_type_brings_its_own_gpu_or_none(stage: Stage) -> None:
    listed = {entry["name"]: entry for entry in stage.rest.get(f"/zones/{ZONE}/machineTypes")["items"]}
    assert listed["g2-standard-4"]["accelerators"][0]["guestAcceleratorType"] == "nvidia-l4"
    assert "accelerators" not in listed["n1-standard-4"]
    assert stage.rest.get(f"/zones/{ZONE}/machineTypes/g2-standard-4") == listed["g2-standard-4"]
    assert stage.rest.call("GET", f"/zones/{ZONE}/machineTypes/x9")[0] == 404


def test_accelerators_and_machines_are_found_over_all_zones(stage: Stage) -> None:
    scopes = stage.rest.get("/aggregated/acceleratorTypes", filter="name=nvidia-h100-80gb")["items"]
    found = {zone for zone, scope in scopes.items() if "acceleratorTypes" in scope}
    assert found == {f"zones/{zone}" for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-a", "us-east4-b", "europe-west4-b")}  # fmt: skip
    assert stage.rest.get(f"/zones/{ZONE}/acceleratorTypes/nvidia-l4")["maximumCardsPerInstance"] == 8
    machines = stage.rest.get("/aggregated/machineTypes", filter="name=g2-standard-4")["items"]
    assert "machineTypes" in machines["zones/asia-southeast1-b"]
    assert "warning" in machines["zones/us-west2-b"]
    assert "disks" not in stage.rest.get("/aggregated/disks")["items"]["zones/us-west2-b"]


def test_disk_types_and_networks_are_there(stage: Stage) -> None:
    assert {item["name"] for item in stage.rest.get(f"/zones/{ZONE}/diskTypes")["items"]} >= {"pd-balanced"}
    (network,) = stage.rest.get("/global/networks")["items"]
    assert stage.rest.get("/global/networks/default") == network
    assert stage.rest.call("GET", "/global/networks/other")[0] == 404


def test_an_image_is_found_by_family_and_by_name_in_the_project_that_owns_it(stage: Stage) -> None:
    base = f"{stage.cloud.compute_url}/compute/v1/projects"
    images = f"{base}/deeplearning-platform-release/global/images"
    newest = stage.rest.session.get(f"{images}/family/common-cu129-ubuntu-2404-nvidia-580").json()
    assert stage.rest.session.get(f"{images}/{newest['name']}").json() == newest
    assert stage.rest.session.get(f"{images}/nothing").status_code == 404
    assert stage.rest.session.get(f"{images}/family/nothing").status_code == 404
    assert stage.rest.session.get(f"{base}/deeplearning-platform-release/zones").status_code == 404


def test_operations_are_found_by_name_in_their_own_zone(stage: Stage) -> None:
    operation = stage.rest.insert()
    assert stage.rest.operation(operation["name"])["id"] == operation["id"]
    assert stage.rest.call("GET", f"/zones/us-east4-a/operations/{operation['name']}")[0] == 404
    assert stage.rest.call("GET", f"/zones/{ZONE}/operations/nothing")[0] == 404
    assert stage.rest.call("POST", f"/zones/{ZONE}/operations/nothing/wait")[0] == 404
