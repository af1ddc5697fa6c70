"""Compute Engine's list methods: filters, order, pages, and lists over all zones.

A filter has comparisons `field op value` (`= != > < >= <= :`, `eq`, `ne`), joined by AND, OR, NOT and parentheses.
Comparisons with no word between them are joined by AND. `eq` and `ne` take a regular expression, `=` takes `*` as a
wildcard, and `:` is true if the field contains the value.
"""

from __future__ import annotations

import base64
import operator
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from orchestrator.embedded.documents import self_link
from orchestrator.embedded.errors import ApiError, Document, invalid_field, not_found

MOST = 500
Item = TypeVar("Item")
Predicate = Callable[[Mapping[str, Any]], bool]
Tokens = deque[tuple[str, str]]
"""(kind, text) pairs; kinds are `paren`, `op`, `word` and `quoted`."""
TOKEN = re.compile(
    r"""\s*(?: (?P<paren>[()]) | (?P<op>!=|>=|<=|=|<|>|:)
        | "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)'
        | (?P<word>[^\s()=!<>:"']+) )""",
    re.VERBOSE,
)


def parse_filter(text: str) -> Predicate:
    """The predicate of a filter expression. An empty expression matches everything. Raises `ApiError` (400) for an
    invalid expression."""
    try:
        tokens = tokenize_filter(text.rstrip())
        predicate: Predicate = parse_alternatives(tokens) if tokens else lambda _item: True
        if tokens:
            raise ValueError("there is more after the expression")
    except (IndexError, LookupError, ValueError, re.error) as exc:
        raise ApiError(400, f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.") from exc
    return predicate


def tokenize_filter(text: str) -> Tokens:
    tokens: Tokens = deque()
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError("there is no token")
        position = match.end()
        kind = str(match.lastgroup)
        value = str(match.group(kind))
        if kind in ("double", "single"):
            # A backslash before any character except a quote or a backslash belongs to the regular expression.
            kind, value = "quoted", re.sub(r"""\\(["'\\])""", r"\1", value)
        tokens.append((kind, value))
    return tokens


def parse_alternatives(tokens: Tokens) -> Predicate:
    parts = [parse_conjunction(tokens)]
    while tokens and tokens[0] == ("word", "OR"):
        tokens.popleft()
        parts.append(parse_conjunction(tokens))
    return lambda item: any(part(item) for part in parts)


def parse_conjunction(tokens: Tokens) -> Predicate:
    parts = [parse_term(tokens)]
    while tokens and tokens[0] not in (("paren", ")"), ("word", "OR")):
        if tokens[0] == ("word", "AND"):
            tokens.popleft()
        parts.append(parse_term(tokens))
    return lambda item: all(part(item) for part in parts)


def parse_term(tokens: Tokens) -> Predicate:
    kind, name = tokens.popleft()
    if (kind, name) == ("word", "NOT"):
        negated = parse_term(tokens)
        return lambda item: not negated(item)
    if (kind, name) == ("paren", "("):
        inner = parse_alternatives(tokens)
        if tokens.popleft() != ("paren", ")"):
            raise ValueError("a parenthesis is not closed")
        return inner
    (sign_kind, sign), (value_kind, wanted) = tokens.popleft(), tokens.popleft()
    if kind != "word" or sign_kind == "quoted" or value_kind not in ("word", "quoted"):
        raise ValueError("it is not a comparison")
    if sign in ("eq", "ne"):
        wanted = as_python(wanted)
        re.compile(wanted)
    test = TESTS[sign]
    return lambda item: test(lookup_path(item, name), wanted)


def as_python(pattern: str) -> str:
    """A regular expression of RE2 in Python's syntax. A construct that RE2 does not have becomes an invalid
    expression."""
    if re.search(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?<?[=!]|\(\?P=|\(\?>)", pattern):
        return "("
    return re.sub(r"(?<!\\)((?:\\\\)*)\\z", r"\1\\Z", pattern)


def lookup_path(item: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or None if there is none."""
    value: Any = item
    for step in path.split("."):
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
    if value is None or wanted == "*":
        return value is not None
    if isinstance(value, (Mapping, list)):
        return any(values_equal(part, wanted) for part in value)
    return wanted.strip("*").lower() in as_text(value).lower()


def value_matches(value: Any, wanted: str) -> bool:
    return value is not None and re.fullmatch(wanted, as_text(value)) is not None


def ordered_test(compare: Callable[[Any, Any], bool]) -> Callable[[Any, str], bool]:
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
    ">": ordered_test(operator.gt),
    "<": ordered_test(operator.lt),
    ">=": ordered_test(operator.ge),
    "<=": ordered_test(operator.le),
}


# Pages
def cut_page(items: list[Item], size: int, token: str) -> tuple[list[Item], Document]:
    """(`size` items from the place in `token` on, the token of the next page if there is one). Raises `ValueError` for
    a token that is none."""
    start = int(base64.b64decode(token.encode(), validate=True)) if token else 0
    if start < 0:
        raise ValueError("no page begins there")
    end = start + size
    following = {"nextPageToken": base64.b64encode(str(end).encode()).decode()} if end < len(items) else {}
    return items[start:end], following


def page_items(items: list[Document], query: Mapping[str, str]) -> tuple[list[Document], Document]:
    """(items of the requested page, token of the next page). Raises `ApiError` (400) for invalid parameters."""
    passes = parse_filter(query.get("filter", ""))
    chosen = order_items([item for item in items if passes(item)], query.get("orderBy", ""))
    try:
        size = int(query.get("maxResults", MOST))
        page = cut_page(chosen, size or MOST, query.get("pageToken", ""))
    except ValueError as exc:
        raise ApiError(400, "Invalid value for maxResults or pageToken.") from exc
    if not 0 <= size <= MOST:
        raise invalid_field("maxResults", size, f"Must be between 0 and {MOST}")
    return page


def order_items(items: list[Document], order: str) -> list[Document]:
    """The items sorted by name, or by creation, newest first. Raises `ApiError` (400) for another order."""
    if order in ("", "name"):
        return sorted(items, key=lambda item: str(item["name"]))
    if order == "creationTimestamp desc":
        moments = lambda item: str(item.get("creationTimestamp", item.get("insertTime", "")))  # noqa: E731
        return sorted(items, key=moments, reverse=True)
    raise invalid_field("orderBy", order, "Only name and creationTimestamp desc are supported")


def find_named(items: list[Document], path: str) -> Document:
    """The item whose name is at the end of the path. Raises the API's 404 if there is none."""
    for item in items:
        if item["name"] == path.rpartition("/")[2]:
            return item
    raise not_found(path)


def list_response(kind: str, path: str, items: list[Document], query: Mapping[str, str]) -> Document:
    """A list response. `kind` is such as `compute#instanceList`."""
    chosen, token = page_items(items, query)
    return {"kind": kind, "id": path, "selfLink": self_link(path), **({"items": chosen} if chosen else {}), **token}


def aggregated_response(
    path: str, kind: str, scopes: Mapping[str, list[Document]], query: Mapping[str, str]
) -> Document:
    """A list response over scopes such as `zones/us-central1-a`. One without items has a warning instead. `kind` is a
    plural such as `instances`."""
    places = {id(item): scope for scope, items in scopes.items() for item in items}
    chosen, token = page_items([item for items in scopes.values() for item in items], query)
    by_scope: dict[str, Document] = {}
    for scope in scopes:
        of_scope = [item for item in chosen if places[id(item)] == scope]
        message = f"There are no results for scope '{scope}' on this page."
        warning = {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": [{"key": "scope", "value": scope}]}
        by_scope[scope] = {kind: of_scope} if of_scope else {"warning": warning}
    title = f"compute#{kind[:-1]}AggregatedList"
    return {"kind": title, "id": path, "selfLink": self_link(path), "items": by_scope, **token}
