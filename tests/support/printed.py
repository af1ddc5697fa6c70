"""Every command line that the product prints or its documents show, found in the sources themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = ("orchestrator", "spotbench", "startup", "kernels", "scripts")
TAUGHT: Final = ("gcloud", "terraform")
HOLE: Final = "HOLE"
"""Stands for what is known only when it is printed."""
WHERE: Final = re.compile(rf"(?<![\w./-])(?:{'|'.join(TAUGHT)}) [a-z]")
END: Final = re.compile(r"[`;)]|,? or |, |&&|\n| takes? | again")
SPAN: Final = re.compile(r"`([^`\n]+)`")


def text_of(node: ast.expr) -> str | None:
    """A string expression with holes in it, or the words of a command line; None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in values)  # type: ignore[misc]
        case ast.Tuple(elts=[ast.Constant(value="gcloud"), *_]) | ast.List(elts=[ast.Constant(value="gcloud"), *_]):
            return " ".join(text_of(one) or HOLE for one in node.elts)
    return None


def strings(path: Path) -> Iterator[str]:
    """The outermost string expressions of a module, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        text = text_of(node) if isinstance(node, ast.expr) else None
        if text is None:
            waiting += ast.iter_child_nodes(node)
        elif id(node) not in said:
            yield text


def messages(*naming: str) -> Iterator[tuple[str, str]]:
    """Module and text of each string of the product; with words, of the modules that have one of them somewhere."""
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not naming or any(word in path.read_text(encoding="utf-8") for word in naming):
                for text in strings(path):
                    yield path.relative_to(ROOT).as_posix(), text


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of each page of the documents."""
    for path in [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]:
        if path.name != "CHANGELOG.md":
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8").replace("\\\n", " ")


def lines() -> list[tuple[str, str]]:
    """Where, and the command: each begins with `gcloud` or `terraform`."""
    found = []
    for where, text in chain(messages(*TAUGHT), pages()):
        for match in WHERE.finditer(text):
            rest = text[match.start() :]
            end = END.search(rest)
            found.append((where, rest[: end.start()].strip(" .:'\"") if end else rest.strip()))
    return found


def fenced() -> Iterator[tuple[str, str]]:
    """The lines of documents that stand in a fence, with `$ ` in front or as they are, and begin with a program's
    name."""
    for where, text in pages():
        for block in re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in block.splitlines():
                yield where, re.split(r" {3,}|  #", line)[0].removeprefix("$ ").strip()
