"""Attention as a workload: its grids, its cases, and the names of its implementations. Needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kernels.attention.case import CASE_ID, DTYPE_NAMES, PASSES, Case, Shape
from kernels.attention.registry import REGISTRY
from kernels.harness.reading import (
    BadSpec,
    read_integer,
    read_name,
    read_names,
    read_object,
    read_positive,
    shorten_value,
)
from kernels.harness.workload import Implementation, Problem, Site, Unavailable

SIZES = ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
MORE_SIZES = ("value_dim", "window")
"""Those that a shape may leave out."""


class Attention:
    """Attention, softmax(scale * Q K^T) V: forward, backward or both."""

    name = "attention"
    grid_keys = ("shapes", "dtypes")
    columns = ("dtype", *SIZES, "causal")

    def cases(self, grid: Mapping[str, Any], where: str) -> tuple[Case, ...]:
        """Every shape in every dtype, shape by shape; a shape's `pass` is forward by default. Raises `BadSpec`."""
        shapes = grid["shapes"]
        if not isinstance(shapes, list):
            raise BadSpec(f"{where}.shapes must be a list, not {shorten_value(shapes)}")
        dtypes = read_names(grid["dtypes"], f"{where}.dtypes", DTYPE_NAMES)
        return tuple(
            Case(parse_shape(one, f"{where}.shapes[{i}]"), dtype, parse_direction(one, f"{where}.shapes[{i}]"))
            for i, one in enumerate(shapes)
            for dtype in dtypes
        )

    def is_case(self, case_id: str) -> bool:
        """Whether an id names a shape and a dtype."""
        return CASE_ID.fullmatch(case_id) is not None

    def shown(self) -> tuple[str, ...]:
        """The implementations by name."""
        return REGISTRY.shown()

    def knows(self, implementation: str) -> bool:
        """Whether the registry has the implementation."""
        return REGISTRY.find(implementation) is not None

    def implementation(self, name: str, site: Site) -> Implementation:
        """The implementation that the registry has for a name. Raises `Unavailable`."""
        entry = REGISTRY.find(name)
        if entry is None:
            raise Unavailable(f"no implementation is called {name}; there are {', '.join(self.shown())}")
        return entry.make()(name, site)

    def problem(self) -> Problem:
        """The part with the tensors and the right answer; this imports torch."""
        made: Problem = importlib.import_module("kernels.attention.problem").AttentionProblem()
        return made


def parse_shape(data: object, where: str) -> Shape:
    """One complete shape, without default values. Raises `BadSpec`."""
    given = read_object(data, where, (*SIZES, "causal"), ("pass", *MORE_SIZES, "sinks", "dropout"))
    sizes = {key: read_integer(given[key], f"{where}.{key}", 1) for key in (*SIZES, *MORE_SIZES) if key in given}
    if not isinstance(given["causal"], bool):
        raise BadSpec(f"{where}.causal must be true or false, not {shorten_value(given['causal'])}")
    if sizes["heads"] % sizes["kv_heads"]:
        raise BadSpec(f"{where}: heads {sizes['heads']} is not a multiple of kv_heads {sizes['kv_heads']}")
    if "window" in sizes and not given["causal"]:
        raise BadSpec(f"{where}.window is the last keys that a row sees of a causal shape; causal is false")
    if not isinstance(given.get("sinks", False), bool):
        raise BadSpec(f"{where}.sinks must be true or false, not {shorten_value(given['sinks'])}")
    dropout = given.get("dropout", 0.0)
    if dropout != 0.0 and not 0.0001 <= read_positive(dropout, f"{where}.dropout") <= 0.9999:
        raise BadSpec(f"{where}.dropout must be 0 or from 0.0001 to 0.9999, not {shorten_value(dropout)}")
    return Shape(**sizes, causal=given["causal"], sinks=given.get("sinks", False), dropout=float(dropout))


def parse_direction(data: Mapping[str, Any], where: str) -> str:
    """Which of `PASSES` a shape is measured in. Raises `BadSpec`."""
    return read_name(data.get("pass", PASSES[0]), f"{where}.pass", PASSES)


WORKLOAD = Attention()
