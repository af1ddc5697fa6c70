"""Plans for the machine that `--host` names: it is probed first and, if that is due, validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import Target, gpu_for, parse_target
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import plan_on_hosts
from orchestrator.core.yamltext import scalar
from orchestrator.hosts.admission import admit
from orchestrator.hosts.cloud import HostCloud
from orchestrator.runs.engine import World
from orchestrator.runs.planning import LaunchOptions, plan_with_open_holds_settled


def target_of(texts: Sequence[str], machine: str) -> Target:
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


def with_gpu_of_host(options: LaunchOptions, hosts: HostCloud) -> LaunchOptions:
    """The same options. If they name only a host, the GPU that it has is added."""
    if not options.hosts or options.gpu or options.path is not None:
        return options
    target = target_of(options.hosts, hosts.machine)
    return replace(options, gpu=gpu_for(hosts.probe(target, python_of(options))))


def python_of(options: LaunchOptions) -> str:
    """The interpreter on the host that the command line names; empty for its `python3`."""
    said = next((text.partition("=")[2] for text in options.overrides if text.startswith("host.python=")), "")
    return str(scalar(said) or "")


def plan_for_hosts(
    world: World, hosts: HostCloud, config: Config, name: str, *, say: Callable[[str], None]
) -> LaunchPlan:
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
    admit(hosts, target, probe, config, say)
    device = ", ".join(str(gpu["name"]) for gpu in probe["gpus"]) or f"no GPU, {probe['cpu'] or probe['machine']}"
    notice = f"{target}: {device}; {probe['os']}; python {probe['python']}"

    def make() -> LaunchPlan | PlanRefused:
        return plan_on_hosts(
            config,
            config_name=name,
            target=target,
            ledger=world.ledger.read(),
            caps=config.budget.caps(),
            now=world.clock.now(),
            notices=(notice,),
        )

    return plan_with_open_holds_settled(world, make)
