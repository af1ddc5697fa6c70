"""KernelBench problems by their text: one in a folder is one case, several are a case each."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.forms.python import NotPython, parsed

AXIS: Final = "problem"
"""The axis of a folder of several."""


def is_of_form(source: bytes) -> bool:
    """Whether a Python file is a problem or a candidate, at a glance."""
    return b"class ModelNew" in source or (b"class Model" in source and b"def get_inputs" in source)


def cases(sources: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """The cases of a folder, of whose Python files `sources` has each text by its name without `.py`. What cannot be
    read as Python is left to the machine that imports it."""
    problems = sorted((name for name, text in sources.items() if is_problem(text)), key=in_order)
    return tuple({AXIS: name} for name in problems) if len(problems) > 1 else ({},)


def in_order(name: str) -> tuple[int, str]:
    """By the number that a name begins with: 2 comes before 10."""
    number = re.match(r"\d+", name)
    return int(number[0]) if number else 0, name


def is_problem(text: str) -> bool:
    """Whether a file has `Model`, and no `ModelNew`."""
    try:
        body = parsed(text).body
    except NotPython:
        return False
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    return "Model" in classes and "ModelNew" not in classes
