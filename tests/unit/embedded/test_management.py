"""What stands around a project: APIs, accounts, roles, policies, buckets, as Google's own documents describe them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.embedded.weather import CONDITIONS, BadWeather
from tests.support import keyed as requests
from tests.support.discovery import Recorder
from tests.support.simulated_timeline import SimulatedTimeline
from tests.unit.embedded.builders import ZONE, insert_body

EMAIL = "bench-vm@bench-embedded.iam.gserviceaccount.com"


@dataclass
class Owner:
    """Somebody who sends plain requests, every one of which Google's documents judge."""

    cloud: EmbeddedCloud
    recorder: Recorder
    session: requests.Session = field(default_factory=requests.Session)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        base = self.cloud.storage_url if path.startswith("/storage") else self.cloud.compute_url
        reply = self.session.request(method, base + path, json=body, params=query, timeout=600)
        return reply.status_code, reply.json() if reply.content else None

    def get(self, path: str, **query: Any) -> Any:
        status, document = self.ask("GET", path, **query)
        assert status == 200, document
        return document

    def post(self, path: str, body: Any) -> Any:
        status, document = self.ask("POST", path, body)
        assert status == 200, document
        return document


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    recorder = Recorder()
    with EmbeddedCloud(tmp_path / "cloud", timeline=SimulatedTimeline(), observer=recorder) as cloud:
        requests.know(cloud)
        made = Owner(cloud, recorder)
        made.session.trust_env = False
        yield made
        made.session.close()
        recorder.assert_all_valid()


P = "/v1/projects/bench-embedded"
P3 = "/v3/projects/bench-embedded"
C = "/compute/v1/projects/bench-embedded"
B = "/storage/v1/b/bench-embedded"


def test_an_api_is_off_until_it_is_enabled_and_the_operation_says_when(owner: Owner) -> None:
    names = [f"projects/bench-embedded/services/{api}.googleapis.com" for api in ("compute", "pubsub")]
    listed = owner.get(f"{P}/services:batchGet", names=names)["services"]
    assert [entry["state"] for entry in listed] == ["ENABLED", "DISABLED"]
    begun = owner.post(f"{P}/services:batchEnable", {"serviceIds": ["pubsub.googleapis.com"]})
    assert not begun.get("done")
    assert owner.get(f"/v1/{begun['name']}")["done"]
    assert owner.get(f"{P}/services:batchGet", names=names[1])["services"][0]["state"] == "ENABLED"
    assert owner.ask("GET", "/v1/operations/none")[0] == 404
    assert owner.ask("POST", f"{P}/services:batchEnable", {"serviceIds": []})[0] == 400
    assert owner.ask("GET", f"{P}/services:batchGet")[0] == 400


def test_accounts_and_roles_are_made_once_and_found_again(owner: Owner) -> None:
    assert owner.ask("GET", f"{P}/serviceAccounts/{EMAIL}")[0] == 404
    body = {"accountId": "bench-vm", "serviceAccount": {"displayName": "machines"}}
    assert owner.post(f"{P}/serviceAccounts", body)["email"] == EMAIL
    assert owner.get(f"/v1/projects/-/serviceAccounts/{EMAIL}")["displayName"] == "machines"
    assert owner.ask("POST", f"{P}/serviceAccounts", body)[0] == 409
    assert owner.ask("POST", f"{P}/serviceAccounts", {"accountId": "no"})[0] == 400
    role = {"roleId": "benchMachine", "role": {"title": "t", "includedPermissions": ["compute.instances.delete"]}}
    assert owner.post(f"{P}/roles", role)["stage"] == "GA"
    assert owner.ask("POST", f"{P}/roles", role)[0] == 409
    assert owner.ask("POST", f"{P}/roles", {"roleId": "-"})[0] == 400
    new = {"title": "new", "stage": "BETA"}
    status, changed = owner.ask("PATCH", f"{P}/roles/benchMachine", new, updateMask="title")
    assert (status, changed["title"], changed["stage"]) == (200, "new", "GA")
    assert owner.get(f"{P}/roles/benchMachine")["includedPermissions"] == ["compute.instances.delete"]
    assert owner.ask("GET", f"{P}/roles/other")[0] == 404


def test_a_policy_is_changed_only_by_who_has_read_it_and_knows_only_who_exists(owner: Owner) -> None:
    seen = owner.post(f"{P3}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}})
    binding: dict[str, Any] = {"role": "roles/viewer", "members": ["user:ada@example.com"]}
    owner.post(f"{P3}:setIamPolicy", {"policy": seen | {"bindings": [binding]}})
    assert owner.ask("POST", f"{P3}:setIamPolicy", {"policy": seen | {"bindings": []}})[0] == 409
    assert owner.post(f"{P3}:getIamPolicy", {})["bindings"] == [binding]
    for wrong in (
        binding | {"members": [f"serviceAccount:{EMAIL}"]},
        binding | {"members": ["ada"]},
        binding | {"role": "viewer"},
        binding | {"role": "projects/bench-embedded/roles/none"},
        binding | {"condition": {"title": "t", "expression": "true"}},
    ):
        assert owner.ask("POST", f"{P3}:setIamPolicy", {"policy": {"bindings": [wrong]}})[0] == 400
    assert owner.ask("POST", f"{P3}:setIamPolicy", {"policy": []})[0] == 400
    owner.post(f"{P}/serviceAccounts", {"accountId": "bench-vm"})
    on_account = f"{P}/serviceAccounts/{EMAIL}"
    owner.post(f"{on_account}:setIamPolicy", {"policy": {"bindings": [binding]}})
    status, read = owner.ask("POST", f"{on_account}:getIamPolicy")
    assert (status, read["bindings"]) == (200, [binding])
    right = {"permissions": ["iam.serviceAccounts.actAs"]}
    assert owner.post(f"{on_account}:testIamPermissions", right) == right


def test_a_bucket_keeps_its_place_its_settings_and_its_policy(owner: Owner) -> None:
    wished = {"name": "some-bucket", "location": "europe-west4", "lifecycle": {"rule": []}}
    status, made = owner.ask("POST", "/storage/v1/b", wished, project="bench-embedded")
    assert (status, made["location"], made["locationType"]) == (200, "EUROPE-WEST4", "region")
    assert owner.ask("POST", "/storage/v1/b", wished, project="bench-embedded")[0] == 409
    assert owner.ask("POST", "/storage/v1/b", {"name": "-"}, project="bench-embedded")[0] == 400
    uniform = {"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}}}
    status, changed = owner.ask("PATCH", "/storage/v1/b/some-bucket", uniform)
    assert (status, changed["metageneration"], changed["location"]) == (200, "2", "EUROPE-WEST4")
    assert owner.get("/storage/v1/b/some-bucket")["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
    policy = owner.get(f"{B}/iam")
    grown = policy | {"bindings": [{"role": "roles/storage.objectUser", "members": ["user:ada@example.com"]}]}
    assert owner.ask("PUT", f"{B}/iam", grown)[0] == 200
    assert owner.ask("PUT", f"{B}/iam", grown)[0] == 412
    assert owner.get(f"{B}/iam/testPermissions", permissions=["storage.objects.get"])["permissions"]
    assert owner.ask("DELETE", "/storage/v1/b/some-bucket")[0] == 204
    assert owner.ask("GET", "/storage/v1/b/some-bucket")[0] == 404
    assert owner.ask("DELETE", "/storage/v1/b/some-bucket")[0] == 404


def test_subnets_routers_and_images_are_listed(owner: Owner) -> None:
    subnets = owner.get(f"{C}/aggregated/subnetworks")["items"]["regions/us-central1"]["subnetworks"]
    assert subnets[0]["privateIpGoogleAccess"]
    assert owner.get(f"{C}/aggregated/routers")["items"]["regions/us-central1"]["routers"][0]["nats"]
    images = "/compute/v1/projects/ubuntu-os-cloud/global/images"
    assert [entry["family"] for entry in owner.get(images)["items"]] == ["ubuntu-2404-lts-amd64"]
    assert "items" not in owner.get(images, filter='family="other"')


# --- conditions -----------------------------------------------------------------------------------------------------


def test_a_condition_holds_until_the_weather_is_replaced(owner: Owner) -> None:
    weather = owner.cloud.weather
    weather.add({"fault": "permission_missing", "permission": "compute.regions.list"})
    assert len(weather.pending) == 1
    for _ in range(3):
        status, refused = owner.ask("GET", f"{C}/regions")
        assert (status, "compute.regions.list" in refused["error"]["message"]) == (403, True)
    assert weather.fired("permission_missing") == 3
    assert weather.pending == ()
    assert owner.post(f"{P3}:testIamPermissions", {"permissions": ["compute.regions.list"]}) == {}
    weather.replace({"faults": []})
    assert owner.ask("GET", f"{C}/regions")[0] == 200


def test_a_disabled_api_refuses_until_it_is_enabled(owner: Owner) -> None:
    owner.cloud.weather.add({"fault": "api_disabled", "api": "compute.googleapis.com"})
    status, refused = owner.ask("GET", C)
    assert (status, refused["error"]["errors"][0]["reason"]) == (403, "accessNotConfigured")
    owner.post(f"{P}/services:batchEnable", {"serviceIds": ["compute.googleapis.com"]})
    assert owner.ask("GET", C)[0] == 200
    owner.cloud.weather.add({"fault": "api_disabled", "api": "storage.googleapis.com"})
    assert owner.ask("GET", B)[0] == 403
    owner.cloud.weather.add({"fault": "api_disabled", "api": "iam.googleapis.com"})
    assert owner.ask("GET", f"{P}/roles/r")[1]["error"]["details"][0]["reason"] == "SERVICE_DISABLED"


def test_a_quota_that_is_short_is_listed_so_and_counts_at_an_insert(owner: Owner) -> None:
    owner.cloud.weather.add({"fault": "quota_limit", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "region": "us-central1"})
    owner.cloud.weather.add({"fault": "quota_limit", "metric": "NVIDIA_L4_GPUS", "region": "us-central1"})
    region = {entry["metric"]: entry["limit"] for entry in owner.get(f"{C}/regions/us-central1")["quotas"]}
    assert region["PREEMPTIBLE_NVIDIA_L4_GPUS"] == 0
    operation = owner.post(f"{C}/zones/{ZONE}/instances", insert_body())
    owner.cloud.timeline.advance(60)  # type: ignore[attr-defined]
    failed = owner.get(f"{C}/zones/{ZONE}/operations/{operation['name']}")
    assert failed["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ({"fault": "billing_off"}, 403),
        ({"fault": "network_missing"}, 404),
        ({"fault": "service_account_missing"}, 400),
        ({"fault": "service_account_disabled"}, 400),
    ],
)
def test_what_a_preflight_would_have_seen_refuses_the_insert_too(
    owner: Owner, condition: dict[str, Any], status: int
) -> None:
    owner.cloud.weather.add(condition)
    assert owner.ask("POST", f"{C}/zones/{ZONE}/instances", insert_body())[0] == status


def test_images_are_renamed_or_retired_and_the_family_no_longer_leads_to_them(owner: Owner) -> None:
    base = "/compute/v1/projects/ubuntu-os-cloud/global/images"
    owner.cloud.weather.add({"fault": "image_renamed", "family": "ubuntu-2404-lts-amd64", "to": "ubuntu-lts"})
    assert owner.ask("GET", f"{base}/family/ubuntu-2404-lts-amd64")[0] == 404
    assert owner.get(f"{base}/family/ubuntu-lts")["family"] == "ubuntu-lts"
    retires = {"fault": "image_deprecated", "family": "ubuntu-2404-lts-amd64", "replacement": "ubuntu-2604"}
    owner.cloud.weather.replace({"faults": [retires]})
    assert owner.ask("GET", f"{base}/family/ubuntu-2404-lts-amd64")[0] == 404
    (retired,) = owner.get(base)["items"]
    assert retired["deprecated"]["state"] == "DEPRECATED"
    assert retired["deprecated"]["replacement"].endswith("/ubuntu-2604")


def test_a_bucket_can_be_missing_or_elsewhere(owner: Owner) -> None:
    owner.cloud.weather.add({"fault": "bucket_elsewhere", "location": "asia-south1"})
    assert owner.get(B)["location"] == "ASIA-SOUTH1"
    owner.cloud.weather.replace({"faults": [{"fault": "bucket_missing"}]})
    assert owner.ask("GET", B)[0] == 404
    assert owner.ask("GET", f"{B}/o")[0] == 404
    assert owner.ask("POST", "/storage/v1/b", {"name": "bench-embedded"}, project="bench-embedded")[0] == 200
    assert owner.get(f"{B}/o")["kind"] == "storage#objects"


def test_a_project_can_be_missing_and_its_network_closed(owner: Owner) -> None:
    owner.cloud.weather.add(*({"fault": kind} for kind in ("network_missing", "no_nat", "no_private_access")))
    assert owner.ask("GET", f"{C}/global/networks/default")[0] == 404
    assert "warning" in owner.get(f"{C}/aggregated/routers")["items"]["regions/us-central1"]
    subnet = owner.get(f"{C}/aggregated/subnetworks")["items"]["regions/us-east4"]["subnetworks"][0]
    assert not subnet["privateIpGoogleAccess"]
    owner.cloud.weather.add({"fault": "project_missing"})
    assert owner.ask("GET", P3)[0] == 403
    assert owner.ask("GET", C)[0] == 404


def test_a_clock_that_is_wrong_shows_in_the_date_of_every_answer(owner: Owner) -> None:
    owner.cloud.weather.add({"fault": "clock_skew", "seconds": -90})
    reply = owner.session.get(f"{owner.cloud.compute_url}{C}", timeout=600)
    behind = parsedate_to_datetime(reply.headers["Date"]) - owner.cloud.timeline.now()
    assert -91 <= behind.total_seconds() <= -89


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"fault": "api_disabled"}, "needs api"),
        ({"fault": "quota_limit", "metric": "CPUS", "limit": "many"}, "limit must be a number"),
        ({"fault": "image_deprecated", "family": "f", "state": "OLD"}, "state must be"),
        ({"fault": "no_nat", "zone": "z"}, "takes region"),
        ({"fault": "api_propagation", "minutes": "soon"}, "minutes"),
        ({"fault": "api_propagation", "minutes": -1}, "minutes"),
        ({"fault": "api_settling", "api": "a", "until": "tomorrow"}, "until"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(owner: Owner, condition: dict[str, Any], says: str) -> None:
    with pytest.raises(BadWeather, match=says):
        owner.cloud.weather.add(condition)
    assert owner.ask("GET", C)[0] == 200


def test_what_these_apis_do_not_have_is_said(owner: Owner) -> None:
    owner.recorder.problems.clear()
    assert owner.ask("DELETE", P3)[0] == 501
    assert owner.ask("POST", f"{P3}:testIamPermissions", [1])[0] == 400
    assert owner.ask("DELETE", f"{B}/iam")[0] == 501
    owner.recorder.problems.clear()  # they are no methods, which is the point
    assert owner.get(f"{P}/billingInfo")["billingEnabled"]
    assert set(CONDITIONS) >= {"api_disabled", "no_nat"}


def test_a_newly_enabled_api_refuses_for_as_long_as_the_weather_says(owner: Owner) -> None:
    owner.cloud.weather.add({"fault": "api_disabled", "api": "iam.googleapis.com"})
    owner.cloud.weather.add({"fault": "api_propagation", "minutes": 3})
    enable = f"{P}/services:batchEnable"
    owner.post(enable, {"serviceIds": ["iam.googleapis.com", "compute.googleapis.com"]})
    account = f"{P}/serviceAccounts/{EMAIL}"
    timeline = owner.cloud.timeline
    assert isinstance(timeline, SimulatedTimeline)
    for minutes, status in ((0, 403), (2, 403), (2, 404)):
        timeline.advance(minutes * 60)
        said, answer = owner.ask("GET", account)
        assert said == status
        listed = owner.get(f"{P}/services:batchGet", names=[f"{P[4:]}/services/iam.googleapis.com"])
        assert listed["services"][0]["state"] == "ENABLED"
        if status == 403:
            assert answer["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
    assert owner.ask("GET", "/compute/v1/projects/bench-embedded")[0] == 200


def test_the_policy_is_one_whichever_version_of_the_resource_manager_is_asked(owner: Owner) -> None:
    policy = owner.post(f"{P}:getIamPolicy", {})
    owner.post(f"{P}/roles", {"roleId": "benchVm", "role": {"includedPermissions": ["compute.instances.delete"]}})
    bindings = [{"role": "projects/bench-embedded/roles/benchVm", "members": ["user:ada@example.com"]}]
    owner.post(f"{P}:setIamPolicy", {"policy": {"etag": policy["etag"], "bindings": bindings}})
    assert owner.post(f"{P3}:getIamPolicy", {})["bindings"] == bindings
    assert owner.get(P)["projectId"] == "bench-embedded"
    assert owner.post(f"{P}:testIamPermissions", {"permissions": ["a.b.c"]}) == {"permissions": ["a.b.c"]}


def test_permissions_that_a_role_may_hold_are_listed_page_by_page(owner: Owner) -> None:
    body = {"fullResourceName": "//cloudresourcemanager.googleapis.com/projects/bench-embedded", "pageSize": 20}
    found: list[str] = []
    while True:
        answer = owner.post("/v1/permissions:queryTestablePermissions", body)
        found += [entry["name"] for entry in answer["permissions"]]
        if "nextPageToken" not in answer:
            break
        body["pageToken"] = answer["nextPageToken"]
    assert len(found) == len(set(found)) > 40
    assert {"compute.instances.delete", "storage.objects.create", "compute.subnetworks.use"} <= set(found)
    wrong = {"fullResourceName": "//cloudresourcemanager.googleapis.com/projects/other"}
    assert owner.ask("POST", "/v1/permissions:queryTestablePermissions", wrong)[0] == 400


def test_a_null_is_as_if_nothing_were_said(owner: Owner) -> None:
    given = {"accountId": "bench-vm", "serviceAccount": None}
    assert owner.ask("POST", f"{P}/serviceAccounts", given)[0] == 200
    owner.recorder.problems.clear()  # the document does not speak of nulls
