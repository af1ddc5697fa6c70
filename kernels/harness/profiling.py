"""Makes profiles of named implementations after everything is measured: with Nsight Compute where it may read counters,
else with PyTorch's profiler, which is recorded. A profiled call is never a measurement, as it is serialized and
replayed."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernels.harness.facts import Facts, log_line
from kernels.harness.spec import Spec, original_name
from kernels.harness.workload import Case

FOLDER: Final = "profile"
SUMMARY: Final = f"{FOLDER}/summary.json"
KERNELS: Final = 3
"""The number of kernels of a call that are profiled: the first ones."""
LIMIT_S: Final = 240.0
"""The time limit for one implementation on one case, in seconds."""
SECTIONS: Final = (
    "SpeedOfLight", "SpeedOfLight_RooflineChart", "SpeedOfLight_HierarchicalTensorRooflineChart",
    "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy", "WarpStateStats",
)  # fmt: skip
PARAMETERS: Final = Path("/proc/driver/nvidia/params")
REMEDY: Final = (
    "the administrator of this machine allows it with the line `options nvidia NVreg_RestrictProfilingToAdminUsers=0` "
    "in /etc/modprobe.d/nvidia-profiling.conf and a reboot"
)
NCU_PLACES: Final = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")


@dataclass(frozen=True, slots=True)
class Tool:
    """The profiler that is used here: the path of ncu, or the reason why it is not used."""

    ncu: str
    why_not: str = ""


def find_tool(kind: str, wanted: str, environ: Mapping[str, str], parameters: Path = PARAMETERS) -> Tool:
    """Nsight Compute, where there are a GPU, the program, and the permission to read counters."""
    if wanted == "trace":
        return Tool("", "a trace was asked for")
    if kind != "cuda":
        return Tool("", "Nsight Compute profiles GPUs, and this is a processor")
    ncu = shutil.which("ncu", path=environ.get("PATH")) or next(
        (
            str(path)
            for place in NCU_PLACES
            for path in sorted(Path(place).rglob("ncu"), reverse=True)
            if path.is_file()
        ),
        "",
    )
    if not ncu:
        return Tool("", "there is no ncu on this machine (NVIDIA's package nsight-compute)")
    if is_restricted(parameters) and os.geteuid() != 0:
        return Tool("", f"the driver lets only root read counters (RmProfilingAdminOnly: 1); {REMEDY}")
    return Tool(ncu)


def is_restricted(parameters: Path) -> bool:
    """Whether the driver lets only root read its counters. False where it does not say; then ncu will report it."""
    try:
        return re.search(r"^RmProfilingAdminOnly:\s*1", parameters.read_text(), re.M) is not None
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Machine:
    """The device of the profiles: `cuda` or `cpu`, and its name."""

    kind: str
    device: str


def recorded_machine(out: Path) -> Machine | None:
    """The machine that the environment step recorded; None where it did not. Asking PyTorch takes seconds of a GPU's
    time."""
    try:
        environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
        return Machine(str(environment["device_kind"]), str(environment["device"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def profile_all(spec: Spec, out: Path, facts: Facts, machine: Machine) -> int:
    """Makes a profile for each implementation and case of the spec; a failure is recorded with its reason. Always
    returns 0, as the measurements stay valid. While one is profiled, the texts of the one before are written."""
    profile = spec.profile
    assert profile is not None, "the step is run only where something is to be profiled"
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    cases = {case.id: case for case in spec.measure}
    tool = find_tool(machine.kind, profile.set, os.environ)
    if tool.why_not:
        log_line(f"profile: {tool.why_not}")
    rows: list[dict[str, Any]] = []
    waiting: deque[Future[dict[str, Any]]] = deque()

    def record(future: Future[dict[str, Any]]) -> None:
        row = future.result()
        rows.append(row)
        log_line(f"profiled {row['implementation']} on {row['case_id']}: {row['reason'] or ', '.join(row['files'])}")
        for path in row["files"]:
            facts.send("profiled", path=path, case_id=row["case_id"], implementation=row["implementation"])

    with ThreadPoolExecutor(1) as writer:
        for case_id in profile.cases:
            for name in profile.implementations or tuple(dict.fromkeys(map(original_name, spec.implementations))):
                began = time.monotonic()
                job = Job(spec, out, case_id, name)
                row = looked_at(job, profile.set, tool, cases.get(case_id))
                waiting.append(writer.submit(finished_row, job, tool, row, began))
                while waiting and waiting[0].done():  # what is whole may be stored before the next has ended
                    record(waiting.popleft())
        for future in waiting:
            record(future)
    summary = {"schema": 1, "set": profile.set, "device": machine.device, "profiles": rows}
    (out / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
    facts.send("profiled", path=SUMMARY, case_id="", implementation="")
    return 0


@dataclass(frozen=True, slots=True)
class Job:
    """One implementation on one case."""

    spec: Spec
    out: Path
    case_id: str
    implementation: str

    @property
    def stem(self) -> Path:
        """The path of its files without their suffixes."""
        return self.out / FOLDER / re.sub(r"[^A-Za-z0-9._-]", "-", f"{self.case_id}--{self.implementation}")

    def kept(self, suffixes: Sequence[str]) -> list[str]:
        """The files with these suffixes that exist, relative to the folder of results."""
        files = [self.stem.parent / f"{self.stem.name}{suffix}" for suffix in suffixes]
        return [path.relative_to(self.out).as_posix() for path in files if path.is_file()]


def looked_at(job: Job, wanted: str, tool: Tool, case: Case | None) -> dict[str, Any]:
    """A profile as it comes from the device, or the reason why there is none; `finished` adds the texts."""
    row: dict[str, Any] = {
        "case_id": job.case_id, "implementation": job.implementation, "tool": "", "why_not_ncu": tool.why_not,
        "files": [], "reason": "", "axes": dict(case.axes) if case is not None else {},
        "flops": getattr(case, "flops", None) or None,
    }  # fmt: skip
    if case is None:
        return row | {"reason": "there is no such case in this run"}
    stem = job.stem
    file = stem.parent / "spec.json"
    file.write_text(job.spec.text, encoding="utf-8")
    child = [sys.executable, "-m", "kernels.harness.profiled", "--spec", str(file)]
    child += ["--case", job.case_id, "--implementation", job.implementation]
    try:
        if tool.ncu:
            refused = by_ncu(tool.ncu, wanted, child, stem)
            if not refused:
                return row | {"tool": "ncu"}
            row["why_not_ncu"] = refused
        ran = run_profiler([*child, "--out", f"{stem}"])
        if ran.returncode:
            return row | {"reason": last_line(ran) or f"exit code {ran.returncode}"}
        return row | {"tool": "torch.profiler", "files": job.kept(TORCH_FILES)}
    except subprocess.TimeoutExpired:
        return row | {"reason": f"it took more than {LIMIT_S:g} s"}
    finally:
        file.unlink(missing_ok=True)


def finished_row(job: Job, tool: Tool, row: dict[str, Any], began: float) -> dict[str, Any]:
    """The row of a profile with its files, once its texts are written, and the seconds since it was begun."""
    if row["tool"] == "ncu":
        try:
            write_pages(tool.ncu, job.stem)
            row |= {"files": job.kept(NCU_FILES)}
        except subprocess.TimeoutExpired:
            row |= {"reason": f"reading ncu's report took more than {LIMIT_S:g} s", "files": job.kept(NCU_FILES)}
    return row | {"seconds": round(time.monotonic() - began, 3)}


NCU_FILES: Final = (".ncu-rep.gz", ".details.txt", ".metrics.csv", ".rules.csv")
TORCH_FILES: Final = (".table.json", ".trace.json.gz")


def by_ncu(ncu: str, wanted: str, child: Sequence[str], stem: Path) -> str:
    """Makes a report with Nsight Compute. Returns the reason if it failed, else an empty string. Clocks stay as they
    were for the measurements; only the code between the profiler's start and stop is replayed."""
    report = f"{stem}.ncu-rep"
    sections = ["--set", "full"] if wanted == "full" else [part for name in SECTIONS for part in ("--section", name)]
    ran = run_profiler(
        [
            ncu, "--force-overwrite", "--export", report, "--clock-control", "none", "--profile-from-start", "off",
            "--launch-count", str(KERNELS), "--target-processes", "all", "--import-source", "yes", *sections,
            *child,
        ]
    )  # fmt: skip
    if "ERR_NVGPUCTRPERM" in ran.stdout:
        return f"the driver refuses its counters (ERR_NVGPUCTRPERM); {REMEDY}"
    if not Path(report).is_file():
        return f"ncu made no report: {last_line(ran)}"
    return ""


def write_pages(ncu: str, stem: Path) -> None:
    """Writes three texts of a report, and compresses the report. It needs no GPU. Raises `TimeoutExpired`."""
    report = f"{stem}.ncu-rep"
    pages = (
        ("details.txt", ["--page", "details"]),
        ("metrics.csv", ["--page", "raw", "--csv", "--print-units", "base"]),
        ("rules.csv", ["--page", "details", "--csv"]),
    )
    with ThreadPoolExecutor() as at_once:
        futures = {
            suffix: at_once.submit(run_profiler, [ncu, "--import", report, *options]) for suffix, options in pages
        }
    for suffix, future in futures.items():
        Path(f"{stem}.{suffix}").write_text(future.result().stdout, encoding="utf-8")
    with Path(report).open("rb") as plain, gzip.open(f"{report}.gz", "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    Path(report).unlink()


def run_profiler(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command; its standard output and error are one text. Raises `TimeoutExpired`."""
    return subprocess.run(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
    )


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
