"""Makes the command that opens a terminal on the machine of a run. It does not run the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.core.hosts import Target


def to_host(target: Target, command: Sequence[str] = ()) -> tuple[str, ...]:
    """OpenSSH's own client, so that ~/.ssh/config, agent, jump hosts and known_hosts hold as they always do."""
    port = ("-p", str(target.port)) if target.port else ()
    terminal = () if command else ("-t",)
    name = f"{target.user}@{target.name}" if target.user else target.name
    return ("ssh", *terminal, *port, "--", name, *remote(command))


def through_iap(vm: str, zone: str, project: str, command: Sequence[str] = ()) -> tuple[str, ...]:
    """A tunnel through Identity-Aware Proxy: the machine needs neither an external address nor an open port."""
    wanted = ("--command", shlex.join(command)) if command else ()
    return ("gcloud", "compute", "ssh", vm, "--zone", zone, "--project", project, "--tunnel-through-iap", *wanted)


def remote(command: Sequence[str]) -> tuple[str, ...]:
    """A command as one word: the shell there splits it again, and must find the same words."""
    return (shlex.join(command),) if command else ()
