"""What is checked of a machine's account and network."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.doctor import machine
from orchestrator.core.doctor.verdicts import CheckLevel
from orchestrator.core.rest import RestAnswer
from orchestrator.core.setup.plan import OWN_MACHINES, machine_grants, older_own_objects
from orchestrator.core.setup.steps import GrantOnBucket, GrantOnProject, MakeAccount, MakeRole
from tests.support.conversations import good, lead, refusal
from tests.unit.core.doctored import EMAIL, SUBJECT, verdict

NETWORK = "https://www.googleapis.com/compute/v1/projects/proj-1/global/networks/default"


def test_a_machine_without_an_account_of_its_own_may_do_too_much() -> None:
    bare = replace(SUBJECT, service_account=None)
    assert verdict(machine.check_account, {}, bare).level is CheckLevel.WARN
    assert verdict(machine.check_account, {}, replace(bare, embedded=True)).level is CheckLevel.OK
    assert "default" in verdict(machine.machine_rights, {}, bare).why
    assert verdict(machine.machine_rights, {}, replace(bare, embedded=True)).level is CheckLevel.OK


def test_an_account_is_there_enabled_and_may_be_used() -> None:
    assert verdict(machine.check_account, {}).steps == (MakeAccount("proj-1", "bench-vm", "machines of bench"),)
    theirs = replace(SUBJECT, service_account="vm@other.iam.gserviceaccount.com")
    foreign = verdict(machine.check_account, {}, theirs)
    assert (foreign.level, foreign.steps) == (CheckLevel.FAIL, ())
    assert lead(machine.check_account, theirs, reply={}).asked[0].path.startswith("/v1/projects/other/")
    default = replace(SUBJECT, service_account="12-compute@developer.gserviceaccount.com")
    assert lead(machine.check_account, default, reply={}).asked[0].path.startswith("/v1/projects/proj-1/")
    assert verdict(machine.check_account, lambda _: refusal(403)).level is CheckLevel.WARN
    tested = {":testIam": refusal(403), "/serviceAccounts/": good()}
    assert verdict(machine.check_account, tested).level is CheckLevel.WARN
    unusable = verdict(machine.check_account, {":testIam": good(), "/serviceAccounts/": good()})
    assert (unusable.level, len(unusable.steps)) == (CheckLevel.FAIL, 1)
    nobody = verdict(machine.check_account, {":testIam": good(), "/serviceAccounts/": good()}, replace(SUBJECT, who=""))
    assert (nobody.steps, "--member=user:YOUR_ADDRESS" in nobody.remedy) == ((), True)


def policy(*roles: str, condition: bool = False) -> RestAnswer:
    where = {"condition": {"title": "t", "expression": OWN_MACHINES.expression}} if condition else {}
    return good(bindings=[{"role": role, "members": [f"serviceAccount:{EMAIL}"], **where} for role in roles])


CAREFUL_POLICY = good(
    bindings=[
        {"role": one.role, "members": [one.member], "condition": {"expression": one.condition.expression}}
        for one in machine_grants("my-bench", f"serviceAccount:{EMAIL}")
        if one.condition is not None
    ]
)
OLDER_POLICY = good(
    bindings=[
        {
            "role": "roles/storage.objectUser",
            "members": [f"serviceAccount:{EMAIL}"],
            "condition": {"expression": older_own_objects("my-bench").expression},
        }
    ]
)
OWN_ROLE = "projects/proj-1/roles/benchMachine"


@pytest.mark.parametrize(
    ("on_bucket", "on_project", "level", "steps"),
    [
        (CAREFUL_POLICY, policy(OWN_ROLE, "roles/batch.agentReporter"), CheckLevel.OK, ()),
        (CAREFUL_POLICY, policy(OWN_ROLE, condition=True), CheckLevel.WARN, (GrantOnProject,)),
        (policy("roles/storage.objectUser"), policy(OWN_ROLE, condition=True), CheckLevel.WARN, ()),
        (OLDER_POLICY, policy(OWN_ROLE, condition=True), CheckLevel.WARN, ()),
        (policy(), policy("roles/editor"), CheckLevel.OK, ()),
        (policy(), policy(OWN_ROLE), CheckLevel.FAIL, (GrantOnBucket, GrantOnBucket)),
        (
            policy("roles/storage.objectUser", condition=True),
            policy(OWN_ROLE),
            CheckLevel.FAIL,
            (GrantOnBucket, GrantOnBucket),
        ),
        (policy("roles/storage.objectUser"), policy(), CheckLevel.WARN, (MakeRole, GrantOnProject)),
        (CAREFUL_POLICY, policy("projects/proj-1/roles/mine"), CheckLevel.OK, ()),
        (refusal(403), policy(OWN_ROLE), CheckLevel.WARN, ()),
        (policy("roles/storage.objectUser"), refusal(403), CheckLevel.WARN, ()),
    ],
)
def test_what_a_machine_may_do_is_read_from_the_policies(
    on_bucket: RestAnswer, on_project: RestAnswer, level: CheckLevel, steps: tuple[type, ...]
) -> None:
    found = verdict(machine.machine_rights, {"/b/": on_bucket, "/v3/": on_project})
    assert (found.level, tuple(type(step) for step in found.steps)) == (level, steps)


def test_an_account_that_may_write_as_a_client_is_named_with_its_removal() -> None:
    found = verdict(machine.machine_rights, {"/b/": OLDER_POLICY, "/v3/": policy(OWN_ROLE)})
    assert "under a client's name" in found.why
    init, remove = found.remedy.split(" && ", 1)
    assert init.startswith("bench init --project ")
    words = shlex.split(remove)
    assert words[:4] == ["gcloud", "storage", "buckets", "remove-iam-policy-binding"]
    condition = f"expression={older_own_objects('my-bench').expression},title=runs and machines only"
    assert words[-1] == f"--condition={condition}"


def scoped(kind: str, *regions: str, **more: Any) -> RestAnswer:
    items = {f"regions/{name}": {kind: [{"name": "default", "network": NETWORK, **more}]} for name in regions}
    return good(items=items | {"regions/other": {"warning": {}}})


CLOSED = replace(
    SUBJECT, zones=("us-central1-a", "us-east4-a", "us-west1-a", "us-west4-a", "us-east1-b"), external_ip=False
)
REGIONS = CLOSED.regions


def test_a_network_must_have_a_subnet_where_machines_are_asked_for() -> None:
    here_ = {"global/networks": good(), "subnetworks": scoped("subnetworks", "us-central1")}
    assert "no subnet in 4 of 5" in verdict(machine.check_network, here_, replace(CLOSED, external_ip=True)).why
    nowhere = {"global/networks": good(), "subnetworks": scoped("subnetworks", "asia-east1")}
    assert "subnets create" in verdict(machine.check_network, nowhere, CLOSED).remedy
    legacy = {"global/networks": good(IPv4Range="10.0.0.0/8"), "subnetworks": good()}
    assert verdict(machine.check_network, legacy, replace(CLOSED, external_ip=True)).level is CheckLevel.OK
    assert (
        verdict(machine.check_network, {"global/networks": good(), "subnetworks": refusal(403)}).level
        is CheckLevel.WARN
    )


def test_a_shared_network_is_looked_for_in_the_project_that_owns_it() -> None:
    shared = replace(SUBJECT, network="projects/host-1/global/networks/common")
    assert (
        lead(machine.check_network, shared, reply={}).asked[0].path
        == "/compute/v1/projects/host-1/global/networks/common"
    )
    assert (
        lead(machine.check_network, replace(SUBJECT, network="common"), reply={})
        .asked[0]
        .path.endswith("proj-1/global/networks/common")
    )


def test_without_an_address_a_machine_needs_a_way_to_google_and_one_to_the_internet() -> None:
    base = {"global/networks": good(), "subnetworks": scoped("subnetworks", *REGIONS)}
    cut = verdict(machine.check_network, base | {"routers": scoped("routers", nats=[])}, CLOSED)
    assert (cut.level, "and 2 more" in cut.why) == (CheckLevel.FAIL, True)
    open_ = base | {"routers": scoped("routers", *REGIONS, nats=[{"name": "nat"}])}
    assert verdict(machine.check_network, open_, CLOSED).level is CheckLevel.OK
    private = {
        "global/networks": good(),
        "subnetworks": scoped("subnetworks", *REGIONS, privateIpGoogleAccess=True),
        "routers": good(),
    }
    assert verdict(machine.check_network, private, CLOSED).level is CheckLevel.WARN
    assert verdict(machine.check_network, private, replace(CLOSED, allow_install=False)).level is CheckLevel.OK
    assert verdict(machine.check_network, private | {"routers": refusal(403)}, CLOSED).level is CheckLevel.WARN
