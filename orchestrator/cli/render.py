"""Shows runs in a terminal. Pure: state in, rich renderables or lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.screen import Columns
from orchestrator.core.hosts import PROVISIONING as OWN
from orchestrator.core.market.offers import provisioning_of
from orchestrator.core.results import is_control
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import describe_wrong
from orchestrator.core.run.diagnose import REMEDIES
from orchestrator.core.run.fold import VM_PHASES, Phase, PhaseSpan, Run
from orchestrator.core.run.status import (
    StatusLine,
    cold_start_parts,
    describe_parts,
    format_span,
    paid_time,
    waiting_text,
)
from orchestrator.core.text import clean_line, clean_sentence, count, format_clock

STYLES = {
    "succeeded": "green",
    "incorrect": "yellow",
    "failed": "red",
    "preempted": "magenta",
    "stopped": "yellow",
    "expired": "yellow",
    "no_capacity": "red",
    "refused": "red",
    "kept": "green",
}


def usd(amount: Decimal) -> str:
    """Dollars: four decimals under ten cents, where a run's cost usually is; cents above a hundred dollars."""
    digits = 4 if amount < 10 else 2
    return f"${amount:.{digits}f}"


SIMULATED: Final = "simulated prices: no dollar is spent"
"""The note beside the embedded cloud's dollars."""


def is_unpriced(run: Run) -> bool:
    """Whether its dollars say nothing: a machine of the user's own costs what `host.hourly_usd` says, if it says so."""
    return not run.ceiling_usd and run.guest_of is None


def duration(microseconds: float) -> str:
    """A time in the unit that it is read in: µs up to a thousand, then ms, then s."""
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:.2f} {unit}"
    return f"{microseconds:.1f} µs"


def left_s(run: Run, now: datetime, expected_s: float | None = None) -> float | None:
    """The seconds that the cases which are left will take, if they take what the others of this machine took. Before
    the first case, what is left of `expected_s`: the seconds from the machine's start that similar runs took. None
    where nothing can be said yet."""
    span = next((one for one in reversed(run.spans) if one.phase == "measure"), None)
    done = len(run.current.measured)
    if run.closed is None and not done and expected_s is not None and run.vm is not None and run.vm.started_at:
        left = expected_s - (now - run.vm.started_at).total_seconds()
        return left if left > 0 else None
    if run.closed is not None or span is None or span.exit_code is not None or not done:
        return None
    return max(0.0, (now - span.started_at).total_seconds() / done * (run.cases_total - run.cases_done))


def ago(at: datetime, now: datetime) -> str:
    seconds = max(0, int((now - at) / timedelta(seconds=1)))
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


BAR: Final = 24
LEAST_BAR: Final = 4
"""Columns of the bar; one with fewer shows nothing."""


# --- one run, live --------------------------------------------------------------------------------------------------


def live(run: Run, now: datetime, *, followed: bool = False, expected_s: float | None = None) -> RenderableType:
    """The view of `bench launch`: where the machine is, what each phase did, the cases, the money. Of a run that is
    `followed`, the end is left to the command's last words."""
    is_told_at_the_end = followed and run.closed is not None
    notes = beside_the_end(run) if is_told_at_the_end else diagnoses(run)
    wrong = "" if is_told_at_the_end else clean_sentence(describe_wrong(run))
    return Group(
        _headline(run),
        *([Text(wrong, style="bold red")] if wrong else []),
        _machines(run),
        Text(),
        _phases(run, now),
        Text(),
        _footer(run, now, notes, expected_s),
    )


def _headline(run: Run) -> Text:
    text = Text.assemble((run.run_id, "bold"), "  ", (run.phase.value.replace("_", " "), STYLES.get(run.phase, "cyan")))
    if run.simulated:
        text.append("  practice", "dim")
    return text


def _machines(run: Run) -> Text:
    text = Text()
    for fact in (one for one in run.exhausted if one.round == run.round):
        text.append(f"✗ {fact.zone} ", "red").append(f"{fact.code}\n", "dim")
    vm = run.vm
    if run.guest_of is not None:
        return text.append(f"{run.guest_of.zone}  {run.guest_of.vm}, kept and paid for by {run.guest_of.owner}", "dim")
    if waits := waiting_text(run):
        return text.append(waits, "dim")
    if vm is None and run.closed is not None:
        return text.append("no machine was made" if not run.vms else "no machine is left", "dim")
    if vm is None:
        return text.append("requesting a machine …" if not run.vms else "trying the next zone …", "dim")
    if run.simulated:
        return text.append("practice on this machine: nothing is rented", "dim")
    kind = "a machine of yours" if vm.provisioning == OWN else f"{vm.machine_type} {provisioning_of(vm.provisioning)}"
    price = f"  {usd(vm.usd_per_hour)}/h" if vm.usd_per_hour or vm.provisioning != OWN else ""
    return text.append(f"{vm.zone}  {kind}{price}", "dim")


def _phases(run: Run, now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=11, no_wrap=True)
    grid.add_column(min_width=9, justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    spans = {span.phase: span for span in run.spans}
    for phase in VM_PHASES:
        span = spans.get(phase)
        grid.add_row(*_phase_row(run, phase, span, now))
    return grid


def _phase_row(run: Run, phase: str, span: PhaseSpan | None, now: datetime) -> tuple[RenderableType, ...]:
    if span is None:
        return Text(phase, "dim"), Text(""), Text("")
    if span.exit_code is None:
        took, style = format_clock((now - span.started_at).total_seconds()), "cyan" if run.closed is None else "dim"
    else:
        took, style = f"{span.seconds or 0:.1f} s", "green" if span.exit_code in (0, 10) else "red"
    return Text(phase, style), Text(took), _phase_note(run, phase)


def _phase_note(run: Run, phase: str) -> RenderableType:
    match phase:
        case "preflight" | "environment" if run.heals:
            return Text("healed: " + ", ".join(dict.fromkeys(heal.what for heal in run.heals)), "yellow")
        case "environment" if run.environment is not None:
            return Text(f"{run.environment.device} · torch {run.environment.torch}")
        case "build" if run.build is not None:
            return Text(f"{run.build.compiler}{' (cached)' if run.build.cached else ''}")
        case "correctness" if run.correctness is not None and run.correctness.checked:
            failed = run.correctness.failed
            return Text(f"{run.correctness.checked} checked, {failed} wrong", "red" if failed else "")
        case "measure":
            return CaseProgress(run.cases_done, run.cases_total)
        case _:
            return Text("")


@dataclass(frozen=True)
class CaseProgress:
    """A bar, followed by the number of cases. If there is little room, the bar is shortened."""

    done: int
    total: int

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        progress_text = Text(f"{self.done}/{count(self.total, 'case')}")
        bar_width = min(BAR, options.max_width - cell_len(progress_text.plain) - 1)
        if bar_width < LEAST_BAR:
            yield progress_text
            return
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=max(self.total, 1), completed=self.done, width=bar_width), progress_text)
        yield grid

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        progress_width = cell_len(f"{self.done}/{count(self.total, 'case')}")
        return Measurement(min(progress_width, 7), BAR + 1 + progress_width).with_maximum(options.max_width)


def _footer(run: Run, now: datetime, told: Sequence[str], expected_s: float | None) -> RenderableType:
    end = run.updated_at if run.closed is not None else now
    line = Text.assemble("elapsed ", (format_clock((end - run.created_at).total_seconds()), "bold"))
    if not is_unpriced(run) and not run.simulated:
        line.append("   spent ").append(usd(run.cost(now)), "bold")
        line.append(f"   ceiling {usd(run.ceiling_usd)}")
    seconds_remaining = left_s(run, now, expected_s)
    if seconds_remaining is not None:
        line.append(f"   about {format_clock(seconds_remaining)} left", "dim")
    rows: list[RenderableType] = [line]
    rows += [Text(words, "red") for words in told]
    open_phases = {span.phase for span in run.spans if span.exit_code is None} if run.closed is None else set()
    if now_text := " · ".join(_now_at(run, measuring="measure" in open_phases) if open_phases else ()):
        rows.append(Text.assemble(("now   ", "dim"), now_text))
    if run.measured:
        rows.append(_last_case(run))
    return Group(*rows)


def _now_at(run: Run, *, measuring: bool) -> list[str]:
    """The cases that are measured, and the function that runs where it takes long."""
    observed = run.current.observed
    cases = ", ".join(case.case_id for case in run.current.cases) if measuring else ""
    return [clean_line(text) for text in (cases, observed.place if observed is not None else "") if text]


def diagnoses(run: Run) -> list[str]:
    """The diagnoses of a run, each once, one line for each."""
    return list(dict.fromkeys(map(_diagnosis, run.diagnoses)))


def _diagnosis(fact: ev.Diagnosed) -> str:
    """A cause that is none of ours is told as such: it may be made to look like a hint."""
    first = clean_sentence(fact.detail.partition("\n")[0])
    return f"{'' if fact.cause in REMEDIES else 'diagnosed as '}{fact.cause}: {first}"


def beside_the_end(run: Run) -> list[str]:
    """The diagnoses that the error which ends `bench launch` does not say. While a run goes on, its last one waits:
    either it is that error, or another machine begins, and it is told then."""
    if run.closed is None:
        last = run.current.diagnosis
        return [said for said in diagnoses(run) if last is None or said != _diagnosis(last)]
    vague = {Phase.NO_CAPACITY: "stockout"}.get(run.phase, "")
    if run.phase is Phase.INCORRECT and run.wrong:
        vague = "kernel_wrong"  # the end says which one, and where
    facts = [
        fact for fact in run.diagnoses if fact.cause != vague and (fact.detail or fact.cause) not in run.closed.detail
    ]
    return list(dict.fromkeys(map(_diagnosis, facts)))


def _last_case(run: Run) -> Text:
    last = run.measured[-1]
    text = Text("last  ", "dim").append(last.case_id, "dim")
    for name, median in [pair for pair in last.median_us.items() if not is_control(pair[0])][:4]:
        text.append(f"  {name} ", "dim").append(duration(median))
    return text


def time_lines(run: Run, now: datetime) -> Iterable[str]:
    """Where the minutes went: the cold start by phase, and the share of machine time that was measuring."""
    parts = cold_start_parts(run)
    if parts:
        yield f"cold start {format_span(sum(parts.values()))}: {describe_parts(parts)}"
    paid = paid_time(run, run.updated_at if run.closed is not None else now)
    if paid.share is not None and paid.measuring_s > 0:
        yield f"measuring {paid.share:.0%} of {format_span(paid.paid_s)} of machine time"


# --- one run, over --------------------------------------------------------------------------------------------------


def ending_lines(run: Run, now: datetime, *, answered: bool = False) -> Iterable[str]:
    """The last lines of `bench launch`; if the results are here and `answered` above, no command to fetch them."""
    if run.kept is not None:
        idle_until = run.current.idle_until
        time_left = f"; it deletes itself in {format_clock((idle_until - now).total_seconds())}" if idle_until else ""
        yield f"✓ {run.kept.outcome}: {run.cases_done} of {count(run.cases_total, 'case')}; {usd(run.cost(now))} so far"
        yield f"  its machine is kept for the next launch{time_left}"
        if not answered:
            yield f"  bench fetch {run.run_id}"
        yield f"  bench stop {run.run_id}     lets the machine go"
        return
    if run.closed is None:
        yield f"run {run.run_id} goes on without this terminal"
        yield f"  bench status {run.run_id}"
        yield f"  bench logs -f {run.run_id}"
        yield f"  bench stop {run.run_id}     ends it"
        return
    mark = "✓" if run.phase is Phase.SUCCEEDED else "✗"
    took = format_clock((run.updated_at - run.created_at).total_seconds())
    cases = f"{run.cases_done} of {count(run.cases_total, 'case')} in {took}"
    money = f", {usd(run.cost(now))} of at most {usd(run.ceiling_usd)}{' (simulated)' if run.simulated else ''}"
    if run.guest_of is not None:
        money = f", on a kept machine that {run.guest_of.owner} pays for"
    yield f"{mark} {run.phase.value.replace('_', ' ')}: {cases}{'' if is_unpriced(run) else money}"
    if run.measured and not answered:
        yield f"  bench fetch {run.run_id}"


# --- many runs ------------------------------------------------------------------------------------------------------


PHASE = 12
"""The most characters of a phase: bench has no longer one."""
DEVICE = 8
"""The fewest characters of a device's name that are worth showing."""


@dataclass(frozen=True)
class RunsTable:
    """Runs, a line each. Whatever a device calls itself, the run, its state and its cost are shown whole: the device
    has what is left of the line, and nothing where that is too little."""

    lines: Sequence[StatusLine]
    now: datetime

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        rows = [self._cells(line) for line in self.lines]
        heads = ("run", "state", "cases", "cost", "age")
        used = sum(max(len(head), *(cell_len(row[at]) for row in rows)) + 2 for at, head in enumerate(heads))
        cells_left = options.max_width - used
        table = Columns(*heads, right=heads[2:], droppable=("age", "cases", "cost"))
        if cells_left >= DEVICE:
            table.add_column("measured on", overflow="ellipsis", no_wrap=True, max_width=cells_left)
        for line, (run, state, *others) in zip(self.lines, rows, strict=True):
            cells = [Text(run), Text(state, STYLES.get(line.phase, "cyan")), *map(Text, others)]
            table.add_row(*cells, *([Text(line.device)] if cells_left >= DEVICE else []))
        yield table

    def _cells(self, line: StatusLine) -> tuple[str, ...]:
        phase, vm_phase = clean_line(line.phase, PHASE).replace("_", " "), clean_line(line.vm_phase, PHASE)
        return (
            line.run_id,
            phase + (f" · {vm_phase}" if vm_phase and not line.over else ""),
            f"{line.cases_done}/{line.cases_total}",
            usd(Decimal(line.cost_usd)),
            ago(line.created, self.now),
        )


def runs_table(lines: Sequence[StatusLine], now: datetime) -> RenderableType:
    return RunsTable(tuple(lines), now)


def alive_line(lines: Sequence[StatusLine]) -> str:
    alive = [line for line in lines if line.vm]
    rate = sum((Decimal(line.usd_per_hour) for line in alive), Decimal(0))
    return f"VMs alive now: {len(alive)}, {usd(rate)}/h"
