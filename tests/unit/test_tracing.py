"""Coverage's tracer runs while a test runs that coverage is counted of, and at no other time: it doubles what Python takes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tests.support.counted import COUNTED, UNCOUNTED

ROOT = Path(__file__).resolve().parents[2]


def traces() -> list[bool]:
    """Whether there is a tracer, in this thread and in one that begins now."""
    found = [sys.gettrace() is not None]
    other = threading.Thread(target=lambda: found.append(sys.gettrace() is not None))
    other.start()
    other.join()
    return found


def test_what_is_not_counted_is_not_traced() -> None:
    assert traces() == [False, False]


def test_what_is_counted_is_traced(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.pluginmanager.hasplugin("_cov"):
        pytest.skip("there is no --cov")
    assert traces() == [True, True]


def test_what_is_named_as_counted_or_not_is_there() -> None:
    for named in (*COUNTED, *UNCOUNTED):
        path, _, name = named.partition("::")
        assert (ROOT / path).exists(), named
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), named
