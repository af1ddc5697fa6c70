"""Parses a user's Python. It is never run here."""

from __future__ import annotations

import ast
import warnings


class NotPython(ValueError):
    """The text is not valid Python. `line` is the line of the mistake, from 1."""

    def __init__(self, line: int, words: str) -> None:
        super().__init__(words)
        self.line = line


def parsed(text: str) -> ast.Module:
    """The syntax tree of `text`. Raises `NotPython`, also if the text is nested too deeply for the parser."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in strings: the user sees them when it runs
            return ast.parse(text)
    except SyntaxError as exc:
        raise NotPython(exc.lineno or 1, f"syntax error: {exc.msg}") from exc
    except ValueError as exc:
        raise NotPython(1, str(exc)) from exc
    except (RecursionError, MemoryError):
        raise NotPython(1, "nested more deeply than Python can read") from None
