"""`bench status [RUN]`: runs, phases, progress, dollars; what is held for anything else; the machines alive now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.finding import find_run, remember
from orchestrator.cli.options import Json, known_runs, options
from orchestrator.cli.render import SIMULATED, alive_line, diagnoses, runs_table, time_lines, usd
from orchestrator.cli.render import live as live_view
from orchestrator.cli.screen import screen, wrap_text
from orchestrator.cli.terminal import documents, emit_json, note, raise_unread
from orchestrator.core.errors import (
    BenchError,
    ConfigError,
    CredentialsMissing,
    DocumentUnreadable,
    NotFound,
    ProviderError,
    Unavailable,
)
from orchestrator.core.hosts import is_host
from orchestrator.core.ledger.budget import Ledger
from orchestrator.core.ledger.unlisted import OpenHold, is_due, stored_amounts, unlisted_holds, unlisted_runs
from orchestrator.core.market.catalog import carrier_of
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.offers import region_of
from orchestrator.core.market.pricing import PricedMachine, PriceSheet
from orchestrator.core.names import is_fleet_id
from orchestrator.core.naming import is_run_id, run_of
from orchestrator.core.run.fold import Run
from orchestrator.core.run.status import (
    ColdStart,
    KeepAdvice,
    StatusLine,
    advise_keeping,
    cold_starts,
    decode_status,
    iso_time,
    run_document,
    status_line,
)
from orchestrator.core.text import clean_line, clean_sentence
from orchestrator.store.index import RECENT, IndexLine
from orchestrator.wiring import Wiring

if TYPE_CHECKING:
    from orchestrator.runs.reap import MachineFinding, PriceOf


def status(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(metavar="[RUN]", help="A run id, a unique part of one, or `last`.", autocompletion=known_runs),
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many runs to list, newest first.")] = 20,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow RUN until it is over, then show the answer.")
    ] = False,
    json: Json = False,
) -> None:
    """List runs, other holds, and the machines that exist now.

    Runs that are over are also settled and closed. Other holds are money that is held for a fleet, for an image, or for
    a run that is missing from the list or over; each has a line with the command that shows or releases it. The
    machines are those that the cloud itself lists, not those that the runs know of.
    """
    wiring = options(ctx).wiring()
    if watch and (json or not run):
        raise ConfigError("--watch follows one run on a terminal", hint="`bench status last --watch`, without --json")
    if watch:
        # It is loaded only now, because a status without it must be quick.
        import_module("orchestrator.cli.launch").follow(wiring, find_run(wiring, run))
    elif run:
        _one(wiring, run, json=json)
    else:
        _all(wiring, limit=limit, json=json)


def _one(wiring: Wiring, text: str, *, json: bool) -> None:
    engine = wiring.engine(find_run(wiring, text))
    state = engine.look()
    try:
        state = engine.catch_up()
    except Unavailable as exc:  # what the bucket knows can be told without the machine
        note(str(exc))
    cold = _cold(wiring, state)
    advice = advise_keeping(state, cold, wiring.clock.now())
    if json:
        extra = {
            "keep_or_stop": advice.document() if advice is not None else None,
            "cold_starts": cold.document() if cold is not None else None,
        }
        emit_json({**run_document(state, wiring.clock.now()), **extra})
        return
    console = screen()
    console.print(live_view(state, wiring.clock.now()))
    for words in time_lines(state, wiring.clock.now()):
        console.print(words)
    if cold is not None:
        console.print(cold.text, style="dim")
    if advice is not None and state.kept is not None:  # for no other does anybody choose
        console.print(advice.text, soft_wrap=True)
    if state.closed is not None and not any(state.closed.detail in said for said in ("", *diagnoses(state))):
        ended = f"{state.phase.value.replace('_', ' ')}: {clean_sentence(state.closed.detail)}"
        console.print(wrap_text(console, ended))


def _cold(wiring: Wiring, run: Run) -> ColdStart | None:
    """How long cold starts took in this bucket; takes one listing."""
    if run.plan is None:
        return None
    lines = [
        line
        for entry in wiring.index.list_recent(wiring.clock.now())[0]
        if (line := decode_status(entry.run_id, entry.status)) is not None
    ]
    return cold_starts(lines, run.plan.gpu, run.plan.mode)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the list shows."""

    lines: Sequence[StatusLine]
    """The newest runs, oldest first."""
    complete: bool
    """Whether they are all."""
    findings: Sequence[MachineFinding]
    unasked: str
    """Why the cloud could not be asked for its machines; empty if it was."""
    holds: Sequence[OpenHold] | None
    """None where the ledger cannot be read."""


def _all(wiring: Wiring, *, limit: int, json: bool) -> None:
    entries, complete = _entries(wiring, limit)
    lines, left_out, first = _lines(wiring, entries)
    remember(wiring.home, [line.run_id for line in lines])
    ledger, unsettled = _ledger(wiring)
    if isinstance(unsettled, DocumentUnreadable):
        hint = f" ({unsettled.hint})" if unsettled.hint else ""
        left_out["ledger"] = f"{unsettled}; the cost of runs cannot be settled{hint}"
    elif unsettled is not None:
        note(f"some holds could not be settled: {unsettled}")
        first = first or ProviderError(f"some holds could not be settled: {unsettled}", hint=unsettled.hint)
    holds = holds_of(wiring, ledger, lines) if ledger is not None else None
    try:
        findings, unasked = _alive(wiring), ""
    except BenchError as exc:
        findings, unasked = (), str(exc)
    left_out |= wiring.hosts.odd
    seen = _Seen(lines, complete, findings, unasked, holds)
    if json:
        emit_json(_document(wiring, seen, limit, left_out))
    else:
        _show(wiring, seen, limit)
    raise_unread(left_out, first)


def _document(wiring: Wiring, seen: _Seen, limit: int, left_out: Mapping[str, str]) -> documents.Status:
    advised = [(finding, keep_or_stop(finding, seen.lines, wiring.clock.now())) for finding in seen.findings]
    machines = [
        documents.AdvisedMachine.of(one, keep_or_stop=said.document() if said else None) for one, said in advised
    ]
    return documents.Status(
        schema=1,
        mode=wiring.mode,
        prices_simulated=wiring.mode.simulated,
        runs=list(seen.lines[-limit:]),
        instances=None if seen.unasked else machines,
        holds=None if seen.holds is None else [_hold_document(one) for one in seen.holds],
        left_out=dict(left_out),
    )


def _show(wiring: Wiring, seen: _Seen, limit: int) -> None:
    console, lines = screen(), seen.lines
    if not lines:
        console.print("there are no runs yet; start one with `bench launch --gpu l4`")
    else:
        console.print(runs_table(lines[::-1][:limit], wiring.clock.now()))
        if len(lines) > limit or not seen.complete:
            number = f"{len(lines) - limit} " if seen.complete else ""
            console.print(f"… and {number}older runs; --limit N shows more", style="dim")
        if wiring.mode.simulated:
            console.print(f"machines of the embedded cloud, {SIMULATED}", style="dim")
    for hold in seen.holds or ():
        console.print(wrap_text(console, hold_line(hold)), soft_wrap=True)
    for finding in seen.findings:
        console.print(wrap_text(console, machine_line(finding)), soft_wrap=True)
        advice = keep_or_stop(finding, lines, wiring.clock.now())
        if advice is not None and finding.run is not None and finding.run.kept is not None:
            console.print(f"        {advice.text}", soft_wrap=True, style="dim")
    if seen.unasked:
        heading = f"the cloud did not answer ({seen.unasked}); as far as the runs know:"
        console.print(wrap_text(console, heading), style="yellow")
        console.print(alive_line(lines))
    else:
        console.print(machines_line(seen.findings))


def _alive(wiring: Wiring) -> tuple[MachineFinding, ...]:
    """Every machine that exists, with its verdict. If there is none, nothing more is loaded or read."""
    instances = wiring.alive()
    if not instances:
        return ()
    return wiring.survey(instances, price_of(wiring.price_book.usable()))


def _entries(wiring: Wiring, limit: int) -> tuple[Sequence[IndexLine], bool]:
    """The newest runs and those under which the ledger holds money, oldest first, and whether they are all."""
    entries, complete = wiring.index.list_recent(wiring.clock.now(), max(limit, RECENT))
    if complete:
        return entries, True
    try:
        held = {run_of(key) for key, entry in wiring.ledger.read().runs.items() if entry.settled_usd is None}
    except BenchError:  # it is said where the ledger is looked at
        return entries, False
    older = wiring.index.find(sorted(filter(is_run_id, held - {entry.run_id for entry in entries})))
    return (*older, *entries), False


def _lines(wiring: Wiring, entries: Sequence[IndexLine]) -> tuple[list[StatusLine], dict[str, str], BenchError | None]:
    """These runs; by object what could not be read; and the first that the cloud would not do. Finished
    runs cost nothing but the one listing; open ones are driven as far as they go now, so that one whose machine is gone
    is closed before it is shown. One that cannot be hides no other."""
    lines = []
    left_out: dict[str, str] = {}
    first: BenchError | None = None
    for entry in entries:
        line = decode_status(entry.run_id, entry.status)
        if line is None or not line.over:
            try:
                state = wiring.engine(entry.run_id).catch_up()
            except NotFound:
                continue
            except CredentialsMissing:
                raise
            except BenchError as exc:
                if isinstance(exc, DocumentUnreadable):
                    left_out[entry.run_id] = f"run {entry.run_id}: {exc}"
                else:
                    note(f"{entry.run_id}: {exc}")
                    if line is None or not is_host(line.vm):  # a host may well be switched off
                        first = first or ProviderError(f"some runs could not be settled: {exc}", hint=exc.hint)
                lines += [line] if line is not None else []
                continue
            line = status_line(state, wiring.clock.now())
        lines.append(line)
    return lines, left_out, first


def _ledger(wiring: Wiring) -> tuple[Ledger | None, BenchError | None]:
    """The ledger, once the holds of clients that died are released or count as spent, as far as this can be decided
    now; None where it cannot be read. And why not every hold could be looked after."""
    ledger = None
    try:
        ledger = wiring.ledger.read()
        if is_due(ledger):
            wiring.reconcile()
            ledger = wiring.ledger.read()
    except CredentialsMissing:
        raise
    except BenchError as exc:
        return ledger, exc
    return ledger, None


# Shows what the ledger holds for something that is not an open run of the list, as lines and as JSON.


def holds_of(wiring: Wiring, ledger: Ledger, lines: Sequence[StatusLine]) -> tuple[OpenHold, ...]:
    """The holds that the list of runs does not show. Raises `Unavailable`. Where all is settled and there is no image,
    nothing is loaded or read."""
    if not is_due(ledger) and not stored_amounts(ledger):
        return ()
    open_runs = frozenset(machine_line.run_id for machine_line in lines if not machine_line.over)
    known_holds = wiring.known_holds(ledger, open_runs)
    fleets = {name for name in unlisted_runs(ledger, open_runs) - known_holds.lost if is_fleet_id(name)}
    foreign = frozenset(name for name in fleets if not _is_trusted(wiring, name))
    return unlisted_holds(ledger, replace(known_holds, foreign=foreign), wiring.policy.insert_limit_s)


def _is_trusted(wiring: Wiring, fleet: str) -> bool:
    """Whether this client acts on a fleet; it can only show one that it did not launch, or whose documents are odd."""
    trust = import_module("orchestrator.cli.fleet.trust")  # only where there is a fleet
    store = trust.FleetStore(wiring.bucket, wiring.clock, fleet)
    try:
        store.record()
        store.children()
    except BenchError:
        return False
    return bool(trust.is_trusted(wiring, store))


def hold_line(hold: OpenHold) -> str:
    """One machine_line: how much, since when, for what, and the command that shows or releases it."""
    name = clean_line(hold.name)
    what, then = {
        "run": (f"run {name}", "shows it"),
        "fleet": (name, "shows it, and settles what is over"),
        "image_build": (f"the build of image {name}", "says what it waits for"),
        "image_storage": (f"storing image {name}", "deletes it and releases the rest"),
    }[hold.kind]
    if not hold.readable:
        what, then = f"{what}, whose record cannot be read", "says why"
    if hold.settles_at is not None:
        what += ", whose events are gone" if hold.kind == "run" else ", whose record is gone"
        then = f"deletes what is left of it, and settles this from {_reached(hold.settles_at)} on"
    simulated = " (simulated)" if hold.simulated else ""
    return (
        f"{usd(hold.usd)}{simulated} held since {iso_time(hold.since)} for {what}: `{clean_line(hold.remedy)}` {then}"
    )


def _hold_document(hold: OpenHold) -> documents.OpenHoldDocument:
    settles_at = _reached(hold.settles_at) if hold.settles_at is not None else None
    return documents.OpenHoldDocument.of(hold, settles_at=settles_at)


def _reached(at: datetime) -> str:
    """The first whole second at which a moment is reached."""
    return iso_time(at + timedelta(microseconds=999_999))


USUAL_DISK_GB = 60


def price_of(sheet: PriceSheet) -> PriceOf:
    """The price of an hour of a machine whose run is not known, by its type and region, with the usual disk."""

    def price(instance: Instance) -> Decimal | None:
        gpu = carrier_of(instance.machine_type)
        accelerator = gpu.accelerator if gpu is not None else None
        spec = PricedMachine(instance.machine_type, accelerator, gpu.gpus_of(instance.machine_type) if gpu else 0)
        provisioning = "spot" if instance.preemptible else "standard"
        return sheet.hourly(spec, region_of(instance.zone), provisioning, USUAL_DISK_GB, external_ip=True)

    return price


def machines_line(findings: Sequence[MachineFinding]) -> str:
    orphans = sum(1 for one in findings if one.orphan)
    prices = [one.usd_per_hour for one in findings if one.usd_per_hour is not None]
    unknown = len(findings) - len(prices)
    text = f"VMs alive now: {len(findings)}, ${sum(prices, Decimal(0)):.2f}/h"
    if unknown:
        text += f" and {unknown} of unknown price"
    return text + (f"; no live run owns {orphans} of them: `bench reap --yes` deletes those" if orphans else "")


def machine_line(finding: MachineFinding) -> str:
    instance = finding.instance
    cost = f"${finding.cost_usd:.2f} so far" if finding.cost_usd is not None else "cost unknown"
    hourly = f"${finding.usd_per_hour:.2f}/h" if finding.usd_per_hour is not None else "$?/h"
    verdict = "orphan" if finding.orphan else "in use"
    odd = f"  [{', '.join(finding.flags)}]" if finding.flags else ""
    where = f"{instance.zone}/{instance.name}"
    return f"{verdict:<6}  {where}  {instance.status}  {hourly}  {cost}{odd}  {finding.verdict.reason}"


def keep_or_stop(finding: MachineFinding, lines: Sequence[StatusLine], now: datetime) -> KeepAdvice | None:
    """Whether a machine of a live run is worth its price; None for any other."""
    run = finding.run
    if finding.orphan or run is None or run.plan is None or run.vm is None or run.vm.name != finding.instance.name:
        return None
    return advise_keeping(run, cold_starts(lines, run.plan.gpu, run.plan.mode), now)
