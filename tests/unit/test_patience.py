"""No test depends on a machine that is fast: a limit in seconds ends what hangs, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LEAST_S = 100
"""A machine may stand still for a minute."""
TRIED_AGAIN_S = 2
"""So short is only what is tried again, or what is meant to run out."""
EXEMPT = {("support/browser.py", 20.0)}
"""A browser that does not leave is ended, and no test fails."""
FILES = sorted(path for path in TESTS.rglob("*.py") if not {"live", "examples", "own"} & set(path.parts))


def seconds(node: ast.expr | None) -> float | None:
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value) if is_number else None  # type: ignore[union-attr,arg-type]


def is_duration(node: ast.expr) -> bool:
    """`time.monotonic() - began` and the like."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call)):
        return False
    called = node.left.func
    return isinstance(called, ast.Attribute) and called.attr in ("monotonic", "time", "perf_counter")


def limits(tree: ast.AST) -> Iterator[tuple[int, float]]:
    """Line and seconds of every limit: on a wait, on a command, on an answer, on what a test says it took."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            waits = isinstance(node.func, ast.Attribute) and node.func.attr in ("wait", "join", "settimeout")
            given = [one.value for one in node.keywords if one.arg == "timeout"]
            for one in [*given, *(node.args[:1] if waits else [])]:
                if (limit := seconds(one)) is not None:
                    yield node.lineno, limit
        elif isinstance(node, ast.Compare) and is_duration(node.left) and isinstance(node.ops[0], ast.Lt | ast.LtE):
            yield node.lineno, max(seconds(node.comparators[0]) or LEAST_S, TRIED_AGAIN_S + 1)


def test_no_limit_is_one_that_a_slow_machine_reaches() -> None:
    found = [
        f"{name}:{line}: {limit:g} s"
        for path in FILES
        for name in [path.relative_to(TESTS).as_posix()]
        for line, limit in limits(ast.parse(path.read_text(encoding="utf-8")))
        if TRIED_AGAIN_S < limit < LEAST_S and (name, limit) not in EXEMPT
    ]
    assert found == [], "use tests.support.patience.PATIENCE_S, or simulated time"


@pytest.mark.parametrize(
    "line",
    [
        "Barrier(4, timeout=60)", "process.wait(20)", "thread.join(10)", "run(command, timeout=30)",
        "assert time.monotonic() - began < 5", "assert time.monotonic() - began < 0.5",
    ],
)  # fmt: skip
def test_a_limit_that_is_too_short_is_found(line: str) -> None:
    assert [limit for _, limit in limits(ast.parse(line)) if TRIED_AGAIN_S < limit < LEAST_S]
