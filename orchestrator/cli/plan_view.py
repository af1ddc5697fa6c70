"""What a person sees of a plan."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render import clock, usd
from orchestrator.core.plan import LaunchPlan
from orchestrator.core.results import is_control
from orchestrator.core.settings import BOTH


def planned(plan: LaunchPlan) -> str:
    """How much is measured of each implementation: `12 cases x 50 repeats x 2 regimes`."""
    words = f"{len(plan.cases)} cases x {plan.harness['repeats']} repeats"
    return f"{words} x 2 regimes" if plan.harness["regime"] == BOTH else words


def plan_view(plan: LaunchPlan, *, most: int = 8) -> RenderableType:
    config = plan.config
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    names = [name for name in plan.harness["implementations"] if not is_control(name)]
    facts.add_row(
        "measures",
        f"{planned(plan)} x {len(names)} implementations",
    )
    facts.add_row("at most", f"{clock(plan.ttl_s)} on each of {plan.attempts} machine(s): {usd(plan.ceiling_usd)}")
    facts.add_row("image", plan.image.rpartition("/")[2])
    facts.add_row("disk", f"{config.machine.disk_gb} GB {config.machine.disk_type}")
    offers = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "zone", "machine", "model"):
        offers.add_column(name, no_wrap=True)
    offers.add_column("$/h", justify="right")
    offers.add_column("$ expected", justify="right")
    offers.add_column("why")
    for place, offer in enumerate(plan.offers[:most], 1):
        offers.add_row(
            str(place),
            offer.zone,
            offer.machine_type,
            offer.provisioning.lower(),
            f"{offer.usd_per_hour:.4f}",
            f"{offer.key:.4f}",
            offer.why,
        )
    more = len(plan.offers) - most
    rest = [Text(f"… and {more} more zones", "dim")] if more > 0 else []
    notes = [Text(f"note: {notice}", "yellow") for notice in plan.notices]
    title = Text.assemble(("plan ", "dim"), (plan.config_name, "bold"), ("  nothing is asked for or spent", "dim"))
    return Group(title, facts, Text(), offers, *rest, *notes)
