"""One call of an implementation under compute-sanitizer, which sees accesses outside of memory, races, uninitialised
reads and misplaced barriers. `python3 -m kernels.harness.sanitizer` is the process that the tool watches."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels.harness.ending import end_with_descendants
from kernels.harness.facts import log_line

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
USUAL_FOLDER = Path("/usr/local/cuda/bin")
FOUND_CODE = 86
"""The exit code by which the tool says that it found something."""
LIMIT_S = 600.0


def find_sanitizer() -> str | None:
    """The path of compute-sanitizer; None where it is not installed."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=str(USUAL_FOLDER))


def sanitizer_fault(program: str, tool: str, call: Mapping[str, Any], limit_s: float = LIMIT_S) -> str:
    """What the tool found in one call of an implementation, as a reason for its row; empty for nothing. `call` has the
    form and path of the workload, the implementation, the case and the device. A call that the tool cannot watch to its
    end is logged and has no fault."""
    with tempfile.TemporaryDirectory(prefix="bench-sanitizer-") as folder:
        report = Path(folder) / "report.txt"
        command = [
            program, "--tool", tool, "--error-exitcode", str(FOUND_CODE), "--log-file", str(report),
            "--target-processes", "all", sys.executable, "-m", "kernels.harness.sanitizer", json.dumps(dict(call)),
        ]  # fmt: skip
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=Path.cwd())
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end_with_descendants(process.pid)
            process.wait()
            log_line(f"{PROGRAM} {tool}: {call['name']}: no end within {limit_s:g} s")
            return ""
        text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    if code == FOUND_CODE:
        return f"{PROGRAM} {tool}: {first_finding(text)}"
    if code:
        log_line(f"{PROGRAM} {tool}: {call['name']}: ended with exit code {code}: {text.strip()[-300:]}")
    return ""


def first_finding(report: str) -> str:
    """The first finding of a report, with the kernel in which it was, and how many there are."""
    lines = [line.removeprefix("=========").strip() for line in report.splitlines() if line.startswith("=========")]
    lines = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    places = [line for line in lines[1:3] if line.startswith("at ")]
    counted = re.search(r"ERROR SUMMARY: (\d+)", report)
    others = f" ({counted[1]} findings)" if counted and int(counted[1]) > 1 else ""
    return " ".join((*lines[:1], *places[:1]))[:240] + others if lines else f"found something{others}"


def call_once(call: Mapping[str, Any]) -> None:
    """Makes one call of an implementation on inputs of its case."""
    import torch

    from kernels.forms.load import load_workload
    from kernels.harness.bench import Bench
    from kernels.harness.confinement import confine

    confine()
    definition = load_workload(call["form"], Path(call["path"]))
    with torch.inference_mode():
        bench = Bench(definition, call["name"], torch.device(call["device"]))
        bench.bind(dict(call["case"]), int(call["seed"]))
        bench.call(0)


if __name__ == "__main__":
    call_once(json.loads(sys.argv[1]))
