"""What documents are made of, and the shapes of those that other parts build: runs, plans, errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from orchestrator.core.images import usd_per_month
from orchestrator.core.run.status import iso_time

Row = dict[str, Any]
Rows = list[Row]
Engine = Literal["cloud", "slurm", "batch", "hosts"]
Usd = Annotated[str, BeforeValidator(lambda amount: str(amount) if isinstance(amount, Decimal) else amount)]
"""Dollars as a decimal string."""
UsdPerMonth = Annotated[str, BeforeValidator(lambda n: str(usd_per_month(n)) if isinstance(n, int) else n)]
Time = Annotated[str, BeforeValidator(lambda at: iso_time(at) if isinstance(at, datetime) else at)]
TextOrNull = Annotated[str | None, BeforeValidator(lambda text: text or None)]
NumberOrNull = Annotated[
    float | None, BeforeValidator(lambda value: None if value is None or math.isnan(value) else round(value, 4))
]


@dataclass(frozen=True, slots=True)
class Attribute:
    """Where a field is found in the object that a document is made of, if not under its own name: `instance.zone`."""

    path: str


class Document(BaseModel):
    """A part of what a command prints."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def of(cls, source: object, **given: Any) -> Self:
        """The document of an object: each field that must be there and is not given is an attribute of it. A mapping is
        a document that was printed before."""
        if isinstance(source, dict):
            return cls.model_validate(source)
        for name, field in cls.model_fields.items():
            if (key := field.alias or name) not in given and field.is_required():
                path = next((one.path for one in field.metadata if isinstance(one, Attribute)), name)
                given[key] = attrgetter(path)(source)
        return cls.model_validate(given)


class OutputDocument(Document):
    """What a command prints has the number of its shape in it."""

    schema_: Literal[1] = Field(alias="schema")


class Numbered(TypedDict):
    schema: Literal[1]


def shape(about: str = "", *, schema: Any = Literal[1], **fields: Any) -> type:
    """The shape of a document with these fields; `schema` is the type of its number, None where it has none."""
    numbered = {"schema": schema} if schema is not None else {}
    made: type = TypedDict("Shape", {**numbered, **fields})  # type: ignore[misc]
    made.__doc__ = about or None
    return made


class FleetAxis(TypedDict):
    """Times along an axis of the sweep: points of each device and implementation."""

    axis: str
    values: list[str]
    fixed: dict[str, str]
    timed: str
    same_cases: bool
    lines: Rows


class ErrorDetail(TypedDict):
    kind: str
    message: str
    hint: str | None
    exit_code: int


class ErrorDocument(Numbered):
    """What any command prints instead, where an error stood in its way."""

    error: ErrorDetail


class RunDocument(Numbered):
    """A run: `launch`, `stop` and `status RUN`."""

    run_id: str
    state: str
    cases_done: int
    cases_total: int
    cost_usd: Usd
    ceiling_usd: Usd
    settled: bool
    prices_simulated: bool
    config: str
    image: str
    implementations: list[str]
    measurements_per_implementation: int
    vms: Rows
    phases: Rows
    waiting: dict[str, Any] | None


class PlanDocument(Numbered):
    config: str
    gpu: str
    mode: str
    ceiling_usd: Usd
    usd_per_hour: Usd
    ttl_s: int
    attempts: int
    image: str
    cases: list[str]
    measurements_per_implementation: int
    implementations: list[str]
    offers: Rows
    headroom_usd: dict[str, Usd]
    notices: list[str]
    settings: Row
    harness: Row
    fallbacks: Rows


class BaselineDocument(TypedDict):
    run_id: str
    device: str
    git_commit: str | None
    set_at: Time
    set_by: str
    fingerprint: Row


class BaselineSet(BaselineDocument):
    schema: Literal[1]
    name: str


class AgentTools(Numbered):
    """The tools of `bench mcp` and what each is for."""

    tools: dict[str, str]
