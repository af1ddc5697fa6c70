"""The four steps. Each says its facts and returns the exit code; what stops one is raised."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.attention.case import Case, Shape
from kernels.attention.interface import BuildFailed
from kernels.harness import environment, measuring, rows, spec
from kernels.harness.contenders import one_line
from kernels.harness.facts import log
from kernels.harness.judging import Session, attempt_build, judge_case

DONE, WRONG, NOT_BUILT, GATE_FAILED = 0, 10, 20, 21

SMOKE = Shape(batch=1, heads=4, kv_heads=2, seq_q=65, seq_k=65, head_dim=64, causal=True)


def default_cache() -> Path:
    """$BENCH_KERNEL_CACHE, else ~/.cache/bench-kernels."""
    named = os.environ.get("BENCH_KERNEL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "bench-kernels"


def record_environment(session: Session) -> int:
    """Write environment.json and say what device there is."""
    content = environment.record(session.device, session.spec)
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
        timed_by = measuring.timers(session)
    except ValueError as exc:
        raise spec.BadSpec(str(exc)) from exc
    bench = attempt_build(session)
    origin = rows.Origin(asked.run_id, asked.vm, environment.device_name(session.device), str(torch.__version__))
    facts.send(
        "planned",
        cases=[case.id for case in asked.planned],
        total=len(asked.measure),
        measurements_per_implementation=asked.measurements_per_implementation,
    )
    wrong = False
    for index, case in enumerate(asked.planned if not asked.on_request else requested(session), start=1):
        place = {"case_id": case.id, "index": index, "of": len(asked.planned)}
        facts.send("case_started", **place)
        began = time.monotonic()
        done = measuring.measure_case(session, bench, case, origin, timed_by)
        facts.send(
            "case_finished",
            path=f"cases/{case.id}.csv",
            **place,
            rows=done.rows,
            seconds=round(time.monotonic() - began, 6),
            median_us=done.median_us,
            skipped=done.skipped,
            stopped=done.stopped,
        )
        wrong = wrong or done.wrong
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
