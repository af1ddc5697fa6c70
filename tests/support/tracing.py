"""Traces what coverage is counted of, and nothing else: under its tracer all of Python runs at half its speed.

Nothing is traced in the process that hands tests to workers, nor while workers collect, nor during a test of which
coverage is not counted. What modules do when they are imported counts once: the first worker is traced while it
collects, and then imports what is left of the product. Of a property, the first examples are traced: the others tread
on the same lines.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = ("orchestrator", "spotbench", "startup/agent")
"""What `tool.coverage.run` in pyproject.toml names."""
FIRST: Final = "gw0"
"""The worker that is traced while it collects."""

EXAMPLES: Final = 20
"""Of a property, those that are traced."""


class Tracing:
    """A plugin that pauses and resumes the tracer that pytest-cov has begun. `is_counted` judges a test by its id."""

    def __init__(self, config: pytest.Config, is_counted: Callable[[str], bool]) -> None:
        self.controller: Any = getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)
        self.is_counted = is_counted
        self.is_on = True
        self.alone()
        self.worker = getattr(config, "workerinput", {}).get("workerid")
        if config.pluginmanager.hasplugin("dsession") or self.worker not in (None, FIRST):
            self.turn(False)

    def alone(self) -> None:
        """Ends what pytest-cov began besides: in each worker it has begun twice, once as the process that hands tests to
        workers, and what is below goes on tracing whenever what is above pauses."""
        if self.controller is None:
            return
        self.controller.pause()
        while (below := coverage.Coverage.current()) is not None:
            below.stop()
        self.controller.resume()

    def turn(self, on: bool) -> None:
        if self.controller is not None and on != self.is_on:
            (self.controller.resume if on else self.controller.pause)()
            self.is_on = on

    def pytest_collection_finish(self) -> None:
        if self.controller is not None and self.worker == FIRST:
            import_all()
        self.turn(False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.turn(self.is_counted(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is None or self.controller is None or not self.is_on:
            yield
            return
        whole = handle.inner_test
        handle.inner_test = self.traced_at_first(whole)
        try:
            yield
        finally:
            handle.inner_test = whole
            self.turn(True)

    def traced_at_first(self, example: Callable[..., None]) -> Callable[..., None]:
        """`example`, called once for each: with the tracer's help until there were enough."""
        seen = 0

        @functools.wraps(example)
        def counted(*args: Any, **named: Any) -> None:
            nonlocal seen
            seen += 1
            if seen > EXAMPLES:
                self.turn(False)
            example(*args, **named)

        return counted

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        # Between two tests that count it goes on: a thread that serves both is traced for as long as nobody stops.
        if nextitem is None or not self.is_counted(nextitem.nodeid):
            self.turn(False)


def import_all() -> None:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.stem != "__main__":
                importlib.import_module(
                    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                )
