"""What a refusal to make a VM means for the other zones: a table, and the few lines that read it. Pure.

The codes are those of operation errors (`ZONE_RESOURCE_POOL_EXHAUSTED`) and of HTTP errors (`quotaExceeded`). Most are
not documented; they were collected from production reports of several tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orchestrator.core.market.machines import CloudRefusal
from orchestrator.core.names import Zone
from orchestrator.core.text import clean_line

ZONE: Final = "zone"
REGION: Final = "region"
ALL: Final = "all"

EXISTS: Final = frozenset({"alreadyExists", "ALREADY_EXISTS", "RESOURCE_ALREADY_EXISTS"})
DENIED: Final = frozenset(
    {
        "forbidden",
        "PERMISSION_DENIED",
        "PERMISSIONS_ERROR",
        "IAM_PERMISSION_DENIED",
        "SERVICE_ACCOUNT_ACCESS_DENIED",
        "accessNotConfigured",
        "SERVICE_DISABLED",
        "accountDisabled",
        "BILLING_DISABLED",
        "SECURITY_POLICY_VIOLATED",
    }
)
TOO_OFTEN: Final = frozenset({"RESOURCE_OPERATION_RATE_EXCEEDED"})
"""The same request may succeed some seconds later."""
NOT_YET: Final = frozenset({"resourceNotReady", "RESOURCE_NOT_READY"})
PREEMPTED_AT_BIRTH: Final = frozenset({"UNSUPPORTED_OPERATION"})
REGION_STOCKOUT: Final = frozenset({"REGION_RESOURCE_POOL_EXHAUSTED"})
ZONE_STOCKOUT: Final = frozenset(
    {
        "ZONE_RESOURCE_POOL_EXHAUSTED",
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "GPU_STOCKOUT",
        "insufficientCapacity",
        "resource_availability",
        "stockout",
    }
)


@dataclass(frozen=True, slots=True)
class ComputeFault:
    """One error as the API gave it, wherever it stood."""

    code: str
    message: str = ""
    reason: str = ""
    """`errorInfo.reason`, often plainer than the code."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    quota_metric: str = ""
    dimensions: Mapping[str, str] = field(default_factory=dict)
    http_status: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault with one of `codes` (as code or reason) whose message contains `says` blocks `scope`."""

    codes: frozenset[str]
    scope: str
    says: str = ""
    hint: str = ""
    pattern: str = ""
    """A regular expression that the message must contain, if given."""

    def applies(self, fault: ComputeFault) -> bool:
        named = not self.codes or fault.code in self.codes or fault.reason in self.codes
        return named and self.says.lower() in fault.message.lower() and bool(re.search(self.pattern, fault.message))


RULES: Final = (
    Rule(REGION_STOCKOUT, REGION),
    Rule(ZONE_STOCKOUT, ZONE),
    Rule(
        frozenset(),
        ALL,
        says="features are not compatible",
        hint="machine type and disk type cannot be combined: --set machine.disk_type=pd-balanced always works",
    ),
    Rule(
        frozenset(),
        ALL,
        says="constraints/compute.vmExternalIpAccess",
        hint="external addresses are forbidden: --set machine.external_ip=false (`bench doctor` checks for a NAT)",
    ),
    Rule(
        frozenset(),
        REGION,
        says="constraints/gcp.resourceLocations",
        hint="the organisation allows only some locations: set regions to some that it allows",
    ),
    Rule(
        frozenset(),
        ALL,
        says="constraints/",
        hint="a policy of the organisation forbids such a machine: the constraint is named in the message",
    ),
    Rule(
        frozenset({"IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS"}),
        REGION,
        hint="the subnet of this region has no address left: name other regions, or enlarge the subnet",
    ),
    Rule(
        frozenset({"RESOURCE_NOT_FOUND", "notFound", "invalid"}),
        ALL,
        pattern=r"[sS]ervice ?[aA]ccount",
        hint="the service account of the machines does not exist: `bench init` makes it, account names another",
    ),
    Rule(
        frozenset(),
        ALL,
        says="maxRunDuration",
        hint="Google does not accept this deadline: --set run.max_minutes=30 is valid",
    ),
    Rule(PREEMPTED_AT_BIRTH, ZONE, hint="usually a spot VM that was preempted while it was made"),
    Rule(
        NOT_YET | TOO_OFTEN | {"RESOURCE_NOT_FOUND", "INTERNAL_ERROR", "internalError", "backendError"},
        ZONE,
    ),
    Rule(
        frozenset(),
        ALL,
        says="free tier",
        hint="the billing account is in the free tier, which has no GPUs: upgrade it to a paid account",
    ),
    Rule(frozenset(), ZONE, says="is not found or access is unauthorized"),
    Rule(frozenset({"notFound"}), ZONE, pattern=r"'projects/[^/']+/zones/[^/']+' was not found"),
    Rule(
        frozenset({"notFound"}),
        ALL,
        pattern=r"'projects/[^/']+' was not found",
        hint="there is no such project: BENCH_PROJECT or --project names one that exists (`gcloud projects list`)",
    ),
    Rule(frozenset({"notFound", "invalid"}), ZONE, says="/machineTypes/"),
    Rule(frozenset({"notFound", "invalid"}), ZONE, says="/acceleratorTypes/"),
    Rule(frozenset({"notFound", "invalid"}), ZONE, says="/diskTypes/"),
    Rule(
        frozenset({"notFound"}),
        ALL,
        says="/images/",
        hint="the image does not exist any more: `bench doctor` names the nearest family for machine.image_family",
    ),
    Rule(
        frozenset({"notFound", "invalid"}),
        ALL,
        pattern="[nN]etwork",
        hint="set machine.network to a network that exists (`gcloud compute networks list`)",
    ),
    Rule(
        frozenset({"invalid", "badRequest", "INVALID_ARGUMENT", "required", "conditionNotMet"}),
        ALL,
        hint="Google refuses the request itself: check the configuration",
    ),
)
"""The first that applies decides. Quotas have rules of their own, below."""

QUOTA_CODES: Final = frozenset({"QUOTA_EXCEEDED", "quotaExceeded", "RESOURCE_QUOTA_EXCEEDED"})
EVERYWHERE: Final = "GPUS_ALL_REGIONS"
_METRIC = re.compile(r"[Qq]uota '([A-Za-z0-9_/.-]+)' exceeded")
_LIMIT = re.compile(r"Limit: (\d+(?:\.\d+)?)")
_REGION = re.compile(r"in region ([a-z]+-[a-z]+\d+)")


def classify_fault(fault: ComputeFault) -> CloudRefusal:
    """What `fault` means for where to ask next. An unknown code blocks the zone, or all if the request was wrong."""
    code, message = clean_line(fault.code or fault.reason or "UNKNOWN"), clean_line(fault.message)
    if fault.code in QUOTA_CODES or fault.reason in QUOTA_CODES:
        scope, hint = quota_scope(fault)
        return CloudRefusal(code, message, scope, hint)
    for rule in RULES:
        if rule.applies(fault):
            return CloudRefusal(
                code, message, rule.scope, rule.hint, zones_available(fault), stock_out=_stock_out(fault)
            )
    scope = ALL if 400 <= fault.http_status < 500 else ZONE
    return CloudRefusal(code, message, scope, "", zones_available(fault))


def _stock_out(fault: ComputeFault) -> bool:
    forbidden = "not compatible" in fault.message or "constraints/" in fault.message
    at_birth = bool({fault.code, fault.reason} & PREEMPTED_AT_BIRTH) and not forbidden
    return at_birth or bool({fault.code, fault.reason} & (ZONE_STOCKOUT | REGION_STOCKOUT))


def lacks_network(fault: ComputeFault) -> bool:
    """Whether the network is missing. In a new project the default network appears some seconds after the first
    request."""
    return "network" in fault.message.lower() and bool(re.search("(cannot be|was not) found", fault.message))


def is_known_fault(fault: ComputeFault) -> bool:
    """Whether the table has a word on this fault, so that sending the request again is pointless."""
    codes = {fault.code, fault.reason}
    return bool(codes & (QUOTA_CODES | ZONE_STOCKOUT | REGION_STOCKOUT))


def quota_scope(fault: ComputeFault) -> tuple[str, str]:
    """The scope of a quota, and what to ask Google for."""
    named = _METRIC.search(fault.message)
    metric = clean_line(fault.quota_metric.rsplit("/", 1)[-1] or (named[1] if named else "")).upper().replace("-", "_")
    region = clean_line(fault.dimensions.get("region", "")) or (
        found[1] if (found := _REGION.search(fault.message)) else ""
    )
    everywhere = metric == EVERYWHERE or not region
    limit = _LIMIT.search(fault.message)
    hint = (
        f"ask for more of {metric or 'this quota'}{'' if everywhere else f' in {region}'}"
        f"{f' (the limit is {float(limit[1]):g})' if limit else ''} at https://console.cloud.google.com/iam-admin/quotas"
    )
    return (ALL if everywhere else REGION), hint


def zones_available(fault: ComputeFault) -> tuple[Zone, ...]:
    """The zones that a stock-out recommends, in its order; text that is no zone is left out."""
    listed = fault.metadata.get("zonesAvailable", "")
    return tuple(Zone(part.strip()) for part in listed.split(",") if Zone.fits(part.strip()))
