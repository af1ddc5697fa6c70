"""Prints how many processor seconds the tests of each file took, with the processes that they started and waited for,
and how many seconds went by. `python -m pytest -p tests.support.spent` takes what else pytest takes, `-n` too.

A server that a test leaves running, and ends in another way than to wait for it, is not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

NAME = "processor_s"
PROCESSOR: Counter[str] = Counter()
PASSED: Counter[str] = Counter()
last = [0.0]


def spent() -> float:
    """Processor seconds of this process so far, and of its children that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    last[0] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    before, last[0] = last[0], spent()
    report.user_properties.append((NAME, last[0] - before))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called in the process that hands tests to workers, where there are workers."""
    file = report.nodeid.partition("::")[0]
    PASSED[file] += report.duration
    PROCESSOR[file] += dict(report.user_properties).get(NAME, 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds by file: of processors, gone by")
    for file, seconds in PROCESSOR.most_common():
        terminalreporter.write_line(f"{seconds:8.1f} {PASSED[file]:8.1f}  {file}")
    terminalreporter.write_line(f"{PROCESSOR.total():8.1f} {PASSED.total():8.1f}  together")
