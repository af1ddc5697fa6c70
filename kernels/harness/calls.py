"""Whose code this process is in, told to the process that watches it; and what went wrong in processes before it.

The implementations of our own workloads share one process and one device. If one of them never returns, or leaves the
device in a state in which it refuses everything, the others cannot be measured there any more. Then the process is
started again (`watched.py`) and leaves that implementation out.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kernels.harness.workload import Scope

PAGE, PAST = "BENCH_HARNESS_PAGE", "BENCH_HARNESS_PAST"
"""Environment variables with the names of the two files: who is being called now, and what went wrong before."""
PAGE_BYTES = 4096
AGAIN = 75
"""The exit code of a process that has to be started again."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an implementation did to the process in a case. After a hang it is not tried in other cases either."""

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


@dataclass
class Calls:
    """The calls of this process. Without files nobody watches it, and nothing was before it."""

    page: mmap.mmap | None = None
    past: Path | None = None
    is_broken: Callable[[], bool] = lambda: False
    leave: Callable[[int], NoReturn] = os._exit
    serial: int = 0
    failures: list[Failure] = field(default_factory=list)
    measured: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is known of each case that an earlier process has finished."""

    def join(self, page: Path, past: Path) -> None:
        """Begins to tell the process that watches this one, and reads what is known of those before."""
        with page.open("r+b") as file:
            self.page, self.past = mmap.mmap(file.fileno(), PAGE_BYTES), past
        for line in past.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "case" in record:
                self.measured[record.pop("case")] = record
            else:
                self.failures.append(Failure(**record))

    @property
    def is_again(self) -> bool:
        """Whether an earlier process of this step ended early."""
        return bool(self.failures)

    def before(self, implementation: str, case_id: str) -> tuple[str, bool] | None:
        """Why an implementation is left out of a case, and whether it counts as wrong; None if it is not left out."""
        own = [one for one in self.failures if one.implementation == implementation]
        for one in own:
            if one.case_id == case_id:
                return one.reason, True
        return ("not tried again: it hung in a case before", False) if any(one.hung for one in own) else None

    @contextmanager
    def of(self, implementation: str, case_id: str) -> Iterator[None]:
        """The context of a call. If an implementation breaks the device in it, this process ends."""
        if self.page is None:
            yield
            return
        self.tell(implementation, case_id)
        try:
            yield
        except RuntimeError as exc:
            if not self.is_broken():
                raise
            self.fail(implementation, case_id, exc)
        finally:
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

    def tell(self, implementation: str = "", case_id: str = "") -> None:
        assert self.page is not None, "only a watched process tells"
        self.serial += 1
        self.page[:] = busy_page(self.serial, implementation, case_id)

    def fail(self, implementation: str, case_id: str, exc: RuntimeError) -> NoReturn:
        """Records that an implementation broke the device, and ends this process."""
        words = next((line.strip() for line in str(exc).splitlines() if line.strip()), "no message")
        reason = f"raised {type(exc).__name__}: {words[:200]}"
        self.record(implementation=implementation, case_id=case_id, reason=reason, hung=False)
        self.leave(AGAIN)

    def finished(self, case_id: str, **known: Any) -> None:
        """Records a case whose file the agent has."""
        if self.past is not None:
            self.record(case=case_id, **known)

    def record(self, **fields: Any) -> None:
        assert self.past is not None, "only a watched process has a file"
        with self.past.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")


THESE = Calls()
"""The calls of this process. `__main__` joins them to the process that watches it, where there is one."""
