"""YAML text as plain data that remembers the line of every key, so that a complaint can point at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import yaml

from orchestrator.core.handwritten import MOST_YAML, too_long

Path = tuple[str | int, ...]
DEEPEST: Final = 50
"""Levels of lists and keys; a configuration has five."""
MOST: Final = 100_000
"""Values and keys, those that aliases repeat counted as often as they stand there."""


@dataclass(frozen=True, slots=True)
class Document:
    data: Any
    """None where there is nothing, or nothing that can be read."""
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Line, from 1, of each key or list entry."""
    problems: tuple[tuple[int, str, str], ...] = ()
    """(line, dotted key, what is wrong with it) found while reading: syntax, and keys given twice."""

    def line(self, path: Path) -> int:
        """The line of `path`, or of its nearest parent that was written down; 0 when none was."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0


def dotted(path: Path) -> str:
    """`machine.disk_gb`, `grid.shapes[2].batch`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@lru_cache(maxsize=16)  # one command asks for the same text several times; nobody writes to what it reads
def read(text: str) -> Document:
    """The document in `text`. Never raises: what cannot be read, or not in good time, is in `problems`."""
    if len(text) > MOST_YAML:
        return Document(data=None, problems=((1, "", too_long(MOST_YAML)),))
    try:
        return _read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Document(data=None, problems=((mark.line + 1 if mark else 1, "", f"not YAML: {error.problem}"),))
    except RecursionError:
        return Document(data=None, problems=((1, "", TOO_DEEP),))
    except (yaml.YAMLError, ValueError) as error:
        return Document(data=None, problems=((1, "", f"not YAML: {str(error).splitlines()[0]}"),))


def _read(text: str) -> Document:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(data=None)
        _weigh(node, {}, 0)
        lines: dict[Path, int] = {}
        problems: list[tuple[int, str, str]] = []
        _walk(node, (), lines, problems)
        return Document(data=loader.construct_document(node), lines=lines, problems=tuple(problems))
    finally:
        loader.dispose()


TOO_DEEP: Final = f"nested more than {DEEPEST} levels deep"


def _weigh(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """The values and keys of a node, where every alias is written out. Raises `yaml.MarkedYAMLError` for too many."""
    if depth > DEEPEST:
        raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=node.start_mark)
    if id(node) not in known:
        known[id(node)] = MOST  # until it is known: one that holds itself has no end
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        size = 1
        if not isinstance(node, yaml.ScalarNode):
            size += sum(_weigh(one, known, depth + 1) for one in inner)
        known[id(node)] = size
    if known[id(node)] > MOST - 1:
        raise yaml.MarkedYAMLError(problem=f"more than {MOST:,} values", problem_mark=node.start_mark)
    return known[id(node)]


def scalar(text: str) -> Any:
    """`text` as one YAML value, e.g. `12`, `true`, `[float16, bfloat16]`; the text itself where that is not YAML."""
    document = read(text)
    return text if document.problems or text.strip() == "" else document.data


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], problems: list[tuple[int, str, str]]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            here = (*path, name)
            if name in seen:
                problems.append((line, dotted(here), f"given twice, first on line {seen[name]}"))
            seen[name] = line
            lines[here] = line
            _walk(value, here, lines, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            lines[here] = value.start_mark.line + 1
            _walk(value, here, lines, problems)
