"""Plans for the machine that `--host` names: it is probed first and, if that is due, validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.core.bundled import is_kernel
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError, HostUnfit
from orchestrator.core.host_answers import busy_error
from orchestrator.core.hosts import (
    HostNeeds,
    HostRecord,
    HostTarget,
    Lack,
    first_lack,
    gpu_for,
    host_fingerprint,
    lacks_packages,
    parse_target,
    why_validate,
)
from orchestrator.core.names import Zone
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import plan_on_hosts
from orchestrator.core.yamltext import read_scalar
from orchestrator.ports import Hosts
from orchestrator.runs.engine import World
from orchestrator.runs.planning import LaunchOptions, plan_or_raise

# Whether a host has what a run needs: it is probed before each run, and validated when that is due.


def needs_of(config: Config) -> HostNeeds:
    """What a run of `config` needs on a host."""
    cuda = config.gpu != "cpu"
    compiler = not cuda and any(map(is_kernel, config.measure.implementations))
    gpus = config.workload.gpus if config.workload is not None else 0
    return HostNeeds(cuda=cuda, compiler=compiler, min_free_gb=config.environment.min_free_gb, gpus=gpus)


def admit_host(
    hosts: Hosts,
    target: HostTarget,
    probe: Mapping[str, Any],
    config: Config,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Checks that a host can measure `config`. Validates it if that is due, and stores the result in the bucket. Raises
    `HostUnfit` for what the host lacks, `NoCapacity` while it measures for another run."""
    needs, name, python = needs_of(config), target.called, config.host.python
    refuse(first_lack(probe, needs, name))
    if probe["busy"]:
        raise busy_error(target, probe["busy"])
    now_is, now = host_fingerprint(probe), hosts.clock.now()
    record = hosts.record(Zone(target.zone))
    due = why_validate(record, now_is, now)
    if not due and record is not None and needs.cuda and "+cpu" in record.torch:
        due = "its GPU was not validated before"
    if due:
        say(f"validating {target}: {due}")
        validation = hosts.validate(target, python)
        refuse(lacks_packages(validation, needs, name, str(probe["executable"]), config.environment.torch))
        known_facts = {"validated_at": hosts.clock.now(), "fingerprint": now_is, "torch": str(validation["torch"])}
    else:
        known_facts = {}

    def change(record: HostRecord) -> HostRecord:
        return record.model_copy(update={**known_facts, "target": str(target), "python": python})

    hosts.remember(target, change)


def refuse(lack: Lack | None) -> None:
    if lack is not None:
        raise HostUnfit(lack.what, hint=lack.remedy)


def target_of(texts: Sequence[str], machine: str) -> HostTarget:
    """The host in `texts`; `local` is `machine`. Raises `ConfigError` for several: a run is on one machine."""
    targets = tuple(parse_target(text, machine) for text in texts)
    if len(targets) > 1:
        named = " ".join(f"--host {one}" for one in texts)
        raise ConfigError(
            f"a run is measured on one machine, and {len(targets)} are named",
            hint=f"`bench fleet launch --engine hosts {named} --gpu GPU --cases-per-child 12` divides the cases "
            "among them",
        )
    return targets[0]


def with_gpu_of_host(options: LaunchOptions, hosts: Hosts) -> LaunchOptions:
    """The same options. If they name only a host, the GPU that it has is added."""
    if not options.hosts or options.gpu or options.path is not None:
        return options
    target = target_of(options.hosts, hosts.machine)
    return replace(options, gpu=gpu_for(hosts.probe(target, python_of(options))))


def python_of(options: LaunchOptions) -> str:
    """The interpreter on the host that the command line names; empty for its `python3`."""
    python_override = next(
        (text.partition("=")[2] for text in options.overrides if text.startswith("host.python=")), ""
    )
    return str(read_scalar(python_override) or "")


def plan_for_hosts(world: World, hosts: Hosts, config: Config, name: str, *, say: Callable[[str], None]) -> LaunchPlan:
    """The plan for the host of `config`, which is probed and, if that is due, validated. Only the cache folder stays
    there. Raises `ConfigError`, `HostUnfit`, `NoCapacity`, `Unavailable`, `PermissionDenied`,
    `BudgetExceeded`."""
    if config.machine.container:
        raise ConfigError(
            "machine.container is for rented machines only: bench starts no containers on a host",
            hint="remove machine.container, or run bench inside the container with --host local",
        )
    target = target_of(config.host.targets, hosts.machine)
    probe = hosts.probe(target, config.host.python)
    admit_host(hosts, target, probe, config, say)
    device = ", ".join(str(gpu["name"]) for gpu in probe["gpus"]) or f"no GPU, {probe['cpu'] or probe['machine']}"
    notice = f"{target}: {device}; {probe['os']}; python {probe['python']}"

    made = plan_on_hosts(
        config,
        config_name=name,
        target=target,
        ledger=world.ledger.read(),
        caps=config.budget.caps(),
        now=world.clock.now(),
        notices=(notice,),
    )
    return plan_or_raise(made)
