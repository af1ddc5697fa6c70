"""After the last case, some of the cases once more by a clock that is not ours, kept beside our medians."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from kernels.harness import cupti, rows
from kernels.harness.contenders import Crew
from kernels.harness.facts import log
from kernels.harness.judging import Session, judge_case, spread
from kernels.harness.spec import CONTROL
from kernels.harness.workload import Case

FILE = "cupti.csv"
MOST_S = 90.0

Medians = Mapping[str, Mapping[str, float]]
"""Regime to implementation to microseconds."""


def ask_cupti(session: Session, crew: Crew, origin: rows.Origin, measured: Sequence[tuple[Case, Medians]]) -> int:
    """Writes `cupti.csv` and says so; how many rows it has. What goes wrong here costs no measurement: it is logged."""
    if session.device.type != "cuda" or not measured:
        return 0
    table: list[rows.Row] = []
    began = time.monotonic()
    try:
        for case, medians in cupti.sampled(measured):
            if time.monotonic() - began < MOST_S:
                table += of_case(session, crew, origin, case, medians)
    except Exception as exc:  # a tracer of others, beside a run that is already measured
        log(f"CUPTI: {type(exc).__name__}: {exc}")
    if table:
        columns = ("run_id", "device", "case_id", *session.spec.workload.columns, "implementation", "backend")
        rows.write_csv(session.out / FILE, (*columns, *cupti.COLUMNS), table)
        session.facts.send("second_clock", path=FILE, cells=len(table))
    return len(table)


def of_case(session: Session, crew: Crew, origin: rows.Origin, case: Case, medians: Medians) -> list[rows.Row]:
    """A row for each implementation that was timed and that CUPTI sees."""
    timed = {name for own in medians.values() for name in own if not name.endswith(CONTROL)}
    names = tuple(name for name in session.spec.implementations if name in timed)
    judged = judge_case(session, crew, case, names)
    if judged.inputs is None:  # its implementations run in processes of their own, which this one cannot trace
        return []
    judged, _ = spread(session, crew, judged)
    backends = {one.implementation: one.backend for one in judged.bound}
    rested = {one.implementation: cupti.seen(one) for one in judged.contenders}
    long = [one for one in judged.contenders if is_long(rested[one.implementation])]
    busy = cupti.busy(long) if long else {}
    table: list[rows.Row] = []
    for name, found in rested.items():
        if found is None:
            log(f"CUPTI sees nothing of {name} on {case.id}")
            continue
        own = {regime: by[name] for regime, by in medians.items() if name in by}
        table.append(
            rows.axes(case)
            | {
                "run_id": origin.run_id,
                "device": origin.device,
                "implementation": name,
                "backend": backends[name],
            }
            | cupti.cells(found, own, busy.get(name, math.nan))
        )
    return table


def is_long(found: cupti.Seen | None) -> bool:
    """Whether a power limit may hold back a device that makes such calls without a rest."""
    return found is not None and found.span_us >= cupti.BUSY_FROM_US
