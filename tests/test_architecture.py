"""The drawing of the parts, as a test: imports point one way, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "core": set(),
    "embedded": set(),
    "analysis": {"core"},
    "report": {"analysis", "core"},
    "ports": {"core"},
    "settings": {"core"},
    "adapters": {"core", "ports"},
    "last_words": {"core", "ports"},
    "engine": {"core", "ports", "last_words"},
    "takeover": {"core", "ports", "engine"},
    "launch": {"core", "ports", "engine", "takeover"},
    "host_cloud": {"core", "ports"},
    "everywhere": {"core", "ports", "host_cloud"},
    "host_check": {"core", "ports", "host_cloud"},
    "shared_grid": {"core", "ports", "engine", "launch", "host_cloud"},
    "reaping": {"core", "ports", "engine"},
    "resume": {"core", "ports", "engine", "launch"},
    "reconcile": {"core", "ports", "engine"},
    "log_tail": {"core", "ports"},
    "doctor": {"core"},
    "wiring": {"core", "ports", "settings", "engine", "launch", "host_cloud", "everywhere", "adapters", "embedded"},
    "cli": {
        "core",
        "ports",
        "settings",
        "engine",
        "launch",
        "takeover",
        "shared_grid",
        "host_cloud",
        "host_check",
        "last_words",
        "reaping",
        "resume",
        "reconcile",
        "log_tail",
        "doctor",
        "wiring",
        "adapters",
        "embedded",
        "analysis",
        "report",
    },
}
"""For each part of `orchestrator`, the parts that it may import."""
PURE = {
    "google",
    "googleapiclient",
    "fabric",
    "rich",
    "typer",
    "requests",
    "socket",
    "subprocess",
    "http",
    "urllib",
    "random",
}
"""What the core may never import: I/O, chance, clouds, terminals."""


def modules() -> list[Path]:
    return sorted(path for path in (ROOT / "orchestrator").rglob("*.py") if "_bundle" not in path.parts)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "orchestrator").parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "orchestrator":
                yield from (f"orchestrator.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_what_its_part_may(path: Path) -> None:
    own = part_of(path)
    if own == "__init__":
        return
    reached = {name.split(".")[1] for name in imports(path) if name.startswith("orchestrator.")} - {"__version__"}
    assert reached <= MAY_IMPORT[own] | {own}


@pytest.mark.parametrize(
    "path", [p for p in modules() if part_of(p) in ("core", "analysis", "report")], ids=lambda path: path.as_posix()
)
def test_the_core_the_statistics_and_the_report_do_no_io(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & PURE == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_google_and_fabric_stay_in_the_adapters(path: Path) -> None:
    heavy = {
        name
        for name in imports(path)
        if name.split(".")[0] in ("google", "fabric", "paramiko", "invoke", "googleapiclient", "google_crc32c")
    }
    assert not heavy or part_of(path) == "adapters"


@pytest.mark.parametrize("folder", ["kernels", "startup"])
def test_what_runs_on_the_machine_knows_nothing_of_the_orchestrator(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imports(path)), path


def test_the_agent_needs_the_standard_library_only() -> None:
    for path in (ROOT / "startup" / "agent").rglob("*.py"):
        outside = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names) - {"startup", ""}
        assert not outside, f"{path}: {outside}"


LONGEST = 400
ARGUED = {"orchestrator/embedded/fleet.py": "one life cycle under one lock reads better in one place"}
"""What may be longer, and why."""


def test_no_module_is_longer_than_it_can_be_argued_for() -> None:
    longest = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in longest.items() if lines > LONGEST and name not in ARGUED} == {}
    assert all(longest[name] > LONGEST for name in ARGUED), "what is short again needs no argument"
