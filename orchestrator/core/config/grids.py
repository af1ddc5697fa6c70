"""Named sets of attention problems, spelt out in full (docs/contracts.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DTYPES: Final = ("float16", "bfloat16", "float32")

Positive = Annotated[int, Field(ge=1)]


T = TypeVar("T")


def once(entries: tuple[T, ...]) -> tuple[T, ...]:
    """The entries as they are. Raises `ValueError` for one given twice: it would be measured twice under one name."""
    for index, entry in enumerate(entries):
        if entry in entries[:index]:
            raise ValueError(f"entry {index + 1} is there already: {entry}")
    return entries


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")


class Shape(_Document):
    """One attention problem. Q is (batch, heads, seq_q, head_dim); K and V are (batch, kv_heads, seq_k, head_dim)."""

    batch: Positive
    heads: Positive
    kv_heads: Positive
    seq_q: Positive
    seq_k: Positive
    head_dim: Positive
    causal: bool = False

    @model_validator(mode="before")
    @classmethod
    def fill_in(cls, data: Any) -> Any:
        """`seq` stands for both lengths, and `kv_heads` is `heads` unless it is given."""
        if not isinstance(data, Mapping):
            return data
        full = dict(data)
        if "seq" in full:
            if "seq_q" in full or "seq_k" in full:
                raise ValueError("give either seq, or seq_q and seq_k")
            full["seq_q"] = full["seq_k"] = full.pop("seq")
        if "heads" in full:
            full.setdefault("kv_heads", full["heads"])
        return full

    @model_validator(mode="after")
    def heads_are_shared_evenly(self) -> Shape:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self

    def case_id(self, dtype: str) -> str:
        """`b2-h8-kv8-q512-k512-d64-full-float16`."""
        mask = "causal" if self.causal else "full"
        return (
            f"b{self.batch}-h{self.heads}-kv{self.kv_heads}-q{self.seq_q}-k{self.seq_k}-d{self.head_dim}-{mask}-{dtype}"
        )


class Grid(_Document):
    """Shapes, and the element types to run them in where the run does not ask for others."""

    name: str = "inline"
    description: str = ""
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1)]
    dtypes: tuple[str, ...] = ()

    @field_validator("dtypes")
    @classmethod
    def dtypes_are_known(cls, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        for dtype in dtypes:
            if dtype not in DTYPES:
                raise ValueError(f"unknown dtype '{dtype}'; valid: {', '.join(DTYPES)}")
        return once(dtypes)

    @field_validator("shapes")
    @classmethod
    def each_shape_once(cls, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        return once(shapes)


def resolve_grid(
    grid: str | Mapping[str, Any] | Grid, grids: Mapping[str, Any], *, dtypes: tuple[str, ...] = ()
) -> Grid:
    """The grid called `grid`, or the one written inline, with every shape in full; `dtypes` replaces its own.
    Raises `KeyError` for an unknown name, and pydantic's `ValidationError`."""
    if isinstance(grid, str):
        found = grids[grid]
        grid = found if isinstance(found, Grid) else {"name": grid, **found}
    full = grid if isinstance(grid, Grid) else Grid.model_validate(grid)
    return full.model_copy(update={"dtypes": dtypes}) if dtypes else full


def case_ids(grid: Grid) -> tuple[str, ...]:
    """The cases of a grid in the order in which they run: by shape, then by dtype."""
    return tuple(shape.case_id(dtype) for shape in grid.shapes for dtype in grid.dtypes)


def harness_shapes(grid: Grid) -> list[dict[str, Any]]:
    """The shapes as the harness reads them."""
    return [shape.model_dump(mode="json") for shape in grid.shapes]
