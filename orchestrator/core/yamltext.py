"""Reads YAML text as plain data with the line of every key, so that an error can name the line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import yaml

from orchestrator.core.text import MOST_YAML, too_long

Path = tuple[str | int, ...]
DEEPEST: Final = 50
"""The most levels of lists and keys. A configuration has five."""
MOST: Final = 100_000
"""The most values and keys. Those of an alias are counted again at each place where it is used."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    data: Any
    """None if the text is empty or cannot be read."""
    lines: Mapping[Path, int] = field(default_factory=dict)
    """The line, from 1, of each key or list entry."""
    problems: tuple[tuple[int, str, str], ...] = ()
    """(line, dotted key, what is wrong) for mistakes of syntax and keys given twice."""

    def line(self, path: Path) -> int:
        """The line of `path`, or of its nearest parent that is in the text; 0 if none is."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0


def dotted_path(path: Path) -> str:
    """A path as text: `machine.disk_gb`, `grid.shapes[2].batch`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@lru_cache(maxsize=16)  # one command reads the same text several times, and nothing changes the result
def read_yaml(text: str) -> YamlDocument:
    """The document in `text`. It raises nothing: if the text cannot be read, or is too large, `problems` says so."""
    if len(text) > MOST_YAML:
        return YamlDocument(data=None, problems=((1, "", too_long(MOST_YAML)),))
    try:
        return _read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return YamlDocument(data=None, problems=((mark.line + 1 if mark else 1, "", f"not YAML: {error.problem}"),))
    except RecursionError:
        return YamlDocument(data=None, problems=((1, "", TOO_DEEP),))
    except (yaml.YAMLError, ValueError) as error:
        return YamlDocument(data=None, problems=((1, "", f"not YAML: {str(error).splitlines()[0]}"),))


def _read(text: str) -> YamlDocument:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(data=None)
        _weigh(node, {}, 0)
        lines: dict[Path, int] = {}
        problems: list[tuple[int, str, str]] = []
        _walk(node, (), lines, problems)
        return YamlDocument(data=loader.construct_document(node), lines=lines, problems=tuple(problems))
    finally:
        loader.dispose()


TOO_DEEP: Final = f"nested more than {DEEPEST} levels deep"


def _weigh(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """The number of values and keys of a node, with every alias counted in full. `sizes` has the numbers by the node's
    id. Raises `yaml.MarkedYAMLError` for too many, or if the node is nested too deeply."""
    if depth > DEEPEST:
        raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=node.start_mark)
    if id(node) not in sizes:
        sizes[id(node)] = MOST  # until it is counted, because a node that contains itself has no end
        inner = [one for pair in node.value for one in pair] if isinstance(node, yaml.MappingNode) else node.value
        size = 1
        if not isinstance(node, yaml.ScalarNode):
            size += sum(_weigh(one, sizes, depth + 1) for one in inner)
        sizes[id(node)] = size
    if sizes[id(node)] > MOST - 1:
        raise yaml.MarkedYAMLError(problem=f"more than {MOST:,} values", problem_mark=node.start_mark)
    return sizes[id(node)]


def read_scalar(text: str) -> Any:
    """`text` read as one YAML value, such as `12`, `true` or `[float16, bfloat16]`; the text itself if it is not
    YAML."""
    document = read_yaml(text)
    return text if document.problems or text.strip() == "" else document.data


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], problems: list[tuple[int, str, str]]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            here = (*path, name)
            if name in seen:
                problems.append((line, dotted_path(here), f"given twice, first on line {seen[name]}"))
            seen[name] = line
            lines[here] = line
            _walk(value, here, lines, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            here = (*path, index)
            lines[here] = value.start_mark.line + 1
            _walk(value, here, lines, problems)
