"""What `launch` and `plan` do about `--host`: find out what is there, and plan for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError, HostUnfit, NoCapacity, Unavailable

if TYPE_CHECKING:
    from orchestrator.cli.asking import Asked
    from orchestrator.core.config import Config
    from orchestrator.core.hosts import Target
    from orchestrator.core.plan import LaunchPlan, PlanRefused
    from orchestrator.wiring import Wiring


def targets_of(texts: Sequence[str]) -> tuple[Target, ...]:
    """The hosts that were named, each once. Raises `ConfigError`."""
    from orchestrator.core.hosts import parse_target

    targets = tuple(parse_target(text) for text in texts)
    if len(set(targets)) < len(targets):
        raise ConfigError("the same host is named twice", hint="a host measures for one run at a time")
    return targets


def gpu_of(wiring: Wiring, asked: Asked) -> str:
    """The configuration for hosts where nobody named one: by what the first of them is."""
    from orchestrator.core.hosts import gpu_for
    from orchestrator.core.yamltext import scalar

    targets = targets_of(asked.hosts)
    python = next((text.partition("=")[2] for text in asked.overrides if text.startswith("host.python=")), "")
    return gpu_for(wiring.hosts.probe(targets[0], str(scalar(python) or "")))


def plan_hosts(wiring: Wiring, config: Config, name: str) -> LaunchPlan:
    """The plan for the hosts of `config`, each of them looked at and, when that is due, validated. Nothing is left
    there but the cache folder. Raises `HostUnfit`, `NoCapacity`, `Unavailable`, `PermissionDenied`, `BudgetExceeded`.
    """
    from orchestrator.cli.asking import agreed, try_plan
    from orchestrator.core.host_plan import plan_on_hosts
    from orchestrator.host_check import admit

    targets: tuple[Target, ...] = ()
    notices, refused = [], None
    for target in targets_of(config.host.targets):
        try:
            probe = wiring.hosts.probe(target, config.host.python)
            admit(wiring.hosts, target, probe, config, wiring.say)
        except (HostUnfit, NoCapacity, Unavailable) as exc:
            refused = exc
            notices.append(f"{target} takes no part: {exc}")
            continue
        targets = (*targets, target)
        device = ", ".join(str(gpu["name"]) for gpu in probe["gpus"]) or f"no GPU, {probe['cpu'] or probe['machine']}"
        notices.append(f"{target}: {device}; {probe['os']}; python {probe['python']}")
    if not targets and refused is not None:
        raise refused

    def once() -> LaunchPlan | PlanRefused:
        return plan_on_hosts(
            config,
            config_name=name,
            targets=targets,
            ledger=wiring.ledger.read(),
            caps=config.budget.caps(),
            now=wiring.clock.now(),
            notices=notices,
        )

    return agreed(try_plan(wiring, config, name, once))
