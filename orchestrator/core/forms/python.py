"""A user's Python, read and never run."""

from __future__ import annotations

import ast
import warnings


class NotPython(ValueError):
    """`line` is where, from 1."""

    def __init__(self, line: int, words: str) -> None:
        super().__init__(words)
        self.line = line


def parsed(text: str) -> ast.Module:
    """What the text says. Raises `NotPython`, also for what is so deeply nested that no parser can read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a strange escape in a string: whoever runs it hears of it there
            return ast.parse(text)
    except SyntaxError as exc:
        raise NotPython(exc.lineno or 1, f"syntax error: {exc.msg}") from exc
    except ValueError as exc:
        raise NotPython(1, str(exc)) from exc
    except (RecursionError, MemoryError):
        raise NotPython(1, "nested more deeply than Python can read") from None
