"""What `plan` and `launch` share: from flags to a `Config`, from a `Config` to a `LaunchPlan`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import BudgetExceeded, ConfigError, NoCapacity, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.config import Config
    from orchestrator.core.plan import LaunchPlan, PlanRefused
    from orchestrator.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line of `launch` and `plan`."""

    gpu: str
    path: Path | None
    overrides: tuple[str, ...]
    baseline_only: bool
    max_price: str = ""
    on_demand_after: int | None = None
    fallback_gpus: tuple[str, ...] = ()
    keep: bool = False
    hosts: tuple[str, ...] = ()

    def known(self, wiring: Wiring) -> Asked:
        """The same, with the configuration that suits the host where only a host was named."""
        if not self.hosts or self.gpu or self.path is not None:
            return self
        from orchestrator.cli.hosting import gpu_of

        return replace(self, gpu=gpu_of(wiring, self))

    @property
    def every_override(self) -> tuple[str, ...]:
        """The overrides, those that have an option of their own among them."""
        said = [f"placement.max_usd_per_hour={self.max_price}"] if self.max_price else []
        if self.on_demand_after is not None:
            said.append(f"placement.on_demand_after={self.on_demand_after}")
        if self.fallback_gpus:
            said.append(f"placement.fallback_gpus=[{', '.join(gpu.lower() for gpu in self.fallback_gpus)}]")
        if self.keep:
            said.append("run.keep=true")
        if self.hosts:
            said.append(f"host.targets={json.dumps(self.hosts)}")
        return (*self.overrides, *said)


def bundled(name: str) -> Path:
    from orchestrator.adapters.payload import bundle_root

    return bundle_root() / "configs" / name


def load_asked(asked: Asked) -> tuple[Config, str]:
    """The configuration asked for, and its name. Raises `ConfigError`."""
    import yaml

    from orchestrator.core import config as configs
    from orchestrator.core.catalog import suggest

    path = asked.path
    if path is None:
        gpu = asked.gpu.lower()
        if not gpu:
            raise ConfigError(
                "what should be measured?", hint=f"--gpu {'|'.join(known_gpus())}, or the path of a YAML file"
            )
        path = bundled(f"{gpu}.yaml")
        if gpu not in known_gpus() or not path.is_file():
            raise ConfigError(f"unknown GPU '{gpu}'; {suggest(gpu, known_gpus())}", hint="--gpu names one of them")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}", hint="see configs/ for examples, or use --gpu") from exc
    grids = yaml.safe_load(bundled("grids.yaml").read_text(encoding="utf-8"))
    overrides = (*settled(text, own=asked.path is not None), *asked.every_override)
    if asked.path is not None and asked.gpu:
        overrides = (*overrides, f"gpu={asked.gpu.lower()}")
    source = path.name if asked.path is None else str(asked.path)
    config = configs.load(text, source=source, overrides=overrides, grids=grids)
    return (configs.baseline_only(config) if asked.baseline_only else config), path.stem


def settled(text: str, *, own: bool) -> tuple[str, ...]:
    """What this user's settings put in the place of a bundled configuration's values, or add to one of one's own."""
    from orchestrator.core import yamltext
    from orchestrator.settings import load_settings

    defaults = load_settings().defaults
    said = yamltext.read(text).lines if own and defaults else {}
    return tuple(f"{key}={value}" for key, value in defaults.items() if tuple(key.split(".")) not in said)


def known_gpus() -> tuple[str, ...]:
    from orchestrator.core.catalog import GPU_NAMES

    return GPU_NAMES


def make_plan(wiring: Wiring, config: Config, name: str) -> LaunchPlan:
    """Everything decided before a cent is spent. Raises what stands in the way, with exit codes 2, 3, 4 or 6."""
    if config.host.targets:
        from orchestrator.cli.hosting import plan_hosts

        return plan_hosts(wiring, config, name)
    return agreed(try_plan(wiring, config, name))


def agreed(answer: LaunchPlan | PlanRefused) -> LaunchPlan:
    """The plan, or its refusal as an error."""
    from orchestrator.core.plan import LaunchPlan

    if isinstance(answer, LaunchPlan):
        return answer
    kinds = {"budget": BudgetExceeded, "quota": QuotaExceeded, "offers": NoCapacity}
    raise kinds[answer.kind](answer.message, hint=answer.hint)


def plan_for_launch(
    wiring: Wiring, config: Config, name: str, *, cold: bool
) -> tuple[LaunchPlan, BudgetExceeded | None]:
    """The plan; and, where the budget has nothing left for it, that refusal beside a plan that a kept machine would do
    for, as such a machine takes no new money."""
    from orchestrator.core.settings import Budget
    from orchestrator.takeover import waiting

    try:
        return make_plan(wiring, config, name), None
    except BudgetExceeded as refused:
        if cold or not waiting(wiring.world(config.budget.caps())):
            raise
        free = Budget(per_run_usd=None, per_day_usd=None, per_month_usd=None)
        return make_plan(wiring, config.model_copy(update={"budget": free}), name), refused


def try_plan(
    wiring: Wiring, config: Config, name: str, plan_once: Callable[[], LaunchPlan | PlanRefused] | None = None
) -> LaunchPlan | PlanRefused:
    """The plan, or why there is none. Before money is refused, holds of clients that died are looked after."""
    plan_again = plan_once or (lambda: _plan_all(wiring, config, name))
    answer = plan_again()
    if getattr(answer, "kind", "") != "budget" or all(
        e.settled_usd is not None for e in wiring.ledger.read().runs.values()
    ):
        return answer
    from orchestrator.reconcile import reconcile

    found = reconcile(wiring.world(config.budget.caps()))
    return plan_again() if any(one.settled for one in found) else answer


def _plan_all(wiring: Wiring, config: Config, name: str) -> LaunchPlan | PlanRefused:
    from orchestrator.core.catalog import lookup
    from orchestrator.core.plan import with_fallbacks
    from orchestrator.core.settings import with_gpu

    first = _plan_one(wiring, config, name)
    wanted = [found for gpu in config.placement.fallback_gpus if (found := lookup(gpu)) and found.name != config.gpu]
    if not wanted:
        return first
    return with_fallbacks(first, [_plan_one(wiring, with_gpu(config, gpu), name) for gpu in wanted])


def _plan_one(wiring: Wiring, config: Config, name: str) -> LaunchPlan | PlanRefused:
    from orchestrator.core.plan import plan, priced_offers
    from orchestrator.core.pricing import PriceSheet

    prices = PriceSheet.parse(bundled("prices.yaml").read_text(encoding="utf-8"), source="prices.yaml")
    cloud = wiring.cloud()
    regions = sorted({zone.rpartition("-")[0] for zone in config.allowed_zones()})
    return plan(
        config,
        config_name=name,
        mode=wiring.mode,
        prices=prices,
        image=cloud.image(*config.image_source),
        quotas={region: cloud.quotas(region) for region in regions},
        ledger=wiring.ledger.read(),
        caps=config.budget.caps(),
        now=wiring.clock.now(),
        advice=cloud.advice(priced_offers(config, prices)),
        stock_outs=wiring.history.stock_outs(config.machine_type),
    )
