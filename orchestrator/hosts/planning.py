"""Plans for the machines that `--host` names: each is looked at and, when that is due, validated first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError, HostUnfit, NoCapacity, Unavailable
from orchestrator.core.hosts import Target, gpu_for, parse_target
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.on_hosts import plan_on_hosts
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.yamltext import scalar
from orchestrator.hosts.admission import admit
from orchestrator.hosts.cloud import HostCloud
from orchestrator.runs.engine import World
from orchestrator.runs.planning import LaunchOptions, plan_with_open_holds_settled


def targets_of(texts: Sequence[str], machine: str) -> tuple[Target, ...]:
    """The hosts that were named, each once; `local` is `machine`. Raises `ConfigError`."""
    targets = tuple(parse_target(text, machine) for text in texts)
    if len(set(targets)) < len(targets):
        raise ConfigError("the same host is named twice", hint="a host measures for one run at a time")
    return targets


def with_gpu_of_host(options: LaunchOptions, hosts: HostCloud) -> LaunchOptions:
    """The same options; where only hosts were named, with the GPU of the first of them."""
    if not options.hosts or options.gpu or options.path is not None:
        return options
    target = targets_of(options.hosts, hosts.machine)[0]
    return replace(options, gpu=gpu_for(hosts.probe(target, python_of(options))))


def python_of(options: LaunchOptions) -> str:
    """The interpreter on the host that the command line names; empty for its `python3`."""
    said = next((text.partition("=")[2] for text in options.overrides if text.startswith("host.python=")), "")
    return str(scalar(said) or "")


def plan_for_hosts(
    world: World, hosts: HostCloud, config: Config, name: str, *, say: Callable[[str], None]
) -> LaunchPlan:
    """The plan for the hosts of `config`, each of them looked at and, when that is due, validated. Nothing is left
    there but the cache folder. Raises `HostUnfit`, `NoCapacity`, `Unavailable`, `PermissionDenied`, `BudgetExceeded`.
    """
    if config.machine.container:
        raise ConfigError(
            "machine.container is for rented machines: a host's own containers are its owner's",
            hint="leave it out, or run bench inside the container with --host local",
        )
    targets: tuple[Target, ...] = ()
    notices, refused = [], None
    for target in targets_of(config.host.targets, hosts.machine):
        try:
            probe = hosts.probe(target, config.host.python)
            admit(hosts, target, probe, config, say)
        except (HostUnfit, NoCapacity, Unavailable) as exc:
            refused = exc
            notices.append(f"{target} takes no part: {exc}")
            continue
        targets = (*targets, target)
        device = ", ".join(str(gpu["name"]) for gpu in probe["gpus"]) or f"no GPU, {probe['cpu'] or probe['machine']}"
        notices.append(f"{target}: {device}; {probe['os']}; python {probe['python']}")
    if not targets and refused is not None:
        raise refused

    def make() -> LaunchPlan | PlanRefused:
        return plan_on_hosts(
            config,
            config_name=name,
            targets=targets,
            ledger=world.ledger.read(),
            caps=config.budget.caps(),
            now=world.clock.now(),
            notices=notices,
        )

    return plan_with_open_holds_settled(world, make)
