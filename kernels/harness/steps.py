"""The four steps. Each sends its facts and returns its exit code; a failure that stops it is raised."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from kernels.harness import environment, measuring, rows
from kernels.harness.arena import Arena
from kernels.harness.calls import THESE
from kernels.harness.columns import correctness_columns
from kernels.harness.contenders import Built, Crew
from kernels.harness.facts import Facts, Silent, log_line
from kernels.harness.judging import Session, build_all, judge_case
from kernels.harness.own import OwnWorkload
from kernels.harness.progress import PROGRESS
from kernels.harness.reading import BadSpec
from kernels.harness.regimes import case_regimes
from kernels.harness.second_clock import ask_cupti
from kernels.harness.several_gpus import own_slot
from kernels.harness.spec import Spec, original_name
from kernels.harness.starting import description_read_ahead, open_arena
from kernels.harness.workload import BuildFailed, BuildRecord, Case, one_line

PLANNED, SECOND_CLOCK = "(planned)", "(second clock)"
"""What is recorded like a case: that the plan was sent, and that the second clock was begun."""
FAILED_TESTS = "failed-tests.json"
"""The file in which the correctness step leaves, by implementation, why it failed a test, and whether it answered."""
NOTHING_TO_BUILD = "nothing to build: the machine already has these implementations"
DONE, WRONG, NOT_BUILT, GATE_FAILED = 0, 10, 20, 21


def default_cache() -> Path:
    """$BENCH_KERNEL_CACHE, else ~/.cache/bench-kernels."""
    named = os.environ.get("BENCH_KERNEL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "bench-kernels"


def record_environment(session: Session) -> int:
    """Writes environment.json and sends a fact about the device, while a user's workload is read."""
    with description_read_ahead(session.spec.workload):
        content = environment.environment_record(session.device, session.spec)
        rows.write_text(session.out / "environment.json", json.dumps(content, indent=2) + "\n")
        session.facts.send(
            "environment",
            path="environment.json",
            device=content["device"],
            device_kind=content["device_kind"],
            torch=content["torch"],
        )
    return DONE


def observer(facts: Facts, case_id: str = "") -> Callable[[str, float], None]:
    """What tells the agent where a step or a case is that takes long."""
    return lambda place, seconds: facts.send("case_observed", case_id=case_id, place=place, seconds=seconds)


def build_kernel(session: Session) -> int:
    """Builds the implementations, and tries one small case before anything long begins."""
    PROGRESS.begin(observer(session.facts))
    workload = session.spec.workload
    if session.arena is not None and isinstance(workload, OwnWorkload):
        return build_own(session, workload)
    crew = build_all(session)
    failed = {name: one for name, one in crew.items() if isinstance(one, BuildFailed)}
    for exc in failed.values():
        session.facts.send("gate", name="kernel_loads", passed=False, detail=one_line(str(exc)))
        detail = f"{exc}\n{exc.remedy}".strip()
        session.facts.send("problem", cause=exc.cause, detail=detail)
        return NOT_BUILT
    built = {name: one.record for name, one in crew.items() if isinstance(one, Built) and one.record is not None}
    for record in list(built.values())[:1]:
        tell_built(session, record)
    detail = ", ".join(built) or NOTHING_TO_BUILD
    session.facts.send("gate", name="kernel_loads", passed=True, detail=detail)
    return smoke_test(session, crew, next(iter(built), session.spec.implementations[0]))


def build_own(session: Session, workload: OwnWorkload) -> int:
    """Builds those of the user's implementations that have something to build. The others were imported when the
    workload was read."""
    wanted = set(map(original_name, session.spec.implementations))
    spec = replace(session.spec, implementations=tuple(name for name in workload.builds() if name in wanted))
    return tell_loaded(session, build_all(replace(session, spec=spec)) if spec.implementations else {})


def tell_loaded(session: Session, crew: Crew) -> int:
    """Sends a fact for each implementation of the user that does not load; the others go on."""
    failed = {name: one for name, one in crew.items() if not isinstance(one, Built)}
    loaded = [name for name in crew if name not in failed]
    faults = {name: exc for name, exc in failed.items() if isinstance(exc, BuildFailed)}
    if loaded or not faults:
        detail = ", ".join(loaded) or NOTHING_TO_BUILD
        session.facts.send("gate", name="kernel_loads", passed=True, detail=detail)
    for name, exc in failed.items():
        if name in faults:
            session.facts.send("gate", name="kernel_loads", passed=False, detail=f"{name}: {one_line(str(exc))}")
        else:  # it cannot run on this device: its rows say so, and no gate has failed
            log_line(f"{name}: {one_line(str(exc))}")
    if not faults:
        return DONE
    detail = "\n".join(f"{name}: {exc}\n{exc.remedy}".strip() for name, exc in faults.items())
    session.facts.send("problem", cause="build_failed", detail=detail[:4000])
    return WRONG if loaded else NOT_BUILT


def arena_of(spec: Spec, device: torch.device) -> Arena | None:
    """The processes for a user's own workload; None for our workloads, and where nothing is known of the workload
    yet."""
    if not isinstance(spec.workload, OwnWorkload) or not spec.workload.description:
        return None
    return open_arena(spec, device)


def tell_built(session: Session, record: BuildRecord) -> None:
    """Writes build.json, and sends a fact for it."""
    is_known_version = record.compiler_version.startswith(record.compiler)
    compiler = record.compiler_version if is_known_version else f"{record.compiler} {record.compiler_version}"
    rows.write_text(session.out / "build.json", json.dumps(record.as_json(), indent=2) + "\n")
    session.facts.send("built", path="build.json", seconds=record.seconds, compiler=compiler, cached=record.cached)


def smoke_test(session: Session, crew: Crew, subject: str) -> int:
    """Judges one small case, where the workload has one. Returns the exit code."""
    smoke = session.problem.smoke(session.device) if session.problem is not None else None
    if smoke is None:
        return DONE
    (outcome,) = judge_case(session, crew, smoke, (subject,)).outcomes
    passed = outcome.bound is not None
    error = f"max abs error {outcome.check.max_abs_error:.3g}" if outcome.check is not None else ""
    session.facts.send("gate", name="smoke_test", passed=passed, detail=outcome.reason or error)
    if passed:
        return DONE
    session.facts.send("problem", cause="kernel_wrong" if outcome.wrong else "gate_failed", detail=outcome.reason)
    other_names = {original_name(name) for name in session.spec.implementations} - {subject}
    return WRONG if outcome.wrong and other_names else GATE_FAILED


def check_all(session: Session) -> int:
    """Judges every implementation on every correctness case, and writes a row for each into correctness.csv."""
    crew = build_all(session) if session.spec.correctness else {}
    table: list[rows.Row] = []
    failed_tests: dict[str, tuple[str, bool]] = {}
    checked = failed = 0
    for case in session.spec.correctness:
        known_answer = THESE.known.get(case.id)
        if known_answer is None:
            outcomes = judge_case(session, crew, case, session.spec.implementations).outcomes
            known_answer = {
                "wrong": {
                    one.implementation: (f"{one.reason} (in test {case.id})", one.check is not None)
                    for one in outcomes
                    if one.wrong
                },
                "rows": [rows.checked_row(case, one.implementation, one.check, one.reason) for one in outcomes],
                "checked": sum(one.check is not None for one in outcomes),
                "failed": sum(one.wrong for one in outcomes),
            }
            THESE.finished(case.id, **known_answer)
        table += known_answer["rows"]
        failed_tests = {**known_answer["wrong"], **failed_tests}
        checked += known_answer["checked"]
        failed += known_answer["failed"]
    if session.arena is not None:
        rows.write_text(session.out / FAILED_TESTS, json.dumps(failed_tests))
    rows.write_csv(session.out / "correctness.csv", correctness_columns(session.spec.workload.columns), table)
    session.facts.send("correctness", path="correctness.csv", checked=checked, failed=failed)
    return WRONG if failed else DONE


def measure_all(session: Session) -> int:
    """Checks and then times each case; what has failed a test is not timed. The agent has stored a case's file before
    the next case starts."""
    spec, facts = session.spec, session.facts
    try:
        timed_by = measuring.make_timers(session)
    except ValueError as exc:
        raise BadSpec(str(exc)) from exc
    crew = build_all(session)
    if session.arena is not None and (session.out / FAILED_TESTS).exists():
        session.arena.failed_tests = json.loads((session.out / FAILED_TESTS).read_text(encoding="utf-8"))
    origin = environment.row_origin(session.device, spec)
    if PLANNED not in THESE.known:
        facts.send(
            "planned",
            cases=[case.id for case in spec.planned],
            total=len(spec.measure),
            measurements_per_implementation=sum(
                spec.repeats * len(case_regimes(spec.regime, session.device.type, case)) for case in spec.measure
            ),
        )
        THESE.finished(PLANNED)
    records = {case.id: THESE.known[case.id] for case in spec.planned if case.id in THESE.known}
    numbers = {case.id: number for number, case in enumerate(spec.planned, start=1)}
    for case in next_cases(session, partial(measure_trial, session, crew, origin, timed_by)):
        if case.id in records:
            continue
        place = {"case_id": case.id, "index": numbers[case.id], "of": len(numbers)}
        facts.send("case_started", **place)
        PROGRESS.begin(observer(facts, case.id))
        began = time.monotonic()
        done = measuring.measure_case(session, crew, case, origin, timed_by)
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
        records[case.id] = {"wrong": done.wrong, "medians": done.medians}
        THESE.finished(case.id, **records[case.id])
    slot = own_slot()
    if SECOND_CLOCK not in THESE.known and (slot is None or slot.number == 0):
        THESE.finished(SECOND_CLOCK)  # a failure there costs the second clock, not the step
        measured = [(case, records[case.id]["medians"]) for case in spec.planned if case.id in records]
        ask_cupti(session, crew, origin, measured, timed_by)
    return WRONG if any(record["wrong"] for record in records.values()) else DONE


def next_cases(session: Session, measure: Callable[[Case], Mapping[str, float]]) -> Iterator[Case]:
    """The planned cases in order; in one of several processes those that it is given. `measure` measures a trial."""
    if own_slot() is None:
        yield from session.spec.planned
        return
    cases = {case.id: case for case in session.spec.planned}
    while (given := session.facts.request_next()) is not None:
        case = cases[given["id"]]
        if given["is_trial"]:
            PROGRESS.begin(observer(session.facts, case.id))
            session.facts.send("tried", median_us=measure(case))
        else:
            yield case


def measure_trial(
    session: Session, crew: Crew, origin: rows.Origin, timed_by: measuring.Timers, case: Case
) -> dict[str, float]:
    """Measures one implementation on a case, a baseline if there is one, and keeps no rows. Returns its medians in
    microseconds by regime."""
    spec = session.spec
    baselines = spec.workload.describe().get("baselines", ()) if isinstance(spec.workload, OwnWorkload) else ()
    name = next((name for name in spec.implementations if name in baselines), spec.implementations[0])
    with tempfile.TemporaryDirectory(dir=session.out) as folder:
        trial = replace(
            session,
            out=Path(folder),
            facts=Silent(),  # type: ignore[arg-type]
            spec=replace(spec, implementations=(name,)),
        )
        medians = measuring.measure_case(trial, crew, case, origin, timed_by).medians
    return {regime: times[name] for regime, times in medians.items() if name in times}


def serve_session(session: Session) -> int:
    """Judges candidates until there is none."""
    from kernels.harness.session import serve_candidates

    if session.arena is None:
        raise BadSpec("only a workload of the user's own has sessions")
    return serve_candidates(session)


BY_NAME = {
    "environment": record_environment,
    "build": build_kernel,
    "correctness": check_all,
    "measure": measure_all,
    "session": serve_session,
}
