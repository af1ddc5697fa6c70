"""The checks of what a machine needs: a service account, the account's rights, and a way to the internet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, Final

from orchestrator.core.doctor.verdicts import (
    CheckVerdict,
    Subject,
    error_verdict,
    fail_verdict,
    pass_verdict,
    warn_verdict,
)
from orchestrator.core.permissions import (
    ACCOUNT,
    ACCOUNT_USER,
    BATCH_REPORTER,
    MACHINE,
    WRITING_ROLES,
    permission_names,
)
from orchestrator.core.rest import Api, RestAnswer, RestRequest, list_all_pages
from orchestrator.core.setup.calls import account_of, read_policy
from orchestrator.core.setup.plan import (
    ACCOUNT_ID,
    MACHINE_ROLE,
    OWN_MACHINES,
    Grant,
    custom_role,
    machine_grants,
    older_own_objects,
    own_objects,
    policy_grants,
)
from orchestrator.core.setup.steps import GrantRole, MakeAccount, MakeRole, short_role, step_command
from orchestrator.core.text import count

DELETING_ROLES: Final = frozenset(
    {
        "roles/owner",
        "roles/editor",
        "roles/compute.admin",
        "roles/compute.instanceAdmin",
        "roles/compute.instanceAdmin.v1",
    }
)
"""Google's predefined roles that let a machine delete itself. Each allows far more than that."""
REPORTING_ROLES: Final = frozenset({BATCH_REPORTER, "roles/owner", "roles/editor"})
"""Roles with which a machine of a fleet on Batch can report the state of its task to the service."""
STORING_ROLES: Final = WRITING_ROLES | {"roles/owner", "roles/editor"}
COMPUTE: Final = "compute.googleapis.com"


def check_account(api: Api, subject: Subject) -> CheckVerdict:
    """Checks the service account that machines run as: it exists, is not disabled, and this account may start machines
    as it."""
    email = subject.service_account
    if email is None:
        if subject.embedded:
            return pass_verdict("the embedded cloud's machines need none")
        why = "none is set: machines run as the project's default account, which can usually change everything in it"
        return warn_verdict(why, subject.set_up)
    project = _project_of(email, subject.project)
    answer = api.ask(account_of(project, email))
    if answer.status == 404:
        made_by_init = email == f"{ACCOUNT_ID}@{subject.project}.iam.gserviceaccount.com"
        steps = (MakeAccount(subject.project, ACCOUNT_ID, "machines of bench"),) if made_by_init else ()
        return fail_verdict(f"there is no service account {email}", "" if steps else subject.set_up, *steps)
    if not answer.good:
        return error_verdict(answer, subject.project, "iam.googleapis.com", subject.set_up)
    if answer.document.get("disabled"):
        return fail_verdict(f"{email} is disabled", f"gcloud iam service-accounts enable {email} --project={project}")
    path = f"/v1/projects/{project}/serviceAccounts/{email}:testIamPermissions"
    tested = api.ask(RestRequest("iam", "POST", path, body={"permissions": list(permission_names(ACCOUNT))}))
    step = GrantRole("account", project, ACCOUNT_USER, subject.member, email=email)
    if not tested.good:
        return error_verdict(tested, subject.project, "iam.googleapis.com", subject.set_up)
    if set(permission_names(ACCOUNT)) - set(tested.document.get("permissions", ())):
        steps_for_member = (step,) if subject.who else ()
        return fail_verdict(
            f"this account may not start machines as {email} (iam.serviceAccounts.actAs)",
            step_command(step),
            *steps_for_member,
        )
    return pass_verdict(f"{email} exists, and machines can be started as it")


def machine_rights(api: Api, subject: Subject) -> CheckVerdict:
    """Checks from the IAM policies whether the machines' account can write to the bucket and delete its own machine."""
    email = subject.service_account
    if email is None:
        return pass_verdict(
            "those of the default account" if not subject.embedded else "the embedded cloud's machines need none"
        )
    member = f"serviceAccount:{email}"
    on_bucket = api.ask(read_policy("bucket", subject.bucket))
    on_project = api.ask(read_policy("project", subject.project))
    held = {grant for grant in _seen(on_project) if grant.member == member}
    on_objects = [grant for grant in _seen(on_bucket) if grant.member == member]
    condition = own_objects(subject.bucket).expression
    older_condition = older_own_objects(subject.bucket).expression
    older = [grant for grant in on_objects if grant.expression == older_condition and grant.role in WRITING_ROLES]
    scoped = bool(older) or any(grant.expression == condition and grant.role in WRITING_ROLES for grant in on_objects)
    wide = [grant for grant in on_objects if _may_write(grant)]
    can_write = scoped or bool(wide) or any(map(_may_write, held))
    if on_bucket.good and not can_write:
        why = f"{email} may not write to gs://{subject.bucket}, so no measurement could be stored"
        return fail_verdict(why, "", *machine_grants(subject.bucket, member))
    can_delete = any(grant.role in DELETING_ROLES or short_role(grant.role) == MACHINE_ROLE for grant in held)
    custom_roles = [grant.role for grant in held if grant.role.startswith(("projects/", "organizations/"))]
    if on_project.good and not can_delete and not custom_roles:
        role = custom_role(MACHINE_ROLE, subject.project)
        steps = (
            MakeRole(subject.project, MACHINE_ROLE, "bench: a machine deletes itself", permission_names(MACHINE)),
            GrantRole("project", subject.project, role, member, OWN_MACHINES),
        )
        return warn_verdict(
            f"{email} may not delete its own machine, so it runs and costs money until its deadline", "", *steps
        )
    if wide or older:
        return _too_much(subject, member, wide, older)
    unread = [name for name, answer in (("bucket", on_bucket), ("project", on_project)) if not answer.good]
    if unread:
        return warn_verdict(
            f"the policy of the {' and the '.join(unread)} may not be read, so this cannot be checked", subject.set_up
        )
    unknown = [role for role in custom_roles if short_role(role) != MACHINE_ROLE]
    if not unknown and not any(grant.role in REPORTING_ROLES for grant in held):
        why = f"{email} may not report to Batch: runs work, fleets on Batch do not"
        return warn_verdict(why, "", GrantRole("project", subject.project, BATCH_REPORTER, member))
    if custom_roles and not can_delete:
        return pass_verdict(f"it can write to the bucket, and has the roles {', '.join(sorted(set(custom_roles)))}")
    return pass_verdict("it can write to the bucket and delete its own machine")


def _too_much(subject: Subject, member: str, wide: Sequence[Grant], older: Sequence[Grant]) -> CheckVerdict:
    """The warning that a machine may write more than it needs, with the commands that remove the right."""
    email, remove = subject.service_account, "gcloud storage buckets remove-iam-policy-binding"
    where = f"gs://{subject.bucket} --member={member} --role={(wide or older)[0].role}"
    if wide:
        why = f"{email} may write everything in the bucket, also the ledger; it needs only runs/ and machines/"
        return warn_verdict(why, f"{subject.set_up} && {remove} {where} --condition=None")
    before = older_own_objects(subject.bucket)
    why = f"{email} may write events under a client's name; it does not need that right"
    condition = quote(f"expression={before.expression},title={before.title}")
    return warn_verdict(why, f"{subject.set_up} && {remove} {where} --condition={condition}")


def _may_write(grant: Grant) -> bool:
    return grant.role in STORING_ROLES and not grant.expression


def _seen(answer: RestAnswer) -> frozenset[Grant]:
    return policy_grants(answer.document) if answer.good else frozenset()


def _project_of(email: str, fallback: str) -> str:
    """The project in a service account's address. Addresses of Google's own accounts name no project: then
    `fallback`."""
    host = email.partition("@")[2]
    return host.removesuffix(".iam.gserviceaccount.com") if host.endswith(".iam.gserviceaccount.com") else fallback


def check_network(api: Api, subject: Subject) -> CheckVerdict:
    """Checks that the network exists, and that a machine in it reaches Google and a package index."""
    owner, name = _network(subject)
    answer = api.ask(RestRequest("compute", "GET", f"/compute/v1/projects/{owner}/global/networks/{name}"))
    if answer.status == 404:
        make = f"gcloud compute networks create {name} --project={owner} --subnet-mode=auto"
        return fail_verdict(f"there is no network {name} in {owner}", make)
    if not answer.good:
        return error_verdict(answer, subject.project, COMPUTE, subject.set_up)
    listed = list_all_pages(api, RestRequest("compute", "GET", f"/compute/v1/projects/{owner}/aggregated/subnetworks"))
    if not listed.good:
        return error_verdict(listed, subject.project, COMPUTE, subject.set_up)
    subnets = dict(_scoped(listed, "subnetworks", name))
    # A legacy network has no subnets, and every region is part of it.
    missing = (
        [region for region in subject.regions if region not in subnets] if "IPv4Range" not in answer.document else []
    )
    if len(missing) == len(subject.regions):
        make = f"gcloud compute networks subnets create {name}-{missing[0]} --network={name} --range=10.10.0.0/20"
        where = f"--region={missing[0]} --project={owner}"
        return fail_verdict(f"{name} has no subnet in any region where machines are requested", f"{make} {where}")
    if subject.external_ip:
        gap = f"; no subnet in {len(missing)} of {count(len(subject.regions), 'region')}" if missing else ""
        return pass_verdict(f"{name} exists; machines get an external address{gap}")
    used = {region: subnet for region, subnet in subnets.items() if region in subject.regions}
    return _without_address(api, subject, owner, name, used)


def _without_address(
    api: Api, subject: Subject, owner: str, name: str, subnets: Mapping[str, Mapping[str, Any]]
) -> CheckVerdict:
    listed = list_all_pages(api, RestRequest("compute", "GET", f"/compute/v1/projects/{owner}/aggregated/routers"))
    if not listed.good:
        return error_verdict(listed, subject.project, COMPUTE, subject.set_up)
    translated = {region for region, router in _scoped(listed, "routers", name) if router.get("nats")}
    # Cloud NAT also gives access to Google's own services.
    cut_off = [r for r, s in subnets.items() if not s.get("privateIpGoogleAccess") and r not in translated]
    if cut_off:
        subnet = subnets[cut_off[0]].get("name", "default")
        where = f"--region={cut_off[0]} --project={owner}"
        command = f"gcloud compute networks subnets update {subnet} {where} --enable-private-ip-google-access"
        why = f"without an external address, a machine in {_list(cut_off)} cannot reach Cloud Storage or Compute Engine"
        return fail_verdict(why, command)
    without_nat = [region for region in subnets if region not in translated]
    if without_nat and subject.allow_install:
        where = f"--region={without_nat[0]} --project={owner}"
        make = f"gcloud compute routers create bench-nat --network={name} {where}"
        every = "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
        nat = f"gcloud compute routers nats create nat --router=bench-nat {where} {every}"
        why = f"no Cloud NAT in {_list(without_nat)}: nothing can be installed there, so the image must contain PyTorch"
        return warn_verdict(why, f"{make} && {nat}")
    return pass_verdict(f"{name} exists; machines without an external address reach what they need")


def _list(regions: list[str]) -> str:
    return ", ".join(regions[:3]) + (f" and {len(regions) - 3} more" if len(regions) > 3 else "")


def _scoped(answer: RestAnswer, kind: str, network: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(region, resource) for each resource of the network in a list that is aggregated over regions."""
    items = answer.document["items"]
    return [
        (scope.rpartition("/")[2], found)
        for scope, listed in (items.items() if isinstance(items, Mapping) else ())
        for found in listed.get(kind, ())
        if isinstance(found, Mapping) and str(found.get("network", "")).rpartition("/")[2] == network
    ]


def _network(subject: Subject) -> tuple[str, str]:
    """(project, name) of the network, given as `global/networks/x` or `projects/p/global/networks/x`."""
    parts = subject.network.split("/")
    owner = parts[parts.index("projects") + 1] if "projects" in parts[:-1] else subject.project
    return owner, parts[-1]
