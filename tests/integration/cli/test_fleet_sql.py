"""`bench fleet sql`: the rows of a fleet, fetched once, asked in SQL, shown to a person, a pipe and a script."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from decimal import Decimal

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from orchestrator.cli.documents import SHAPES
from orchestrator.cli.fleet.results import lines, table
from orchestrator.core.fleet.state import ChildLine
from orchestrator.core.fleet.sweep import Child, Sweep, expand_children
from orchestrator.core.names import child_run, rows_object
from orchestrator.core.naming import Mode
from orchestrator.runs.fleet.results import pack_rows
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_foreign_text import HOSTILE, harmless
from tests.unit.fleet.test_rows import case

pytestmark = pytest.mark.usefixtures("cloud")

FLEET = "fleet-20261120-010203-00cc"
MEDIANS = "SELECT gpu, configuration, median(latency_us) AS us FROM rows GROUP BY ALL ORDER BY ALL"


def stored(wiring: Wiring, sweep: Sweep, children: Sequence[Child]) -> FleetStore:
    now = wiring.clock.now()
    record = FleetRecord(
        fleet=FLEET, engine="cloud", mode=Mode.EMBEDDED, user="ada", sweep=sweep, created_at=now, ends_at=now,
        hold_usd=Decimal(0),
    )  # fmt: skip
    store = FleetStore(wiring.bucket, wiring.clock, FLEET)
    store.create(record, children)
    return store


@pytest.fixture
def fleet(bench: Bench) -> Bench:
    """Two GPUs with two settings each, three of which are measured; the T4's rows have a column more."""
    wiring = wire()
    sweep = Sweep.model_validate({"axes": {"gpu": ["l4", "t4"], "measure.seed": [0, 1]}, "seed": 1})
    children = expand_children(sweep, lambda _: ())
    store = stored(wiring, sweep, children)
    found = [child for child in children if child.cell != children[-1].cell]
    for child in found:
        run_id = child_run(FLEET, child.cell.gpu, child.index)
        text = case(run_id, "a", latency_us=str(10 * (child.index + 1)), device="Tesla\x1b[2J T4").decode()
        if child.cell.gpu == "t4":
            heads, *rows = text.splitlines()
            text = "\n".join([f"{heads},watt", *(f"{row},70" for row in rows)]) + "\n"
        data, columns, count = pack_rows(child, {"a": lambda text=text: io.StringIO(text, newline="")})  # type: ignore[misc]
        metadata = {"v": "1", "columns": ",".join(columns), "rows": str(count)}
        wiring.bucket.replace(rows_object(FLEET, child.index), data, generation=0, metadata=metadata)
    store.write([ChildLine(child.index, "stored", usd=Decimal("0.25"), device="L4") for child in found])
    store.list_as({"created_at": wiring.clock.now().isoformat(), "state": "measuring"})
    return bench


def test_the_answer_is_a_document_as_its_schema_says_and_nothing_is_fetched_twice(fleet: Bench) -> None:
    first = fleet("fleet", "sql", FLEET, MEDIANS, "--json").document
    TypeAdapter(SHAPES["fleet sql"]).validate_python(first)
    assert [head["name"] for head in first["columns"]] == ["gpu", "configuration", "us"]
    assert first["columns"][2]["type"] == "DOUBLE"
    assert len(first["answer"]) == 3
    assert {row[0] for row in first["answer"]} == {"l4", "t4"}
    assert (first["children"], first["rows"], first["downloaded"], first["already_there"]) == (3, 6, 2, 0)
    second = fleet("fleet", "sql", FLEET, MEDIANS, "--json").document
    assert (second["downloaded"], second["already_there"]) == (0, 2)
    assert second["answer"] == first["answer"]
    fetched = fleet("fleet", "fetch", FLEET, "--json").document
    assert (fetched["downloaded"], fetched["already_there"]) == (0, 2), "what `sql` has brought `fetch` need not"


def test_a_changed_file_is_fetched_again_and_one_no_longer_in_the_fleet_is_not_read(
    fleet: Bench,
) -> None:
    fleet("fleet", "fetch", FLEET, "--into", "out")
    folder = fleet.home / "out" / FLEET
    (folder / "measurements.csv.gz").write_bytes(b"changed")
    (folder / "measurements-9.csv.gz").write_bytes(b"of an earlier time")
    again = fleet("fleet", "sql", FLEET, "SELECT count(*) FROM rows", "--into", "out", "--json").document
    assert (again["downloaded"], again["already_there"], again["answer"]) == (1, 1, [[6]])


def test_rows_of_one_child_that_are_damaged_cost_no_other_its_answer(fleet: Bench) -> None:
    bucket = wire().bucket
    (entry,) = bucket.list(rows_object(FLEET, 0))
    bucket.replace(entry.name, b"no gzip", generation=entry.generation, metadata=entry.metadata)
    ran = fleet("fleet", "sql", FLEET, "SELECT count(DISTINCT child) FROM rows", "--json")
    assert ran.document["answer"] == [[2]]
    assert ran.document["left_out"] == {entry.name: "left out: it is not gzip, or incomplete"}
    assert f"{entry.name}: left out: it is not gzip, or incomplete" in ran.err


def test_children_are_a_table_too_with_their_dollars_and_states(fleet: Bench) -> None:
    query = "SELECT state, count(*), sum(usd) FROM children GROUP BY ALL ORDER BY ALL"
    assert fleet("fleet", "sql", "last", query).out.splitlines()[1:] == ["stored\t3\t0.75", "waiting\t1\t0.0"]


def test_in_a_pipe_the_answer_is_lines_with_tabs_and_what_machines_say_is_text(fleet: Bench) -> None:
    out = fleet("fleet", "sql", FLEET, "SELECT device, NULL AS n, watt FROM rows ORDER BY ALL NULLS LAST", width=40).out
    assert out.splitlines()[:2] == ["device\tn\twatt", r"Tesla\x1b[2J T4" + "\t\t70"]
    harmless(out)


def test_a_query_that_fails_is_exit_2_with_duckdbs_words_and_the_columns(fleet: Bench) -> None:
    ran = fleet("fleet", "sql", FLEET, "SELECT latency FROM rows", code=2)
    assert 'Referenced column "latency" not found' in ran.err
    assert "columns of rows: child, gpu, configuration, pass, run_id" in ran.err
    assert "columns of children: child, run_id, gpu" in ran.err
    told = fleet("fleet", "sql", FLEET, "SELECT latency FROM rows", "--json", code=2).document
    assert told["error"]["kind"] == "ConfigError"
    refused = fleet("fleet", "sql", FLEET, "COPY rows TO 'out.csv'", code=2)
    assert "disabled by configuration" in refused.err
    assert not (fleet.home / "out.csv").exists()


def test_without_duckdb_nothing_is_fetched_and_the_remedy_is_one_line(
    fleet: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ran = fleet("fleet", "sql", FLEET, MEDIANS, code=11)
    assert "pip install 'duckdb>=2.0'" in ran.err
    assert not (fleet.home / "results").exists()


def test_a_fleet_that_has_measured_nothing_and_one_that_is_not_there_are_exit_10(bench: Bench) -> None:
    bench("fleet", "sql", "last", "SELECT 1", code=10)
    wiring = wire()
    sweep = Sweep.model_validate({"axes": {"gpu": ["l4"]}})
    stored(wiring, sweep, expand_children(sweep, lambda _: ()))
    assert "measured nothing yet" in bench("fleet", "sql", FLEET, "SELECT 1", code=10).err


# --- how an answer is shown -----------------------------------------------------------------------------------------

HEADS = (("gpu", "VARCHAR"), ("configuration", "VARCHAR"), ("median(latency_us)", "DOUBLE"), ("n", "BIGINT"))
ROWS = (
    ("l4", "measure.cache=cold measure.dtypes=float16", 10.512345678, 300),
    ("h100", "measure.cache=warm measure.dtypes=float16", 1.25, None),
)


@pytest.mark.parametrize("width", [80, 40])
def test_in_a_terminal_no_number_and_no_word_is_cut(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(table(HEADS, ROWS))
    assert max(map(len, out.getvalue().splitlines())) <= width
    told = "".join(out.getvalue().split())
    for cell in ("l4", "h100", "300", "1.25"):
        assert cell in told
    assert "…" not in told
    if width == 80:
        assert "10.512345678" in out.getvalue()


@pytest.mark.parametrize("cell", HOSTILE)
def test_whatever_a_cell_or_a_head_says_a_row_is_one_line_of_as_many_cells(cell: str) -> None:
    told = list(lines([(cell, "VARCHAR"), ("n", "BIGINT")], [(cell, 1), ([cell], {"a": cell})]))
    assert len(told) == 3
    for line in told:
        assert line.count("\t") == 1
        harmless(line)


def test_kinds_of_cells_are_told_plainly() -> None:
    row = (True, None, 1.5, float("nan"), Decimal("2.50"), b"\x01\xff", [1, None], {"a": "b"})
    (_, told) = lines([("x", "")] * len(row), [row])
    assert told.split("\t") == ["true", "", "1.5", "nan", "2.5", "01ff", "[1, null]", '{"a": "b"}']
