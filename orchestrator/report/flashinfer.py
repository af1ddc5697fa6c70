"""Writes the results of a trace set as traces of FlashInfer-Bench: one JSON line for each solution and workload."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from orchestrator.analysis.case import Case, CaseTiming
from orchestrator.core.forms.flashinfer import BASELINE
from orchestrator.core.results import is_control
from orchestrator.report.report import Report

FORMAT: Final = "flashinfer-trace"
FILE: Final = "traces.jsonl"
WRONG: Final = {
    "INCORRECT_SHAPE": ("in the place of", "outputs in"),
    "INCORRECT_NUMERICAL": ("own check", "max abs error", "untrusted", "wrong after"),
    "TIMEOUT": ("hung", "did not return"),
    "COMPILE_ERROR": ("build_failed", "no_compiler", "needs the package", "when it is imported", "no function"),
}
"""The status of a solution that has no times, by what its reason contains; else RUNTIME_ERROR."""


def traces(report: Report, entries: Mapping[str, Mapping[str, Any]], solutions: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each solution on each of its workloads. `entries` are the workloads by the case ids of the run,
    and `solutions` the definitions by the names of their solutions. The times are those of the run's first setting:
    medians of interleaved blocks, in milliseconds."""
    study = report.study
    libs = {key: str(report.environment[key]) for key in ("torch", "cuda", "cudnn") if report.environment.get(key)}
    environment = {"hardware": report.device.replace(" ", "_"), "libs": libs}
    began = str(report.manifest.get("started_at") or report.environment.get("recorded_at") or "unknown")
    for case in study.cases:
        if case.setting != study.settings[0] or case.case_id not in entries:
            continue
        entry = entries[case.case_id]
        for timing in case.timings:
            if is_control(timing.implementation) or solutions.get(timing.implementation) != entry["definition"]:
                continue
            if entry["skip"] and not timing.timed:
                continue  # its inputs were not there: nothing was evaluated
            evaluation = {"environment": environment, "timestamp": began, **_evaluation(case, timing)}
            yield json.dumps(
                {
                    "definition": entry["definition"],
                    "workload": _workload(entry),
                    "solution": timing.implementation,
                    "evaluation": evaluation,
                }
            )


def _workload(entry: Mapping[str, Any]) -> dict[str, Any]:
    named = f"{entry['definition']} {json.dumps(entry['axes'], sort_keys=True)}"
    return {
        "uuid": entry["uuid"] or str(uuid.uuid5(uuid.NAMESPACE_URL, named)),
        "axes": entry["axes"],
        "inputs": entry["inputs"],
    }


def _evaluation(case: Case, timing: CaseTiming) -> dict[str, Any]:
    """The status of a solution, with what FlashInfer-Bench's schema has for that status. A relative error is not
    recorded, and so not a number."""
    error = "NaN" if math.isnan(timing.max_abs_error) else timing.max_abs_error
    correctness = {"max_relative_error": "NaN", "max_absolute_error": error}
    if timing.timed:
        latency = timing.median_us.mid / 1000
        reference = case.timing(BASELINE)
        theirs = reference.median_us.mid / 1000 if reference is not None and reference.timed else 0.0
        performance = {"latency_ms": latency, "reference_latency_ms": theirs, "speedup_factor": theirs / latency}
        return {"status": "PASSED", "log": "", "correctness": correctness, "performance": performance}
    reason = timing.skipped
    status = next((key for key, words in WRONG.items() if any(word in reason for word in words)), "RUNTIME_ERROR")
    check = correctness if status == "INCORRECT_NUMERICAL" else None
    return {"status": status, "log": reason, "correctness": check, "performance": None}
