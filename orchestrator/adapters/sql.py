"""CSV files as tables of an in-memory DuckDB, and one query over them. DuckDB is the optional extra `sql`.

Machines wrote the cells, and a query may be pasted from anywhere. So once the files are read, the database has no
access to files, the network and extensions, and its settings are locked.
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.core.errors import ConfigError, LocalError

PACKAGE: Final = "duckdb"
LEAST: Final = 2
"""Before 2.0 locked settings leave `enable_logging` open, which writes files."""
ALONE: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",  # a name in a query is never a variable of this process
    "temp_directory": "",
}
LOCKED: Final = ("SET enable_external_access = false", "SET lock_configuration = true")
AT_ONCE: Final = 1000
"""Rows that are taken out of the database at a time."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query found: names and types of its columns as DuckDB has them, and its rows, to be read once."""

    columns: tuple[tuple[str, str], ...]
    rows: Iterator[tuple[Any, ...]]


def require_duckdb(package: str = PACKAGE) -> None:
    """Raises `LocalError` where DuckDB is not installed, or one that cannot be shut off."""
    if importlib.util.find_spec(package) is None:
        raise LocalError("queries are answered by DuckDB, which is not installed", hint="`pip install 'duckdb>=2.0'`")
    version = importlib.metadata.version(package)
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < LEAST:
        raise LocalError(
            f"DuckDB {version} is installed, in which a query can write files; 2.0 prevents that",
            hint="`pip install --upgrade 'duckdb>=2.0'`",
        )


@contextmanager
def run_query(tables: Mapping[str, Sequence[Path]], words: Collection[str], query: str) -> Iterator[QueryResult]:
    """The answer to `query` over `tables`: each is all of its files, the columns of any of them. A column is text if it
    is one of `words` or has a cell that is no number; empty cells are NULL. Nothing is written.

    Raises `ConfigError` for a query that fails, in DuckDB's words; `LocalError` for a file that cannot be read, and
    what `ready` raises."""
    require_duckdb()
    duckdb: Any = importlib.import_module(PACKAGE)
    try:
        base = duckdb.connect(":memory:", config=ALONE)
    except duckdb.Error as exc:
        raise LocalError(f"DuckDB does not start: {exc}", hint="`pip install --upgrade duckdb`") from exc
    try:
        heads = {}
        for name, files in tables.items():
            try:
                heads[name] = _load(base, name, files, words)
            except duckdb.Error as exc:
                file_list = ", ".join(str(file) for file in files)
                raise LocalError(
                    f"cannot read {file_list}: {exc}", hint="remove it; the next `bench fleet sql` fetches it again"
                ) from exc
        for setting in LOCKED:
            base.execute(setting)
        hint = "; ".join(f"columns of {name}: {', '.join(columns)}" for name, columns in heads.items())
        try:
            result = base.execute(query)
            if result is None or not base.description:
                raise ConfigError("the query selects nothing", hint=hint)
            columns = tuple((str(head[0]), str(head[1])) for head in base.description)
            yield QueryResult(columns, _rows(base, duckdb.Error, hint))
        except duckdb.Error as exc:
            raise _refused(exc, hint) from exc
    finally:
        base.close()


def _rows(base: Any, error: type[Exception], hint: str) -> Iterator[tuple[Any, ...]]:
    try:
        while rows := base.fetchmany(AT_ONCE):
            yield from rows
    except error as exc:
        raise _refused(exc, hint) from exc


def _refused(exc: Exception, hint: str) -> ConfigError:
    if "pytz" in str(exc):  # DuckDB's Python client makes times with zones by a package of its own choice
        return ConfigError("the answer has a time with a zone", hint="write it as text: `column::VARCHAR`")
    return ConfigError(str(exc).strip(), hint=hint)


def _load(base: Any, name: str, files: Sequence[Path], words: Collection[str]) -> tuple[str, ...]:
    """Makes the table; its columns."""
    # Everything about the files' form is said: cells decide nothing but what a column's type is.
    paths = ", ".join(_text(glob.escape(str(file.resolve()))) for file in files)
    source = (
        f"read_csv([{paths}], union_by_name = true, header = true, skip = 0, all_varchar = true, delim = ',', "
        "quote = '\"', escape = '\"', comment = '', new_line = '\\n', encoding = 'utf-8')"
    )
    columns = [str(row[0]) for row in base.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
    numbers = [column for column in columns if column not in words]
    tests = [
        f"count({c}), bool_and(regexp_full_match({c}, '-?[0-9]{{1,18}}')), "
        f"bool_and(TRY_CAST({c} AS DOUBLE) IS NOT NULL) FILTER ({c} IS NOT NULL)"
        for c in map(_name, numbers)
    ]
    test_row = base.execute(f"SELECT {', '.join(tests)} FROM {source}").fetchone() if tests else ()
    types = {column: _type(*test_row[3 * at : 3 * at + 3]) for at, column in enumerate(numbers)}
    cells = ", ".join(f"CAST({_name(c)} AS {types.get(c, 'VARCHAR')}) AS {_name(c)}" for c in columns)
    base.execute(f"CREATE TABLE {_name(name)} AS SELECT {cells} FROM {source}")
    return tuple(columns)


def _type(cells: int, whole: bool | None, number: bool | None) -> str:
    """The type of a column that has so many cells, all of them whole numbers, or numbers."""
    if not cells:
        return "DOUBLE"  # nobody measured it here: what is computed from it is NULL, too
    return "BIGINT" if whole else "DOUBLE" if number else "VARCHAR"


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
