"""Makes the `Config` of a launch from its options, and a `LaunchPlan` from a `Config`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from orchestrator.core import yamltext
from orchestrator.core.config import load
from orchestrator.core.config.model import Budget, Config, Workload, baseline_only, with_gpu
from orchestrator.core.errors import BudgetExceeded, ConfigError, NoCapacity, QuotaExceeded
from orchestrator.core.forms.gpumode import TASK_FILES
from orchestrator.core.forms.program import is_program
from orchestrator.core.images import choose_image, environments_for
from orchestrator.core.ledger.budget import without_run
from orchestrator.core.market.catalog import CATALOG, GPU_NAMES, find_gpu, unknown_gpu_message
from orchestrator.core.market.offers import region_of
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.names import NO_IMAGE, ImageUrl, Region
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused, priced_offers
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch, with_fallbacks
from orchestrator.core.run.decide import SPOT
from orchestrator.core.run.status import decode_status
from orchestrator.core.text import clean_line, count, os_error_text, read_text
from orchestrator.core.workload import HINT
from orchestrator.runs.engine import World
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.runs.takeover import may_have_waiting


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a user chose on the command line of `launch`, `plan`, `budget` or `doctor`."""

    gpu: str
    path: Path | None
    overrides: tuple[str, ...]
    baseline_only: bool = False
    max_price: str = ""
    on_demand_after: int | None = None
    fallback_gpus: tuple[str, ...] = ()
    keep: bool = False
    hosts: tuple[str, ...] = ()
    wait_minutes: int | None = None

    @property
    def every_override(self) -> tuple[str, ...]:
        """All overrides, including those that were given by options of their own."""
        price_overrides = [f"placement.max_usd_per_hour={self.max_price}"] if self.max_price else []
        if self.on_demand_after is not None:
            price_overrides.append(f"placement.on_demand_after={self.on_demand_after}")
        if self.fallback_gpus:
            price_overrides.append(f"placement.fallback_gpus=[{', '.join(gpu.lower() for gpu in self.fallback_gpus)}]")
        if self.keep:
            price_overrides.append("run.keep=true")
        if self.wait_minutes is not None:
            price_overrides.append(f"placement.wait_minutes={self.wait_minutes}")
        if self.hosts:
            price_overrides.append(f"host.targets={json.dumps(self.hosts)}")
        return (*self.overrides, *price_overrides)


def load_config(
    options: LaunchOptions, *, configs: Path, defaults: Mapping[str, str], workload: Callable[[Path, bool], Workload]
) -> tuple[Config, str]:
    """The configuration that was chosen, and its name. `configs` is the folder of those that come with the tool;
    `defaults` are the keys that this user's settings have; `workload` reads a workload of the user's own, which a
    configuration may name, or which stands in its place, for a machine that may have modules of its own or not. Raises
    `ConfigError`."""
    if options.path is not None and is_workload(options.path):
        named = f"workload.path={json.dumps(str(options.path.resolve()))}"
        chosen = replace(options, path=None, gpu=options.gpu or "cpu", overrides=(*options.overrides, named))
        config, _ = load_config(chosen, configs=configs, defaults=defaults, workload=workload)
        assert config.workload is not None, "its path was given"
        return config, config.workload.name
    path = options.path
    if path is None:
        gpu = options.gpu.lower()
        if not gpu:
            if options.overrides:  # a mistake in them comes first
                load_config(replace(options, gpu="cpu"), configs=configs, defaults=defaults, workload=workload)
            raise ConfigError(
                "no GPU and no configuration given: what should be measured?",
                hint=(
                    f"`bench launch --gpu {'|'.join(GPU_NAMES)}`, or give the path of a YAML file or of your own "
                    "kernel (.py)"
                ),
            )
        path = configs / f"{gpu}.yaml"
        if gpu not in GPU_NAMES or not path.is_file():
            raise ConfigError(unknown_gpu_message(gpu), hint="choose one of them with --gpu")
    if path.is_file() and path.suffix.lower() in OTHER_KINDS:
        raise ConfigError(f"{path}: {OTHER_KINDS[path.suffix.lower()]}", hint=HINT)
    text = read_file(path, "`bench config show l4` prints a configuration to begin with; or use --gpu")
    grids = _grids((configs / "grids.yaml").read_text(encoding="utf-8"))
    overrides = (*_from_settings(text, defaults, own=options.path is not None), *options.every_override)
    if options.path is not None and options.gpu:
        overrides = (*overrides, f"gpu={options.gpu.lower()}")
    source = path.name if options.path is None else str(options.path)
    config = load.load(text, source=source, overrides=overrides, grids=grids)
    if config.workload is not None:
        read = workload(path.parent / os.path.expanduser(config.workload.path), brings_modules(config))  # noqa: PTH111 - never raises
        read_workload_spec = config.workload.model_copy(
            update=dict(read) | {"axes": config.workload.axes, "answer_limit_s": config.workload.answer_limit_s}
        )
        return load.select_cases(config, read_workload_spec), path.stem
    return (baseline_only(config) if options.baseline_only else config), path.stem


def read_file(path: Path, hint: str) -> str:
    """The text of a file in YAML. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            return read_text(file)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {os_error_text(exc)}", hint=hint) from exc


def brings_modules(config: Config) -> bool:
    """Whether what runs the workload may have modules that nothing here knows of: a machine, a container or an image of
    the user's own."""
    project = config.machine.image_project
    shipped = {gpu.image_project for gpu in CATALOG}
    return bool(config.host.targets or config.machine.container or (project and project not in shipped))


OTHER_KINDS: Final = {
    ".ipynb": "a notebook is not measured; copy the functions into a .py file",
    ".py": "the name of a Python file must end with .py, in lower case",
    ".cu": "CUDA source needs a Python file beside it that says how it is called; give the path of that",
    ".txt": "expected a configuration (.yaml), or a workload (.py, or a folder)",
}
"""What is wrong with a file that is neither a configuration nor a workload, by the end of its name."""


def is_workload(path: Path) -> bool:
    """Whether a path is a workload and no configuration: a folder, Python, or the description of one. Raises
    `ConfigError` for a path that no file can have, or that may not be looked at."""
    try:
        folder = path.is_dir()
    except (OSError, ValueError) as exc:
        hint = "check the path, and your permissions on the folders above it"
        raise ConfigError(f"cannot open {clean_line(str(path), 200)}: {os_error_text(exc)}", hint=hint) from exc
    if folder or path.suffix in (".py", ".json") or path.name in TASK_FILES:
        return True
    if path.suffix not in (".yaml", ".yml"):
        return False
    try:
        with path.open("rb") as file:
            return is_program(read_text(file))
    except (OSError, ValueError):
        return False


@cache
def _grids(text: str) -> Mapping[str, Any]:
    """The grids in YAML: read once for all the configurations of a fleet."""
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def _from_settings(text: str, defaults: Mapping[str, str], *, own: bool) -> tuple[str, ...]:
    """The settings as overrides: they replace values of a bundled configuration, and are added to the user's own."""
    present = yamltext.read_yaml(text).lines if own and defaults else {}
    return tuple(f"{key}={value}" for key, value in defaults.items() if tuple(key.split(".")) not in present)


def plan_or_raise(answer: LaunchPlan | PlanRefused) -> LaunchPlan:
    """The plan, or its refusal as an error. Raises `BudgetExceeded`, `QuotaExceeded`, `NoCapacity`."""
    if isinstance(answer, LaunchPlan):
        return answer
    kinds = {"budget": BudgetExceeded, "quota": QuotaExceeded, "offers": NoCapacity}
    raise kinds[answer.kind](answer.message, hint=answer.hint)


def plan_for_launch(
    world: World, config: Config, make: Callable[[Config], LaunchPlan], *, cold: bool, say: Callable[[str], None]
) -> tuple[LaunchPlan, BudgetExceeded | None]:
    """The plan that `make` returns. If the budget has nothing left for it, after what clients that died had held is
    settled, the refusal, with a plan for a kept machine, which needs no new money."""
    try:
        return after_settling_abandoned(world, lambda: make(config), say), None
    except BudgetExceeded as refused:
        if cold or not may_have_waiting(world):
            raise
        free = Budget(per_run_usd=None, per_day_usd=None, per_month_usd=None, total_usd=None)
        try:
            return make(config.model_copy(update={"budget": free})), refused
        except BudgetExceeded:
            raise refused from None  # the bucket's own caps


@dataclass(frozen=True, slots=True)
class RentedFrom:
    """Where machines are rented from, at what prices; `here` is the GPU that the embedded cloud really has."""

    mode: Mode
    prices: PriceSheet
    here: str = ""


def plan_on_cloud(world: World, config: Config, name: str, site: RentedFrom, *, under: str = "") -> LaunchPlan:
    """The plan for rented machines, those of the fallback GPUs among them; for a run that goes on, `under` names the
    hold that it has. Raises as `plan_or_raise`."""

    first = _for_one_gpu(world, config, name, site, under)
    fallback_gpus = (find_gpu(gpu) for gpu in config.placement.fallback_gpus)
    fallback_configs = [with_gpu(config, gpu) for gpu in fallback_gpus if gpu and gpu.name != config.gpu]
    fallbacks = [_for_one_gpu(world, other, name, site, under) for other in fallback_configs]
    return plan_or_raise(with_fallbacks(first, fallbacks) if fallbacks else first)


def _for_one_gpu(world: World, config: Config, name: str, site: RentedFrom, under: str) -> LaunchPlan | PlanRefused:
    cloud = world.cloud()
    base = cloud.image(*config.image_source)
    ready, image_notices = prepared_image(world, config, base)
    regions = sorted({Region(region_of(zone)) for zone in config.allowed_zones()})
    around = Circumstances(
        mode=site.mode,
        prices=site.prices,
        image=ready or base,
        quotas={region: cloud.quotas(region) for region in regions},
        ledger=without_run(world.ledger.read(), under),
        caps=config.budget.caps(),
        now=world.clock.now(),
        advice=cloud.advice(priced_offers(config, site.prices)),
        stock_outs=world.history.stock_outs(config.machine_type) if world.history else {},
        here=site.here,
        runs=[
            line
            for entry in world.index.list_recent(world.clock.now())[0]
            if (line := decode_status(entry.run_id, entry.status)) is not None
        ],
    )
    made = plan_launch(config, name, around)
    if isinstance(made, PlanRefused):
        return made
    unadvised = site.mode is Mode.GCE and not around.advice and any(one.provisioning == SPOT for one in made.offers)
    notices = (*made.notices, *image_notices, *([UNADVISED] if unadvised else []))
    return replace(made, base_image=base if ready else NO_IMAGE, notices=notices)


UNADVISED: Final = (
    "Google gives no capacity advice here (compute.advice): zones are in the order of prices and of stock-outs seen"
)


def prepared_image(world: World, config: Config, base: ImageUrl) -> tuple[ImageUrl, tuple[str, ...]]:
    """The prepared image that a launch boots from, and what is to be said of it: none where there is none that is
    valid, or where none is wanted. Nothing is asked of the cloud where the bucket knows of no image."""
    if world.shelf is None or not config.machine.prepared:
        return NO_IMAGE, ()
    records, odd = world.shelf.records.every()
    warnings = tuple(odd.values())
    now = world.clock.now()
    if not any(one.gpu == config.gpu and one.gone_at is None for one in records):
        return NO_IMAGE, warnings
    seen = {one.name: one for one in world.shelf.cloud().images()}
    wanted = environments_for(config.environment.torch, () if config.workload is None else config.workload.needs)
    usable, unusable = choose_image(
        [one for one in records if one.gone_at is None], seen, config.gpu, base, wanted, now
    )
    if usable is None:
        return NO_IMAGE, (
            *warnings,
            f"no prepared image is used, because of {unusable[0].record.name}: {unusable[0].why}",
        )
    days = (now - usable.record.created_at).days
    valid = (f"this launch validates it: {usable.validates}") if usable.validates else "valid"
    return ImageUrl(usable.url), (*warnings, f"prepared image {usable.record.name}, {count(days, 'day')} old, {valid}")
