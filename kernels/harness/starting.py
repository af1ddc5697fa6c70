"""Starts processes for a user's own workload, and asks one of them for the description of the workload."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from kernels.forms.load import FORMS
from kernels.harness import environment, processes
from kernels.harness.arena import Arena
from kernels.harness.hands import UNKNOWN_LIMIT_S, AnswerLimits, Hand
from kernels.harness.own import OwnWorkload
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.reading import BadSpec
from kernels.harness.sanitizer import PROGRAM, find_sanitizer, sanitizer_fault
from kernels.harness.scratch import Scratch, roomy_folder
from kernels.harness.spec import Spec, original_name
from kernels.harness.users import JUDGE, folder_of, open_users
from kernels.harness.workload import Workload

READING_LIMIT_S, AHEAD_LIMIT_S = 120.0, 20.0
"""How long a workload may take to be read, in seconds: where its description is needed, and before."""


def worker_starter(
    workload: OwnWorkload, device: torch.device, threads: int, *, reads: bool = False, niceness: int = 0
) -> Callable[[str], Worker]:
    """A function that starts processes for a workload, each for the implementation of a name, or for the judge. With
    `reads` they only describe the workload. `niceness` lowers their priority."""
    processes.prepare_workers(Path(workload.path))
    settings = {"device": str(device), "threads": threads, "form": workload.form, "path": workload.path}
    settings |= {"reads": reads, "niceness": niceness}
    users, path = open_users(), Path(workload.path)

    def start(name: str) -> Worker:
        user = None if users is None else users.of(original_name(name), path).as_settings()
        return Worker({**settings, "user": user})

    return start


class DescriptionNote:
    """The description of a workload that an earlier step has read, in a file without a name that only the steps of one
    server hold. Without a server nothing is noted."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None

    def open(self) -> None:
        """Lets the forks of this process share what one of them notes."""
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the process

    def read(self, workload: OwnWorkload) -> Mapping[str, Any] | None:
        """The description of these files as they are now; None where it is not noted."""
        if self.file is None or not os.fstat(self.file.fileno()).st_size:
            return None
        state, description = json.loads(os.pread(self.file.fileno(), 1 << 26, 0))
        return description if state == files_state(workload) else None

    def write(self, workload: OwnWorkload, description: Mapping[str, Any]) -> None:
        """Notes a description for the steps to come."""
        if self.file is not None:
            os.ftruncate(self.file.fileno(), 0)
            os.pwrite(self.file.fileno(), json.dumps([files_state(workload), description]).encode(), 0)


NOTE = DescriptionNote()


def files_state(workload: OwnWorkload) -> list[Any]:
    """What differs when a file of the workload does: form, and path, size and time of change of each file."""
    files = [(file, file.lstat()) for file in sorted(folder_of(Path(workload.path)).rglob("*"))]
    return [workload.form, workload.path, *([str(file), stat.st_size, stat.st_mtime_ns] for file, stat in files)]


def describe_workload(workload: OwnWorkload) -> Mapping[str, Any]:
    """The description of a workload. Raises `BadSpec`, with file and line, where it cannot be read."""
    noted = NOTE.read(workload)
    if noted is not None:
        return noted
    reader = make_reader(workload, READING_LIMIT_S)
    try:
        description = reader.ask("describe")
        NOTE.write(workload, description)
        return description
    except (Lost, Answered) as exc:
        raise BadSpec(exc.reason(f"while {workload.path} was read")) from exc
    finally:
        reader.end()


def make_reader(workload: OwnWorkload, limit_s: float) -> Hand:
    """A process that describes a workload, with the user of the judge."""
    start = worker_starter(workload, environment.default_device(), 1, reads=True)
    return Hand(JUDGE, partial(start, JUDGE), AnswerLimits(limit_s))


@contextlib.contextmanager
def description_read_ahead(workload: Workload) -> Iterator[None]:
    """Reads a user's workload while the block runs, and notes its description for later steps. Where that fails, as
    before what the workload needs is installed, nothing is noted: the step that needs the description reads it."""
    if NOTE.file is None or not isinstance(workload, OwnWorkload) or workload.form not in FORMS:
        yield
        return
    reader = make_reader(workload, AHEAD_LIMIT_S)
    try:
        reader.begin()
        yield
        with contextlib.suppress(Lost, Answered):
            NOTE.write(workload, reader.ask("describe"))
    finally:
        reader.end()


def open_arena(spec: Spec, device: torch.device) -> Arena:
    """The arena of one step; each of its processes is started when it is first needed."""
    assert isinstance(spec.workload, OwnWorkload), "others run here"
    start, users = worker_starter(spec.workload, device, spec.threads), open_users()
    program = find_sanitizer() if spec.sanitizer else None
    if spec.sanitizer and program is None:
        raise BadSpec(f"sanitizer {spec.sanitizer}: {PROGRAM} is not on PATH: the CUDA toolkit has it")
    about = {"form": spec.workload.form, "path": spec.workload.path, "device": str(device)}
    return Arena(
        device=device,
        seed=spec.seed,
        cache=spec.cache,
        blocks=spec.repeats,
        limits=AnswerLimits(spec.answer_limit_s),
        start=start,
        users=users,
        scratch=Scratch(roomy_folder(for_all=users is not None)),
        judge=Hand(
            JUDGE, partial(start, JUDGE), AnswerLimits(max(spec.answer_limit_s or UNKNOWN_LIMIT_S, READING_LIMIT_S))
        ),
        baselines=tuple(spec.workload.describe().get("baselines", ())),
        writes=bool(spec.workload.describe().get("writes")),
        sanitize=None
        if program is None
        else lambda name, case, seed: sanitizer_fault(
            program, spec.sanitizer, {**about, "name": name, "case": dict(case.values), "seed": seed}
        ),
    )
