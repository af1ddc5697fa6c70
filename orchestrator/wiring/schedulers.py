"""Which scheduler stands behind a fleet's engine. Each is loaded when a fleet of its kind is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from orchestrator.adapters.batch.scheduler import GoogleBatch, Service, task_script
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.batch import check_object
from orchestrator.core.fleet.batch_gate import GatePace, GateSite, GateVerdict, gate_refusal, parse_gate
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.core.hosts import parse_target
from orchestrator.core.market.offers import region_of
from orchestrator.core.mode import Mode
from orchestrator.core.names import ImageName, ProjectId
from orchestrator.core.naming import TOOL, TOOL_LABEL
from orchestrator.ports import Scheduler
from orchestrator.wiring import Wiring


def scheduler_of(sweep: Sweep, wiring: Wiring) -> Scheduler:
    """Raises `ConfigError` for an engine that has no scheduler here."""
    if sweep.engine == "slurm":
        login = parse_target(sweep.slurm.login or "local", wiring.machine)
        return Slurm(wiring.shell(login), sweep.slurm, wiring.bucket, wiring.clock)
    if sweep.engine == "batch":
        return batch_of(wiring, partial(check_gate, wiring))
    raise ConfigError(
        f"engine {sweep.engine} cannot be used in this project yet",
        hint="--engine cloud rents a machine for each child",
    )


def logins_of(sweep: Sweep) -> tuple[str, ...]:
    """The hosts on which a sweep's scheduler is asked."""
    return (sweep.slurm.login or "local",) if sweep.engine == "slurm" else ()


def check_launchable(wiring: Wiring, sweep: Sweep) -> None:
    """Raises `ConfigError` where a sweep's engine has not been seen to bound dollars."""
    if sweep.engine == "batch":
        check_gate(wiring)


def check_cluster(wiring: Wiring, sweep: Sweep, child_s: int) -> None:
    """Before anything is stored or held: raises what the adapters raise where a sweep's cluster does not answer, and
    `ConfigError` where it would never start a child that may take `child_s` seconds."""
    if sweep.engine != "slurm":
        return
    wiring.name_hosts(logins_of(sweep))
    scheduler = scheduler_of(sweep, wiring)
    assert isinstance(scheduler, Slurm), "the engine is slurm"
    _ = scheduler.most_children
    if problem := scheduler.time_problem(child_s):
        hint = "set run.max_minutes lower, or slurm.partition to another one: `sinfo -o '%P %l'` lists their limits"
        raise ConfigError(problem, hint=hint)


def machine_seconds_of(scheduler: Scheduler) -> Callable[[Sequence[str]], Mapping[str, float]] | None:
    """How many seconds of machines jobs have had at most, by GPU; None where none are rented."""
    return scheduler.machine_seconds if isinstance(scheduler, GoogleBatch) else None


def check_gate(wiring: Wiring) -> None:
    """Raises `ConfigError` where Google Cloud Batch has not been seen to bound dollars in this project."""
    project = wiring.project
    blob = wiring.bucket.read(check_object(project))
    why = gate_refusal(project, parse_gate(blob.data if blob is not None else None))
    if why:
        raise ConfigError(
            why, hint="`bench fleet check-batch` checks it, for a few cents, in about a quarter of an hour"
        )


def batch_of(wiring: Wiring, gate: Callable[[], None]) -> GoogleBatch:
    """Google Cloud Batch, or the embedded cloud's."""
    endpoints = wiring.endpoints or {}
    return GoogleBatch(
        Service(wiring.project, wiring.credentials, endpoints.get("compute", ""), endpoints.get("storage", "")),
        wiring.bucket,
        wiring.clock,
        script=task_script(),
        image=wiring.cloud().image,
        gate=gate,
        known=wiring.named,
    )


def check_batch(wiring: Wiring, config: Config, say: Callable[[str], None]) -> GateVerdict:
    """Looks at Batch in this project, and leaves the verdict in the bucket. Raises `ProviderError` and its kin; nothing
    that it made is left over either way."""
    endpoint, embedded = (wiring.endpoints or {}).get("compute", ""), wiring.mode is Mode.EMBEDDED
    site = GateSite(
        project=wiring.project,
        region=region_of(config.allowed_zones()[0]),
        machine_type="e2-standard-4" if embedded else "e2-micro",
        image=wiring.cloud().image(ProjectId("debian-cloud"), ImageName("debian-12")),
        network=config.machine.network,
        service_account=config.machine.service_account or "",
        labels={TOOL_LABEL: TOOL},
        compute=endpoint,
    )
    pace = GatePace(end_s=40, late_s=12, quiet_s=12, poll_s=0.5, step_s=3) if embedded else GatePace()
    verdict = batch_of(wiring, lambda: None).check(site, pace, say)
    wiring.bucket.replace(check_object(wiring.project), verdict.dump(), generation=None)
    return verdict
