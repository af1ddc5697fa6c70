"""What `plan` and `launch` share: from flags to a `Config`, from a `Config` to a `LaunchPlan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import BudgetExceeded, ConfigError, NoCapacity, QuotaExceeded

if TYPE_CHECKING:
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
    overrides = asked.overrides
    if asked.path is not None and asked.gpu:
        overrides = (*overrides, f"gpu={asked.gpu.lower()}")
    source = path.name if asked.path is None else str(asked.path)
    config = configs.load(text, source=source, overrides=overrides, grids=grids)
    return (configs.baseline_only(config) if asked.baseline_only else config), path.stem


def known_gpus() -> tuple[str, ...]:
    from orchestrator.core.catalog import GPU_NAMES

    return GPU_NAMES


def make_plan(wiring: Wiring, config: Config, name: str) -> LaunchPlan:
    """Everything decided before a cent is spent. Raises what stands in the way, with exit codes 2, 3, 4 or 6."""
    answer = try_plan(wiring, config, name)
    from orchestrator.core.plan import LaunchPlan

    if isinstance(answer, LaunchPlan):
        return answer
    kinds = {"budget": BudgetExceeded, "quota": QuotaExceeded, "offers": NoCapacity}
    raise kinds[answer.kind](answer.message, hint=answer.hint)


def try_plan(wiring: Wiring, config: Config, name: str) -> LaunchPlan | PlanRefused:
    from orchestrator.core.plan import plan
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
    )
