"""Measures one case and writes its file. Implementations are judged, bound to several input sets, timed in each regime,
and judged again."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial

from kernels.harness import axes, rows
from kernels.harness.clocks import device_clocks
from kernels.harness.columns import measurement_columns
from kernels.harness.contenders import Crew
from kernels.harness.controls import with_second_control
from kernels.harness.facts import log_line
from kernels.harness.input_sets import Rotation
from kernels.harness.judging import Judged, Outcome, Session, judge_case, spread_inputs, still_right
from kernels.harness.own import OwnCase, OwnWorkload
from kernels.harness.regimes import SUSTAINED, case_regimes, is_host_bound
from kernels.harness.rows import Origin, Row, Setting, Spool
from kernels.harness.several_gpus import host_turn
from kernels.harness.spec import Spec, original_name
from kernels.harness.stopping import RACE, first_of, precision_rule, race_rule, time_rule
from kernels.harness.timers import Timer, timer_for
from kernels.harness.timing import Extent, Instruments, Measured, measure_contenders
from kernels.harness.turns import Contender
from kernels.harness.warming import LIMIT_S
from kernels.harness.workload import Case

Timers = Callable[[str], Callable[[Contender], Timer]]
"""How each regime is timed on the session's device."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a case: the number of rows in its file, medians in microseconds, the reasons of implementations
    that were not timed at all, why each regime ended, and whether an implementation was wrong."""

    rows: int
    median_us: dict[str, float]
    skipped: dict[str, str]
    stopped: dict[str, str]
    wrong: bool
    medians: dict[str, dict[str, float]]
    """The medians by regime and implementation."""


@dataclass(frozen=True, slots=True)
class Regime:
    """One regime of a case, measured; its samples are in `spool`."""

    name: str
    measured: Measured
    spool: Spool


def make_timers(session: Session) -> Timers:
    """The timers of the session's device, each regime's overhead measured once. Raises `ValueError` for a regime that
    the device does not have."""
    kinds = {
        kind for case in session.spec.measure for kind in case_regimes(session.spec.regime, session.device.type, case)
    }
    if session.arena is not None:
        return session.arena.timer
    timer_by_kind = {kind: timer_for(session.device, kind) for kind in kinds}
    return timer_by_kind.__getitem__


def measure_case(session: Session, crew: Crew, case: Case, origin: Origin, timed_by: Timers) -> Finished:
    """Measures a case and writes its file."""
    began = time.monotonic()
    judged = judge_case(session, crew, case, session.spec.implementations)
    judged, turns = spread_inputs(session, crew, with_second_control(session, crew, judged))
    folder = session.out / "cases"
    rng = axes.shuffle_generator(case, session.spec.seed)
    with ExitStack() as stack:
        measured_in: list[Regime] = []
        names = case_regimes(session.spec.regime, session.device.type, case)
        for number, name in enumerate(names, start=1):
            spool = stack.enter_context(Spool(folder))
            quiet = nullcontext if session.arena is None else session.arena.quiet
            with host_turn(is_host_bound=is_host_bound(name, session.device.type, case)) as waited_s, quiet():
                began += waited_s
                extent = extent_of(session, number / len(names), began, session.spec.beat.get(case.id))
                by = Instruments(timed_by(name), device_clocks(session.device, sustained=name == SUSTAINED))
                measured = measure_contenders(judged.contenders, extent, by, rng, spool.keep)
            measured_in.append(Regime(name, measured, spool))
        has_lost = any(one.measured.stopped == RACE for one in measured_in)
        judged = still_right(session, judged, has_lost=has_lost)
        written = rows.write_csv(
            folder / f"{case.id}.csv",
            measurement_columns(session.spec.workload.columns),
            (
                {
                    **row,
                    **definition_cells(session.spec, row["implementation"]),
                    **work_cells(session, case),
                    "ranking": ranking_cell(session.spec, case),
                }
                for regime in measured_in
                for row in regime_rows(origin, judged, turns, regime)
            ),
        )
    return finish_case(case, judged, measured_in, written)


def extent_of(session: Session, share: float, began: float, beat: float | None = None) -> Extent:
    """How much of a case is measured in a regime. At its end at most `share` of the case's time may be spent; what
    cannot beat `beat` is measured no further."""
    spec = session.spec
    return Extent(
        spec.repeats,
        spec.warmup,
        enough=first_of(
            race_rule(beat), precision_rule(spec.stop_at_relative_ci), time_rule(seconds_left(spec, share, began))
        ),
        warmup_limit_s=LIMIT_S[session.device.type],
        spare_s=partial(spare_s, spec, share, began),
    )


def spare_s(spec: Spec, share: float, began: float) -> float:
    """The seconds that may still be spent on energy; no limit where the case has none."""
    seconds_remaining = seconds_left(spec, share, began)
    return math.inf if seconds_remaining is None else seconds_remaining


def seconds_left(spec: Spec, share: float, began: float) -> float | None:
    """The seconds left of this share of the case's time; None where it has no limit."""
    return None if spec.case_budget_s is None else spec.case_budget_s * share - (time.monotonic() - began)


def regime_rows(origin: Origin, judged: Judged, turns: Rotation, regime: Regime) -> Iterator[Row]:
    """A regime's rows in the order measured, then one for each implementation without timings."""
    passed = {one.implementation: one for one in judged.outcomes if is_timed(one, regime)}
    settings = {name: row_setting(one, turns, regime) for name, one in passed.items()}
    for cells in regime.spool.cells():
        if (setting := settings.get(cells["implementation"])) is not None:
            yield rows.measured_row(origin, judged.case, setting, cells)
    for one in judged.outcomes:
        if one.implementation not in passed:
            why, kind = why_not(one, regime), one.fault or "unavailable"
            yield rows.skipped_row(origin, judged.case, regime.name, one.implementation, why, one.check, kind)


def definition_cells(spec: Spec, implementation: str) -> dict[str, str]:
    """The cells that say where the workload defines an implementation, counted from 1, and whether as a kernel or as a
    baseline. Our own workloads name no roles."""
    name, names = original_name(implementation), list(dict.fromkeys(map(original_name, spec.implementations)))
    role = ""
    if isinstance(spec.workload, OwnWorkload):
        role = "baseline" if name in spec.workload.describe().get("baselines", ()) else "kernel"
    return {"definition": str(names.index(name) + 1), "role": role}


def ranking_cell(spec: Spec, case: Case) -> str:
    """How the workload's score counts the times of this case: `mean`, `geom`, or `last` in the last case; empty where
    it does not."""
    if not isinstance(spec.workload, OwnWorkload):
        return ""
    description = spec.workload.describe()
    ranking = str(description.get("ranking", ""))
    is_counted = ranking != "last" or case.axes == OwnCase(description["cases"][-1], "").axes
    return ranking if is_counted else ""


def work_cells(session: Session, case: Case) -> dict[str, str]:
    """The cells with the operations and bytes of a call by the workload's own formulas, and with what the device was
    measured to reach per second."""
    if not isinstance(case, OwnCase) or session.arena is None:
        return {}
    roof = session.arena.roof
    amounts = {
        "flop": case.flops,
        "bytes": case.bytes,
        "roof_flops": roof.get("flops"),
        "roof_bytes": roof.get("bytes"),
    }
    return {name: f"{amount:.6g}" for name, amount in amounts.items() if amount}


def is_timed(outcome: Outcome, regime: Regime) -> bool:
    """Whether the timings of this outcome are valid."""
    return outcome.bound is not None and bool(regime.measured.latencies.get(outcome.implementation))


def why_not(outcome: Outcome, regime: Regime) -> str:
    """The reason why there is no timing in this regime."""
    return outcome.reason or regime.measured.refused.get(outcome.implementation, "not timed")


def row_setting(outcome: Outcome, turns: Rotation, regime: Regime) -> Setting:
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
        energy=measured.energy.get(name),
    )


def finish_case(case: Case, judged: Judged, measured_in: list[Regime], written: int) -> Finished:
    """The result of a case whose file is written. Whatever else is worth knowing goes to the log."""
    medians: dict[str, float] = {}
    for regime in reversed(measured_in):
        if regime.measured.warming.ended == "limit":
            log_line(f"{case.id}: {regime.name}: the warm-up did not settle; measured as it was")
        medians |= medians_of(judged, regime)
    return Finished(
        rows=written,
        median_us={
            one.implementation: medians[one.implementation] for one in judged.outcomes if one.implementation in medians
        },
        skipped={
            one.implementation: why_not(one, measured_in[0])
            for one in judged.outcomes
            if one.implementation not in medians
        },
        stopped={regime.name: regime.measured.stopped for regime in measured_in},
        wrong=any(outcome.wrong for outcome in judged.outcomes),
        medians={regime.name: medians_of(judged, regime) for regime in measured_in},
    )


def medians_of(judged: Judged, regime: Regime) -> dict[str, float]:
    """The medians of all implementations with valid timings, in microseconds."""
    times = regime.measured.latencies
    return {
        one.implementation: round(statistics.median(times[one.implementation]), 3)
        for one in judged.outcomes
        if is_timed(one, regime)
    }
