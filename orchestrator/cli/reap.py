"""`bench reap`: find every machine of ours that no live run owns, and delete it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, options
from orchestrator.cli.status import machine_line, price_of
from orchestrator.cli.terminal import documents, emit_json, hanging, note, print_answer, raise_unread
from orchestrator.core.errors import BenchError, ProviderError
from orchestrator.core.images import PREFIX
from orchestrator.core.text import clean_line, count
from orchestrator.runs.engine import World
from orchestrator.runs.images import ImageFinding, reap_images, survey_images
from orchestrator.runs.kinds import ReconciledHold
from orchestrator.runs.reap import MachineFinding, Reaped, ReapFailure, survey_machines
from orchestrator.runs.reap import reap_orphans as delete
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.wiring import ReapTimer, install_timer_files


def reap(
    ctx: typer.Context,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete what was found; without this, only list it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; write and delete nothing.")
    ] = False,
    install_timer: Annotated[
        bool, typer.Option("--install-timer", help="Run this every 15 minutes for this user (systemd or cron).")
    ] = False,
    json: Json = False,
) -> None:
    """Find machines that no live run owns, and delete them.

    Only lists them without --yes; with it, also settles what is held for fleets and runs that have left nothing else.
    Needs only the machines' labels and the bucket, so it works from any computer with access. Tries every machine;
    exits with 6 when one could not be deleted, 16 when an object could not be read.
    """
    if install_timer:
        _install(ctx, dry_run=dry_run, json=json)
        return
    wiring = options(ctx).wiring()
    world = wiring.world()
    findings = survey_machines(world, wiring.alive(), price_of(wiring.price_book.usable()))
    deletes = yes and not dry_run
    images, unasked = _images(world)
    if not json:
        _list(findings, images)
    done = delete(world, findings) if deletes else Reaped((), ())
    gone, failed = reap_images(world, images) if deletes else ((), ())
    still = tuple(ReapFailure("an image may still be there", error) for error in (*failed, *unasked))
    settled, unsettled = _settle(world) if deletes else ((), ())
    done = Reaped(done.gone, (*done.failed, *still, *unsettled))
    if json:
        emit_json(_document(wiring.mode, findings, images, done, gone, settled))
    elif deletes:
        for hold in settled:
            typer.echo(hanging(f"settled  {clean_line(hold.key)}: {hold.what}"))
        too = f"; {count(len(gone), 'image')} deleted" if gone else ""
        typer.echo(f"{count(len(findings), 'VM')} alive, {len(done.gone)} deleted{too}")
    else:
        typer.echo(_found(findings, images))
    for failure in done.failed:
        note(f"{failure.what}: {failure.error}")
    text = f"{len(done.failed)} could not be done, everything else was; the first: "
    errors = [ProviderError(f"{text}{one.error}", hint=one.error.hint) for one in done.failed[:1]]
    raise_unread(wiring.hosts.odd, *errors)


def _list(findings: Sequence[MachineFinding], images: Sequence[ImageFinding]) -> None:
    for finding in findings:
        typer.echo(hanging(machine_line(finding)))
    for image in images:
        typer.echo(f"{'due' if image.why else 'keep':<6}  {image.image.name}  {image.image.status}  {image.why}")


def _found(findings: Sequence[MachineFinding], images: Sequence[ImageFinding]) -> str:
    orphans, due = sum(finding.orphan for finding in findings), sum(1 for image in images if image.why)
    hint = "; `bench reap --yes` deletes them" if orphans or due else ""
    too = f", {count(due, 'image')} due" if due else ""
    return f"{count(len(findings), 'VM')} alive, {orphans} owned by no live run{too}{hint}"


def _document(
    mode: str,
    findings: Sequence[MachineFinding],
    images: Sequence[ImageFinding],
    done: Reaped,
    gone: Sequence[str],
    settled: Sequence[ReconciledHold],
) -> documents.ReapDocument:
    return documents.ReapDocument(
        schema=1,
        mode=mode,
        deleted=len(done.gone),
        machines=[documents.MachineOptions.of(one) for one in findings],
        images=[documents.ReapedImage.of(one) for one in images],
        images_deleted=list(gone),
        settled=[documents.ReapedHold.of(one) for one in settled],
        failed=[documents.ReapFailed.of(one) for one in done.failed],
    )


def _images(world: World) -> tuple[tuple[ImageFinding, ...], tuple[BenchError, ...]]:
    """The prepared images, and why they could not be listed: machines are looked after all the same. The cloud is asked
    only where this bucket has ever had one."""
    try:
        if world.shelf is None or not world.bucket.list(PREFIX):
            return (), ()
        return survey_images(world), ()
    except BenchError as error:
        return (), (error,)


def _settle(world: World) -> tuple[tuple[ReconciledHold, ...], tuple[ReapFailure, ...]]:
    """Settles the holds of fleets whose client is gone and whose end has passed, and of runs whose events are gone and
    that can have no machine any more: those that it settled, and why it did not get to all."""
    settled: list[ReconciledHold] = []
    try:
        reconcile_holds(world, drive=False, say=lambda found: settled.append(found) if found.settled else None)
    except BenchError as error:
        return tuple(settled), (ReapFailure("not every hold was looked after", error),)
    return tuple(settled), ()


def _install(ctx: typer.Context, *, dry_run: bool, json: bool) -> None:
    settings = options(ctx).wiring().settings
    program = shutil.which("bench") or str(Path(sys.executable).with_name("bench"))
    home = str(settings.home)
    done = install_timer_files(
        ReapTimer(program=program, project=settings.project, bucket=settings.bucket, home=home), dry_run=dry_run
    )
    files = [str(path) for path in done.files]
    document = {"schema": 1, "files": files, "cron": done.cron, "active": done.active, "written": done.written}
    print_answer(document, *(f"{'wrote' if done.written else 'would write'} {path}" for path in files), json=json)
    if json or not done.written:
        return
    if done.active:
        typer.echo(
            "bench reap --yes now runs every 15 minutes; to stop that: systemctl --user disable --now bench-reap.timer"
        )
    elif done.files:
        typer.echo("to start it: systemctl --user enable --now bench-reap.timer")
    else:
        typer.echo("systemd is not available for this user; run `crontab -e` and add this line:", err=True)
        typer.echo(done.cron)
