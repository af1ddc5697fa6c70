"""Resumes a run from its plan in the bucket. Only what to measure is taken from that plan, and nothing that spends
money or runs commands.

Others can write to the bucket. So a resumed run uses the configuration of the client that resumes it: its caps, prices,
time limits, alert channels, service account, network and payload. The stored plan says which GPU and which cases. Its
ceiling, time and number of machines can only lower what this client would allow. Which machine is rented where, what
is installed and which error counts as correct (`CHOSEN`) is the stored plan's only if this user's own launch stored
it, or if the user has accepted it by its digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.core.bounds import Usd
from orchestrator.core.config.model import Config, case_ids_of, count_measurements, effective_grids, harness_settings
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import MACHINE_TYPE, PROVISIONING, HostTarget
from orchestrator.core.ledger.budget import ZERO, Caps, HoldRefused, Ledger, authorize
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.names import NO_IMAGE, ImageUrl, Region
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import LaunchPlan, fit_budget
from orchestrator.core.text import clean_line

# The plan of a run on the user's own machine. Nothing is rented, and the same budget applies.


def plan_on_hosts(
    config: Config,
    *,
    config_name: str,
    target: HostTarget,
    ledger: Ledger,
    caps: Caps,
    now: datetime,
    notices: Sequence[str] = (),
) -> LaunchPlan | PlanRefused:
    """The launch plan for a run on `target`, or why there is none. An hour counts `host.hourly_usd` dollars."""
    offers: tuple[Offer, ...] = (
        Offer(
            gpu=config.gpu,
            region=Region(Mode.HOST.value),
            zone=target.zone,
            machine_type=MACHINE_TYPE,
            accelerator=None,
            accelerator_count=0,
            provisioning=PROVISIONING,
            usd_per_hour=config.host.hourly_usd,
            host=str(target),
        ),
    )
    timed = fit_budget(config, Mode.HOST, offers, ledger, caps, now)
    if isinstance(timed, PlanRefused):
        return timed
    offers, ttl_s, attempts, budget_notices = timed
    grids = effective_grids(config, Mode.HOST)
    if grids.left_out:
        budget_notices.append(f"{config.gpu} has no {', '.join(grids.left_out)} arithmetic: left out")
    worst = ceiling_usd(config.host.hourly_usd, ttl_s, attempts)
    fits = authorize(ledger, caps, worst, now)
    assert not isinstance(fits, HoldRefused), "a deadline that fits the budget is one whose ceiling does"
    cases = case_ids_of(config, grids)
    return LaunchPlan(
        config=config,
        config_name=config_name,
        mode=Mode.HOST,
        offers=offers,
        ttl_s=ttl_s,
        ceiling_usd=worst,
        attempts=attempts,
        image=NO_IMAGE,
        cases=cases,
        measurements_per_implementation=len(cases) * count_measurements(config, Mode.HOST),
        harness=harness_settings(config, grids, Mode.HOST),
        notices=(*notices, *budget_notices),
        headroom=fits.headroom,
    )


PLACE: Final = re.compile(r"[a-z]+(-[a-z0-9]+){1,3}")
"""The form of the name of a zone or region."""


CHOSEN: Final = (
    "zones", "regions", "machine.type", "machine.provisioning", "placement.fallback_gpus", "placement.on_demand_after",
    "placement.wait_minutes",
    "environment.torch", "environment.allow_install", "environment.min_free_gb", "correctness.max_abs_error",
    "correctness.sanitizer", "run.phase_limits_s",
)  # fmt: skip
"""The keys that say which machine is rented where, what is installed and what counts as correct."""


def plan_differences(today: Config, stored: LaunchPlan) -> tuple[str, ...]:
    """What a stored plan chooses otherwise than `today` does, a line for each key."""
    keys = ("gpu", *CHOSEN)
    pairs = ((key, attrgetter(key)(stored.config), attrgetter(key)(today)) for key in keys)
    return tuple(
        clean_line(f"{key} is {_shown(theirs)}, and {_shown(own)} here", 200)
        for key, theirs, own in pairs
        if theirs != own
    )


def _shown(value: Any) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return shown or "not set"


def _with_choices(config: Config, chosen: Config) -> Config:
    """The configuration with the values that `chosen` has for the keys `CHOSEN`."""
    for section, _, key in (name.rpartition(".") for name in CHOSEN):
        whole = getattr(chosen, section) if section else chosen
        value = getattr(whole, key)
        own = getattr(config, section) if section else config
        changed = own.model_copy(update={key: value})
        config = config.model_copy(update={section: changed}) if section else changed
    return config


def resumed_config(today: Config, stored: LaunchPlan, spent: Decimal = ZERO, *, accepted: bool = False) -> Config:
    """The configuration to plan with. The stored plan decides what is measured and, if it is `accepted`, on which
    machines and what counts as correct; `today` decides the rest. `spent` dollars of today's cap for a run are spent
    already."""
    stored_config = stored.config if accepted else _with_choices(stored.config, today)
    minutes = max(1, stored.ttl_s // 60)
    run = today.run.model_copy(
        update={
            "max_minutes": min(today.run.max_minutes, minutes),
            "attempts": max(1, min(today.run.attempts, stored.attempts)),
            "phase_limits_s": stored_config.run.phase_limits_s,
        }
    )
    placement = stored_config.placement.model_copy(
        update={
            "max_usd_per_hour": lower_limit(today.placement.max_usd_per_hour, stored_config.placement.max_usd_per_hour),
            "wait_minutes": today.placement.wait_minutes or (accepted and stored_config.placement.wait_minutes) or 0,
        }
    )
    usd_left = None if today.budget.per_run_usd is None else max(today.budget.per_run_usd - spent, ZERO)
    budget = today.budget.model_copy(update={"per_run_usd": lower_limit(usd_left, stored.ceiling_usd)})
    machine = today.machine.model_copy(
        update={"type": stored_config.machine.type, "provisioning": stored_config.machine.provisioning}
    )
    host = today.host.model_copy(update={"targets": stored_config.host.targets})
    return stored_config.model_copy(
        update={
            "zones": tuple(zone for zone in stored_config.zones if PLACE.fullmatch(zone)),
            "regions": tuple(region for region in stored_config.regions if PLACE.fullmatch(region)),
            "run": run,
            "placement": placement,
            "budget": budget,
            "machine": machine,
            "host": host,
            "alerts": today.alerts,
            "payload": today.payload,
        }
    )


def lower_limit(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The lower of two limits; None means no limit."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def resumed_on_hosts(today: Config, stored: LaunchPlan, *, accepted: bool = False) -> LaunchPlan:
    """The stored plan of a run on the user's own machines, with this client's limits and its price for an hour. Such a
    machine is not rented, so this client decides what an hour of it counts."""
    config = resumed_config(today, stored, accepted=accepted).model_copy(update={"budget": today.budget})
    own = harness_settings(config, effective_grids(config, Mode.HOST), Mode.HOST)["correctness"]
    ttl_s = min(stored.ttl_s, today.run.max_minutes * 60)
    attempts = max(1, min(stored.attempts, today.run.attempts))
    offers = tuple(replace(offer, usd_per_hour=today.host.hourly_usd) for offer in stored.offers)
    return replace(
        stored,
        config=config,
        harness={**stored.harness, "correctness": own},
        offers=offers,
        ttl_s=ttl_s,
        attempts=attempts,
        ceiling_usd=ceiling_usd(today.host.hourly_usd, ttl_s, attempts),
        fallbacks=(),
    )


def same_image(plan: LaunchPlan, stored: LaunchPlan) -> LaunchPlan:
    """The plan with the dated image with which the run began, if this client takes its image from the same project. A
    run should not change its image half way, and must never use another project's image."""
    project = plan.image.rpartition("/global/images/")[0]
    stored_project, _, name = stored.image.rpartition("/global/images/")
    is_plain = name.replace("-", "").replace("_", "").isalnum()
    return replace(plan, image=stored.image) if project and stored_project == project and is_plain else plan


# A plan as one JSON document: for `bench plan --json`, for readers of the bucket, and for resuming the run.


def plan_document(plan: LaunchPlan) -> dict[str, Any]:
    """The plan as a JSON document. Its keys are stable: keys are added, never renamed. Dollars are decimal strings."""
    return {
        "schema": 1,
        "config": plan.config_name,
        "gpu": plan.config.gpu,
        "mode": plan.mode,
        "ceiling_usd": str(plan.ceiling_usd),
        "usd_per_hour": str(plan.usd_per_hour),
        "price_margin": str(plan.margin),
        "ttl_s": plan.ttl_s,
        "attempts": plan.attempts,
        "image": plan.image,
        "base_image": plan.base_image,
        "cases": list(plan.cases),
        "measurements_per_implementation": plan.measurements_per_implementation,
        "implementations": list(plan.harness["implementations"]),
        "expected": plan.expectation.document(plan.usd_per_hour) if plan.expectation is not None else None,
        "offers": [_offer(offer) for offer in plan.offers],
        "headroom_usd": {window: str(left) for window, left in plan.headroom.items()},
        "notices": list(plan.notices),
        "settings": plan.config.model_dump(mode="json", exclude={"alerts", "payload"}),  # may hold secrets, and paths
        "harness": plan.harness,
        "fallbacks": [plan_document(other) for other in plan.fallbacks],
    }


def _offer(offer: Offer) -> dict[str, Any]:
    expected = None if offer.expected_usd is None else str(offer.expected_usd)
    return {**asdict(offer), "usd_per_hour": str(offer.usd_per_hour), "expected_usd": expected}


def plan_from(document: Mapping[str, Any]) -> LaunchPlan:
    """The plan in a document of `plan_document`. Raises `ConfigError` if this version cannot read it."""
    try:
        return LaunchPlan(
            config=Config.model_validate(document["settings"]),
            config_name=str(document["config"]),
            mode=Mode(document["mode"]),
            offers=_OFFERS.validate_python(document["offers"]),
            ttl_s=int(document["ttl_s"]),
            ceiling_usd=_USD.validate_python(document["ceiling_usd"]),
            attempts=int(document["attempts"]),
            margin=_USD.validate_python(document.get("price_margin", "0")),
            image=ImageUrl(str(document["image"])),
            cases=tuple(document["cases"]),
            measurements_per_implementation=int(document["measurements_per_implementation"]),
            harness=dict(document["harness"]),
            notices=tuple(document["notices"]),
            headroom=_HEADROOM.validate_python(document["headroom_usd"]),
            fallbacks=tuple(plan_from(other) for other in document["fallbacks"]),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, ValidationError) as exc:
        raise ConfigError(
            f"the plan of the run cannot be read ({type(exc).__name__}: {exc})".splitlines()[0],
            hint="another version of bench wrote it: resume with that version, or start a new run with `bench launch`",
        ) from exc


_LATER: Final = ConfigDict(defer_build=True)
_USD: Final[TypeAdapter[Decimal]] = TypeAdapter(Usd, config=_LATER)
_HEADROOM: Final[TypeAdapter[dict[str, Decimal]]] = TypeAdapter(dict[str, Usd], config=_LATER)
_OFFERS: Final[TypeAdapter[tuple[Offer, ...]]] = TypeAdapter(tuple[Offer, ...], config=_LATER)
