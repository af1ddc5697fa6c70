"""Types for numbers and times in documents that anybody may have written. The bounds keep sums and dates computable."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Annotated, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from orchestrator.core.text import clean_name

EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)


def _within_reason(at: datetime) -> datetime:
    if not EARLIEST <= at <= LATEST:
        raise ValueError("a time that no run can have")
    return at.astimezone(UTC)


Moment = Annotated[AwareDatetime, AfterValidator(_within_reason)]
"""A time with its zone. Its bounds allow a few years to be added."""
Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
"""Dollars that the user gave: not negative and finite, with no upper bound."""
Usd = Annotated[Decimal, Field(ge=0, le=10**9)]
"""Dollars: not negative, and small enough to be added up."""
Seconds = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Finite = Annotated[float | None, AfterValidator(lambda value: value if value is not None and isfinite(value) else None)]
"""A number, or None in place of infinity or NaN, such as the error of an implementation that gave NaN."""
Name = Annotated[str, AfterValidator(clean_name)]
Numbers = Annotated[dict[str, float], AfterValidator(lambda found: {k: v for k, v in found.items() if isfinite(v)})]


class LenientModel(BaseModel):
    """Immutable data of a document. Unknown keys are ignored, so that an older client can read what a newer one
    wrote."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")

    def dump(self) -> bytes:
        """The document as JSON, with its keys by alias."""
        return self.model_dump_json(by_alias=True).encode()


class StrictModel(LenientModel):
    """The same, for a document in which an unknown key is a mistake, or may have a meaning that must not be lost."""

    model_config = ConfigDict(extra="forbid")
