"""Named grids of attention's cases, as files of grids have them, for programmes that measure without a client."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from kernels.attention.workload import WORKLOAD


def combine_grids(grids: Mapping[str, Any], names: list[str], dtypes: list[str]) -> dict[str, Any]:
    """The named ones of these grids as one grid, with every shape spelt out, as in a run spec."""
    shapes: list[dict[str, Any]] = []
    combined: dict[str, Any] = {}
    for name in names:
        combined = grids[name]
        shapes += [shape for shape in map(spell_out_shape, list_shapes(combined)) if shape not in shapes]
    limits = {"max_abs_error": combined["max_abs_error"]} if "max_abs_error" in combined else {}
    return {"shapes": shapes, "dtypes": dtypes or combined["dtypes"], **limits}


def list_shapes(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """The shapes of a grid, from its list or from every combination of a product's values."""
    product = grid.get("product")
    if product is None:
        return list(grid["shapes"])
    return [dict(zip(product, values, strict=True)) for values in itertools.product(*product.values())]


def spell_out_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """A shape with a value for every axis."""
    seq = shape.get("seq")
    full = {"seq_q": seq, "seq_k": seq, "kv_heads": shape["heads"], "causal": False, **shape}
    full.pop("seq", None)
    return full


def case_ids(measure: dict[str, Any]) -> list[str]:
    """The ids of a grid's cases, heaviest first, so that shards of every n-th case take about as long."""
    return [case.id for case in sorted(WORKLOAD.cases(measure, "measure"), key=lambda case: -case.flops)]
