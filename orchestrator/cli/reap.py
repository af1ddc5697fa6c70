"""`bench reap`: find every machine of ours that no live run owns, and delete it."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options


def reap(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete what is found; without it, only list.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list (what happens without --yes).")] = False,
    install_timer: Annotated[
        bool, typer.Option("--install-timer", help="Have it run every 15 minutes for this user.")
    ] = False,
    json: Json = False,
) -> None:
    """Find machines that no live run owns, and delete them.

    Goes by their labels and the bucket alone, so any machine with access can do it. Lists unless told --yes.
    """
    if install_timer:
        _install(ctx, json=json)
        return
    from orchestrator.cli.alive_view import document, line, price_of
    from orchestrator.core.budget import Caps
    from orchestrator.reaping import reap as delete
    from orchestrator.reaping import survey

    wiring = options(ctx).wiring()
    world = wiring.world(Caps())
    findings = survey(world, wiring.alive(), price_of())
    orphans = sum(1 for finding in findings if finding.orphan)
    deletes = yes and not dry_run
    if not json:
        for finding in findings:
            typer.echo(line(finding))
    gone = delete(world, findings) if deletes else 0
    if json:
        emit_json({"schema": 1, "mode": wiring.mode, "deleted": gone, "machines": [document(one) for one in findings]})
        return
    if deletes:
        typer.echo(f"{len(findings)} VMs alive, {gone} deleted")
    else:
        hint = "; `bench reap --yes` deletes them" if orphans else ""
        typer.echo(f"{len(findings)} VMs alive, {orphans} that no live run owns{hint}")


def _install(ctx: typer.Context, *, json: bool) -> None:
    import shutil
    import sys
    from pathlib import Path

    from orchestrator.adapters.timer import Timer, install

    settings = options(ctx).wiring().settings
    program = shutil.which("bench") or str(Path(sys.executable).with_name("bench"))
    home = str(settings.home)
    done = install(Timer(program=program, project=settings.project, bucket=settings.bucket, home=home))
    if json:
        emit_json({"schema": 1, "files": [str(path) for path in done.files], "cron": done.cron, "active": done.active})
        return
    for path in done.files:
        typer.echo(f"wrote {path}")
    if done.active:
        typer.echo(
            "bench reap --yes runs every 15 minutes; `systemctl --user disable --now bench-reap.timer` ends that"
        )
    elif done.files:
        typer.echo("start it with: systemctl --user enable --now bench-reap.timer")
    else:
        typer.echo("there is no systemd for this user here; add this line with `crontab -e`:", err=True)
        typer.echo(done.cron)
