"""Names that explain themselves: what can be counted of it. The measure is a reader; these tests keep what was reached."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IRREGULAR = re.compile(
    "begun|bound|brought|built|chosen|drawn|driven|found|given|gone|heard|held|homed|hung|kept|known|left|lost|made|met|"
    "seen|sent|shown|spent|sworn|taken|then|told|said|understood|unheard|unread|untold|whole|written"
)
NOT_PARTICIPLES = {"bed", "breed", "embed", "feed", "need", "red", "seed", "shed", "speed"}
VAGUE = {"one", "found", "told", "said", "words", "known", "own", "whole", "left", "rest", "more", "these", "those"}
VAGUE |= {"others"}
MOST_VAGUE = 60
MOST_ONE_WORD = 0.25

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    return IRREGULAR.fullmatch(name) is not None or (
        "_" not in name and name.endswith("ed") and name not in NOT_PARTICIPLES
    )


def vague_locals(tree: ast.AST) -> Iterator[str]:
    """The vague names that functions assign to. A comprehension of a line may use one; `left, right` is a pair."""
    for node, in_function in walk_statements(tree, in_function=False):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)}
        if in_function:
            yield from (names & VAGUE) - ({"left"} if "right" in names else set())


def walk_statements(node: ast.AST, *, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            yield child, in_function
        if isinstance(child, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        inside = isinstance(child, Definition) or (in_function and not isinstance(child, ast.ClassDef))
        yield from walk_statements(child, in_function=inside)


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    files = [
        path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if "_bundle" not in path.parts
    ]
    assert len(files) > 50
    collected = gc.isenabled()
    gc.disable()  # a finalizer that runs while python 3.11 builds a tree can let another thread build one: a SystemError
    try:
        return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    finally:
        if collected:
            gc.enable()


def public_functions(*folders: str) -> list[tuple[str, str]]:
    """The file and the name of each public function of a module; commands apart, which are named as users type them."""
    return [
        (path, node.name)
        for path, tree in trees(*folders).items()
        if "/cli/" not in path
        for node in tree.body
        if isinstance(node, Definition) and not node.name.startswith("_") and node.name != "main"
    ]


def test_no_public_class_name_means_two_things() -> None:
    names = Counter(
        node.name
        for tree in trees("orchestrator", "startup").values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert sum(names.values()) > 400
    assert {name for name, number in names.items() if number > 1} == set()


def test_a_public_function_is_never_named_by_a_bare_participle() -> None:
    functions = public_functions("orchestrator", "startup", "kernels")
    assert {f"{path}: {name}" for path, name in functions if is_participle(name)} == set()


def test_at_most_a_quarter_of_the_public_functions_have_a_name_of_one_word() -> None:
    names = [name for _, name in public_functions("orchestrator", "startup", "kernels")]
    assert len(names) > 1000
    assert sum("_" not in name for name in names) <= MOST_ONE_WORD * len(names)


def test_few_locals_have_a_name_that_says_nothing() -> None:
    places = Counter(
        f"{path}: {name}"
        for path, tree in trees("orchestrator", "startup", "kernels").items()
        for name in vague_locals(tree)
    )
    assert sum(places.values()) <= MOST_VAGUE, sorted(places)


def test_only_money_is_settled() -> None:
    elsewhere = {
        f"{path}: {node.name}"
        for path, tree in trees("orchestrator", "startup", "kernels").items()
        if not path.startswith(("orchestrator/core/ledger/", "orchestrator/core/run/", "orchestrator/runs/"))
        for node in ast.walk(tree)
        if isinstance(node, Definition | ast.ClassDef) and node.name.lower().lstrip("_").startswith("settle")
    }
    assert elsewhere == {"orchestrator/cli/reap.py: _settle"}


def test_nothing_traces_the_interpreter() -> None:
    for path, tree in trees("orchestrator", "startup", "kernels", "spotbench").items():
        traced = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "settrace"]
        assert not traced, path


PRIVATE_OF_OTHERS = re.compile(r"\b(?:ctx|context|column|console|app|typer|click|rich)\._[a-z]")


def test_nothing_of_a_library_is_used_that_the_library_keeps_to_itself() -> None:
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        assert not PRIVATE_OF_OTHERS.findall(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n found = 1", ["found"]),
        ("def f():\n if told := 1: pass", ["told"]),
        ("def f():\n rest: int = 1", ["rest"]),
        ("def f():\n first, *others = 1, 2", ["others"]),
        ("class A:\n words: str = ''", []),
        ("def f():\n return [one for x in y if (one := x)]", []),
        ("def f():\n left, right = 1, 2", []),
    ],
)
def test_a_vague_local_would_be_found(source: str, names: list[str]) -> None:
    assert list(vague_locals(ast.parse(source))) == names


@pytest.mark.parametrize("name", ["judged", "told", "held", "unread"])
def test_a_bare_participle_would_be_found(name: str) -> None:
    assert is_participle(name)
    assert not is_participle(f"{name}_rows")
