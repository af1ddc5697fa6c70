"""What Compute Engine has and offers, in plain requests: our machines, images, quotas, and what it expects of spot
machines.

`compute_v1` answers the same questions and takes seconds to import; neither a plan nor a listing must wait for it.

Advice is optional and asked in few requests: `advice.capacity` says how obtainable a machine is and how long it lasts,
`advice.capacityHistory` how many were taken back, and the list price. Both are in preview: a project without them (403,
404, 501) is ranked by price and by its own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from google.auth.credentials import Credentials

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.google.credentials import credentials_for
from orchestrator.adapters.google.errors import FOREIGN, is_transient, patiently, translate_google_errors
from orchestrator.adapters.google.network import Session
from orchestrator.core.market.machines import Instance, Quota
from orchestrator.core.market.offers import Offer, ZoneAdvice
from orchestrator.core.market.skus import money_usd
from orchestrator.core.names import ImageName, ImageUrl, MachineName, ProjectId, Region, ResourceId, Zone
from orchestrator.core.naming import TOOL, TOOL_LABEL
from orchestrator.ports import Clock

ZONES: Final = 5
"""How many zones are asked about, the cheapest first."""
DAYS: Final = 7
"""How much of the preemption history counts."""
YEARS: Final = range(1970, 2200)
LONGEST_RUN_S: Final = 10**10
"""A machine's times are within these; where they are not, sums of them may be in no calendar."""


@dataclass(frozen=True, slots=True)
class CallPatience:
    """How long to wait for what."""

    pauses_s: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Between the tries of one request."""
    request_s: float = 30.0
    long_poll_s: float = 150.0
    """For `operations.wait`, which answers after at most two minutes."""
    operation_s: float = 900.0


PATIENCE: Final = CallPatience()


class GoogleMarket:
    """Reads for one project. Each question is asked again a bounded number of times when its answer is lost."""

    def __init__(
        self,
        project: str,
        endpoint: str | None = None,
        credentials: Credentials | None = None,
        clock: Clock | None = None,
        *,
        patience: CallPatience = PATIENCE,
    ) -> None:
        self._project = project
        self._session = Session(credentials or credentials_for(endpoint), endpoint)
        self._base = f"{self._session.base_url('compute')}/compute/v1/projects"
        self._clock = clock or SystemClock()
        self._patience = patience

    def instances(self) -> tuple[Instance, ...]:
        """Every machine that carries our tool label, in all zones, once: a list that changes while it is read may have
        one on two pages. Raises as `image`."""
        query = {"filter": f"labels.{TOOL_LABEL}={TOOL}", "maxResults": "500"}
        found: dict[tuple[str, str], Instance] = {}
        with translate_google_errors(f"list the VMs of {self._project}"):
            while True:
                page = self._patiently(f"{self._project}/aggregated/instances", query)
                for scope in page.get("items", {}).values():
                    for one in map(instance_from_json, scope.get("instances", ())):
                        found[one.zone, one.name] = one
                token = str(page.get("nextPageToken", ""))
                if not token:
                    return tuple(found.values())
                query["pageToken"] = token

    def image(self, project: ProjectId, family: ImageName) -> ImageUrl:
        """The newest image of a family, by its dated name. Raises `NotFound`, `PermissionDenied`, `Unavailable`."""
        missing = "Google withdraws families from time to time: `bench doctor` names the nearest one that exists"
        with translate_google_errors(f"find the image family {family} of {project}", missing=missing):
            link = self._patiently(f"{project}/global/images/family/{family}")["selfLink"]
            return ImageUrl(f"projects/{link.rpartition('/projects/')[2]}")

    def quotas(self, region: Region) -> tuple[Quota, ...]:
        """Those of the region, then the project's (`region` empty). Raises as `image`."""
        project = self._project
        with translate_google_errors(f"read the quotas of {project} and of {region}"):
            places = {f"{project}/regions/{region}": region, project: ""}
            answers = [(place, self._patiently(path).get("quotas", ())) for path, place in places.items()]
        return tuple(
            Quota(str(quota["metric"]), float(quota.get("limit", 0)), float(quota.get("usage", 0)), place)
            for place, quotas in answers
            for quota in quotas
        )

    def advice(self, offers: Sequence[Offer]) -> tuple[ZoneAdvice, ...]:
        """At most two requests for each of the `ZONES` cheapest spot offers; one in all where there is no advice."""
        spot = sorted((o for o in offers if o.provisioning == "SPOT"), key=lambda o: (o.usd_per_hour, o.zone))
        if not spot or (probe := self._advice_on(spot[0])) is None:
            return ()
        with ThreadPoolExecutor(ZONES) as pool:
            return (probe, *filter(None, pool.map(self._advice_on, spot[1:ZONES])))

    # --- one zone ---

    def _advice_on(self, offer: Offer) -> ZoneAdvice | None:
        """None where Google gives none, for whatever reason: a plan goes on without it."""
        try:
            obtainable, uptime_s = self._capacity(offer)
            return self._with_history(offer, ZoneAdvice(offer.zone, obtainable, uptime_s))
        except FOREIGN:
            return None

    def _capacity(self, offer: Offer) -> tuple[float | None, float | None]:
        machine: dict[str, Any] = {"machineTypes": [offer.machine_type]}
        if offer.accelerator:
            accelerator = {"acceleratorType": offer.accelerator, "acceleratorCount": offer.accelerator_count}
            machine["guestAccelerators"] = [accelerator]
        body = {
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{offer.zone}"}]},
            "instanceFlexibilityPolicy": {"instanceSelections": {"machine": machine}},
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "size": 1,
        }
        advice = self._once(f"{self._project}/regions/{offer.region}/advice/capacity", body)
        recommended = advice.get("recommendations")
        if not recommended:
            return None, None
        scores = recommended[0].get("scores", {})
        uptime = scores.get("estimatedUptime")
        return float(scores.get("obtainability", 0)), float(uptime.removesuffix("s")) if uptime else None

    def _with_history(self, offer: Offer, advice: ZoneAdvice) -> ZoneAdvice:
        """The advice with the preemption rate of the last days and the list price that holds now."""
        if offer.accelerator:  # there is no history of machines to which a GPU is attached
            return advice
        body = {
            "types": ["PREEMPTION", "PRICE"],
            "instanceProperties": {"machineType": offer.machine_type, "scheduling": {"provisioningModel": "SPOT"}},
            "locationPolicy": {"location": f"zones/{offer.zone}"},
        }
        history = self._once(f"{self._project}/regions/{offer.region}/advice/capacityHistory", body)
        days = _by_time(history.get("preemptionHistory", ()))[-DAYS:]
        rate = sum(float(day.get("preemptionRate", 0)) for day in days) / len(days) if days else None
        advice = replace(advice, preemption_rate=rate)
        prices = [(money_usd(span.get("listPrice", {})), span) for span in _by_time(history.get("priceHistory", ()))]
        if not prices or not prices[-1][0]:
            return advice
        usd, span = prices[-1]
        since = date.fromisoformat(str(span["interval"]["startTime"])[:10])
        was = next((before for before, _ in reversed(prices) if before != usd), None)
        return replace(advice, list_usd=usd, list_since=since, list_was_usd=was)

    # --- the wire ---

    def _patiently(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        return patiently(
            self._clock, lambda: self._once(path, query=query), self._patience.pauses_s, passing=is_transient
        )

    def _once(
        self, path: str, body: Mapping[str, Any] | None = None, *, query: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """The answer. Raises `errors.FOREIGN`."""
        method = "GET" if body is None else "POST"
        return self._session.ask(method, f"{self._base}/{path}", query, body, timeout_s=self._patience.request_s)


def _by_time(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(records, key=lambda record: str(record["interval"]["startTime"]))


def last_segment(url: str) -> str:
    """The last segment of a URL: the name of what it points to."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def parse_time(text: str | None) -> datetime | None:
    """An RFC 3339 time in UTC, or None when there is none or it cannot be read."""
    try:
        parsed = datetime.fromisoformat(text or "")
        moment = parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if moment.year in YEARS else None


def instance_from_json(found: Mapping[str, Any]) -> Instance:
    """A VM, from the API's JSON. Raises `KeyError` and its like for what is none."""
    scheduling = found.get("scheduling", {})
    started = parse_time(found.get("lastStartTimestamp"))
    deadline = parse_time(found.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp"))
    limit_s = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    if deadline is None and started is not None and 0 < limit_s < LONGEST_RUN_S:
        deadline = started + timedelta(seconds=limit_s)
    return Instance(
        name=MachineName(str(found["name"])),
        zone=Zone(last_segment(found.get("zone", ""))),
        id=ResourceId(str(found.get("id", ""))),
        status=str(found.get("status", "")),
        machine_type=last_segment(found.get("machineType", "")),
        labels={str(key): str(value) for key, value in found.get("labels", {}).items()},
        created_at=parse_time(found.get("creationTimestamp")) or started or datetime.fromtimestamp(0, UTC),
        started_at=started,
        deadline_at=deadline,
        preemptible=bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT",
    )
