"""`bench ssh RUN`: a terminal on the machine of a live run. Nothing that a run does depends on it."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from orchestrator.api.finding import find_run
from orchestrator.cli.options import Json, RunName, options
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import ConfigError, LocalError, NotFound
from orchestrator.core.hosts import is_host, parse_target, through_iap, to_host
from orchestrator.core.names import ProjectId
from orchestrator.core.run.fold import Run
from orchestrator.core.text import clean_line
from orchestrator.runs.engine import Engine
from orchestrator.wiring import Wiring, is_installed, run_attached


def ssh(
    ctx: typer.Context,
    run: RunName,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Run this command there instead of a shell.")
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the command instead of running it.")] = False,
    json: Json = False,
) -> None:
    """Open a terminal on the machine of a live run.

    Reaches a host of your own with ssh, and a rented machine through gcloud and Identity-Aware Proxy.
    """

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, run)
    arguments = command_for(wiring, Engine(wiring.world(), run_id).look(), tuple(command or ()))
    if json or show:
        print_answer({"schema": 1, "run_id": run_id, "command": list(arguments)}, shlex.join(arguments), json=json)
        return
    if not is_installed(arguments[0]):
        typer.echo(shlex.join(arguments))
        where = "https://cloud.google.com/sdk/docs/install" if arguments[0] == "gcloud" else "your system's packages"
        raise LocalError(
            f"{arguments[0]} is not installed here, so the command above was not run",
            hint=(
                f"install it ({where}), or run the command where it is installed; `bench logs -f {run_id}` needs "
                "neither"
            ),
        )
    raise typer.Exit(run_attached(arguments))


def command_for(wiring: Wiring, run: Run, command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that reaches the run's machine: one that a client requested or claimed, or a host that a command of
    this user has named. Raises `ConfigError` if there is no machine to reach, `Unavailable` for any other host."""
    vm = run.vm
    place = (run.guest_of.vm, run.guest_of.zone) if run.guest_of is not None else None
    if vm is not None and vm.open and vm.started_at is not None:
        place = (vm.name, vm.zone)
    if place is None or run.closed is not None:
        raise ConfigError(
            f"run {run.run_id} has no machine now ({run.phase.value})", hint=f"`bench logs {run.run_id}` shows its log"
        )
    name, zone = place
    if is_host(zone):
        hint = "connect to the host with ssh, as you usually do"
        record = wiring.hosts.record(zone)
        if record is None:
            raise NotFound(f"the bucket does not say any more which host {zone} is", hint=hint)
        target = parse_target(record.target)
        if target.zone != zone:
            raise NotFound(f"in the bucket, {zone} is another host: {clean_line(record.target, 80)}", hint=hint)
        wiring.named.reachable(target)
        if target.machine:
            raise ConfigError(
                f"run {run.run_id} is on {target.machine} itself (`--host local`), so there is nothing to log in to",
                hint=f"`bench logs -f {run.run_id}` follows the run there",
            )
        return to_host(target, command)
    if wiring.mode.simulated:
        raise ConfigError(
            "a machine of the embedded cloud is only processes on this computer, so there is nothing to log in to",
            hint=f"`bench logs -f {run.run_id}` follows the run; `bench cloud status` lists the machines",
        )
    return through_iap(name, zone, ProjectId(wiring.settings.project), command)
