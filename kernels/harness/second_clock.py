"""After the last case some cases are timed once more, while CUPTI, a clock that is not ours, records the same
launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernels.harness import rows, watching
from kernels.harness.contenders import Crew
from kernels.harness.facts import log_line
from kernels.harness.judging import Judged, Session, judge_case, spread_inputs
from kernels.harness.spec import CONTROL
from kernels.harness.timers import CudaTimer, Timer
from kernels.harness.turns import Contender
from kernels.harness.watching import Missed, Watched, watch_samples
from kernels.harness.workload import Case, Unavailable

FILE = "cupti.csv"
CASES = 6
MOST_S = 90.0

Medians = Mapping[str, Mapping[str, float]]
"""Medians in microseconds, by regime and implementation."""
Timers = Callable[[str], Callable[[Contender], Timer]]


def ask_cupti(
    session: Session, crew: Crew, origin: rows.Origin, measured: Sequence[tuple[Case, Medians]], timed_by: Timers
) -> int:
    """Writes `cupti.csv`, sends a fact for it, and returns its number of rows. Failures here are only logged, so that
    no measurement is lost."""
    if session.device.type != "cuda" or not measured:
        return 0
    table: list[rows.Row] = []
    began = time.monotonic()
    try:
        for case, medians in sample_cases(measured):
            if time.monotonic() - began < MOST_S:
                table += of_case(session, crew, origin, (case, medians), timed_by)
    except Exception as exc:  # a tracer of others, beside a run that is already measured
        log_line(f"CUPTI: {type(exc).__name__}: {exc}")
    if table:
        columns = ("run_id", "device", "case_id", *session.spec.workload.columns, "implementation", "backend")
        rows.write_csv(session.out / FILE, (*columns, *watching.COLUMNS), table)
        session.facts.send("second_clock", path=FILE, cells=len(table))
    return len(table)


def sample_cases(cases: Sequence[Any], most: int = CASES) -> list[Any]:
    """At most `most` of the cases, evenly spread over the grid, with the first and the last."""
    if len(cases) <= most:
        return list(cases)
    return [cases[round(number * (len(cases) - 1) / (most - 1))] for number in range(most)]


def of_case(
    session: Session, crew: Crew, origin: rows.Origin, measured: tuple[Case, Medians], timed_by: Timers
) -> list[rows.Row]:
    """A row for each implementation in each regime in which it was timed."""
    case, medians = measured
    timed = {name for own in medians.values() for name in own if not name.endswith(CONTROL)}
    names = tuple(name for name in session.spec.implementations if name in timed)
    judged = judge_case(session, crew, case, names)
    if judged.inputs is None:  # its implementations run in processes of their own, which this one cannot trace
        return []
    judged, _ = spread_inputs(session, crew, judged)
    return [
        clock_row(
            judged, origin, contender, regime, (own[contender.implementation], watched_in(timed_by(regime), contender))
        )
        for contender in judged.contenders
        for regime, own in medians.items()
        if contender.implementation in own
    ]


def watched_in(timed_by: Callable[[Contender], Timer], contender: Contender) -> Watched | Missed:
    """Times one implementation in one regime with a new timer while CUPTI watches."""
    try:
        with contender.scope():
            timer = timed_by(contender)
    except (Unavailable, RuntimeError, MemoryError) as exc:
        return Missed(str(exc)[:200])
    return watch_samples(timer, contender) if isinstance(timer, CudaTimer) else Missed("its timer is not this device's")


def clock_row(
    judged: Judged, origin: rows.Origin, contender: Contender, regime: str, result: tuple[float, Watched | Missed]
) -> rows.Row:
    """A row with the median of the ordinary measurement, and what CUPTI and our timer show now."""
    unwatched_us, watched = result
    backends = {one.implementation: one.backend for one in judged.bound}
    if isinstance(watched, Missed):
        log_line(f"CUPTI: {contender.implementation} on {judged.case.id}, {regime}: {watched.why}")
    return (
        rows.axis_cells(judged.case)
        | {
            "run_id": origin.run_id,
            "device": origin.device,
            "implementation": contender.implementation,
            "backend": backends[contender.implementation],
        }
        | watching.watched_cells(watched, regime, unwatched_us)
    )
