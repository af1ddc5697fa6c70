"""A plan as one JSON document: for `bench plan --json`, for readers of the bucket, and for resuming the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from orchestrator.core.bounds import Usd
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.offers import Offer
from orchestrator.core.mode import Mode
from orchestrator.core.names import ImageUrl
from orchestrator.core.plan.plan import LaunchPlan


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
            offers=tuple(_read_offer(offer) for offer in document["offers"]),
            ttl_s=int(document["ttl_s"]),
            ceiling_usd=_usd(document["ceiling_usd"]),
            attempts=int(document["attempts"]),
            margin=_usd(document.get("price_margin", "0")),
            image=ImageUrl(str(document["image"])),
            cases=tuple(document["cases"]),
            measurements_per_implementation=int(document["measurements_per_implementation"]),
            harness=dict(document["harness"]),
            notices=tuple(document["notices"]),
            headroom={window: _usd(left) for window, left in document["headroom_usd"].items()},
            fallbacks=tuple(plan_from(other) for other in document["fallbacks"]),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, ValidationError) as exc:
        raise ConfigError(
            f"the plan of the run cannot be read ({type(exc).__name__}: {exc})".splitlines()[0],
            hint="another version of bench wrote it: resume with that version, or start a new run with `bench launch`",
        ) from exc


_USD: Final[TypeAdapter[Decimal]] = TypeAdapter(Usd, config=ConfigDict(defer_build=True))


def _usd(text: Any) -> Decimal:
    """The dollars in a document. Raises `ValidationError` unless they are finite and not negative."""
    return _USD.validate_python(text)


def _read_offer(offer: Mapping[str, Any]) -> Offer:
    expected = offer["expected_usd"]
    fields = {key: value for key, value in offer.items() if key in Offer.__dataclass_fields__}
    return Offer(
        **{
            **fields,
            "usd_per_hour": _usd(offer["usd_per_hour"]),
            "expected_usd": None if expected is None else _usd(expected),
        }
    )
