"""A harness that plays a script instead of measuring: the payload's `kernels/harness/__main__.py` in these tests.

The spec's `script` has a list of acts for each step; a step without one plays what a healthy harness would say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

LONG_S = 3600
"""Longer than any test waits: what hangs is ended by somebody else."""


def healthy(step: str, spec: dict[str, Any]) -> list[dict[str, Any]]:
    if step == "environment":
        gates = [gate(name) for name in ("torch_imports", "numpy_matches", "cuda_answers")]
        return [*gates, fact("environment", path="environment.json", device="a CPU", device_kind="cpu", torch="2.13.0")]
    if step == "build":
        built = fact("built", path="build.json", seconds=0.5, compiler="cc 1.0", cached=False)
        return [built, gate("kernel_loads"), gate("smoke_test")]
    if step == "correctness":
        return [fact("correctness", path="correctness.csv", checked=2, failed=0)]
    cases = [case for case in spec["cases"] if case not in spec["skip_cases"]]
    acts = [fact("planned", cases=cases, total=len(spec["cases"]), measurements_per_implementation=50)]
    for index, case in enumerate(cases, 1):
        acts.append(fact("case_started", case_id=case, index=index, of=len(cases)))
        acts.append(finished(case, index, len(cases)))
    return acts


def fact(name: str, /, **keys: object) -> dict[str, Any]:
    return {"say": {"fact": name, **keys}}


def gate(name: str) -> dict[str, Any]:
    return fact("gate", name=name, passed=True, detail="fine")


def finished(case: str, index: int, of: int) -> dict[str, Any]:
    return fact(
        "case_finished",
        path=f"cases/{case}.csv",
        case_id=case,
        index=index,
        of=of,
        rows=1,
        seconds=0.1,
        median_us={"bench": 12.5},
        skipped={},
    )


def say(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def play(act: dict[str, Any], out: Path) -> None:
    if "say" in act:
        said = act["say"]
        path = said.get("path")
        if path and not act.get("unwritten"):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_text(f"content of {path}\n")
        say(sys.stdout, json.dumps(said))
        if path:
            answer = sys.stdin.readline()
            if not answer:
                sys.exit(1)
            with (out / "acks").open("a") as acks:
                acks.write(f"{json.loads(answer)['ack']} {time.monotonic()}\n")
    elif "write" in act:
        (out / act["write"]).parent.mkdir(parents=True, exist_ok=True)
        (out / act["write"]).write_text("half a fi")
    elif "print" in act:
        say(sys.stdout, act["print"])
    elif "log" in act:
        say(sys.stderr, act["log"])
    elif "deaf" in act:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif "child" in act:
        child = subprocess.Popen(["sleep", str(LONG_S)])
        (out / "child").write_text(str(child.pid))
    elif "signal" in act:
        os.kill(os.getpid(), act["signal"])
    elif "kill_parent" in act:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(LONG_S)
    elif "hang" in act:
        time.sleep(LONG_S)
    elif "exit" in act:
        sys.exit(act["exit"])


def main(step: str, spec: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    acts: list[dict[str, Any]] = []
    for act in spec.get("script", {}).get(step, [{"healthy": True}]):
        acts += healthy(step, spec) if "healthy" in act else [act]
    for act in acts:
        play(act, out)


if __name__ == "__main__":
    options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    say(sys.stdout, json.dumps({"fact": "preloaded", "error": "nothing is imported"}))
    for line in iter(sys.stdin.readline, ""):
        main(json.loads(line)["step"], json.loads(Path(options["--spec"]).read_text()), Path(options["--out"]))
        say(sys.stderr, "harness: the step has ended")
        say(sys.stdout, json.dumps({"fact": "step_ended", "code": 0}))
