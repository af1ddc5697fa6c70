"""Whose code this process is in, told to the process that watches it; and what went wrong in processes before it.

The implementations of our own workloads share one process and one device. If one of them never returns, ends the
process, or leaves the device in a state in which it refuses everything, the others cannot be measured there any more.
Then the process is started again (`watched.py`) and leaves that implementation out.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from kernels.harness.progress import PROGRESS
from kernels.harness.workload import Scope, Unavailable, one_line

WATCHED = "BENCH_HARNESS_WATCHED"
"""An environment variable of a watched process: the id of the process that watches, and the descriptors of two files:
who is being called now, and what went wrong before."""
PAGE_BYTES = 4096
AGAIN = 75
"""The exit code of a process that has to be started again."""
ENOUGH = 2
"""After so many failures an implementation is not tried in further cases; after one, if it hung."""
BUILD = ""
"""Stands for a case where an implementation is built, which may take any time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an implementation did to the process in a case, or while it was built."""

    implementation: str
    case_id: str
    reason: str
    hung: bool


def busy_page(serial: int, implementation: str = "", case_id: str = "") -> bytes:
    """The content of the page; without a name nobody is being called."""
    return json.dumps([serial, implementation, case_id]).encode()[: PAGE_BYTES - 1].ljust(PAGE_BYTES, b"\n")


def read_page(content: bytes) -> tuple[int, str, str] | None:
    """The serial number, implementation and case; None where the content was being written."""
    try:
        serial, implementation, case_id = json.loads(content)
    except ValueError:
        return None
    return int(serial), str(implementation), str(case_id)


def content_of(descriptor: int) -> bytes:
    """All of a file, wherever its descriptor stands."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def append_record(descriptor: int, record: Mapping[str, Any]) -> None:
    """Adds a record to the file of what went before."""
    os.pwrite(descriptor, json.dumps(record).encode() + b"\n", os.fstat(descriptor).st_size)


def parse_records(content: bytes) -> tuple[list[Failure], dict[str, Mapping[str, Any]]]:
    """The failures in these records, and what they say of each case that was finished."""
    failures: list[Failure] = []
    records_by_case: dict[str, Mapping[str, Any]] = {}
    for record in map(json.loads, content.splitlines()):
        if "case" in record:
            records_by_case[record.pop("case")] = record
        else:
            failures.append(Failure(**record))
    return failures, records_by_case


def files_of(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """The descriptors of the two files, if the process that started this one watches it."""
    try:
        parent, page, past = map(int, environ.get(WATCHED, "").split(":"))
    except ValueError:
        return None
    return (page, past) if parent == os.getppid() else None


@dataclass
class Calls:
    """The calls of this process. Without files nobody watches it, and nothing was before it.

    `is_broken` says of an error whether the device refuses everything from now on; `settle` waits for the device.
    """

    page: mmap.mmap | None = None
    past: int | None = None
    is_broken: Callable[[BaseException], bool] = lambda _: False
    settle: Callable[[], None] = lambda: None
    leave: Callable[[int], NoReturn] = os._exit
    serial: int = 0
    called: tuple[str, str] = ("", "")
    """The implementation and the case."""
    failures: list[Failure] = field(default_factory=list)
    known: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What earlier processes recorded of each case that they finished."""

    def join(self, page: int, past: int) -> None:
        """Begins to tell the process that watches this one, and reads what is known of those before."""
        for descriptor in (page, past):
            os.set_inheritable(descriptor, False)
        self.page, self.past = mmap.mmap(page, PAGE_BYTES), past
        self.failures, self.known = parse_records(content_of(past))

    def before(self, implementation: str, case_id: str) -> tuple[str, bool] | None:
        """Why an implementation is left out of a case, and whether it counts as wrong; None if it is not left out."""
        own_failures = [one for one in self.failures if one.implementation == implementation]
        for one in own_failures:
            if one.case_id in (case_id, BUILD):
                return one.reason, True
        if any(one.hung for one in own_failures):
            return "not tried again: it hung in a case before", False
        return ("not tried again: it failed in two cases before", False) if len(own_failures) >= ENOUGH else None

    @contextmanager
    def of(self, implementation: str, case_id: str) -> Iterator[None]:
        """The context of a call. If an implementation breaks the device in it, this process ends."""
        if self.page is None:
            yield
            return
        PROGRESS.note(implementation)
        outer, self.called = self.called, (implementation, case_id)
        self.tell()
        try:
            yield
        except SystemExit as exc:
            raise RuntimeError(f"it called sys.exit({exc.code!r})") from exc
        except Exception as exc:  # errors of the device reach us as what its callers make of them, too
            if not self.is_broken(exc):
                raise
            self.fail(implementation, case_id, exc)
        finally:
            self.called = outer
            self.tell()

    def scope(self, scope: Scope, implementation: str, case_id: str) -> Scope:
        """A call's own scope within the context of its calls."""
        if self.page is None:
            return scope

        @contextmanager
        def both() -> Iterator[None]:
            with self.of(implementation, case_id), scope():
                yield

        return both

    def tell(self) -> None:
        """Tells who is being called. What was called before has returned: its time begins anew."""
        if self.page is not None:
            self.serial += 1
            self.page[:] = busy_page(self.serial, *self.called)

    def stop_telling(self) -> None:
        """Says that nobody is being called, and nothing from then on: this process ends for a reason of its own."""
        if self.page is not None:
            page, self.page = self.page, None
            page[:] = busy_page(0)

    def fail(self, implementation: str, case_id: str, exc: Exception) -> NoReturn:
        """Records that an implementation broke the device, and ends this process."""
        reason_line = one_line(str(exc))
        reason = reason_line if isinstance(exc, Unavailable) else f"raised {type(exc).__name__}: {reason_line}"
        if self.past is not None:
            append_record(self.past, asdict(Failure(implementation, case_id, reason, hung=False)))
        self.leave(AGAIN)

    def finished(self, case_id: str, **known: Any) -> None:
        """Records a case that later processes of this step need not repeat."""
        if self.past is not None:
            append_record(self.past, {"case": case_id, **known})


THESE = Calls()
"""The calls of this process. `__main__` joins them to the process that watches it, where there is one."""
