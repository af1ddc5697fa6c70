"""Makes the launch plan: the offers in order, the deadline, the ceiling and the cases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from statistics import median
from typing import Any, Final

from orchestrator.core.config.model import (
    Config,
    EffectiveGrids,
    case_ids_of,
    count_measurements,
    effective_grids,
    harness_settings,
)
from orchestrator.core.ledger.budget import Caps, HoldRefused, Ledger, authorize, headroom
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.market.machines import Quota
from orchestrator.core.market.offers import (
    FLEX_START,
    START_S,
    USUAL,
    WORK_S,
    ExpectedWork,
    Offer,
    ZoneAdvice,
    rank_offers,
    weigh_offers,
)
from orchestrator.core.market.pricing import MAX_TTL_S, PricedMachine, PriceSheet, ceiling_usd, round_up, ttl_within
from orchestrator.core.names import NO_IMAGE, ImageUrl
from orchestrator.core.naming import Mode, instance_name, is_prepared
from orchestrator.core.plan.offered import PlanRefused, allowed_offers
from orchestrator.core.run.status import RECENT, ColdStart, StatusLine, cold_starts, format_span
from orchestrator.core.text import count

# The expected time and cost of a run, from similar runs in this bucket.


@dataclass(frozen=True, slots=True)
class Expectation:
    """How long a machine is expected to take until the first case, and to measure all cases, in seconds."""

    cold: ColdStart
    measuring_s: float | None
    """None if no earlier run of this configuration shows it."""
    runs: int
    """From how many runs `measuring_s` is computed."""
    prepared: bool
    """Whether the cold starts were on prepared images."""

    @property
    def work(self) -> ExpectedWork:
        measuring_s = WORK_S - START_S if self.measuring_s is None else self.measuring_s
        return ExpectedWork(self.cold.billed_s + measuring_s, self.cold.billed_s)

    def usd(self, usd_per_hour: Decimal) -> Decimal | None:
        """What the run costs if its machine is not preempted, in dollars; None if `measuring_s` is not known."""
        if self.measuring_s is None:
            return None
        return round_up(Fraction(usd_per_hour) * Fraction(self.work.work_s) / 3600)

    @property
    def text(self) -> str:
        runs = f"median of {count(self.cold.runs, 'run')}"
        image = " on prepared images" if self.prepared else ""
        start = f"{format_span(self.cold.seconds)} to the first case ({runs}{image})"
        if self.measuring_s is None:
            return start
        return f"{start}, {format_span(self.measuring_s)} of measuring (median of {self.runs})"

    def document(self, usd_per_hour: Decimal) -> dict[str, Any]:
        cost = self.usd(usd_per_hour)
        return {
            "usd": None if cost is None else str(cost),
            "measuring_s": self.measuring_s,
            "measuring_rests_on_runs": self.runs,
            "prepared_image": self.prepared,
            "cold_start": self.cold.document(),
        }


def expect_run(
    lines: Sequence[StatusLine], gpu: str, mode: str, config: str, cases: int, machine_type: str, *, prepared: bool
) -> Expectation | None:
    """The expectation for a run of `cases` cases of this configuration, from the bucket's runs in `lines`; None if no
    run of this GPU had a cold start. Cold starts on the same kind of image are used, if there are any, and times of
    cases on the same type of machine, as another may have more GPUs."""
    on_same_image = cold_starts(lines, gpu, mode, prepared=prepared)
    cold = on_same_image or cold_starts(lines, gpu, mode)
    if cold is None:
        return None
    similar = [
        line
        for line in sorted(lines, key=lambda line: line.run_id)
        if (line.gpu, line.mode, line.config) == (gpu, mode, config)
        and line.machine_type in (machine_type, "")
        and line.phase in ("succeeded", "incorrect")
        and line.cases_done > 0
        and line.measuring_s > 0
    ][-RECENT:]
    s_per_case = median(line.measuring_s / line.cases_done for line in similar) if similar else None
    measuring_s = None if s_per_case is None else round(s_per_case * cases, 1)
    return Expectation(cold, measuring_s, len(similar), prepared and on_same_image is not None)


# The notices of a plan: where the run measures something else than was asked for, and how reliable the prices are.


def about_grids(config: Config, mode: Mode, grids: EffectiveGrids, here: str) -> list[str]:
    """Notices about what is measured, if that is not what was asked for. `here` is the GPU of the machine on which the
    embedded cloud runs; empty: none is used."""
    notices = []
    if config.workload is not None:
        workload, cases_known = config.workload, len(config.workload.cases)
        cases = count(cases_known, "case") if cases_known else "as many cases as it defines when it runs"
        if workload.axes:
            only = ", ".join(f"{name} {' or '.join(map(str, values))}" for name, values in workload.axes.items())
            cases = (
                f"{cases_known} of {count(len(workload.grid), 'case')}, {only}"
                if workload.grid
                else f"its cases of {only}"
            )
        instead = "" if config.gpu == "cpu" or not mode.simulated else f"; no {config.gpu.upper()} is measured"
        where = f" on this machine's own {here or 'processor'}" if mode.simulated else ""
        without_gpu = mode.simulated and not here
        skipped = [f"{', '.join(workload.cuda)}: needs a GPU, so its rows are skipped here"] if workload.cuda else []
        return [
            f"workload {workload.name}: {cases}{where}{instead}",
            *(skipped if without_gpu else ()),
            *workload.notes,
        ]
    if mode.simulated:
        what = f"grid '{grids.measure.name}'"
        if grids.replaced:
            what += f" in the place of '{config.measure.grid.name}'"
        instead = "" if config.gpu == "cpu" else f"; no {config.gpu.upper()} is measured"
        notices.append(f"embedded cloud: this machine's own {here or 'processor'} is measured, on {what}{instead}")
    if grids.left_out:
        notices.append(f"{config.gpu} has no {', '.join(grids.left_out)} arithmetic: left out")
    return notices


def about_age(prices: PriceSheet, margin: Decimal, now: datetime) -> list[str]:
    """The notice that the prices are old, with how much is held in addition and the remedy; none if they are not
    old."""
    if not prices.stale(now):
        return []
    days = count(prices.age_days(now.date()), "day")
    age = f"prices are from {prices.as_of}, {days} old, and spot prices change every month"
    return [f"{age}: {margin:.0%} more than these prices is held; `bench prices --refresh` gets today's from Google"]


def about_prices(config: Config, prices: PriceSheet, offers: Sequence[Offer]) -> list[str]:
    """Notices about prices whose source is not a published record."""
    notices = []
    gpu, machine = config.gpu_spec, config.machine
    spec = PricedMachine(config.machine_type, gpu.accelerator, gpu.gpus_of(config.machine_type))
    sources: set[str] = set()
    for region, model in {(offer.region, offer.provisioning) for offer in offers}:
        quote = prices.quote(spec, region, model, machine.disk_gb, machine.external_ip, config.disk_type)
        if quote is not None and quote.source not in prices.trusted:
            sources.add(quote.source)
    notices += [f"some prices do not come from a published table: {prices.sources[name]}" for name in sorted(sources)]
    return notices


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a run will request. `offers` are in order, best first, and each of them stays within `ceiling_usd`."""

    config: Config
    config_name: str
    mode: Mode
    """`gce`, `embedded`, or `host`."""
    offers: tuple[Offer, ...]
    ttl_s: int
    ceiling_usd: Decimal
    attempts: int
    image: ImageUrl
    cases: tuple[str, ...]
    measurements_per_implementation: int
    harness: dict[str, Any]
    """The harness's part of the run spec (docs/contracts.md, section 4)."""
    notices: tuple[str, ...] = ()
    headroom: dict[str, Decimal] = field(default_factory=dict)
    """The dollars that each capped window has left once the ceiling is held."""
    fallbacks: tuple[LaunchPlan, ...] = ()
    """The plans for other GPUs. Their offers come after those of this GPU."""
    base_image: ImageUrl = NO_IMAGE
    """The dated image to boot from if `image` is a prepared one and is gone."""
    prepare: dict[str, Any] = field(default_factory=dict)
    """What a machine does to become an image instead of measuring; empty: it measures."""
    expectation: Expectation | None = None
    """The expected time and cost, from this bucket's runs; None if no run shows it."""
    margin: Decimal = Decimal(0)
    """The share of the prices that the ceiling includes in addition, because the price table is old."""

    def of(self, offer: Offer) -> LaunchPlan:
        """The plan that an offer belongs to: this one or a fallback. Image, disk and grids differ between GPUs."""
        return next((other for other in self.fallbacks if other.config.gpu == offer.gpu), self)

    @property
    def label(self) -> str:
        """The GPU in the run's id: the rented GPU; `host` for the user's own machine, about whose GPU the id says
        nothing."""
        return "host" if self.mode is Mode.HOST else self.config.gpu

    def label_on(self, here: str) -> str:
        """The same; for practice what is measured on a machine whose GPU is `here`."""
        return practice_label(here) if self.mode.simulated else self.label

    @property
    def usd_per_hour(self) -> Decimal:
        """The price of the offer that is tried first."""
        return self.offers[0].usd_per_hour


def practice_label(here: str) -> str:
    """What practice measures on a machine whose GPU is `here`: `h200`, `gpu` for one that cannot be rented, and `cpu`
    where there is none."""
    words = re.findall(r"[a-z0-9]+", here.lower())
    return next((word for word in words if word in GPU_NAMES), "gpu" if here else "cpu")


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances under which a plan is made: mode, prices, quotas, money, time, and what earlier runs showed."""

    mode: Mode
    prices: PriceSheet
    image: ImageUrl
    quotas: Mapping[str, Sequence[Quota]] | None
    """The quotas by region, each with the project's own; None if they are not known."""
    ledger: Ledger
    caps: Caps
    now: datetime
    advice: Sequence[ZoneAdvice] = ()
    """The cloud's advice on capacity; the offers are weighed with it and with `stock_outs`."""
    stock_outs: Mapping[tuple[str, str, str], datetime] | None = None
    """The time of the last stock-out of each pool."""
    here: str = ""
    """The GPU of the machine on which the embedded cloud runs; empty if it has none."""
    runs: Sequence[StatusLine] = ()
    """The bucket's runs, which show how long cold starts take."""

    @property
    def margin(self) -> Decimal:
        """The share of a price that is held in addition. It is 0 unless machines are rented on Compute Engine: only
        Google's prices change."""
        return self.prices.margin(self.now) if self.mode is Mode.GCE else Decimal(0)

    def kind(self, config: Config) -> str:
        """The mode for `effective_grids`: `here` if the embedded cloud measures a real GPU, with a GPU's grid and
        regimes; else the plan's mode."""
        return "here" if self.mode.simulated and self.here and config.gpu != "cpu" else self.mode


def plan_launch(config: Config, config_name: str, around: Circumstances) -> LaunchPlan | PlanRefused:
    """The launch plan for `config`, or why there is none."""
    mode, now, margin = around.mode, around.now, around.margin
    allowed = allowed_offers(config, around.prices, around.quotas)
    if isinstance(allowed, PlanRefused):
        return allowed
    offers, notices = allowed
    timed = fit_budget(config, mode, offers, around.ledger, around.caps, now, margin)
    if isinstance(timed, PlanRefused):
        return timed
    offers, ttl_s, attempts, budget_notices = timed
    notices += budget_notices
    kind = around.kind(config)
    grids = effective_grids(config, kind)
    notices += about_grids(config, mode, grids, around.here if kind == "here" else "")
    if mode is Mode.GCE:
        notices = [*about_age(around.prices, margin, now), *notices, *about_prices(config, around.prices, offers)]
    worst = max(ceiling_usd(held_at(offer, margin), ttl_s, attempts) for offer in offers)
    fits = authorize(around.ledger, around.caps, worst, now, pretend=mode.simulated)
    assert not isinstance(fits, HoldRefused), "a deadline that ttl_within allows is one whose ceiling fits"
    cases = case_ids_of(config, grids)
    on, ready = config.machine_type, is_prepared(around.image)
    likely = expect_run(around.runs, config.gpu, mode, config_name, len(cases), on, prepared=ready)
    work = likely.work if likely is not None else USUAL
    return LaunchPlan(
        config=config,
        config_name=config_name,
        mode=mode,
        offers=rank_offers(
            weigh_offers(offers, advice=around.advice, stock_outs=around.stock_outs, now=now, work=work)
        ),
        ttl_s=ttl_s,
        ceiling_usd=worst,
        attempts=attempts,
        image=around.image,
        cases=cases,
        measurements_per_implementation=len(cases) * count_measurements(config, kind),
        harness=harness_settings(config, grids, kind),
        notices=tuple(notices),
        headroom=fits.headroom,
        expectation=likely,
        margin=margin,
    )


def held_at(offer: Offer, margin: Decimal) -> Decimal:
    """The dollars that are held for an hour of an offer: its price and the margin."""
    return offer.usd_per_hour * (1 + margin)


def with_fallbacks(
    first: LaunchPlan | PlanRefused, others: Sequence[LaunchPlan | PlanRefused]
) -> LaunchPlan | PlanRefused:
    """One plan from several, for GPUs in the order of preference. A refused plan is left out, with a notice; if all are
    refused, the first refusal is returned. All machines get the same deadline, the shortest of the plans."""
    plans = [one for one in (first, *others) if isinstance(one, LaunchPlan)]
    refused = [one for one in (first, *others) if isinstance(one, PlanRefused)]
    if not plans:
        return first
    lead, *fallback_plans = plans
    ttl_s, attempts = min(one.ttl_s for one in plans), min(one.attempts for one in plans)
    offers = tuple(offer for one in plans for offer in one.offers)
    return replace(
        lead,
        offers=offers,
        ttl_s=ttl_s,
        attempts=attempts,
        ceiling_usd=max(ceiling_usd(held_at(offer, lead.margin), ttl_s, attempts) for offer in offers),
        fallbacks=tuple(replace(one, ttl_s=ttl_s) for one in fallback_plans),
        headroom=min((one.headroom for one in plans), key=lambda left: min(left.values(), default=Decimal(0))),
        notices=(
            *lead.notices,
            *(f"not available: {one.message}" for one in refused),
            *(
                f"{one.config.gpu}: {notice}"
                for one in fallback_plans
                for notice in one.notices
                if notice not in lead.notices
            ),
        ),
    )


def run_spec(
    plan: LaunchPlan,
    *,
    run_id: str,
    attempt: int,
    bucket: str,
    require_cuda: bool,
    usd_per_hour: Decimal | None = None,
) -> dict[str, Any]:
    """The run spec for the machine of one attempt (docs/contracts.md, section 3). `usd_per_hour` is its price; None:
    the price of the first offer."""
    config, embedded = plan.config, plan.mode.simulated
    kept = config.run.keep and plan.mode is not Mode.HOST
    case_usd = config.measure.case_budget_usd
    case_budget = (
        {}
        if case_usd is None
        else {"case_budget_usd": float(case_usd), "usd_per_hour": float(usd_per_hour or plan.usd_per_hour)}
    )
    limits = config.run.limits()
    if "measure" not in config.run.phase_limits_s:
        # A user asks for a longer deadline to measure more, so the default limit must not end the measuring earlier.
        limits["measure"] = max(limits["measure"], plan.ttl_s - 300)
    return {
        "schema": 1,
        "run_id": run_id,
        "vm": instance_name(run_id, attempt),
        "attempt": attempt,
        "bucket": bucket,
        "gpu": config.gpu,
        "require_cuda": require_cuda,
        "deadline_s": plan.ttl_s,
        "phase_limits_s": {phase: min(seconds, plan.ttl_s) for phase, seconds in limits.items()},
        "environment": {
            "torch": config.environment.torch,
            # The embedded cloud's machines are processes on the user's own machine: nothing is installed there, and
            # little disk space is needed. Nothing is installed on a host either, because it belongs to the user.
            "allow_install": config.environment.allow_install and plan.mode is Mode.GCE,
            "min_free_gb": min(config.environment.min_free_gb, 1) if embedded else config.environment.min_free_gb,
        },
        "harness": {**plan.harness, **case_budget},
        **({"prepare": dict(plan.prepare)} if plan.prepare else {}),
        **({"container": config.machine.container} if config.machine.container and not plan.prepare else {}),
        **({"keep": {"idle_limit_s": 60 * config.run.idle_minutes}} if kept else {}),
    }


def fit_budget(
    config: Config,
    mode: Mode,
    offers: tuple[Offer, ...],
    ledger: Ledger,
    caps: Caps,
    now: datetime,
    margin: Decimal = Decimal(0),
) -> tuple[tuple[Offer, ...], int, int, list[str]] | PlanRefused:
    """(offers that the budget can pay for, deadline in seconds, number of machines, notices), or why there is no plan.
    If the budget pays for the time asked for on at least one machine, that time is kept, on as many machines as it pays
    for. Otherwise there is one machine, with the longest time that the cheapest offer allows. So a small budget reduces
    the number of machines before it reduces the time. `margin` is the share of each price that is held in addition."""
    wanted_s, least_s = min(config.run.max_minutes * 60, MAX_TTL_S), mode.shortest_s
    if wanted_s < least_s:
        return PlanRefused(
            "budget",
            f"run.max_minutes of {config.run.max_minutes} is too short: booting and one case take {_minutes(least_s)}",
            f"set run.max_minutes to {-(-least_s // 60)} or more",
        )
    limit = headroom(ledger, caps, now, pretend=mode.simulated)
    if limit is None:
        return offers, wanted_s, config.run.attempts, []
    dollars, _ = limit
    cheapest = min(held_at(offer, margin) for offer in offers)
    payable = [n for n in range(config.run.attempts, 0, -1) if ttl_within(dollars, cheapest, n) >= wanted_s]
    attempts = payable[0] if payable else 1
    ttl = {offer: ttl_within(dollars, held_at(offer, margin), attempts) for offer in offers}
    longest_s = min(wanted_s, max(ttl.values()))
    if longest_s < least_s:
        refused = authorize(ledger, caps, ceiling_usd(cheapest, least_s, attempts), now, pretend=mode.simulated)
        assert isinstance(refused, HoldRefused), "what ttl_within leaves out, authorize refuses"
        return _budget_refused(config, refused, least_s)
    kept = tuple(offer for offer in offers if ttl[offer] >= longest_s)
    notices = []
    if attempts < config.run.attempts:
        notices.append(f"the budget pays for {attempts} of {count(config.run.attempts, 'attempt')}")
    if longest_s < wanted_s:
        notices.append(f"the budget shortens the run from {_minutes(wanted_s)} to {_minutes(longest_s)}")
    if len(kept) < len(offers):
        too_expensive = sorted({_place(offer) for offer in offers} - {_place(offer) for offer in kept})
        notices.append(
            f"left out, too expensive to pay {_minutes(longest_s)} within the budget: {', '.join(too_expensive)}"
        )
    return kept, longest_s, attempts, notices


def _place(offer: Offer) -> str:
    how = {"SPOT": "", FLEX_START: " as flex-start"}.get(offer.provisioning, " on demand")
    return f"{offer.region}{how}"


_WINDOW_WORDS: Final = {"run": "for one run", "day": "today", "month": "this month", "total": "in total"}


def _budget_refused(config: Config, refused: HoldRefused, seconds: int) -> PlanRefused:
    headroom_usd = max(refused.cap - refused.spent - refused.held, Decimal(0))
    held = f", ${refused.held} held" if refused.held else ""
    key = "total_usd" if refused.window == "total" else f"per_{refused.window}_usd"
    return PlanRefused(
        "budget",
        (
            f"{config.gpu} needs at least ${refused.needs} (the shortest useful run takes {_minutes(seconds)}), "
            f"but only ${headroom_usd} is left {_WINDOW_WORDS[refused.window]} (cap ${refused.cap}, ${refused.spent} "
            f"spent{held})"
        ),
        refused.remedy
        if refused.set_by
        else f"raise budget.{key}" + (", or wait until tomorrow (UTC)" if refused.window == "day" else ""),
        {
            "window": refused.window,
            "cap": str(refused.cap),
            "spent": str(refused.spent),
            "held": str(refused.held),
            "needs": str(refused.needs),
            "short_by": str(refused.short_by),
        },
    )


def _minutes(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds // 60} min {seconds % 60} s"
