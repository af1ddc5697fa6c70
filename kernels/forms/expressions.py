"""Arithmetic over the axes of a case, as a grid or an argument of a CUDA kernel is written: `cdiv(n, 256) * rows`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def cdiv(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


CALLS: Mapping[str, Callable[..., Any]] = {"cdiv": cdiv, "min": min, "max": max}


def evaluate(text: object, names: Mapping[str, Any]) -> Any:
    """The value of an expression of numbers, names, `+ - * / // % << >>`, brackets, `cdiv`, `min`, `max`. Raises
    `ValueError` for anything else."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not an expression")
    try:
        return evaluate_node(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, TypeError, ZeroDivisionError) as exc:
        raise ValueError(f"{text!r}: {exc}") from exc


def evaluate_node(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a part of an expression."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise ValueError(f"nothing is called {name}; there are {', '.join(map(str, names))}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate_node(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](evaluate_node(left, names), evaluate_node(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in CALLS:
            return CALLS[name](*(evaluate_node(one, names) for one in args))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not supported: only arithmetic over the axes is")
