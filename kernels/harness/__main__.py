"""`python3 -m kernels.harness <step> --spec SPEC.json --out DIR`: facts to standard output, the log to standard error.
`serve` in the place of a step performs the steps that are named on standard input (`serving`).

Exit codes: 0 done; 10 done, but an implementation was wrong; 20 the kernel did not build or load; 21 a gate failed;
22 bad spec; 1 crashed.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernels import LINE_INFO
from kernels.harness.calls import THESE, files_of
from kernels.harness.ending import end_with_parent, leave_process
from kernels.harness.facts import CRASHED, Facts, log_line
from kernels.harness.gates import environment_gates
from kernels.harness.own import OwnWorkload
from kernels.harness.reading import BadSpec
from kernels.harness.spec import ANSWER_LIMIT_S, Spec, parse_spec
from kernels.harness.users import own_workload, users_for_run
from kernels.harness.watched import is_watched, watch_step

BAD_SPEC, GATE_FAILED = 22, 21
NOTHING_JUDGED = "implementation,case_id,passed,max_abs_error,limit,reason\n"
"""The content of a correctness.csv without rows."""
PROGRAM = "program"
"""The form of a program that measures itself."""
JUDGED_APART = ("gpumode",)
"""The forms that have cases which are judged but not timed."""
STEPS = ("environment", "build", "correctness", "measure", "profile", "session")


def main(arguments: list[str]) -> int:
    """Run one step and return its exit code; with `serve` all those that are named on standard input."""
    if arguments[:1] == ["serve"]:
        from kernels.harness.serving import serve_steps

        return serve_steps(arguments[1:], main)
    parser = argparse.ArgumentParser(
        prog="python3 -m kernels.harness", description="Check and measure a workload.", allow_abbrev=False
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--spec", type=Path, required=True, help="what to do, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where results go; created if absent")
    parser.add_argument("--no-ack", action="store_true", help="do not wait for acknowledgements (for use by hand)")
    parser.add_argument("--watched", action="store_true", help="in a process that is watched; the default with a GPU")
    options = parser.parse_args(arguments)
    with users_for_run(own_workload(options.spec)):
        return run_step(options, arguments)


def run_step(options: argparse.Namespace, arguments: list[str]) -> int:
    """Runs one step, in another process if it is to be watched, and returns its exit code."""
    if (files := files_of(os.environ)) is not None:
        end_with_parent()
        THESE.join(*files)
    elif options.watched or is_watched(options.step, options.spec):
        code = watch_step([one for one in arguments if one != "--watched"], options.spec, ANSWER_LIMIT_S, main)
        if code is not None:
            return code
    facts = Facts(acknowledged=not options.no_ack)
    try:
        spec = read_spec(options.spec, options.step)
        if spec.profile is not None:  # in every step: what is profiled is what was built and measured
            os.environ[LINE_INFO] = "1"
        return perform_step(options.step, spec, options.out, facts)
    except BadSpec as exc:
        facts.send("problem", cause="spec_refused", detail=str(exc))
        return BAD_SPEC
    except Exception as exc:
        log_line(traceback.format_exc())
        full = isinstance(exc, OSError) and exc.errno in {errno.ENOSPC, errno.EDQUOT}
        cause = "disk_full" if full else "harness_crashed"
        facts.send("problem", cause=cause, detail=f"{type(exc).__name__}: {exc}"[:2000])
        return CRASHED


def read_spec(path: Path, step: str) -> Spec:
    """The spec in a file. Raises `BadSpec`, also when there is no such file. A user's own workload is read only by the
    steps that run it: earlier, what it needs may not be installed yet."""
    try:
        return parse_spec(path.read_text(encoding="utf-8"), None if step == "environment" else partial(read_own, step))
    except (OSError, UnicodeDecodeError) as exc:
        raise BadSpec(f"cannot read {path}: {exc}") from exc


def read_own(step: str, workload: OwnWorkload) -> Mapping[str, Any]:
    """The description of a user's own workload, read by a separate process; empty where the step has nothing to do for
    its form. Raises `BadSpec`."""
    if workload.form == PROGRAM or (step == "correctness" and workload.form not in JUDGED_APART):
        return {}
    from kernels.harness.starting import describe_workload

    return describe_workload(workload)


def perform_step(step: str, spec: Spec, out: Path, facts: Facts) -> int:
    """Runs one step of a judged spec and returns its exit code. PyTorch is imported only after a gate has tried it."""
    out.mkdir(parents=True, exist_ok=True)
    if step == "environment":
        for gate in environment_gates():
            facts.send("gate", name=gate.name, passed=gate.passed, detail=gate.detail)
            if not gate.passed:
                facts.send("problem", cause=gate.cause, detail=gate.detail)
                return GATE_FAILED

    if step == "correctness" and isinstance(spec.workload, OwnWorkload) and not spec.correctness:
        # Most workloads of users are judged in the measuring step, so this step need not import torch for them.
        (out / "correctness.csv").write_text(NOTHING_JUDGED, encoding="utf-8")
        facts.send("correctness", path="correctness.csv", checked=0, failed=0)
        return 0

    if step == "profile":
        return perform_profile(spec, out, facts)

    import torch

    from kernels.harness import environment, programs, steps
    from kernels.harness.judging import Session

    if spec.threads:
        torch.set_num_threads(spec.threads)
    device, cache = environment.default_device(), steps.default_cache()
    is_own_workload = isinstance(spec.workload, OwnWorkload)
    problem = None if is_own_workload else spec.workload.problem()
    if device.type == "cuda" and not is_own_workload:
        from kernels.harness.worker import is_broken

        THESE.settle = partial(torch.cuda.synchronize, device)
        THESE.is_broken = lambda exc: not isinstance(exc, torch.OutOfMemoryError) and is_broken(device)
    session = Session(spec, out, cache, facts, device, problem, steps.arena_of(spec, device))
    apart = step == "environment"
    if isinstance(spec.workload, OwnWorkload) and spec.workload.form == PROGRAM and not apart:
        return programs.perform_program(step, session, spec.workload)
    try:
        with torch.inference_mode():
            return steps.BY_NAME[step](session)
    finally:
        if session.arena is not None:
            session.arena.close()


def perform_profile(spec: Spec, out: Path, facts: Facts) -> int:
    """Makes the profiles, each in a process of its own. This process loads PyTorch only where the device was not
    recorded."""
    from kernels.harness.profiling import Machine, profile_all, recorded_machine

    machine = recorded_machine(out)
    if machine is None:
        from kernels.harness import environment

        device = environment.default_device()
        machine = Machine(device.type, environment.device_name(device))
    return profile_all(spec, out, facts, machine)


if __name__ == "__main__":
    leave_process(main(sys.argv[1:]))
