"""Reads KernelBench problems from their text. A folder with one problem has one case without axes; a folder with
several has one case for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.forms.reading import NotPython, parse_python

AXIS: Final = "problem"
"""The axis of a folder with several problems."""


def is_of_form(source: bytes) -> bool:
    """Whether a Python file looks like a problem or a candidate. Only words in the source are checked."""
    return b"class ModelNew" in source or (b"class Model" in source and b"def get_inputs" in source)


def cases(sources: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """The cases of a folder. `sources` has the text of each Python file by its name without `.py`. A file that is not
    valid Python is ignored here; the machine that imports it reports it."""
    problems = sorted((name for name, text in sources.items() if is_problem(text)), key=in_order)
    return tuple({AXIS: name} for name in problems) if len(problems) > 1 else ({},)


def in_order(name: str) -> tuple[int, str]:
    """The sort key of a name: first the number that it begins with, so that 2 comes before 10."""
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name


def is_problem(text: str) -> bool:
    """Whether a file defines the class `Model` and no class `ModelNew`."""
    try:
        body = parse_python(text).body
    except NotPython:
        return False
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return "Model" in classes and "ModelNew" not in classes
