"""What the project may request: the quotas of each GPU, the limit on all GPUs together, and the images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.doctor.verdicts import (
    CheckVerdict,
    Subject,
    error_verdict,
    fail_verdict,
    pass_verdict,
    warn_verdict,
)
from orchestrator.core.market.catalog import Gpu, closest_word
from orchestrator.core.market.machines import ALL_REGIONS, QUOTA_PAGE, Quota, find_shortage
from orchestrator.core.market.offers import Offer
from orchestrator.core.names import MachineType, Region, Zone
from orchestrator.core.rest import Api, RestAnswer, RestRequest, list_all_pages, list_entries
from orchestrator.core.text import count

COMPUTE: Final = "compute.googleapis.com"


def all_gpus(api: Api, subject: Subject) -> CheckVerdict:
    """Checks the project's limit on GPUs in all regions together. It is 0 in a new project."""
    answer = api.ask(_project(subject))
    if not answer.good:
        return error_verdict(answer, subject.project, COMPUTE, subject.set_up)
    matching_quota = next((quota for quota in _quotas(answer.document, "") if quota.metric == ALL_REGIONS), None)
    if matching_quota is None:
        return warn_verdict(f"the project lists no quota {ALL_REGIONS}", QUOTA_PAGE)
    if matching_quota.limit - matching_quota.usage < 1:
        in_use = f"{matching_quota.limit:g}, {matching_quota.usage:g} in use"
        text = f"{ALL_REGIONS} is {in_use}: no GPU can be started anywhere"
        return fail_verdict(text, _ask_for(subject, ALL_REGIONS, ""))
    return pass_verdict(
        f"{count(int(matching_quota.limit), 'GPU')} in all regions together, {matching_quota.usage:g} in use"
    )


def of_gpu(gpu: Gpu) -> Callable[[Api, Subject], CheckVerdict]:
    """Makes the check of one GPU's quotas."""

    def quotas(api: Api, subject: Subject) -> CheckVerdict:
        listed = list_all_pages(api, _regions(subject))
        if not listed.good:
            return error_verdict(listed, subject.project, COMPUTE, subject.set_up)
        by_region = {
            str(entry.get("name")): _quotas(entry, str(entry.get("name"))) for entry in listed.document["items"]
        }
        regions = [region for region in gpu.regions if region in subject.regions]
        rooms = tuple(_room(gpu, region, by_region.get(region, ())) for region in regions)
        spot = [room for room in rooms if room.spot]
        standard = [room for room in rooms if room.standard]
        if spot:
            on_demand_text = f", on demand in {len(standard)}" if standard else ""
            lent = sum(room.lent for room in spot)
            out_of = (
                f"; in {lent} spot machines use the on-demand quota, because no spot quota was granted" if lent else ""
            )
            model = "spot and flex-start" if gpu.is_sold("flex-start") else "spot"
            where = f"in {len(spot)} of {count(len(rooms), 'region')} ({_some(spot)})"
            return pass_verdict(f"{model} {where}{on_demand_text}{out_of}")
        wish = _ask_for(subject, gpu.quota_preemptible, regions[0])
        if standard:
            return warn_verdict(
                f"no spot quota; on demand in {len(standard)} of {count(len(rooms), 'region')} ({_some(standard)})",
                wish,
            )
        why = f"no quota for {gpu.title} in any of {count(len(rooms), 'region')}: {rooms[0].shortage}"
        return fail_verdict(why, wish) if subject.chosen else warn_verdict(why, wish)

    return quotas


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """Whether one more machine fits into the quotas of a region, as spot and on demand."""

    region: str
    spot: bool
    standard: bool
    lent: bool
    """Whether spot machines count against the on-demand quota in this region."""
    shortage: str


def _room(gpu: Gpu, region: str, quotas: tuple[Quota, ...]) -> QuotaRoom:
    short = {}
    for provisioning in ("SPOT", "STANDARD"):
        zone = Zone(next(zone for zone in gpu.zones if zone.startswith(f"{region}-")))
        kind = MachineType(gpu.default_machine)
        offer = Offer(gpu.name, Region(region), zone, kind, gpu.accelerator, 1, provisioning, Decimal(0))
        quota_shortage = find_shortage(gpu, offer, quotas)
        short[provisioning] = (
            f"{quota_shortage.metric} in {region} is {quota_shortage.limit:g}, {quota_shortage.usage:g} in use"
            if quota_shortage
            else ""
        )
    sold = gpu.quota_standard is not None
    lent = any(quota.metric == gpu.quota_preemptible and quota.limit == 0 for quota in quotas)
    return QuotaRoom(region, not short["SPOT"], sold and not short["STANDARD"], lent, short["SPOT"])


def _some(rooms: list[QuotaRoom]) -> str:
    named = ", ".join(room.region for room in rooms[:2])
    return f"{named}, …" if len(rooms) > 2 else named


def _ask_for(subject: Subject, metric: str, region: str) -> str:
    scope = "per-project-region" if region else "per-project"
    where = f" --dimensions=region={region}" if region else ""
    project = f"--project={subject.project} --billing-project={subject.project}"
    return (
        "gcloud beta quotas preferences create --service=compute.googleapis.com --preferred-value=1"
        f" {project} --quota-id={metric.replace('_', '-')}-{scope}{where}"
    )


def _project(subject: Subject) -> RestRequest:
    return RestRequest("compute", "GET", f"/compute/v1/projects/{subject.project}")


def _regions(subject: Subject) -> RestRequest:
    return RestRequest("compute", "GET", f"/compute/v1/projects/{subject.project}/regions")


def _quotas(document: Mapping[str, Any], region: str) -> tuple[Quota, ...]:
    return tuple(
        Quota(str(entry["metric"]), float(entry.get("limit", 0)), float(entry.get("usage", 0)), region)
        for entry in document.get("quotas", ())
        if "metric" in entry
    )


def of_image(project: str, family: str) -> Callable[[Api, Subject], CheckVerdict]:
    """Makes the check of one image family."""

    def image(api: Api, subject: Subject) -> CheckVerdict:
        base = f"/compute/v1/projects/{project}/global/images"
        answer = api.ask(RestRequest("compute", "GET", f"{base}/family/{family}"))
        if answer.good:
            return _current(answer, family)
        if answer.status != 404:
            return error_verdict(answer, subject.project, COMPUTE, subject.set_up)
        query = {"filter": f'family="{family}"', "fields": "items(name,family,deprecated),nextPageToken"}
        old = list_all_pages(api, RestRequest("compute", "GET", base, query))
        deprecated = [entry["deprecated"] for entry in list_entries(old.document, "items") if entry.get("deprecated")]
        stem = family.partition("-")[0]
        query = {"filter": f'family eq "{stem}.*"', "fields": "items(name,family,deprecated),nextPageToken"}
        image_list = list_all_pages(api, RestRequest("compute", "GET", base, query))
        current = {
            str(entry.get("family"))
            for entry in list_entries(image_list.document, "items")
            if entry.get("deprecated", {}).get("state", "ACTIVE") == "ACTIVE"
        } - {family}
        successor = next((str(one["replacement"]) for one in deprecated if "replacement" in one), "").rpartition("/")[2]
        new = successor or closest_word(family, current) or ""
        what = (
            f"is {str(deprecated[0].get('state', 'DEPRECATED')).lower()}" if deprecated else "does not exist any more"
        )
        if new:
            return fail_verdict(
                f"the image family {family} {what}; the nearest one is {new}",
                f"bench plan --gpu {_gpu(subject, project, family)} --set machine.image_family={new}",
            )
        return fail_verdict(
            f"the image family {family} {what}", f"gcloud compute images list --project={project} --no-standard-images"
        )

    return image


def _gpu(subject: Subject, project: str, family: str) -> str:
    fits = [gpu.name for gpu in subject.gpus if (gpu.image_project, gpu.image_family) == (project, family)]
    return fits[0] if fits else subject.gpus[0].name


def _current(answer: RestAnswer, family: str) -> CheckVerdict:
    name, status = str(answer.document.get("name", "")), answer.document.get("deprecated", {})
    ends = status.get("deprecated") or status.get("obsolete")
    if ends:
        return warn_verdict(
            f"{family} ({name}) will be retired at {ends}", "gcloud compute images list --no-standard-images"
        )
    return pass_verdict(f"{family} is {name}")
