"""Which objects a machine's account reaches."""

from __future__ import annotations

import re

import pytest

from orchestrator.core.setup.plan import plan_setup
from orchestrator.core.setup.steps import GrantRole
from tests.unit.core.set_up import WANTED


class ResourceName(str):
    """A resource's name with IAM's `extract`: what stands where the template has its braces, or nothing."""

    def extract(self, template: str) -> str:
        before, _, rest = template.partition("{")
        after = rest.partition("}")[2]
        if before not in self or after not in self.partition(before)[2]:
            return ""
        tail = self.partition(before)[2]
        return tail.partition(after)[0] if after else tail


def allowed(name: str, permission: str, *, bucket: str = "my-bench") -> bool:
    """Whether the machine's account may do that with an object, by the expressions that are granted: evaluated here as
    the Common Expression Language has it, for the few forms that they use."""
    roles = {
        "roles/storage.objectUser": {"create", "get", "list", "delete"},
        "roles/storage.objectViewer": {"get", "list"},
    }
    of_bucket = permission == "list"  # Cloud Storage asks for it on the bucket itself
    resource = {
        "type": "storage.googleapis.com/Bucket" if of_bucket else "storage.googleapis.com/Object",
        "name": f"projects/_/buckets/{bucket}" + ("" if of_bucket else f"/objects/{name}"),
    }
    for step in plan_setup(WANTED):
        if not isinstance(step, GrantRole) or step.on != "bucket" or not step.member.startswith("serviceAccount:"):
            continue
        assert step.condition is not None, "nothing on the bucket without a condition"
        python = step.condition.expression.replace("&&", " and ").replace("||", " or ")
        python = re.sub(r"!(?!=)", " not ", python).replace("startsWith", "startswith").replace("endsWith", "endswith")
        python = python.replace("resource.type", "kind").replace("resource.name", "name")
        held = eval(python, {"__builtins__": {}}, {"kind": resource["type"], "name": ResourceName(resource["name"])})
        if held and permission in roles[step.role]:
            return True
    return False


EVENTS = "runs/20261121-040506-l4-7f3a/events/"


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("runs/20261121-040506-l4-7f3a/events/x.json", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/cases/a.csv", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-vm-1-0a1b2c3d-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-boot-1-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-client-0a1b2c-000001-machine_taken.json", {"list"}),
        ("runs/20261121-040506-l4-7f3a/cases/client-side.csv", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/plan.json", {"list"}),
        ("machines/bench-20261121-040506-l4-7f3a-1.json", {"create", "get", "delete", "list"}),
        ("payloads/ab.tar.gz", {"get", "list"}),
        ("ledger/ledger.json", {"list"}),
        ("index/20261121-040506-l4-7f3a.json", {"list"}),
        ("hosts/host-box-123456.json", {"list"}),
        ("baselines/main.json", {"list"}),
        ("fleets/fleet-20261121-040506-7f3a/control.json", {"list"}),
        ("placement/g2-standard-4.json", {"list"}),
        ("xruns/a", {"list"}),
    ],
)
def test_a_machines_account_reaches_its_runs_and_slots_and_no_money(name: str, permissions: set[str]) -> None:
    assert {one for one in ("create", "get", "delete", "list") if allowed(name, one)} == permissions


def test_a_machines_account_reaches_no_other_bucket() -> None:
    assert not any(allowed("runs/a/cases/x.csv", one, bucket="my-bench-2") for one in ("create", "get", "delete"))
