"""What Compute Engine has and offers, in plain requests: our machines, images, quotas, and what it expects of spot
machines.

`compute_v1` answers the same questions and takes seconds to import; neither a plan nor a listing must wait for it.

Advice is optional and asked in few requests: `advice.capacity` says how obtainable a machine is and how long it lasts,
`advice.capacityHistory` how many were taken back. Both are in preview: a project without them (403, 404, 501) is ranked
by price and by its own history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from orchestrator.adapters.asking import TROUBLE, may_pass, stated, told, understood, unread
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.gce_json import instance
from orchestrator.adapters.patience import patiently
from orchestrator.adapters.signing import signer_of
from orchestrator.adapters.web import Signer, Web
from orchestrator.core.market.machines import Instance, Quota
from orchestrator.core.market.offers import Advice, Offer
from orchestrator.core.naming import TOOL, TOOL_LABEL
from orchestrator.ports import Clock

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

GOOGLE: Final = "https://compute.googleapis.com"
ZONES: Final = 5
"""How many zones are asked about, the cheapest first."""
DAYS: Final = 7
"""How much of the preemption history counts."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
REQUEST_S: Final = 30.0


class Market:
    """Reads for one project. Each question is asked again a bounded number of times when its answer is lost."""

    def __init__(
        self,
        project: str,
        endpoint: str | None = None,
        credentials: Credentials | Signer | None = None,
        clock: Clock | None = None,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        request_s: float = REQUEST_S,
    ) -> None:
        self._project = project
        self._base = f"{(endpoint or GOOGLE).rstrip('/')}/compute/v1/projects"
        self._web = Web(signer_of(credentials, endpoint))
        self._clock = clock or SystemClock()
        self._pauses_s = pauses_s
        self._request_s = request_s

    def instances(self) -> tuple[Instance, ...]:
        """Every machine that carries our tool label, in all zones. Raises as `image`."""
        query = {"filter": f"labels.{TOOL_LABEL}={TOOL}", "maxResults": "500"}
        found: list[Instance] = []
        seen: set[str] = set()
        with told(f"list the VMs of {self._project}"), understood():
            while True:
                page = self._patiently(f"{self._project}/aggregated/instances", query)
                for scope in page.get("items", {}).values():
                    found += map(instance, scope.get("instances", ()))
                token = str(page.get("nextPageToken", ""))
                if not token:
                    return tuple(found)
                query["pageToken"] = unread(token, seen)

    def image(self, project: str, family: str) -> str:
        """The newest image of a family, by its dated name. Raises `NotFound`, `PermissionDenied`, `Unavailable`."""
        with told(
            f"find the image family {family} of {project}",
            missing="Google withdraws families from time to time: `bench doctor` names the nearest one that exists",
        ):
            found = self._patiently(f"{project}/global/images/family/{family}")
        return "projects/" + str(found.get("selfLink", "")).rsplit("/projects/", 1)[-1]

    def quotas(self, region: str) -> tuple[Quota, ...]:
        """Those of the region, then the project's (`region` empty). Raises as `image`."""
        with told(f"read the quotas of {region}"):
            here = self._patiently(f"{self._project}/regions/{region}")
        with told(f"read the quotas of {self._project}"):
            everywhere = self._patiently(self._project)
        return tuple(
            Quota(str(found["metric"]), float(found.get("limit", 0)), float(found.get("usage", 0)), where)
            for where, listed in ((region, here), ("", everywhere))
            for found in listed.get("quotas", ())
        )

    def advice(self, offers: Sequence[Offer]) -> tuple[Advice, ...]:
        """At most two requests for each of the `ZONES` cheapest spot offers; one in all where there is no advice."""
        spot = sorted((o for o in offers if o.provisioning == "SPOT"), key=lambda o: (o.usd_per_hour, o.zone))
        if not spot:
            return ()
        first, *others = spot[:ZONES]
        probe = self._advice_on(first)
        if probe is None or not others:
            return () if probe is None else (probe,)
        with ThreadPoolExecutor(len(others)) as pool:
            return (probe, *(found for found in pool.map(self._advice_on, others) if found is not None))

    # --- one zone ---

    def _advice_on(self, offer: Offer) -> Advice | None:
        """None where Google gives none, for whatever reason: a plan goes on without it."""
        try:
            obtainable, uptime_s = self._capacity(offer)
            return Advice(offer.zone, obtainable, uptime_s, self._preemption_rate(offer))
        except TROUBLE:
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
        found = self._once(f"{self._project}/regions/{offer.region}/advice/capacity", body)
        recommended = found.get("recommendations")
        if not recommended:
            return None, None
        scores = recommended[0].get("scores", {})
        uptime = str(scores.get("estimatedUptime", "")).removesuffix("s")
        try:
            return float(scores.get("obtainability", 0)), float(uptime) if uptime else None
        except ValueError:
            return float(scores.get("obtainability", 0)), None

    def _preemption_rate(self, offer: Offer) -> float | None:
        if offer.accelerator:  # there is no history of machines to which a GPU is attached
            return None
        body = {
            "types": ["PREEMPTION"],
            "instanceProperties": {
                "machineType": offer.machine_type,
                "scheduling": {"provisioningModel": "SPOT"},
            },
            "locationPolicy": {"location": f"zones/{offer.zone}"},
        }
        found = self._once(f"{self._project}/regions/{offer.region}/advice/capacityHistory", body)
        days = sorted(found.get("preemptionHistory", ()), key=_began)[-DAYS:]
        return sum(float(day.get("preemptionRate", 0)) for day in days) / len(days) if days else None

    # --- the wire ---

    def _patiently(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        return patiently(self._clock, lambda: self._once(path, query=query), self._pauses_s, passing=may_pass)

    def _once(
        self, path: str, body: Mapping[str, Any] | None = None, *, query: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        """The answer. Raises `asking.TROUBLE`."""
        data = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        return stated(
            self._web.ask(method, f"{self._base}/{path}", query, body=data, headers=kind, timeout_s=self._request_s)
        ).document


def _began(day: Mapping[str, Any]) -> str:
    return str(day.get("interval", {}).get("startTime", ""))
