"""Which regimes a case is measured in. It depends on the spec, the kind of device and the shape, but never on a
measurement or an element type. So two cases of one run that differ only in these have the same regimes."""

from __future__ import annotations

from kernels.harness.spec import BOTH
from kernels.harness.workload import Case

BURST, SUSTAINED, GRAPH = "burst", "sustained", "graph"
HELD_BACK_FLOPS = 2.0**34
"""A call with at least this many operations takes long enough (40 us at 400 TFLOP/s) for the host to keep the device
busy without a graph. It is also heavy enough for a power limit to slow a device that does nothing else. A case may give
its `flops`."""


def is_host_bound(regime: str, device: str, case: Case) -> bool:
    """Whether a busy host may slow a regime of a case. On a GPU the host launches each call, except in a graph; calls
    that are known to be long give it the time."""
    return device != "cuda" or (regime != GRAPH and getattr(case, "flops", 0.0) < HELD_BACK_FLOPS)


def case_regimes(regime: str, device: str, case: Case) -> tuple[str, ...]:
    """The regimes of a case on a kind of device (`cuda` or `cpu`), in the order in which they are measured."""
    if regime != BOTH:
        return tuple(regime.split("+"))
    if device != "cuda":
        return BURST, SUSTAINED
    heavy = getattr(case, "flops", 0.0) >= HELD_BACK_FLOPS
    return (BURST, GRAPH, SUSTAINED) if heavy else (BURST, GRAPH)
