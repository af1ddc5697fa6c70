"""YAML text as plain data that remembers the line of every key, so that a complaint can point at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]


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


def read(text: str) -> Document:
    """The document in `text`. Never raises: what cannot be read is in `problems`."""
    try:
        return _read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Document(data=None, problems=((mark.line + 1 if mark else 0, "", f"not YAML: {error.problem}"),))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Document(data=None, problems=((0, "", f"not YAML: {str(error).splitlines()[0]}"),))


def _read(text: str) -> Document:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(data=None)
        lines: dict[Path, int] = {}
        problems: list[tuple[int, str, str]] = []
        _walk(node, (), lines, problems)
        return Document(data=loader.construct_document(node), lines=lines, problems=tuple(problems))
    finally:
        loader.dispose()


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
