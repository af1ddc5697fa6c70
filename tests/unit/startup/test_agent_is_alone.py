"""The agent must run on a bare VM: the standard library only, and an older Python than ours."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from orchestrator.adapters.hosts.host_operations import MODULES as SENT
from tests.unit.startup.machine import ROOT

MODULES = sorted((ROOT / "startup").rglob("*.py"))


WORKS_WITH = {"startup.batch": ("startup.agent", "startup.host")}
"""A task of Batch runs around the agent, from the same payload, and uses its words and those of a host."""


def owner(name: str) -> str:
    """The part of `startup` that a module belongs to; the name itself of any other."""
    return ".".join(name.split(".")[:2]) if name.startswith("startup.") else name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_agent_imports_only_the_standard_library_and_itself(path: Path) -> None:
    reached = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            reached |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            reached.add(node.module or "")
    foreign = {name for name in reached if name.split(".")[0] not in sys.stdlib_module_names}
    own = ".".join(path.relative_to(ROOT).parts[:2])
    allowed = (own, *WORKS_WITH.get(own, ()))
    assert {owner(name) for name in foreign} <= set(allowed), foreign


MET_UNSEEN = [path for path in MODULES if path.parent.name != "host" or path.stem in SENT]
"""What meets a Python that nobody has looked at; a host's steward runs where 3.10 was found first."""


@pytest.mark.parametrize("path", MET_UNSEEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_agent_parses_under_python_3_8_and_evaluates_no_annotation(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    newer = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called(node) in {"removeprefix", "removesuffix"}
    ]
    assert newer == [], "str.removeprefix came with Python 3.9"
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert future or len(tree.body) == 1, "`X | None` in an annotation needs Python 3.10 unless it is left unevaluated"


def test_what_is_sent_to_a_host_needs_nothing_of_ours_but_what_is_sent_before_it() -> None:
    for place, name in enumerate(SENT):
        tree = ast.parse((ROOT / "startup" / "host" / f"{name}.py").read_text())
        needed = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        ours = {module for module in needed if module.startswith("startup.")}
        assert ours <= {f"startup.host.{one}" for one in SENT[:place]}, name


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def test_there_are_modules_to_judge() -> None:
    assert len(MODULES) > 15
