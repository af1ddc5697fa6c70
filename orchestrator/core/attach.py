"""Makes the command that opens a terminal on the machine of a run. It does not run the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.core.hosts import HostTarget
from orchestrator.core.names import MachineName, ProjectId, Zone


def to_host(target: HostTarget, command: Sequence[str] = ()) -> tuple[str, ...]:
    """The command for a host of the user's. It is OpenSSH's own client, so that ~/.ssh/config, the agent, jump hosts
    and known_hosts apply as usual."""
    port = ("-p", str(target.port)) if target.port else ()
    terminal = () if command else ("-t",)
    name = f"{target.user}@{target.name}" if target.user else target.name
    return ("ssh", *terminal, *port, "--", name, *quote_remote_command(command))


def through_iap(vm: MachineName, zone: Zone, project: ProjectId, command: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that goes through Identity-Aware Proxy: the machine needs neither an external address nor an open
    port."""
    remote_command = ("--command", shlex.join(command)) if command else ()
    return (
        "gcloud",
        "compute",
        "ssh",
        vm,
        "--zone",
        zone,
        "--project",
        project,
        "--tunnel-through-iap",
        *remote_command,
    )


def quote_remote_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command quoted as one argument, which the machine's shell splits into the same words; nothing if empty."""
    return (shlex.join(command),) if command else ()
