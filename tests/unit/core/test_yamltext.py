"""YAML that remembers where everything was written."""

from __future__ import annotations

from orchestrator.core.yamltext import dotted_path, read_scalar, read_yaml


def test_every_key_and_entry_knows_its_line() -> None:
    document = read_yaml("a: 1\nb:\n  c: [x,\n      y]\n  d: {e: 2}\n")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"], "d": {"e": 2}}}
    lines = {dotted_path(path): line for path, line in document.lines.items()}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.c[0]": 3, "b.c[1]": 4, "b.d": 5, "b.d.e": 5}


def test_what_was_not_written_has_the_line_of_what_should_hold_it() -> None:
    document = read_yaml("a:\n  b: {}")
    assert document.line(("a", "b", "c")) == 2
    assert document.line(("z",)) == 0


def test_a_key_given_twice_is_reported_with_both_lines() -> None:
    assert read_yaml("a: 1\nb: 2\na: 3").problems == ((3, "a", "given twice, first on line 1"),)


def test_what_is_not_yaml_is_a_problem_and_not_an_error() -> None:
    for text in ("a: [", "\x00", "a: !!python/object:os.system {}", "a: 2026-99-99", "? {x: 1}\n: 2", "[" * 40):
        document = read_yaml(text)
        assert document.data is None
        (problem,) = document.problems
        assert problem[2].startswith("not YAML: ")


def test_nothing_is_nothing() -> None:
    assert read_yaml("").data is None
    assert read_yaml("# only a comment").problems == ()


def test_a_single_value_is_yaml_where_it_can_be() -> None:
    assert read_scalar("12") == 12
    assert read_scalar("[a, b]") == ["a", "b"]
    assert read_scalar("null") is None
    assert read_scalar("") == ""
    assert read_scalar("[a") == "[a"
    assert read_scalar("https://example.com/a?b=c") == "https://example.com/a?b=c"
