"""The four steps. Each says its facts and returns the exit code; what stops one is raised."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.attention.case import Case, Shape
from kernels.attention.interface import BuildFailed
from kernels.harness import axes, environment, rows, spec, stopping, timing
from kernels.harness.clocks import clocks
from kernels.harness.contenders import one_line
from kernels.harness.facts import log
from kernels.harness.judging import Judged, Session, attempt_build, judge_case, still_right

DONE, WRONG, NOT_BUILT, GATE_FAILED = 0, 10, 20, 21

SMOKE = Shape(batch=1, heads=4, kv_heads=2, seq_q=65, seq_k=65, head_dim=64, causal=True)


def default_cache() -> Path:
    """$BENCH_KERNEL_CACHE, else ~/.cache/bench-kernels."""
    named = os.environ.get("BENCH_KERNEL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "bench-kernels"


def record_environment(session: Session) -> int:
    """Write environment.json and say what device there is."""
    content = environment.record(session.device, session.spec.threads)
    rows.write_text(session.out / "environment.json", json.dumps(content, indent=2) + "\n")
    session.facts.send(
        "environment",
        path="environment.json",
        device=content["device"],
        device_kind=content["device_kind"],
        torch=content["torch"],
    )
    return DONE


def build_kernel(session: Session) -> int:
    """Build the bundled kernel, if it is asked for, and try one small case before anything long is begun."""
    bench = attempt_build(session)
    if isinstance(bench, BuildFailed):
        session.facts.send("gate", name="kernel_loads", passed=False, detail=one_line(str(bench)))
        detail = f"{bench}\n{bench.remedy}".strip()
        session.facts.send("problem", cause=bench.cause, detail=detail)
        return NOT_BUILT
    if bench is not None:
        record = bench.record
        known = record.compiler_version.startswith(record.compiler)
        compiler = record.compiler_version if known else f"{record.compiler} {record.compiler_version}"
        rows.write_text(session.out / "build.json", json.dumps(record.as_json(), indent=2) + "\n")
        session.facts.send("built", path="build.json", seconds=record.seconds, compiler=compiler, cached=record.cached)
    detail = bench.kernel.name if bench is not None else "nothing to build: only PyTorch's backends are asked for"
    session.facts.send("gate", name="kernel_loads", passed=True, detail=detail)

    smoke = Case(SMOKE, "float16" if session.device.type == "cuda" else "float32")
    subject = ("bench",) if bench is not None else session.spec.implementations[:1]
    (outcome,) = judge_case(session, bench, smoke, subject).outcomes
    passed = outcome.bound is not None
    error = f"max abs error {outcome.check.max_abs_error:.3g}" if outcome.check is not None else ""
    session.facts.send("gate", name="smoke_test", passed=passed, detail=outcome.reason or error)
    if passed:
        return DONE
    session.facts.send("problem", cause="kernel_wrong" if outcome.wrong else "gate_failed", detail=outcome.reason)
    others = {spec.original(name) for name in session.spec.implementations} - {"bench"}
    return WRONG if outcome.wrong and others else GATE_FAILED


def check_all(session: Session) -> int:
    """Judge every implementation on every correctness case; one row each in correctness.csv."""
    bench = attempt_build(session)
    table: list[rows.Row] = []
    checked = failed = 0
    for case in session.spec.correctness:
        for outcome in judge_case(session, bench, case, session.spec.implementations).outcomes:
            table.append(rows.checked(case, outcome.implementation, outcome.check, outcome.reason))
            checked += outcome.check is not None
            failed += outcome.wrong
    rows.write_csv(session.out / "correctness.csv", rows.CORRECTNESS_COLUMNS, table)
    session.facts.send("correctness", path="correctness.csv", checked=checked, failed=failed)
    return WRONG if failed else DONE


def measure_all(session: Session) -> int:
    """Check, then time, case by case; a case's file is with the agent before the next case starts."""
    asked, facts = session.spec, session.facts
    try:
        timer = timing.timer_for(session.device, asked.regime)
    except ValueError as exc:
        raise spec.BadSpec(str(exc)) from exc
    bench = attempt_build(session)
    origin = rows.Origin(
        asked.run_id, asked.vm, environment.device_name(session.device), str(torch.__version__), asked.regime
    )
    facts.send(
        "planned",
        cases=[case.id for case in asked.planned],
        total=len(asked.measure),
        measurements_per_implementation=len(asked.measure) * asked.repeats,
    )
    wrong = False
    for index, case in enumerate(asked.planned if not asked.on_request else requested(session), start=1):
        place = {"case_id": case.id, "index": index, "of": len(asked.planned)}
        facts.send("case_started", **place)
        began = time.monotonic()
        judged = judge_case(session, bench, case, asked.implementations)
        samples = timing.measure(
            judged.contenders,
            blocks=asked.repeats,
            warmup=asked.warmup,
            timer=timer,
            rng=axes.order(case, asked.seed),
            clocks=clocks(session.device, sustained=asked.regime == "sustained"),
            enough=stopping.rule(asked.stop_at_relative_ci),
        )
        judged = still_right(session, judged)
        table, medians, skipped = report(origin, judged, samples)
        rows.write_csv(session.out / "cases" / f"{case.id}.csv", rows.MEASUREMENT_COLUMNS, table)
        facts.send(
            "case_finished",
            path=f"cases/{case.id}.csv",
            **place,
            rows=len(table),
            seconds=round(time.monotonic() - began, 6),
            median_us=medians,
            skipped=skipped,
        )
        wrong = wrong or any(outcome.wrong for outcome in judged.outcomes)
    return WRONG if wrong else DONE


def requested(session: Session) -> Iterator[Case]:
    """The cases in the order in which the agent asks for them, until it asks for no more."""
    left = {case.id: case for case in session.spec.planned}
    while left:
        named = session.facts.ask("case_wanted", left=len(left))
        if not named:
            return
        if named in left:
            yield left.pop(named)
        else:
            log(f"asked for {named}, which is measured already or not in the grid")


def report(
    origin: rows.Origin, judged: Judged, samples: list[timing.Sample]
) -> tuple[list[rows.Row], dict[str, float], dict[str, str]]:
    """The rows of a case, the median latency of what was timed in microseconds, and the reasons of what was not.

    Rows stand in the order measured, then one for each implementation without timings.
    """
    passed = {o.implementation: (o.bound.backend, o.check) for o in judged.outcomes if o.bound and o.check}
    kept = [sample for sample in samples if sample.implementation in passed]
    table = [rows.measured(origin, judged.case, *passed[sample.implementation], sample) for sample in kept]
    absent = [o for o in judged.outcomes if o.implementation not in passed]
    table += [rows.skipped(origin, judged.case, o.implementation, o.reason, o.check) for o in absent]
    medians = {
        name: round(statistics.median(s.latency_us for s in kept if s.implementation == name), 3) for name in passed
    }
    return table, medians, {o.implementation: o.reason for o in absent}
