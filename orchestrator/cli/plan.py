"""`bench plan`: the same decisions as `launch`, with nothing spent."""

from __future__ import annotations

import typer

from orchestrator.cli.launch import (
    BaselineOnly,
    ConfigFile,
    FallbackGpu,
    Gpu,
    Hosts,
    MaxPrice,
    OnDemandAfter,
    Overrides,
)
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.cli.plan_view import plan_view
from orchestrator.cli.screen import screen
from orchestrator.core.plan.document import plan_document
from orchestrator.runs.planning import LaunchOptions


def plan(
    ctx: typer.Context,
    config: ConfigFile = None,
    gpu: Gpu = "",
    baseline_only: BaselineOnly = False,
    set_: Overrides = None,
    max_price: MaxPrice = "",
    on_demand_after: OnDemandAfter = None,
    fallback_gpu: FallbackGpu = None,
    host: Hosts = None,
    json: Json = False,
) -> None:
    """Show what a launch would do, and cost at most.

    Offers ranked, prices, ceiling, quota, grid. Nothing is asked for or spent.
    """
    chosen = LaunchOptions(
        gpu, config, tuple(set_ or ()), baseline_only, max_price, on_demand_after, tuple(fallback_gpu or ()),
        hosts=tuple(host or ()),
    )  # fmt: skip
    wiring = options(ctx).wiring()
    if json:
        wiring.say = lambda _: None
    made = wiring.plan(*wiring.configured(chosen))
    if json:
        emit_json(plan_document(made))
        return
    screen().print(plan_view(made))
