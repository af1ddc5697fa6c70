"""Which scheduler stands behind a fleet's engine. Each is loaded when a fleet of its kind is looked at."""

from __future__ import annotations

from orchestrator.adapters.slurm import Slurm
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.core.hosts import parse_target
from orchestrator.ports import Scheduler
from orchestrator.wiring import Wiring

SCHEDULED = ("slurm", "batch")
"""Engines that start children by themselves; the others are driven by the client, a run for each child."""


def scheduler_of(sweep: Sweep, wiring: Wiring) -> Scheduler:
    """Raises `ConfigError` for an engine that has no scheduler here."""
    if sweep.engine == "slurm":
        login = parse_target(sweep.slurm.login or "local", wiring.machine)
        return Slurm(wiring.shell(login), sweep.slurm, wiring.bucket, wiring.clock)
    raise ConfigError(
        f"engine {sweep.engine} cannot be used here yet", hint="--engine cloud rents a machine for each child"
    )
