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
    from rich.console import Console

    from orchestrator.cli.asking import Asked, load_asked, make_plan
    from orchestrator.cli.plan_view import plan_view
    from orchestrator.core.describe import plan_document

    asked = Asked(
        gpu, config, tuple(set_ or ()), baseline_only, max_price, on_demand_after, tuple(fallback_gpu or ()),
        hosts=tuple(host or ()),
    )  # fmt: skip
    wiring = options(ctx).wiring()
    if json:
        wiring.say = lambda _: None
    settings, name = load_asked(asked.known(wiring))
    made = make_plan(wiring, settings, name)
    if json:
        emit_json(plan_document(made))
        return
    Console(highlight=False).print(plan_view(made))
