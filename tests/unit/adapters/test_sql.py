"""Files of a fleet's rows as tables: whole, typed by what they hold, and shut off from everything else."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.sql import require_duckdb, run_query
from orchestrator.core.errors import BenchError, ConfigError, LocalError


def packed(path: Path, *members: str) -> Path:
    """A table as a bucket composes it: members of gzip, one after the other."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(gzip.compress(member.encode()) for member in members))
    return path


def asked(files: Sequence[Path], query: str, words: Sequence[str] = ("device",)) -> tuple[Any, list[Any]]:
    with run_query({"rows": files}, words, query) as answer:
        return answer.columns, list(answer.rows)


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Two sets of columns, in a folder whose name is a pattern, too."""
    folder = tmp_path / "a[1] *'s"
    return [
        packed(folder / "a.csv.gz", "child,device,rows,us,watt\n", '0,7,128,1.5,\n0,7,256,3,\n', "1,L4,128,2,\n"),
        packed(folder / "b.csv.gz", "child,device,shape,us,watt\n", '2,T4,"a, ""b""\nc",4,\n'),
    ]  # fmt: skip


def test_rows_of_several_column_sets_are_one_table_and_what_a_row_has_not_is_null(two: list[Path]) -> None:
    _, rows = asked(two, "SELECT child, device, rows, shape, us FROM rows ORDER BY child, us")
    assert rows == [
        (0, "7", 128, None, 1.5), (0, "7", 256, None, 3.0), (1, "L4", 128, None, 2.0), (2, "T4", None, 'a, "b"\nc', 4.0),
    ]  # fmt: skip


def test_a_column_is_numeric_where_every_cell_is_and_names_are_always_text(
    two: list[Path],
) -> None:
    columns, _ = asked(two, "SELECT child, device, rows, us, watt, shape FROM rows")
    assert [kind for _, kind in columns] == ["BIGINT", "VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "VARCHAR"]
    _, rows = asked(two, "SELECT max(watt), sum(us) FROM rows")
    assert rows == [(None, 10.5)], "what nobody measured is NULL, and can be computed with"


@pytest.mark.parametrize(
    "cell", ["=1+1", "\x1b[2J", "\x00", "\u202eevil", "1; DROP TABLE rows", "'; SELECT 1 --", '"" OR 1', "W" * 5000, "1e", "#"]
)  # fmt: skip
def test_hostile_cells_and_heads_are_text_and_change_no_other_row(tmp_path: Path, cell: str) -> None:
    hostile = '"' + cell.replace('"', '""') + '"'
    file = packed(tmp_path / "a.csv.gz", f"child,us,{hostile}\n", f"0,1.5,x\n1,{hostile},{hostile}\n2,3,x\n")
    columns, rows = asked([file], "FROM rows ORDER BY child")
    assert [kind for _, kind in columns] == ["BIGINT", "VARCHAR", "VARCHAR"]
    assert rows == [(0, "1.5", "x"), (1, cell, cell), (2, "3", "x")]
    assert columns[2][0] == cell


def test_heads_that_differ_only_by_case_are_two_columns(tmp_path: Path) -> None:
    file = packed(tmp_path / "a.csv.gz", "a,A,a\n", "1,2,3\n")
    columns, rows = asked([file], "FROM rows")
    assert len({name.lower() for name, _ in columns}) == 3
    assert rows == [(1, 2, 3)]


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('SECRET')", "FROM read_csv('SECRET')", "FROM read_blob('SECRET')", "FROM 'SECRET'",
        "FROM 'ROWS'", "FROM glob('FOLDER/*')", "FROM sniff_csv('SECRET')", "FROM query_table('SECRET')",
        "COPY rows FROM 'SECRET'", "IMPORT DATABASE 'FOLDER'", "ATTACH 'SECRET' AS other",
        "COPY rows TO 'NEW'", "COPY (SELECT 1) TO 'ROWS'", "EXPORT DATABASE 'NEW'", "ATTACH 'NEW' AS other",
        "SET profile_output = 'NEW'", "PRAGMA enable_profiling = 'json'", "SET log_query_path = 'NEW'",
        "CALL enable_logging(storage = 'file', storage_config = {'path': 'NEW'})",
        "FROM enable_logging(storage = 'file', storage_config = {'path': 'NEW'})",
        "SET temp_directory = 'NEW'", "SET extension_directory = 'NEW'", "SET secret_directory = 'NEW'",
        "INSTALL httpfs", "LOAD httpfs", "LOAD 'SECRET'", "INSTALL 'SECRET'", "FROM read_csv('http://127.0.0.1:9/x')",
        "CREATE PERSISTENT SECRET s (TYPE http, EXTRA_HTTP_HEADERS MAP {'a': 'b'})",
        "SET enable_external_access = true", "SET lock_configuration = false", "RESET enable_external_access",
        "SET allowed_directories = ['FOLDER']", "SET allowed_paths = ['SECRET']", "FROM two", "FROM monkeypatch",
    ],
)  # fmt: skip
def test_a_query_reads_no_file_writes_none_loads_nothing_and_changes_no_setting(
    tmp_path: Path, two: list[Path], query: str
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\nthe secret,1\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = {"SECRET": secret, "ROWS": two[1], "FOLDER": tmp_path, "NEW": tmp_path / "new"}
    for word, path in names.items():
        query = query.replace(word, str(path).replace("'", "''"))
    with pytest.raises(ConfigError) as refused:
        asked(two, query)
    assert "the secret" not in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELCT 1", "selct"),
        ("SELECT nope FROM rows", "nope"),
        ("SELECT CAST(device AS INTEGER) FROM rows", "L4"),
        ("", "selects nothing"),
        ("-- a comment", "selects nothing"),
        ("SELECT TIMESTAMPTZ '2026-11-22 00:00:00+00'", "time with a zone"),
    ],
)
def test_a_failing_query_is_refused_in_duckdbs_words_with_the_columns_that_exist(
    two: list[Path], query: str, told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(two, query)
    assert told in str(refused.value).replace("SELCT", "selct")
    assert "zone" in told or "child, device, rows, us, watt, shape" in refused.value.hint


def test_several_statements_answer_with_the_last_and_own_views_are_gone_afterwards(two: list[Path]) -> None:
    _, rows = asked(two, "CREATE VIEW fast AS FROM rows WHERE us < 2; SELECT count(*) FROM fast")
    assert rows == [(1,)]
    with pytest.raises(ConfigError, match="fast"):
        asked(two, "FROM fast")


def test_a_pivot_has_devices_as_columns(two: list[Path]) -> None:
    columns, _ = asked(two, "PIVOT rows ON device USING max(us) GROUP BY rows")
    assert [name for name, _ in columns] == ["rows", "7", "L4", "T4"]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b\x00 not gzip", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], None],
    ids=["empty", "not gzip", "cut short", "gone"],
)
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "a.csv.gz"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(LocalError, match=r"a\.csv\.gz"):
        asked([file], "SELECT 1")


def test_without_duckdb_the_line_that_installs_it_is_given() -> None:
    with pytest.raises(BenchError) as refused:
        require_duckdb("no_such_package")
    assert refused.value.exit_code == 11
    assert refused.value.hint == "`pip install 'duckdb>=2.0'`"


def test_a_duckdb_that_cannot_be_shut_off_is_refused_and_one_that_can_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.4.0, tried, writes a file for `CALL enable_logging(storage = 'file', ...)` with its settings locked."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, version in (("older_duck", "1.4.0"), ("newer_duck", "10.1.0")):
        (tmp_path / f"{name}.py").write_text("")
        (tmp_path / f"{name}-{version}.dist-info").mkdir()
        (tmp_path / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    with pytest.raises(LocalError, match=r"1\.4\.0") as refused:
        require_duckdb("older_duck")
    assert refused.value.hint == "`pip install --upgrade 'duckdb>=2.0'`"
    require_duckdb("newer_duck")
