"""Grids: named sets of problems, each written out in full (docs/contracts.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from orchestrator.core.bundled import Shape

DTYPES: Final = ("float16", "bfloat16", "float32")

T = TypeVar("T")


def require_unique(entries: tuple[T, ...]) -> tuple[T, ...]:
    """Returns `entries` unchanged. Raises `ValueError` if one is given twice: it would be measured twice under one
    name."""
    for index, entry in enumerate(entries):
        if entry in entries[:index]:
            raise ValueError(f"entry {index + 1} is a duplicate: {entry}")
    return entries


class Grid(BaseModel):
    """Shapes, and the element types in which they are measured unless the run names others."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

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
        return require_unique(dtypes)

    @field_validator("shapes")
    @classmethod
    def each_shape_once(cls, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        return require_unique(shapes)


def resolve_grid(grid: str | Mapping[str, Any] | Grid, grids: Mapping[str, Any]) -> Grid:
    """The grid named `grid`, or the grid given inline, with every shape in full. Raises `KeyError` for an unknown name,
    and pydantic's `ValidationError` for an invalid grid."""
    if isinstance(grid, str):
        named_grid = grids[grid]
        grid = named_grid if isinstance(named_grid, Grid) else {"name": grid, **named_grid}
    return grid if isinstance(grid, Grid) else Grid.model_validate(grid)


def case_ids(grid: Grid) -> tuple[str, ...]:
    """The cases of a grid in the order in which they run: by shape, then by dtype."""
    return tuple(shape.case_id(dtype) for shape in grid.shapes for dtype in grid.dtypes)


def harness_shapes(grid: Grid) -> list[dict[str, Any]]:
    """The shapes as the harness reads them."""
    return [shape.model_dump(mode="json") for shape in grid.shapes]
