"""The output of commands at 80 columns, in a pipe and without colours: nothing that carries meaning is cut."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from orchestrator.core.run import events as ev
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_start_up import fill
from tests.unit.core.builders import RUN, gone, measured, running

pytestmark = pytest.mark.usefixtures("cloud")

CALLS = (
    "status", "prices", "prices --gpu l4", "budget", "costs", "config keys", "plan --gpu l4",
    "plan --gpu l4 --set zones=[us-central1-a]",
)  # fmt: skip
NOTE = "a note of what was bought and why that is longer than what is left of a line at eighty columns, END"


@pytest.fixture
def filled(bench: Bench) -> Bench:
    fill(wire().index, 3)
    bench("costs", "add", "0.25", "--category", "ai", "--note", NOTE)
    return bench


def words_of(text: str) -> set[str]:
    """What stands in it: numbers, names, ids."""
    return set(re.findall(r"[\w.$%/-]*\w[\w.$%/-]*", text))


@pytest.mark.parametrize("call", CALLS)
def test_at_80_columns_each_number_and_name_is_whole_and_no_line_is_longer(
    filled: Bench, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = filled(*call.split()).out
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    out = filled(*call.split(), width=80).out
    assert "\x1b" not in out
    assert not re.search(r"\S…", out), "a cell was cut"
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80
    numbers = {word for word in words_of(whole) if re.search(r"\d\.\d{2}", word)}
    joined = "".join(out.split())
    assert [word for word in numbers if word not in joined and not word.endswith("s")] == []


@pytest.mark.parametrize("call", CALLS)
def test_in_a_pipe_nothing_is_cut_or_wrapped_and_tables_are_cells_between_tabs(filled: Bench, call: str) -> None:
    out = filled(*call.split(), width=80).out
    assert not re.search(r"\S…", out)
    table = [line for line in out.splitlines() if "\t" in line]
    assert table
    assert "\x1b" not in out
    if call == "costs":
        assert NOTE in out
    if call == "status":
        assert [line.split("\t")[0] for line in table] == ["run", *(one for one in re.findall(r"2026\S+", out))]


@pytest.mark.parametrize("width", [40, 60])
def test_where_the_minutes_of_a_run_went_is_broken_between_words(
    bench: Bench, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = running().vm(20, ev.PhaseStarted(phase="measure")).vm(25, ev.CaseStarted(case_id="a", index=1, of=2))
    log.vm(40, measured("a")).add(70, gone(64)).add(71, ev.RunClosed(outcome="failed", detail="why"))
    bucket = wire().bucket
    for event in log.events:
        assert bucket.create(event.object_name, ev.encode_event(event)) is not None
    bench("budget", "rebuild")
    said = [line for line in bench("status", RUN).out.splitlines() if line.startswith(("cold start", "measuring "))]
    assert len(said) == 3
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = bench("status", RUN, width=width).out.splitlines()
    assert max(map(cell_len, map(str.rstrip, lines))) <= width
    told = " ".join(" ".join(lines).split())
    assert [words for words in said if words not in told] == []
