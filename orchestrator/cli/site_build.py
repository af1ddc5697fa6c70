"""Builds a site in a folder: reads what is new in the bucket, makes the pages that it changes, writes those."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

import orchestrator.analysis
import orchestrator.report
from orchestrator.cli import interrupts
from orchestrator.cli.terminal import documents
from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing, LocalError
from orchestrator.core.run.fold import Run
from orchestrator.ports import Bucket
from orchestrator.report.site import runs as run_pages
from orchestrator.report.site.digest import Digest
from orchestrator.report.site.index import run_page
from orchestrator.report.site.site import Money, shared_pages
from orchestrator.runs.engine import Engine
from orchestrator.runs.site_source import is_over, site_materials
from orchestrator.store.index import IndexLine, RunIndex
from orchestrator.wiring import Wiring, write_atomically

# Processes that share a command's work. Ctrl-C reaches every process of a terminal, but only the command answers it.
# However the command ends, they end too.


Submit = Callable[..., Future[Any]]


@contextmanager
def workers(number: int) -> Iterator[Submit]:
    """Yields a function that is called with another function and its arguments, and has a worker call it. If the
    context is left by an exception, calls that no worker has begun are cancelled."""
    context = multiprocessing.get_context("spawn")  # No fork: the bucket's client has threads.
    pool = ProcessPoolExecutor(number, context, initializer=_end_with_the_command)

    def submit(*call: Any) -> Future[Any]:
        with interrupts.held_back():  # a worker that starts now never receives Ctrl-C
            return pool.submit(*call)

    try:
        yield submit
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_the_command() -> None:
    """Ends this worker when its command has ended: one that was killed cannot tell its workers that no work is left."""
    command = multiprocessing.parent_process()
    assert command is not None, "it is called in a worker"

    def wait() -> None:
        command.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


STATE: Final = "site.json"
"""The file beside the pages that says what each page was made from, and has every run's numbers."""
ALONE: Final = 24
"""Up to so many pages, one process is faster than several, which take half a second to start."""
MOST: Final = 8


class State(BaseModel):
    """`keys` are generations of the index lines of finished runs, `sources` digests of what pages were made from."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    schema_version: int = 1
    code: str = ""
    bucket: str = ""
    keys: dict[str, int] = {}
    sources: dict[str, str] = {}
    runs: dict[str, Digest] = {}


@dataclass(slots=True)
class Built:
    """The result of a build. `live` are the runs that are not over yet."""

    folder: Path
    runs: int = 0
    live: int = 0
    read: int = 0
    pages: list[str] = field(default_factory=list)
    written: int = 0
    removed: int = 0
    seconds: float = 0.0

    def document(self, **more: Any) -> documents.SiteMade:
        """What is printed of it; `more` are further fields."""
        counted = {"folder": str(self.folder), "pages": len(self.pages), "seconds": round(self.seconds, 3)}
        return documents.SiteMade.of(self, schema=1, **counted, **more)


@dataclass(frozen=True, slots=True)
class Source:
    """Where pages come from. `look` gives an open run as its events tell it, and changes nothing."""

    bucket: Bucket
    look: Callable[[str], Run]
    now: Callable[[], datetime]
    money: Callable[[], Money]


def source_of(wiring: Wiring) -> Source:
    def look(run: str) -> Run:
        return Engine(wiring.world(), run).look()

    def money() -> Money:
        try:
            return Money(wiring.ledger.read(), wiring.accounts().caps)
        except CredentialsMissing:
            raise
        except BenchError as exc:
            return Money(trouble=f"The ledger cannot be read: {exc}.")

    return Source(wiring.bucket, look, lambda: wiring.clock.now(), money)  # noqa: PLW0108 - the clock is made when asked


def build(source: Source, folder: Path, *, processes: int = 0) -> Built:
    """Brings the site in `folder` up to the bucket. Only runs that are new, open or changed are read, and only pages
    that are other than before are written. Raises `ConfigError` for a folder that holds something else."""
    begun = time.monotonic()
    before = _before(folder, source.bucket.name)
    if not (folder / STATE).exists():  # a build that is cut short leaves a folder that the next one takes for a site
        _write(folder / STATE, State(bucket=source.bucket.name).model_dump_json())
    lines = RunIndex(source.bucket).list_runs()
    lines_by_run = {one.run_id: one for one in lines}
    fresh = [one for one in lines if before.keys.get(one.run_id) != one.generation]
    keys = {one.run_id: one.generation for one in lines if is_over(one)}
    built = Built(folder, runs=len(lines), read=len(fresh), live=len(lines) - len(keys))
    digests = {run: digest for run, digest in before.runs.items() if run in lines_by_run}
    for run, digest, text in _made(source, fresh, processes or min(MOST, os.cpu_count() or 1)):
        digests[run] = digest
        built.written += _write(folder / run_page(run), text)
    sources = {}
    ordered = [digests[run] for run in sorted(digests)]
    for page in shared_pages(ordered, source.bucket.name, source.money(), source.now(), before.sources):
        sources[page.path] = page.source
        if page.text is not None:
            built.written += _write(folder / page.path, page.text)
    built.pages = [*sources, *(run_page(run) for run in sorted(digests))]
    old = {*before.sources, *(run_page(run) for run in before.runs)}
    for path in old - set(built.pages):
        (folder / path).unlink(missing_ok=True)
        built.removed += 1
    state = State(code=_code(), bucket=source.bucket.name, keys=keys, sources=sources, runs=digests)
    _write(folder / STATE, state.model_dump_json())
    built.seconds = time.monotonic() - begun
    return built


def _before(folder: Path, bucket: str) -> State:
    """The state that the last build left; empty if another version made it, or for another bucket."""
    try:
        data = (folder / STATE).read_bytes()
    except FileNotFoundError:
        # what a killed build left of this file is no other's
        if folder.is_dir() and not all(fnmatchcase(path.name, f".{STATE}.*.part") for path in folder.iterdir()):
            raise ConfigError(
                f"{folder} contains files that are not a site of bench", hint="choose a new or empty folder with --out"
            ) from None
        return State()
    except OSError as exc:
        raise LocalError(
            f"cannot read {folder / STATE}: {exc.strerror or exc}", hint="choose a folder that can be read with --out"
        ) from exc
    try:
        state = State.model_validate_json(data)
    except ValidationError:
        return State()
    if state.bucket not in ("", bucket):
        raise ConfigError(
            f"{folder} is the site of another bucket, {state.bucket}",
            hint="choose another folder for this one with --out",
        )
    return state if state.code == _code() and _whole(folder, state) else State()


def _whole(folder: Path, state: State) -> bool:
    """Whether every page still exists."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.html")}
    return {*state.sources, *(run_page(run) for run in state.runs)} <= there


def _code() -> str:
    """A digest of the code that makes the pages: another version makes them again."""
    seen = hashlib.sha256()
    for package in (orchestrator.analysis, orchestrator.report):
        for path in sorted(Path(package.__path__[0]).rglob("*")):
            if path.suffix in (".py", ".j2", ".js"):
                seen.update(path.name.encode() + path.read_bytes())
    return seen.hexdigest()[:32]


def _made(source: Source, lines: Sequence[IndexLine], processes: int) -> Iterator[tuple[str, Digest, str]]:
    """The digest and the page of each run; several processes share the work if there are many."""
    site_runs = site_materials(source.bucket, lines, source.look, source.now)
    if len(lines) < ALONE or processes < 2:
        for one in site_runs:
            yield one.line.run_id, *run_pages.digest_run(one)
        return
    waiting: deque[tuple[str, Future[tuple[Digest, str]]]] = deque()
    with workers(processes) as submit:
        for one in site_runs:
            waiting.append((one.line.run_id, submit(run_pages.digest_run, one)))
            while len(waiting) > 8 * processes or (waiting and waiting[0][1].done()):
                run, future = waiting.popleft()
                yield run, *future.result()
        for run, future in waiting:
            yield run, *future.result()


def _write(path: Path, text: str) -> int:
    """Writes the page if it differs from the file; returns 1 if it did."""
    data = text.encode()
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return 0
    except OSError:
        pass  # it is not there, or cannot be read: writing it says what is wrong
    write_atomically(path, data)
    return 1
