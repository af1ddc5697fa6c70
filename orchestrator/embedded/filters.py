"""Compute Engine's filter expressions, as its list methods take them.

Comparisons `field op value` (`= != > < >= <= :`, `eq`, `ne`) are joined by AND, OR, NOT and parentheses. Comparisons
with no word between them are joined by AND. `eq` and `ne` take a regular expression, `=` takes `*` as a wildcard, and
`:` is true if the field contains the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.embedded.errors import ApiError

Predicate = Callable[[Mapping[str, Any]], bool]

TOKEN = re.compile(
    r"""\s*(?: (?P<paren>[()]) | (?P<op>!=|>=|<=|=|<|>|:)
        | "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)'
        | (?P<word>[^\s()=!<>:"']+) )""",
    re.VERBOSE,
)


def parse_filter(text: str) -> Predicate:
    """The predicate of a filter expression. An empty expression matches everything. Raises `ApiError` (400) for an
    invalid expression."""
    tokens = tokenize_filter(text)
    if not tokens:
        return lambda _item: True
    parser = Parser(text, tokens)
    predicate = parser.any_of()
    if parser.at < len(tokens):
        raise parser.bad()
    return predicate


def tokenize_filter(text: str) -> list[tuple[str, str]]:
    """(kind, text) pairs; kinds are `paren`, `op`, `word` and `quoted`."""
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text.rstrip()):
        match = TOKEN.match(text, position)
        if match is None:
            raise ApiError(400, f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
        position = match.end()
        kind = str(match.lastgroup)
        value = str(match.group(kind))
        if kind in ("double", "single"):
            # A backslash before any character except a quote or a backslash belongs to the regular expression.
            kind, value = "quoted", re.sub(r"""\\(["'\\])""", r"\1", value)
        tokens.append((kind, value))
    return tokens


class Parser:
    """A recursive descent parser over the tokens."""

    def __init__(self, text: str, tokens: list[tuple[str, str]]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def bad(self) -> ApiError:
        return ApiError(400, f"Invalid value for field 'filter': '{self.text}'. Invalid list filter expression.")

    def peek(self, kind: str, *values: str) -> bool:
        if self.at >= len(self.tokens):
            return False
        token, value = self.tokens[self.at]
        return token == kind and (not values or value in values)

    def take(self, *kinds: str) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at][0] not in kinds:
            raise self.bad()
        self.at += 1
        return self.tokens[self.at - 1][1]

    def any_of(self) -> Predicate:
        parts = [self.all_of()]
        while self.peek("word", "OR"):
            self.at += 1
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else lambda item: any(part(item) for part in parts)

    def all_of(self) -> Predicate:
        parts = [self.one()]
        while self.at < len(self.tokens) and not self.peek("paren", ")") and not self.peek("word", "OR"):
            if self.peek("word", "AND"):
                self.at += 1
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else lambda item: all(part(item) for part in parts)

    def one(self) -> Predicate:
        if self.peek("word", "NOT"):
            self.at += 1
            inner = self.one()
            return lambda item: not inner(item)
        if self.peek("paren", "("):
            self.at += 1
            inner = self.any_of()
            if self.take("paren") != ")":
                raise self.bad()
            return inner
        field = self.take("word")
        operator = self.take("word") if self.peek("word", "eq", "ne") else self.take("op")
        wanted = self.take("word", "quoted")
        if operator in ("eq", "ne"):
            wanted = as_python(wanted)
            try:
                re.compile(wanted)
            except re.error:
                raise self.bad() from None
        return make_predicate(field, operator, wanted)


def make_predicate(field: str, operator: str, wanted: str) -> Predicate:
    """The predicate of one comparison `field op value`."""
    test = TESTS[operator]

    def holds(item: Mapping[str, Any]) -> bool:
        return test(lookup_path(item, field), wanted)

    return holds


def as_python(pattern: str) -> str:
    """A regular expression of RE2 in Python's syntax. A construct that RE2 does not have becomes an invalid
    expression."""
    if re.search(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?<?[=!]|\(\?P=|\(\?>)", pattern):
        return "("
    return re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", pattern)


def lookup_path(item: Mapping[str, Any], field: str) -> Any:
    """The value at a dotted path, or None if there is none."""
    value: Any = item
    for step in field.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def values_equal(value: Any, wanted: str) -> bool:
    if value is None:
        return wanted == ""
    pattern = ".*".join(re.escape(part) for part in wanted.split("*"))
    return re.fullmatch(pattern, as_text(value), re.IGNORECASE) is not None


def holds_value(value: Any, wanted: str) -> bool:
    if value is None:
        return False
    if wanted == "*":
        return True
    if isinstance(value, (Mapping, list)):
        return any(values_equal(part, wanted) for part in value)
    return wanted.strip("*").lower() in as_text(value).lower()


def value_matches(value: Any, wanted: str) -> bool:
    return value is not None and re.fullmatch(wanted, as_text(value)) is not None


def ordered_operator(compare: Callable[[Any, Any], bool]) -> Callable[[Any, str], bool]:
    def holds(value: Any, wanted: str) -> bool:
        if value is None:
            return False
        try:
            return compare(float(as_text(value)), float(wanted))
        except ValueError:
            return compare(as_text(value), wanted)

    return holds


TESTS: dict[str, Callable[[Any, str], bool]] = {
    "=": values_equal,
    "!=": lambda value, wanted: not values_equal(value, wanted),
    ":": holds_value,
    "eq": value_matches,
    "ne": lambda value, wanted: not value_matches(value, wanted),
    ">": ordered_operator(lambda left, right: left > right),
    "<": ordered_operator(lambda left, right: left < right),
    ">=": ordered_operator(lambda left, right: left >= right),
    "<=": ordered_operator(lambda left, right: left <= right),
}
