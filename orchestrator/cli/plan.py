"""`bench plan`: the same decisions as `launch`, with nothing spent."""

from __future__ import annotations

from datetime import date

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.choices import ChoiceParam, Hosts, Terms, launch_options
from orchestrator.cli.options import Json, group_options, options
from orchestrator.cli.render import usd
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import print_answer
from orchestrator.core.config.model import BOTH
from orchestrator.core.hosts import PROVISIONING
from orchestrator.core.market.offers import provisioning_of
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.results import is_control
from orchestrator.core.text import count, format_clock
from orchestrator.wiring import practice_device

# Shows a plan in a terminal.


def describe_measurements(plan: LaunchPlan) -> str:
    """How much is measured of each implementation: `12 cases x 50 repeats x 2 regimes`. A workload of the user's own
    may tell its cases when it is run alone."""
    cases = count(len(plan.cases), "case") if plan.cases else "its cases"
    counts_text = f"{cases} x {count(plan.harness['repeats'], 'repeat')}"
    return f"{counts_text} x 2 regimes" if plan.harness["regime"] == BOTH else counts_text


def practice_words(gpu: str) -> str:
    """That a run is only practice, and what it measures."""
    return f"practice: nothing is rented, prices are simulated; measuring {practice_device(gpu)}"


def _practice_view(plan: LaunchPlan) -> RenderableType:
    """A plan of the embedded cloud in about five lines: it has no zones, and no prices as if they were real."""
    names = [name for name in plan.harness["implementations"] if not is_control(name)]
    who = "all its implementations" if "*" in names else count(len(names), "implementation")
    lines = [
        Text(practice_words(plan.config.gpu), "bold"),
        Text.assemble(("plan ", "dim"), (plan.config_name, "bold"), ("  nothing is requested or spent", "dim")),
        Text.assemble(("measures  ", "dim"), f"{describe_measurements(plan)} x {who}"),
        Text.assemble(("at most   ", "dim"), format_clock(plan.ttl_s), f", {count(plan.attempts, 'attempt')}"),
    ]
    notes = [Text(f"note: {notice}", "yellow") for notice in plan.notices]
    return Group(*lines, *notes)


def plan_view(plan: LaunchPlan, *, prices_of: date | None = None, most: int = 8) -> RenderableType:
    """A plan; `prices_of` is the day of the price table by which offers are ranked."""
    if plan.mode.simulated and plan.config.gpu == "cpu":
        return _practice_view(plan)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    names = [name for name in plan.harness["implementations"] if not is_control(name)]
    who = "all its implementations" if "*" in names else count(len(names), "implementation")
    facts.add_row("measures", f"{describe_measurements(plan)} x {who}")
    owned = plan.offers[0].provisioning == PROVISIONING
    for name, text in _owned(plan) if owned else _rented(plan):
        facts.add_row(name, text)
    prices = ("$/h", "$ expected")
    offers = Columns("", "zone", *(() if owned else ("machine", "model", *prices)), right=prices)
    offers.add_column("host" if owned else "why")
    for place, offer in enumerate(plan.offers[:most], 1):
        rent = (
            offer.machine_type,
            provisioning_of(offer.provisioning),
            f"{offer.usd_per_hour:.4f}",
            f"{offer.key:.4f}",
        )
        offers.add_row(str(place), offer.zone, *(() if owned else rent), offer.host or offer.why)
    hidden_count = len(plan.offers) - most
    hidden_line = [Text(f"… and {count(hidden_count, 'more zone')}", "dim")] if hidden_count > 0 else []
    notes = [Text(f"note: {notice}", "yellow") for notice in plan.notices]
    heading: list[Text] = []
    if plan.margin:  # said before anything else
        first, notes = notes[:1], notes[1:]
    else:
        first = []
    if plan.mode.simulated:
        when = f" of {prices_of}" if prices_of is not None else ""
        heading = [Text(f"shipped prices{when}, no project asked", "bold")]
    title = Text.assemble(("plan ", "dim"), (plan.config_name, "bold"), ("  nothing is requested or spent", "dim"))
    return Group(*first, title, facts, Text(), *heading, offers, *hidden_line, *notes)


def _rented(plan: LaunchPlan) -> tuple[tuple[str, str], ...]:
    """The price and the parts of a rented machine, and the amount that is held with its calculation."""
    usd_per_hour, each_s = max(offer.usd_per_hour for offer in plan.offers), plan.ttl_s + DEADLINE_SLACK_S
    times = f"{count(plan.attempts, 'attempt')} of {format_clock(each_s)} in the dearest zone, {usd(usd_per_hour)}/h"
    margin_text = f" and {plan.margin:.0%} for the age of the prices" if plan.margin else ""
    return (
        (
            "at most",
            f"{usd(plan.ceiling_usd)}: {times}{margin_text}",
        ),
        *_expected(plan),
        ("image", plan.image.rpartition("/")[2]),
        ("disk", f"{plan.config.machine.disk_gb} GB {plan.config.disk_type}"),
    )


def _expected(plan: LaunchPlan) -> tuple[tuple[str, str], ...]:
    """How long similar runs took in this bucket."""
    likely = plan.expectation
    if likely is None:
        return ()
    cost = likely.usd(plan.usd_per_hour)
    return (("expected", f"{usd(cost)}: {likely.text}" if cost is not None else likely.text),)


def _owned(plan: LaunchPlan) -> tuple[tuple[str, str], ...]:
    """The time limit on a host, and its cost if its owner set an hourly price."""
    times = f", tried again up to {plan.attempts} times if it is lost" if plan.attempts > 1 else ""
    price = f", {usd(plan.ceiling_usd)} by host.hourly_usd" if plan.ceiling_usd else ""
    return (("at most", f"{format_clock(plan.ttl_s)}{times}{price}"),)


@group_options
def plan(ctx: typer.Context, choice: ChoiceParam, terms: Terms, host: Hosts = None, json: Json = False) -> None:
    """Show what a launch would do and the most it can cost.

    Zones in the order in which they would be tried, prices, quotas, cases. Nothing is requested or spent.
    """
    chosen = launch_options(choice, terms, host)
    wiring = options(ctx).wiring()
    if json:
        wiring.say = lambda _: None
    made = wiring.plan(*wiring.configured(chosen))
    print_answer(lambda: plan_document(made), plan_view(made, prices_of=wiring.price_book.usable().as_of), json=json)
