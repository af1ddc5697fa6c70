"""Builds and runs a program that measures itself, and makes rows of its output. Its times are not verified.

A command runs in the workload's folder, in the harness's process group, with empty input and its output in a file. All
that it started ends when its time is over. All its output is kept beside the results.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.forms import outputs
from kernels.forms.outputs import Result, Unreadable
from kernels.harness import environment, rows
from kernels.harness.columns import measurement_columns
from kernels.harness.ending import end_with_descendants
from kernels.harness.facts import log_line
from kernels.harness.judging import Session
from kernels.harness.own import OwnWorkload, axis_column
from kernels.harness.reading import BadSpec
from kernels.harness.stamps import utc_now

REGIME = "program"
DONE, FAILED = 0, 21
TAIL_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Described:
    """The client's description of a program; `folder` is the program's folder."""

    folder: Path
    name: str
    command: str
    build: str
    format: str
    output: str
    build_limit_s: float
    limit_s: float
    implementation: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (negative for a signal, None where its time ran out), and the end of its
    output."""

    code: int | None
    tail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A case of a program, with the cells that identify it in a row."""

    id: str
    axes: Mapping[str, str]


def describe_program(workload: OwnWorkload) -> Described:
    """The description of the program, which is beside the workload's folder. Raises `BadSpec`."""
    folder = Path(workload.path)
    file = folder.with_name(f"{folder.name}.json")
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        fields.pop("schema")
        description = Described(folder=folder.resolve(), **fields)
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise BadSpec(f"{file.name}: cannot be read: {exc}") from exc
    if description.format not in outputs.READERS:
        raise BadSpec(f"{file.name}: format {description.format!r} is none of {', '.join(outputs.READERS)}")
    return description


def run_program(command: str, folder: Path, limit_s: float, out: Path, errors: Path) -> Ended:
    """Runs a command of /bin/sh with a time limit. Nothing that it started is left afterwards."""
    began = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as said, errors.open("wb") as complained:
        child = subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=complained
        )
        code: int | None = None
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            log_line(f"no end of `{command}` within {limit_s:g} s; ended")
        finally:
            end_with_descendants(child.pid)
            child.wait()
    tail = b"".join(one.read_bytes()[-TAIL_BYTES:] for one in (errors, out))
    return Ended(code, tail.decode("utf-8", "replace").strip()[-TAIL_BYTES:], time.monotonic() - began)


def failure_words(ended: Ended, limit_s: float) -> str:
    """How a command failed, in words."""
    if ended.code is None:
        return f"did not end within {limit_s:g} s"
    return (
        f"ended with exit code {ended.code}" if ended.code > 0 else f"was ended by {signal.Signals(-ended.code).name}"
    )


def perform_program(step: str, session: Session, workload: OwnWorkload) -> int:
    """The step `build` or `measure` of a program; its exit code. Raises `BadSpec`."""
    program = describe_program(workload)
    there = torch.cuda.device_count()
    if there < program.gpus:
        detail = f"{program.name} needs {program.gpus} GPUs, and {there or 'none'} can be used here"
        session.facts.send("problem", cause="no_cuda", detail=detail)
        return FAILED
    if program.gpus:
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpus(listed, there, program.gpus)
    return build_program(session, program) if step == "build" else measure_program(session, program)


def visible_gpus(listed: str, there: int, wanted: int) -> str:
    """The value of CUDA_VISIBLE_DEVICES with which a program sees as many GPUs as it needs: the first of those that are
    listed in it now, or of all that are there."""
    names = [name for name in listed.split(",") if name] or [str(number) for number in range(there)]
    return ",".join(names[:wanted])


def build_program(session: Session, program: Described) -> int:
    """Runs the build command, if there is one; its output is kept as build.log."""
    facts = session.facts
    if not program.build:
        facts.send("gate", name="kernel_loads", passed=True, detail="nothing to build")
        return DONE
    errors = session.out / "build.log"
    ended = run_program(program.build, program.folder, program.build_limit_s, session.out / "build.out", errors)
    if ended.code == 0:
        facts.send("gate", name="kernel_loads", passed=True, detail=f"`{program.build}` in {ended.seconds:.1f} s"[:200])
        return DONE
    detail = f"`{program.build}` {failure_words(ended, program.build_limit_s)}"
    facts.send("gate", name="kernel_loads", passed=False, detail=detail[:200])
    facts.send("problem", cause="build_failed", detail=f"{detail}\n{ended.tail}".strip())
    return FAILED


def measure_program(session: Session, program: Described) -> int:
    """Runs the command, reads its output, and stores the results case by case."""
    facts = session.facts
    printed = session.out / "program.out"
    written = program.folder / program.output if program.output else printed
    if program.output:
        written.unlink(missing_ok=True)
    ended = run_program(program.command, program.folder, program.limit_s, printed, session.out / "program.log")
    try:
        if ended.code != 0:
            raise Unreadable(failure_words(ended, program.limit_s))
        if not written.is_file() or written.is_symlink():
            raise Unreadable(f"wrote no file {program.output}")
        if written.stat().st_size > outputs.MOST_BYTES:
            raise Unreadable(f"wrote more than {outputs.MOST_BYTES >> 20} MB")
        text = written.read_text(encoding="utf-8", errors="replace")
        results = outputs.read_output(program.format, text, program.folder, program.implementation, program.name)
    except Unreadable as exc:
        facts.send("problem", cause="program_failed", detail=f"`{program.command}`: {exc}\n{ended.tail}".strip()[:4000])
        return FAILED
    for result in results:
        if result.note:
            log_line(f"{result.label}: {result.note}")
    store_results(session, program, results)
    return DONE


def store_results(session: Session, program: Described, results: Iterable[Result]) -> None:
    """Writes a file for each case; each is stored by the agent before the next one."""
    spec, facts = session.spec, session.facts
    cases = group_results(results)
    names = tuple(dict.fromkeys(name for cell, _ in cases for name in cell.axes))
    origin = environment.row_origin(session.device, spec)
    cells_left = [(cell, listed) for cell, listed in cases if cell.id not in spec.skip_cases]
    facts.send(
        "planned",
        cases=[cell.id for cell, _ in cells_left],
        total=len(cases),
        measurements_per_implementation=max(sum(len(one.samples_us) for _, listed in cases for one in listed), 1),
    )
    for index, (cell, listed) in enumerate(cells_left, start=1):
        place = {"case_id": cell.id, "index": index, "of": len(cells_left)}
        facts.send("case_started", **place)
        made = [
            {**row, "definition": str(place)}
            for place, one in enumerate(listed, start=1)
            for row in program_rows(origin, program, cell, one, names)
        ]
        count = rows.write_csv(session.out / "cases" / f"{cell.id}.csv", measurement_columns(names), made)
        timed = {one.implementation: one for one in listed}
        facts.send(
            "case_finished",
            path=f"cases/{cell.id}.csv",
            **place,
            rows=count,
            seconds=0.0,
            median_us={k: round(statistics.median(one.samples_us), 3) for k, one in timed.items() if one.samples_us},
            skipped={k: one.skipped for k, one in timed.items() if not one.samples_us},
            stopped={},
        )


def group_results(results: Iterable[Result]) -> list[tuple[Cell, list[Result]]]:
    """The cases, each with its results. Where two cases would have the same file name, a digest distinguishes them."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for one in results:
        groups.setdefault((one.name, tuple(one.axes.items())), []).append(one)
    plain = [name_of(listed[0]) for listed in groups.values()]
    made = []
    for name, (key, listed) in zip(plain, groups.items(), strict=True):
        alone = plain.count(name) == 1 and len(name) <= 160
        digest = "" if alone else f"-{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"
        first = listed[0]
        axes = {
            axis_column(axis): value
            for axis, value in ({outputs.BENCHMARK: first.name} | dict(first.axes)).items()
            if value
        }
        made.append((Cell(f"{name[:160]}{digest}", axes), listed))
    return made


def name_of(one: Result) -> str:
    """The name of a case, with only characters of a file name: `saxpy-1048576`, `copy-n65536`."""
    parts = [one.name, *(f"{axis}{value}" for axis, value in one.axes.items())]
    plain = "-".join(re.sub(r"[^A-Za-z0-9._+]+", "-", part).strip("-.") for part in parts if part)
    return plain if plain[:1].isalnum() else f"case{plain}" if plain else "all"


def program_rows(
    origin: rows.Origin, program: Described, cell: Cell, one: Result, names: tuple[str, ...]
) -> Iterable[Mapping[str, str]]:
    """A row for each sample, or one row with the reason. Regime and backend mark them as reported by the program."""
    shared = {
        **{name: cell.axes.get(name, "") for name in names},
        "case_id": cell.id, "run_id": origin.run_id, "vm": origin.vm, "device": origin.device, "torch": origin.torch,
        "regime": REGIME, "backend": f"{REGIME}:{program.format}", "implementation": one.implementation,
        "started_at": utc_now(),
    }  # fmt: skip
    if not one.samples_us:
        yield {**shared, "skipped": one.skipped}
    for at, each in enumerate(one.samples_us):
        yield {**shared, "block": str(at), "repeat": str(at), "latency_us": f"{each:.6g}", "calls": "1"}
