"""One case from its inputs to its file: judged, spread over input sets, timed in each regime, judged again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from kernels.attention.case import Case
from kernels.attention.interface import BuildFailed
from kernels.harness import axes, rows
from kernels.harness.clocks import clocks
from kernels.harness.contenders import Built
from kernels.harness.facts import log
from kernels.harness.input_sets import Rotation
from kernels.harness.judging import Judged, Outcome, Session, judge_case, spread, still_right
from kernels.harness.rows import Origin, Row, Setting, Spool
from kernels.harness.spec import BOTH, Spec
from kernels.harness.stopping import first_of, rule, spent
from kernels.harness.timers import Timer, timer_for
from kernels.harness.timing import Measured, measure
from kernels.harness.turns import Contender
from kernels.harness.warming import LIMIT_S

BURST, SUSTAINED, GRAPH = "burst", "sustained", "graph"

Timers = Callable[[str], Callable[[Contender], Timer]]
"""How each regime is timed on the session's device."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What is told of a case: rows in its file, medians of the first regime in microseconds, the reasons of what was
    not timed at all, why each regime ended, and whether an implementation was wrong."""

    rows: int
    median_us: dict[str, float]
    skipped: dict[str, str]
    stopped: dict[str, str]
    wrong: bool


@dataclass(frozen=True, slots=True)
class Regime:
    """One regime of a case, measured; its samples are in `spool`."""

    name: str
    measured: Measured
    spool: Spool


def timers(session: Session) -> Timers:
    """The timers of the session's device, each regime's overhead measured once. Raises `ValueError` for a regime that
    the device does not have."""
    kinds = (BURST, SUSTAINED) if session.spec.regime == BOTH else (session.spec.regime,)
    if session.spec.regime == BOTH and session.device.type == "cuda":
        kinds = (*kinds, GRAPH)
    known = {kind: timer_for(session.device, kind) for kind in kinds}
    return known.__getitem__


def measure_case(
    session: Session, bench: Built | BuildFailed | None, case: Case, origin: Origin, timed_by: Timers
) -> Finished:
    """Measures a case and writes its file."""
    began = time.monotonic()
    judged, turns = spread(session, bench, judge_case(session, bench, case, session.spec.implementations))
    folder = session.out / "cases"
    rng = axes.order(case, session.spec.seed)
    with ExitStack() as stack:
        regimes: list[Regime] = []
        for share in shares(session.spec):
            name = regime_after(regimes, session)
            spool = stack.enter_context(Spool(folder))
            measured = measure(
                judged.contenders,
                blocks=session.spec.repeats,
                warmup=session.spec.warmup,
                timer=timed_by(name),
                rng=rng,
                clocks=clocks(session.device, sustained=name == SUSTAINED),
                keep=spool.keep,
                enough=first_of(
                    rule(session.spec.stop_at_relative_ci), spent(seconds_left(session.spec, share, began))
                ),
                warmup_limit_s=LIMIT_S[session.device.type],
            )
            regimes.append(Regime(name, measured, spool))
        judged = still_right(session, judged)
        written = rows.write_csv(
            folder / f"{case.id}.csv",
            rows.MEASUREMENT_COLUMNS,
            (row for regime in regimes for row in table(origin, judged, turns, regime)),
        )
    return finished(case, judged, regimes, written)


def shares(spec: Spec) -> tuple[float, ...]:
    """For each regime to be measured, what part of the case's dollars may be gone at its end."""
    return (0.5, 1.0) if spec.regime == BOTH else (1.0,)


def seconds_left(spec: Spec, share: float, began: float) -> float | None:
    """What is left, from now, of this share of the case's time; None where it has no limit."""
    return None if spec.case_budget_s is None else spec.case_budget_s * share - (time.monotonic() - began)


def regime_after(before: list[Regime], session: Session) -> str:
    """The regime that was asked for; of `both`, burst first, and then the one that shows the steady state."""
    if session.spec.regime != BOTH:
        return session.spec.regime
    if not before:
        return BURST
    return GRAPH if session.device.type == "cuda" and launch_bound(before[0].measured) else SUSTAINED


def launch_bound(burst: Measured) -> bool:
    """Whether calls back to back would measure the host: some implementation keeps it busy for longer than the device.

    Then a graph, which the device replays alone, shows the steady state; of all of them, so that they compare.
    """
    return any(times and burst.host_us[name] > statistics.median(times) for name, times in burst.latencies.items())


def table(origin: Origin, judged: Judged, turns: Rotation, regime: Regime) -> Iterator[Row]:
    """A regime's rows in the order measured, then one for each implementation without timings."""
    passed = {one.implementation: one for one in judged.outcomes if timed(one, regime)}
    settings = {name: setting(one, turns, regime) for name, one in passed.items()}
    for cells in regime.spool.cells():
        if (own := settings.get(cells["implementation"])) is not None:
            yield rows.measured(origin, judged.case, own, cells)
    for one in judged.outcomes:
        if one.implementation not in passed:
            yield rows.skipped(origin, judged.case, regime.name, one.implementation, why_not(one, regime), one.check)


def timed(outcome: Outcome, regime: Regime) -> bool:
    """Whether the timings of this outcome stand."""
    return outcome.bound is not None and bool(regime.measured.latencies.get(outcome.implementation))


def why_not(outcome: Outcome, regime: Regime) -> str:
    """The reason why there is no timing in this regime."""
    return outcome.reason or regime.measured.refused.get(outcome.implementation, "not timed")


def setting(outcome: Outcome, turns: Rotation, regime: Regime) -> Setting:
    """What the rows of one implementation share in one regime."""
    assert outcome.bound is not None, "only what passed is timed"
    assert outcome.check is not None, "and what passed was checked"
    name, measured = outcome.implementation, regime.measured
    return Setting(
        implementation=name,
        backend=outcome.bound.backend,
        check=outcome.check,
        regime=regime.name,
        cache=turns.cache,
        input_sets=turns.sets,
        warmup_calls=measured.warming.calls[name],
        warmed=measured.warming.ended,
        stopped=measured.stopped,
        timer_overhead_us=measured.overhead_us[name],
        peak_memory_bytes=outcome.bound.peak_bytes,
    )


def finished(case: Case, judged: Judged, regimes: list[Regime], written: int) -> Finished:
    """What is told of a case whose file is written; loose ends go to the log."""
    medians: dict[str, float] = {}
    for regime in reversed(regimes):
        if regime.measured.warming.ended == "limit":
            log(f"{case.id}: {regime.name}: the warm-up did not settle; measured as it was")
        for one in judged.outcomes:
            if timed(one, regime):
                medians[one.implementation] = round(statistics.median(regime.measured.latencies[one.implementation]), 3)
    return Finished(
        rows=written,
        median_us={
            one.implementation: medians[one.implementation] for one in judged.outcomes if one.implementation in medians
        },
        skipped={
            one.implementation: why_not(one, regimes[0]) for one in judged.outcomes if one.implementation not in medians
        },
        stopped={regime.name: regime.measured.stopped for regime in regimes},
        wrong=any(outcome.wrong for outcome in judged.outcomes),
    )
