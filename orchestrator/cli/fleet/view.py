"""What `bench fleet` shows: a plan, a state, a list; as text and as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from orchestrator.cli.render import usd
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import documents
from orchestrator.core.fleet.slurm import waiting_reason
from orchestrator.core.fleet.state import STATES, ChildLine, FleetState
from orchestrator.core.fleet.sweep import Child
from orchestrator.core.text import clean_line, count, format_clock
from orchestrator.runs.fleet.follow import FleetSighting, cap_of
from orchestrator.runs.fleet.planning import FleetPlan
from orchestrator.store.fleets import FleetRecord

MOST_ROWS = 40


def plan_lines(plan: FleetPlan) -> list[str]:
    """A plan in a few lines."""
    sweep = plan.sweep
    configurations = len({child.config for child in plan.children})
    how = "held run by run" if plan.jobs[0].ceiling_usd is not None else "held at once"
    children, cells = count(len(plan.children), "child", "children"), count(configurations, "configuration")
    return [
        f"{children}: {cells}, {count(sweep.repeats, 'repeat')}, {count(plan.cases, 'case')}",
        f"worst case {usd(plan.hold_usd)}, {how}"
        + (f", under the fleet's cap of {usd(sweep.cap_usd)}" if sweep.cap_usd is not None else ""),
        (
            f"expected {usd(plan.expected_usd)} and {format_clock(plan.expected_s)}, at {sweep.child_minutes} min a "
            f"child; ends after {format_clock(sweep.wall_minutes * 60)} at the latest"
        ),
        *plan.notices,
    ]


def plan_document(plan: FleetPlan) -> documents.FleetPlanned:
    """What `bench fleet plan --json` prints."""
    return documents.FleetPlanned.of(
        plan,
        schema=1,
        children=len(plan.children),
        configurations=len({child.config for child in plan.children}),
        jobs=[documents.PlannedJob.of(job) for job in plan.jobs],
        notices=list(plan.notices),
    )


def jobs_table(plan: FleetPlan) -> Columns:
    numbers = ("children", "machines", "$/h", "worst case", "expected", "hours")
    rows = [
        (job.gpu, str(job.children), str(job.machines), usd(job.usd_per_hour), usd(job.hold), usd(job.expected_usd),
         f"{job.expected_s / 3600:.1f}")
        for job in plan.jobs
    ]  # fmt: skip
    return Columns("gpu", *numbers, rows=rows, right=numbers, droppable=("hours", "expected", "machines"))


def quota_table(rows: Sequence[Mapping[str, Any]]) -> Columns:
    cells = [[str(row[key]) for key in ("gpu", "region", "room", "metric")] for row in rows]
    return Columns("gpu", "region", "room for", "quota", rows=cells, droppable=("quota",))


def counts_line(state: FleetState) -> str:
    """`12 stored, 3 running, 5 waiting of 20`."""
    counts = state.counts
    parts = [f"{counts[name]} {name.replace('_', ' ')}" for name in reversed(STATES) if counts[name]]
    return f"{', '.join(parts)} of {len(state.children)}"


def seen_lines(record: FleetRecord, seen: FleetSighting) -> list[str]:
    """A fleet's state in words."""
    control, state = seen.control, seen.state
    lines = [f"{record.fleet}  {record.engine}  {counts_line(state)}  {usd(state.usd)}"]
    if control.stopped:
        lines.append(
            f"stopped by {clean_line(control.stopped, 60)}: `bench fleet resume {record.fleet}` measures the rest"
        )
    elif control.paused and not state.over:
        lines.append(f"paused: {clean_line(control.paused, 300)}")
        if control.paused.startswith(f"{cap_of(record.sweep)} "):
            lines.append(f"`bench fleet resume {record.fleet} --cap USD` continues with another cap")
        else:
            lines.append(f"`bench fleet resume {record.fleet}` continues anyway")
    for job in seen.jobs:
        if job.running or job.pending:
            why = f"  ({waiting_reason(clean_line(job.reason, 80))})" if job.reason else ""
            lines.append(f"{job.name}  {job.running} running, {job.pending} queued{why}")
    return lines


def gpus_table(state: FleetState) -> Columns:
    shown = [name for name in STATES if state.counts[name]]
    heads = [name.replace("_", " ") for name in shown]
    rows = [(gpu, *(str(counts[name]) for name in shown)) for gpu, counts in state.by_gpu().items()]
    return Columns("gpu", *heads, rows=rows, right=heads)


def odd_table(state: FleetState) -> Columns | None:
    """The children that did not simply succeed, with the reasons; None if there are none."""
    odd = [(child, state.line(child)) for child in state.children]
    odd = [(child, line) for child, line in odd if line.reason and line.state != "stored"]
    if not odd:
        return None
    heads = ("child", "gpu", "configuration", "state", "machine", "why")
    table = Columns(*heads, droppable=("machine", "gpu"), prose=("why",))
    for child, line in odd[:MOST_ROWS]:
        where = line.machine or "-"
        table.add_row(
            str(child.index), child.cell.gpu, Text(child.cell.title), line.state.replace("_", " "), Text(where),
            Text(line.reason),
        )  # fmt: skip
    if len(odd) > MOST_ROWS:
        table.add_row("", "", "", "", "", f"and {len(odd) - MOST_ROWS} more: --json shows all", style="dim")
    return table


def document(record: FleetRecord, seen: FleetSighting) -> documents.FleetSeen:
    """What `bench fleet status --json` prints."""
    state, control = seen.state, seen.control
    return documents.FleetSeen.of(
        record,
        schema=1,
        created_at=record.created_at.isoformat(),
        ends_at=(control.ends_at or record.ends_at).isoformat(),
        over=state.over,
        paused=control.paused,
        stopped=control.stopped,
        counts={name: state.counts[name] for name in STATES},
        cost_usd=state.usd,
        jobs=[documents.FleetJob.of(job) for job in seen.jobs],
        children=[_child(record, state.line(child), child) for child in state.children],
    )


def _child(record: FleetRecord, line: ChildLine, child: Child) -> documents.FleetChild:
    cell = child.cell
    return documents.FleetChild.of(
        line,
        child=child.index,
        run_id=child.run_id(record.fleet),
        gpu=cell.gpu,
        workload=cell.workload,
        settings=dict(cell.settings),
        repeat=child.repeat,
        chunk=child.chunk,
    )


def fleets_table(rows: Sequence[tuple[str, Mapping[str, str]]]) -> Columns:
    table = Columns("fleet", "engine", "state", "stored", "cost", "by", droppable=("by", "engine", "cost"))
    for fleet, line in rows:
        stored = f"{clean_line(line.get('stored', '?'), 12)}/{clean_line(line.get('children', '?'), 12)}"
        cells = [clean_line(line.get(key, ""), 40) for key in ("engine", "state", "usd", "user")]
        table.add_row(*map(Text, (fleet, cells[0], cells[1], stored, f"${cells[2]}", cells[3])))
    return table
