"""How large the tool may be. A feature may raise the limit in a change of its own; between features it only falls."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("orchestrator", "spotbench", "startup", "scripts")
SUFFIXES = {".py", ".sh", ".j2", ".js", ".css", ".html"}
"""Code and templates. Tables of data (YAML) do not count."""
MOST_LINES = 67_176


def lines_by_folder() -> dict[str, int]:
    files = [path for top in FOLDERS for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    sources = [path for path in files if not {"_bundle", "__pycache__"} & set(path.parts)]
    assert len(sources) > 100
    counts = dict.fromkeys(FOLDERS, 0)
    for path in sources:
        counts[path.relative_to(ROOT).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    return counts


def test_the_tool_is_no_larger_than_its_budget_of_lines() -> None:
    counts = lines_by_folder()
    assert sum(counts.values()) <= MOST_LINES, f"{counts}: take something away, or argue for a higher limit"


def test_the_budget_is_not_left_far_above_what_is_there() -> None:
    assert 1.03 * sum(lines_by_folder().values()) > MOST_LINES, "the limit falls with what was taken away"
