"""Partial answers: what `fields` asks for is all that is answered, and what is no selection is refused."""

from __future__ import annotations

import pytest

from orchestrator.embedded.errors import ApiError
from orchestrator.embedded.selection import LONGEST, parse_selection, select_fields

LISTING = {"kind": "k", "items": [{"name": "a", "size": "1", "metadata": {"x": 1, "y": 2}}, {"name": "b"}]}


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ("kind", {"kind": "k"}),
        ("items(name),nextPageToken", {"items": [{"name": "a"}, {"name": "b"}]}),
        ("items/name", {"items": [{"name": "a"}, {"name": "b"}]}),
        ("items(size,metadata/x)", {"items": [{"size": "1", "metadata": {"x": 1}}, {}]}),
        ("items/metadata(y)", {"items": [{"metadata": {"y": 2}}, {}]}),
        ("items/size,items/name", {"items": [{"name": "a", "size": "1"}, {"name": "b"}]}),
        ("*", LISTING),
        ("*/name", {"kind": "k", "items": [{"name": "a"}, {"name": "b"}]}),
        ("nothing", {}),
    ],
)
def test_what_fields_asks_for_is_all_that_is_answered(fields: str, answer: object) -> None:
    assert select_fields(LISTING, parse_selection(fields)) == answer


@pytest.mark.parametrize(
    "fields", ["items(", "items)", ",", "a,,b", "a/", "(a)", "a b", "a/(b)", 'a"', "é", "a(" * (LONGEST // 2), "a," * LONGEST]
)  # fmt: skip
def test_what_is_no_selection_is_refused(fields: str) -> None:
    with pytest.raises(ApiError, match="Invalid field selection") as refusal:
        parse_selection(fields)
    assert refusal.value.status == 400
