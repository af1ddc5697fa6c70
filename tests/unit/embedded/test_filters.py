"""Filter expressions select what Compute Engine's would."""

from __future__ import annotations

import pytest

from orchestrator.embedded.errors import ApiError
from orchestrator.embedded.lists import parse_filter

VM = {
    "name": "bench-20261121-1",
    "id": "42",
    "status": "RUNNING",
    "labels": {"bench-tool": "spotbench", "bench-run": "r1"},
    "scheduling": {"preemptible": True},
    "progress": 40,
    "tags": ["a", "b"],
}


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "labels.bench-tool=spotbench",
        'labels.bench-tool = "spotbench"',
        "labels.bench-tool:*",
        "labels:bench-tool",
        "tags:b",
        "(labels.bench-tool=spotbench) AND (status=RUNNING)",
        "(labels.bench-tool=spotbench) (status=RUNNING)",
        "status=TERMINATED OR name=bench-*",
        "name eq bench-.*",
        r'name eq ".*\bbench\b.*"',
        r'name eq "bench-\d+-1\z"',
        r'name eq "(?i)BENCH-.*"',
        "name ne other-.*",
        "name:2026",
        "name=bench-20261121-1",
        "name='bench-20261121-1'",
        "NOT status=TERMINATED",
        "NOT (status=TERMINATED OR status=STOPPING)",
        "status!=TERMINATED",
        "scheduling.preemptible=true",
        "progress>=40 AND progress<=40 AND progress<41 AND progress>39",
        "name>bench-2025",
        'missing=""',
        "missing!=x",
        "status=running",
    ],
)
def test_an_expression_that_holds_selects_the_item(expression: str) -> None:
    assert parse_filter(expression)(VM)


@pytest.mark.parametrize(
    "expression",
    [
        "labels.bench-tool=other", "labels.bench-tool=spot", "labels.missing:*", "labels:other",
        "status=TERMINATED OR name=other-*", "status=RUNNING AND NOT name=bench-*", "name eq bench", "missing eq x",
        "missing>1", "progress>40", "name:2027", "name.deeper=x",
    ],
)  # fmt: skip
def test_an_expression_that_does_not_hold_leaves_the_item_out(expression: str) -> None:
    assert not parse_filter(expression)(VM)


@pytest.mark.parametrize(
    "expression",
    ["name", "name=", "=x", "(name=x", "name=x)", "AND", "name x", "(name=x(", "OR name=x", '"a"=b', 'a="'],
)
def test_an_expression_that_cannot_be_read_is_refused_with_400(expression: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_filter(expression)
    assert refused.value.status == 400


def test_quotes_within_a_quoted_value_are_escaped_with_a_backslash() -> None:
    assert parse_filter(r'name="a\"b"')({"name": 'a"b'})


def test_and_binds_tighter_than_or() -> None:
    both = parse_filter("a=1 OR a=2 AND b=3")
    assert both({"a": "1", "b": "9"})
    assert not both({"a": "2", "b": "9"})


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)a", "(?!b)a", "(?<=a)b", "*a", "(?P=x)"])
def test_a_pattern_that_re2_cannot_read_is_refused(pattern: str) -> None:
    with pytest.raises(ApiError, match="filter"):
        parse_filter(f'name eq "{pattern}"')
