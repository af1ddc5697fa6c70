"""Makes the configuration that repeats the measurements of a stored run from the run's spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.market.catalog import nearest
from orchestrator.core.results import CONTROL

SAME: Final = ("repeats", "regime", "cache", "seed", "threads", "stop_at_relative_ci")
"""The keys that have the same name in a spec and in the section `measure` of a configuration."""


def again(spec: Mapping[str, Any], capability: str) -> dict[str, Any]:
    """The configuration as data for YAML, for a GPU of this compute capability (empty text: no GPU). The result is
    empty if the spec is incomplete or has a user's own workload, because a spec does not contain the workload's file.
    The most that a case may cost is left out: a configuration sets its own limits on money."""
    measured, checked, names = spec.get("measure"), spec.get("correctness"), spec.get("implementations")
    if "workload" in spec or not isinstance(names, list) or not names:
        return {}
    if not isinstance(measured, Mapping) or not isinstance(checked, Mapping) or not measured.get("shapes"):
        return {}
    control = f"{names[0]}{CONTROL}"
    measure = {
        "grid": _grid(measured),
        "implementations": [name for name in names if name != control],
        "control": control in names,
        **({} if spec.get("warmup") == "steady" else {"warmup": spec.get("warmup")}),
        **{key: spec[key] for key in SAME if key in spec},
    }
    limit = {"max_abs_error": checked["max_abs_error"]} if "max_abs_error" in checked else {}
    return {
        "gpu": nearest(capability).name,
        "measure": measure,
        **({"correctness": {"grid": _grid(checked), **limit}} if checked.get("shapes") else {}),
    }


def _grid(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"shapes": part["shapes"], "dtypes": part.get("dtypes", [])}
