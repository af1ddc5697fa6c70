"""`bench init` where something else answers in Google's place: an error of ours or none, and what others have stays."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import googleapiclient
import pytest

from orchestrator.adapters.google_auth import Bearer
from orchestrator.adapters.rest import Rest, endpoints
from orchestrator.adapters.setup import Setup
from orchestrator.core.errors import BenchError
from orchestrator.core.rest import RestRequest
from orchestrator.core.rest_form import KINDS, misshapen
from orchestrator.core.setup.calls import read_policy
from orchestrator.core.setup.plan import LAUNCHER_ROLE, SetupRequest, custom_role, plan_setup, policy_grants
from orchestrator.embedded.server import EmbeddedCloud
from tests.integration.cli.test_init import ADA, keeper
from tests.support.mangled import WHOLE, Mangler
from tests.support.scripted_server import scripted_server

BOB = "user:bob@example.com"
PROJECT, BUCKET = "bench-embedded", "our-bucket"
OWNERS = {"project": PROJECT, "bucket": BUCKET}
KEPT = {"action": {"type": "Delete"}, "condition": {"age": 3650}}
MOST = 40
"""More requests than a set-up sends."""


class Site:
    """A project that Bob has set up for himself and has changed since, and a set-up for Ada through a mangler."""

    def __init__(self, home: Path, at: int, how: str | int) -> None:
        self.cloud = EmbeddedCloud(home / "cloud").__enter__()
        self.mangler = Mangler(self.cloud.compute_url, self.cloud.storage_url, at, how)
        self.direct = self.rest(self.cloud.compute_url, self.cloud.storage_url)
        self.settings = home / "settings.yaml"
        bobs = SetupRequest(PROJECT, BUCKET, launcher=BOB)
        made = Setup(
            self.direct, Bearer(self.cloud.token), home / "bobs.yaml", keeper(), storage=self.cloud.storage_url
        )
        for step in plan_setup(bobs, made.survey(bobs)):
            made.take(step)
        bucket = {"lifecycle": {"rule": [KEPT]}, "iamConfiguration": {"publicAccessPrevention": "inherited"}}
        assert self.direct.ask(RestRequest("storage", "PATCH", f"/storage/v1/b/{BUCKET}", body=bucket)).good

    def rest(self, compute: str, storage: str) -> Rest:
        where = endpoints(compute, storage)
        return Rest(Bearer(self.cloud.token), where, changes=True, sleep=lambda _: None)

    def adas(self) -> None:
        """Raises what a set-up raises."""
        wanted = SetupRequest(PROJECT, BUCKET, launcher=ADA)
        with scripted_server(self.mangler) as server:
            rest = self.rest(server.url, server.url)
            made = Setup(rest, Bearer(self.cloud.token), self.settings, keeper(), storage=server.url)
            try:
                for step in plan_setup(wanted, made.survey(wanted)):
                    made.take(step)
            finally:
                rest.close()

    def lost(self) -> list[str]:
        """What Bob had and has no more."""
        policies = {kind: self.direct.ask(read_policy(kind, owner)) for kind, owner in OWNERS.items()}
        lost = [
            f"his grant on the {kind}"
            for kind, answer in policies.items()
            if not any(grant.member == BOB for grant in policy_grants(answer.document))
        ]
        found = self.direct.ask(RestRequest("storage", "GET", f"/storage/v1/b/{BUCKET}")).document
        rules = found.get("lifecycle", {}).get("rule", [])
        lost += [] if any(rule["condition"] == KEPT["condition"] for rule in rules) else ["his rule of the bucket"]
        role = self.direct.ask(RestRequest("iam", "GET", f"/v1/{custom_role(LAUNCHER_ROLE, PROJECT)}"))
        return lost + ([] if role.good else ["his role"])


def hows(at: int) -> list[str | int]:
    chance = random.Random(at)
    return [chance.choice(list(WHOLE)), "an empty object", *(chance.randrange(10**6) for _ in range(2))]


@pytest.mark.parametrize("at", range(1, MOST))
def test_no_answer_is_too_strange_for_a_setup_and_none_takes_from_others(tmp_path: Path, at: int) -> None:
    for number, how in enumerate(hows(at)):
        site = Site(tmp_path / str(number), at, how)
        hint = "none is needed"
        try:
            site.adas()
        except BenchError as error:
            hint = error.hint
        except Exception as exc:
            raise AssertionError(site.mangler.done) from exc
        finally:
            lost = site.lost()
            site.direct.close()
            site.cloud.__exit__(None, None, None)
        assert hint, site.mangler.done
        assert lost == [] or site.mangler.a_lie, site.mangler.done
        if site.mangler.seen < at:
            return  # a set-up sends fewer requests


@pytest.mark.parametrize(
    ("document", "odd"),
    [
        ({}, ""),
        ({"items": [], "name": "x", "quotas": [{"metric": "A", "limit": 5.0, "usage": 0}]}, ""),
        ({"items": {"zones/a": {"instances": [{"name": "x"}]}}}, ""),
        ({"deprecated": {"state": "OBSOLETE", "deprecated": "2026-01-01"}}, ""),
        (
            {
                "name": "default",
                "subnetworks": ["https://www.googleapis.com/compute/v1/projects/p/regions/r/subnetworks/s"],
            },
            "",
        ),
        ({"services": [{"name": "x", "state": "ENABLED", "config": {"usage": {"requirements": []}, "quota": {}}}]}, ""),
        ({"items": {"regions/r": {"subnetworks": [{"name": "s", "network": "n"}]}}}, ""),
        ({"items": {"regions/r": {"subnetworks": [5]}}}, "subnetworks"),
        ({"items": 5}, "items"),
        ({"items": [None]}, "items"),
        ({"quotas": [{"limit": float("inf")}]}, "quotas"),
        ({"quotas": [{"limit": True}]}, "quotas"),
        ({"a": [{"b": {"members": ["x", 5]}}]}, "members"),
        ({"bindings": None}, "bindings"),
    ],
)
def test_what_has_not_the_form_of_an_answer_is_told_by_its_key(document: dict[str, Any], odd: str) -> None:
    assert misshapen(document) == odd


SERVICES = ("compute.v1", "storage.v1", "iam.v1", "cloudresourcemanager.v3", "serviceusage.v1", "cloudbilling.v1")
NEVER_ASKED_FOR = {
    "NetworkProfile.location", "PacketMirroring.network", "Tags.items", "VpnGatewayStatusVpnConnection.state",
    "CreateRoleRequest.role", "QueryTestablePermissionsResponse.permissions", "EnableRule.services",
    "GoogleApiServiceusageV2alphaEnableRule.services", "GoogleApiServiceusageV2betaEnableRule.services",
}  # fmt: skip
"""Resources in which a key of ours is of another kind; no command reads them."""


def test_googles_own_documents_know_each_key_of_that_kind() -> None:
    documents = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
    schemas = [json.loads((documents / f"{name}.json").read_text())["schemas"] for name in SERVICES]
    odd, seen = set(), set()
    for name, schema in ((name, schema) for group in schemas for name, schema in group.items()):
        for key, kind in properties(schema):
            if key in KINDS:
                seen.add(key)
                odd |= set() if KINDS[key](of_kind(kind)) else {f"{name}.{key}"}
    assert odd == NEVER_ASKED_FOR
    assert seen == set(KINDS)


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of a resource and of what is described within it."""
    for key, kind in schema.get("properties", {}).items():
        yield key, kind
        yield from properties(kind)
        yield from properties(kind.get("items", {}))


def of_kind(kind: dict[str, Any]) -> Any:
    """A value of the kind that a document of Google's gives a property."""
    if "$ref" in kind:
        return {}
    plain = {"boolean": True, "number": 1.0, "integer": 1, "object": {}}
    return [of_kind(kind["items"])] if kind["type"] == "array" else plain.get(kind["type"], "x")
