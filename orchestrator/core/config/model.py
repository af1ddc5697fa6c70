"""The model of a configuration: its sections, and what they mean in each mode. Amounts of money are in dollars."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from orchestrator.core.bounds import Amount, StrictModel
from orchestrator.core.bundled import CHOICES, DEFAULT, IMPLEMENTATIONS, Shape, is_implementation, is_kernel
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import PYTHON
from orchestrator.core.images import require_digest, require_release
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.catalog import Gpu, find_gpu, suggest, unknown_gpu_message
from orchestrator.core.market.offers import region_of
from orchestrator.core.names import ImageName, MachineType, ProjectId, Region, Zone
from orchestrator.core.results import CONTROL

# Grids: named sets of problems, each written out in full (docs/contracts.md, section 4).


DTYPES: Final = ("float16", "bfloat16", "float32")

T = TypeVar("T")


def require_unique(entries: tuple[T, ...]) -> tuple[T, ...]:
    """Returns `entries` unchanged. Raises `ValueError` if one is given twice: it would be measured twice under one
    name."""
    for index, entry in enumerate(entries):
        if entry in entries[:index]:
            raise ValueError(f"entry {index + 1} is a duplicate: {entry}")
    return entries


class Grid(StrictModel):
    """Shapes, and the element types in which they are measured unless the run names others."""

    name: str = "inline"
    description: str = ""
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1)]
    dtypes: tuple[str, ...] = ()

    @field_validator("dtypes")
    @classmethod
    def dtypes_are_known(cls, dtypes: tuple[str, ...]) -> tuple[str, ...]:
        for dtype in dtypes:
            if dtype not in DTYPES:
                raise ValueError(f"unknown dtype '{dtype}'; valid: {', '.join(DTYPES)}")
        return require_unique(dtypes)

    @field_validator("shapes")
    @classmethod
    def each_shape_once(cls, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        return require_unique(shapes)


def resolve_grid(grid: str | Mapping[str, Any] | Grid, grids: Mapping[str, Any]) -> Grid:
    """The grid named `grid`, or the grid given inline, with every shape in full. Raises `KeyError` for an unknown name,
    and pydantic's `ValidationError` for an invalid grid."""
    if isinstance(grid, str):
        named_grid = grids[grid]
        grid = named_grid if isinstance(named_grid, Grid) else {"name": grid, **named_grid}
    return grid if isinstance(grid, Grid) else Grid.model_validate(grid)


def case_ids(grid: Grid) -> tuple[str, ...]:
    """The cases of a grid in the order in which they run: by shape, then by dtype."""
    return tuple(shape.case_id(dtype) for shape in grid.shapes for dtype in grid.dtypes)


def harness_shapes(grid: Grid) -> list[dict[str, Any]]:
    """The shapes as the harness reads them."""
    return [shape.model_dump(mode="json") for shape in grid.shapes]


PHASE_LIMITS_S: Final = {
    # in the order in which phases run
    "preflight": 300,
    "environment": 600,
    "build": 300,
    "correctness": 600,
    "measure": 1500,
    "finish": 60,
}
DEFAULT_DTYPES: Final = ("float32",)
"""For a grid that names no dtypes."""
BOTH: Final = "both"
"""The choice that measures two regimes: burst, and the steady state (sustained or graph)."""

Phase = Literal["preflight", "environment", "build", "correctness", "measure", "finish"]
Dtypes = Annotated[tuple[Literal["float16", "bfloat16", "float32"], ...], AfterValidator(require_unique)]


def _not_a_truth_value(value: Any) -> Any:
    # YAML reads yes, no, on and off as booleans, which Python would count as 1 and 0.
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {str(value).lower()}")
    return value


Int = Annotated[int, BeforeValidator(_not_a_truth_value)]


class MachineSpec(StrictModel):
    type: MachineType | Literal[""] = ""
    """Machine type; empty: the GPU's own."""
    disk_gb: Annotated[Int, Field(ge=10, le=65536)] = 60
    """Size of the boot disk in GB."""
    disk_type: Literal["", "pd-balanced", "pd-standard", "pd-ssd", "hyperdisk-balanced"] = ""
    """Type of the boot disk."""
    image_project: ProjectId | Literal[""] = ""
    """Project of the boot image; empty: the GPU's own."""
    image_family: ImageName | Literal[""] = ""
    """Family of the boot image, of which the newest is taken; empty: the GPU's own."""
    prepared: bool = True
    """Boot from a valid image of `bench image build`, if there is one."""
    container: Annotated[str, AfterValidator(require_digest)] = ""  # with its digest; empty: no container is used
    """A container to run in, with its digest; empty: none."""
    provisioning: Literal["spot", "flex-start", "standard"] = "spot"
    """spot (cheaper, may be preempted), flex-start (queued, not preempted) or standard."""
    external_ip: bool = True
    """Give the machine an address of its own; without one it needs Cloud NAT."""
    service_account: str | None = None
    """The account that the machine runs as; null: the project's default."""
    network: str = "global/networks/default"
    """The network of the machine."""


class RunLimits(StrictModel):
    max_minutes: Annotated[Int, Field(ge=1, le=10080)] = 30
    """Minutes after which Google deletes a machine; also what a run can cost."""
    attempts: Annotated[Int, Field(ge=1, le=20)] = 3
    """How many machines a run may use, one after the other, if they are lost."""
    phase_limits_s: dict[Phase, Annotated[Int, Field(ge=1)]] = Field(default_factory=dict)
    """Limits of single phases in seconds, such as {build: 600}."""
    keep: bool = False
    """Keep the machine for the next launch. It stays no longer than `max_minutes` from its start, and so within its
    hold."""
    idle_minutes: Annotated[Int, Field(ge=1, le=60)] = 10
    """Minutes that a kept machine waits for a run before it deletes itself."""

    def limits(self) -> dict[str, int]:
        """Each phase's limit in seconds: the defaults, replaced by the limits that were given."""
        return PHASE_LIMITS_S | {str(phase): seconds for phase, seconds in self.phase_limits_s.items()}


class Placement(StrictModel):
    """How far the search for a machine may go."""

    max_usd_per_hour: Amount | None = None
    """Use no machine that costs more an hour."""
    on_demand_after: Annotated[Int, Field(ge=0, le=20)] | None = None
    """Use an on-demand machine after so many preemptions; null: never. One is also requested if no spot machine can be
    had."""
    fallback_gpus: tuple[str, ...] = ()
    """Other GPUs to try, in order, if the first cannot be had."""
    wait_minutes: Annotated[Int, Field(ge=0, le=10080)] = 0
    """Minutes to wait for capacity if no machine can be had; 0: the launch ends."""


class Budget(StrictModel):
    per_run_usd: Amount | None = Decimal("1.00")
    """The most that one run may hold and spend; null: no limit."""
    per_day_usd: Amount | None = Decimal("5.00")
    """The most that all runs of a day may spend."""
    per_month_usd: Amount | None = Decimal("20.00")
    """The most that all runs of a month may spend."""
    total_usd: Amount | None = Decimal("100.00")
    """The most that all runs may spend, ever."""

    def caps(self) -> Caps:
        return Caps(run=self.per_run_usd, day=self.per_day_usd, month=self.per_month_usd, total=self.total_usd)


class Alerts(StrictModel):
    command: str | None = None
    """A program to call when a threshold of a cap is reached, or a run ends."""
    webhook: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """An address that gets the same as JSON."""
    done: bool = True
    """Whether they are also called, and the terminal's bell rings, when a run ends."""


def _implementation(name: str) -> str:
    if not is_implementation(name):
        raise ValueError(f"'{name}' is not a choice; {suggest(name, CHOICES)}")
    return name


class Measure(StrictModel):
    grid: Grid
    """The problems to measure: the name of a grid, or one spelt out."""
    embedded_grid: Grid | None = None
    """The grid for practice; null: the same."""
    dtypes: Dtypes = ()
    """Data types to measure; empty: the grid's own."""
    embedded_dtypes: Dtypes = ()
    """Data types for practice; empty: those of its grid."""
    implementations: Annotated[
        tuple[Annotated[str, AfterValidator(_implementation)], ...],
        Field(min_length=1),
        AfterValidator(require_unique),
    ] = IMPLEMENTATIONS
    """What is measured: the bundled kernel and PyTorch's."""
    repeats: Annotated[Int, Field(ge=1, le=100_000)] = 50
    """Measurements of each implementation, in each case and regime."""
    warmup: Annotated[Int, Field(ge=0, le=10_000)] | None = None
    """Calls before the first measured one; null: until times no longer change."""
    control: bool = True
    """Measure the first implementation twice, to show how large the noise is."""
    stop_at_relative_ci: Annotated[float, Field(gt=0, lt=1)] | None = None
    """End a case early, once each ratio is known within this share: 0.01."""
    case_budget_usd: Annotated[Decimal, Field(gt=0, allow_inf_nan=False)] | None = None
    """End a case early, once the machine has cost this much since it began."""
    regime: Literal["auto", "both", "burst+graph", "burst", "sustained", "graph"] = "auto"
    """How calls follow each other: alone (burst), back to back, or in a CUDA graph. `auto` means both on a GPU and
    `burst` on a CPU."""
    cache: Literal["cold", "warm"] = "cold"
    """Whether inputs lie outside the last-level cache (cold) or in it (warm)."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 20261121
    """The seed of inputs and of the order of measurements."""
    threads: Annotated[Int, Field(ge=0, le=4096)] = 0
    """Threads of the CPU; 0: all that the machine has."""


class Correctness(StrictModel):
    grid: Grid
    """The problems on which answers are checked before anything is timed."""
    embedded_grid: Grid | None = None
    """The same for practice; null: the same."""
    dtypes: Dtypes = ()
    """Data types to check; empty: the grid's own, or else those that are measured."""
    embedded_dtypes: Dtypes = ()
    """The same for practice."""
    max_abs_error: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """The largest error that passes."""
    sanitizer: Literal["memcheck", "racecheck", "initcheck", "synccheck"] | None = None
    """A tool of compute-sanitizer under which your own kernels are called once; null: none."""


class Environment(StrictModel):
    torch: Annotated[str, AfterValidator(require_release)] = "2.13.0"  # empty: the newest that the driver serves
    """The version of PyTorch that is installed if the image has none that works."""
    allow_install: bool = True
    """Whether packages may be installed on the machine."""
    min_free_gb: Annotated[float, Field(ge=0)] = 4
    """Free disk in GB without which a run does not begin."""


def _interpreter(path: str) -> str:
    if not re.fullmatch(PYTHON, path):
        raise ValueError("an interpreter's name begins with py: link it, as in `ln -s WRAPPER ~/python-torch`")
    return path


class HostsSpec(StrictModel):
    """The user's own machines, on which a run measures over SSH instead of on rented ones."""

    targets: tuple[str, ...] = ()
    """Machines of your own: user@box:port, or aliases of ~/.ssh/config."""
    hourly_usd: Amount = Decimal(0)
    """What an hour of such a machine counts against the caps."""
    python: Annotated[str, AfterValidator(_interpreter)] = ""
    """The interpreter there that has torch; empty: python3."""


Form = Literal["file", "kernelbench", "gpumode", "flashinfer", "program"]
"""The form in which a workload is written. `kernels/forms/` has a reader for each."""


class Workload(StrictModel):
    """A workload that the user wrote. `cases` are the case ids that can be read from its text without running it.
    `needs` are the packages that it says must be installed: `pip triton==3.4`, `apt libnuma-dev`."""

    path: str
    """A kernel of your own: its file or folder."""
    name: str = ""
    form: Form = "file"
    axes: dict[str, tuple[str | int | float, ...]] = Field(default_factory=dict)
    """The values to measure of some axes, such as {rows: [512]}."""
    answer_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds after which a call counts as hung. None to follow the baselines."""
    cases: tuple[str, ...] = ()
    needs: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    grid: Annotated[tuple[dict[str, Any], ...], Field(exclude=True)] = ()
    """Each case that can be read from its text, as values by axis; empty if the cases are known only when it runs."""
    notes: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    """What of the workload is not used or not sent, and why; the plan shows it."""
    gpus: Annotated[int, Field(exclude=True)] = 0
    """How many GPUs a program needs at once; 0: it does not say."""
    cuda: Annotated[tuple[str, ...], Field(exclude=True)] = ()
    """The CUDA sources that its implementations name; without a GPU these implementations are skipped."""

    @property
    def place(self) -> str:
        """Its path in the payload."""
        return f"own/{self.name}.py" if self.form == "file" else "own"

    @model_validator(mode="before")
    @classmethod
    def a_path_is_enough(cls, data: Any) -> Any:
        """Accepts the path alone, as in `workload: rmsnorm.py`."""
        return {"path": data} if isinstance(data, str) else data


class ProfileSpec(StrictModel):
    """What a run profiles after all measurements. A profile never becomes rows."""

    cases: tuple[str, ...] = ()
    """Cases to profile after the measurements; empty: none."""
    implementations: tuple[str, ...] = ()
    """What is profiled; empty: all that is measured."""
    set: Literal["roofline", "full", "trace"] = "roofline"
    """roofline, full, or trace."""

    def asked(self) -> dict[str, Any]:
        """The key `profile` of the harness's spec with its value; empty if nothing is profiled."""
        profile = {"cases": list(self.cases), "implementations": list(self.implementations), "set": self.set}
        return {"profile": profile} if self.cases else {}


class PayloadSpec(StrictModel):
    root: str | None = None
    """A folder with kernels/ and startup/ to send instead of the bundled ones."""


class Config(StrictModel):
    """The configuration of one run. Every grid in it is written out."""

    gpu: str
    """The GPU to rent: l4, t4, a100, a100-80gb, h100, h200, b200, g4; or cpu."""
    machine: MachineSpec = MachineSpec()
    zones: tuple[Zone, ...] = ()
    """The zones that may be tried, in any order; empty: all that have the GPU."""
    regions: tuple[Region, ...] = ()
    """The regions whose zones may be tried, if no zones are named."""
    run: RunLimits = RunLimits()
    placement: Placement = Placement()
    budget: Budget = Budget()
    alerts: Alerts = Alerts()
    measure: Measure
    correctness: Correctness
    environment: Environment = Environment()
    host: HostsSpec = HostsSpec()
    payload: PayloadSpec = PayloadSpec()
    profile: ProfileSpec = ProfileSpec()
    workload: Workload | None = None
    """None: the bundled workload."""

    @property
    def gpu_spec(self) -> Gpu:
        gpu = find_gpu(self.gpu)
        if gpu is None:  # `load` refuses such a configuration
            raise ConfigError(f"gpu: {unknown_gpu_message(self.gpu)}")
        return gpu

    @property
    def machine_type(self) -> str:
        return self.machine.type or self.gpu_spec.default_machine

    @property
    def disk_type(self) -> str:
        return self.machine.disk_type or self.gpu_spec.disk_type

    @property
    def image_source(self) -> tuple[ProjectId, ImageName]:
        """(project, family) of the boot image."""
        gpu = self.gpu_spec
        project, family = self.machine.image_project, self.machine.image_family
        return ProjectId(project or gpu.image_project), ImageName(family or gpu.image_family)

    def allowed_zones(self) -> tuple[str, ...]:
        """The zones that may be tried: the ones named; or the GPU's zones in the regions named; or all of the GPU's."""
        if self.zones:
            return self.zones
        zones = self.gpu_spec.zones
        return tuple(zone for zone in zones if region_of(zone) in self.regions) if self.regions else zones


def baseline_only(config: Config) -> Config:
    """The same run without the bundled kernel: only PyTorch's implementations."""
    kept = tuple(name for name in config.measure.implementations if not is_kernel(name)) or (DEFAULT,)
    return config.model_copy(update={"measure": config.measure.model_copy(update={"implementations": kept})})


def with_gpu(config: Config, gpu: Gpu) -> Config:
    """The same run on another GPU: with that GPU's machine, image and zones, and only the dtypes that it supports."""
    machine = config.machine.model_copy(
        update={
            "type": "",
            "disk_type": "",
            "image_project": "",
            "image_family": "",
            "disk_gb": max(config.machine.disk_gb, gpu.min_disk_gb),
            "provisioning": config.machine.provisioning if gpu.is_sold(config.machine.provisioning) else "spot",
        }
    )

    def kept(dtypes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dtype for dtype in dtypes if dtype in gpu.dtypes)

    return config.model_copy(
        update={
            "gpu": gpu.name,
            "machine": machine,
            "zones": tuple(zone for zone in config.zones if zone in gpu.zones),
            "regions": tuple(region for region in config.regions if region in gpu.regions),
            "placement": config.placement.model_copy(update={"fallback_gpus": ()}),
            "measure": config.measure.model_copy(update={"dtypes": kept(config.measure.dtypes)}),
            "correctness": config.correctness.model_copy(update={"dtypes": kept(config.correctness.dtypes)}),
        }
    )


@dataclass(frozen=True, slots=True)
class EffectiveGrids:
    """The grids that a run measures and checks in one mode, with their final dtypes."""

    measure: Grid
    correctness: Grid
    replaced: bool
    """Whether the embedded cloud's grid is used instead of `measure.grid`."""
    left_out: tuple[str, ...]
    """Dtypes of the grid that the GPU does not support."""


def effective_grids(config: Config, mode: str) -> EffectiveGrids:
    """The grids for `mode` (`gce`, `embedded`, or `here`: the embedded cloud on a machine with a GPU). A grid's own
    dtype is left out if the GPU does not support it. `load` has refused such a dtype if the configuration named it."""
    embedded = mode == "embedded"
    supported = DTYPES if embedded else config.gpu_spec.dtypes
    measure, correctness = config.measure, config.correctness
    grid = (measure.embedded_grid if embedded else None) or measure.grid
    named = (
        measure.embedded_dtypes if embedded and (measure.embedded_grid or measure.embedded_dtypes) else measure.dtypes
    )
    wanted = named or grid.dtypes or DEFAULT_DTYPES
    dtypes = tuple(dtype for dtype in wanted if dtype in supported)
    check = (correctness.embedded_grid if embedded else None) or correctness.grid
    named = correctness.embedded_dtypes if embedded else correctness.dtypes
    checked = tuple(dtype for dtype in named or check.dtypes or dtypes if dtype in supported)
    return EffectiveGrids(
        measure=grid.model_copy(update={"dtypes": dtypes}),
        correctness=check.model_copy(update={"dtypes": checked or dtypes}),
        replaced=grid is not measure.grid,
        left_out=tuple(dtype for dtype in wanted if dtype not in supported),
    )


def resolve_regimes(config: Config, mode: str) -> str:
    """The value of `measure.regime`, with `auto` resolved: `both` on any GPU, rented or not, and `burst` on a CPU. A
    CPU has one regime because no power limit separates the steady state from a burst there. The embedded cloud's
    machines measure on CPUs."""
    regime = config.measure.regime
    if regime != "auto":
        return regime
    return BOTH if mode != "embedded" and config.gpu_spec.accelerator else "burst"


def count_measurements(config: Config, mode: str) -> int:
    """The least number of measurements of one implementation in one case, over all regimes. Large cases have one more
    regime."""
    return config.measure.repeats * (1 if resolve_regimes(config, mode) in ("burst", "sustained", "graph") else 2)


def case_ids_of(config: Config, grids: EffectiveGrids) -> tuple[str, ...]:
    """The case ids of a run that are known before it starts: those of its workload, or of its grid."""
    return case_ids(grids.measure) if config.workload is None else config.workload.cases


def harness_settings(config: Config, grids: EffectiveGrids, mode: str) -> dict[str, Any]:
    """The harness's part of a run spec (docs/contracts.md, section 4)."""
    measure, workload = config.measure, config.workload
    limit_s = None if workload is None else workload.answer_limit_s
    return {
        **(_bundled(config, grids) if workload is None else _own(workload, measure)),
        "repeats": measure.repeats,
        "warmup": "steady" if measure.warmup is None else measure.warmup,
        "regime": resolve_regimes(config, mode),
        "cache": measure.cache,
        "seed": measure.seed,
        "threads": measure.threads,
        **({} if limit_s is None else {"answer_limit_s": limit_s}),
        **({} if config.correctness.sanitizer is None else {"sanitizer": config.correctness.sanitizer}),
        "skip_cases": [],
        **({} if measure.stop_at_relative_ci is None else {"stop_at_relative_ci": measure.stop_at_relative_ci}),
        **config.profile.asked(),
    }


def _own(workload: Workload, measure: Measure) -> dict[str, Any]:
    return {
        "workload": {"form": workload.form, "path": workload.place},
        "implementations": ["*", "*:aa"] if measure.control and workload.form != "program" else ["*"],
        "measure": {"axes": {name: list(values) for name, values in workload.axes.items()}} if workload.axes else {},
        "correctness": {},
    }


def _bundled(config: Config, grids: EffectiveGrids) -> dict[str, Any]:
    names = config.measure.implementations
    return {
        "implementations": [*names, names[0] + CONTROL] if config.measure.control else list(names),
        "measure": {"shapes": harness_shapes(grids.measure), "dtypes": list(grids.measure.dtypes)},
        "correctness": {
            "shapes": harness_shapes(grids.correctness),
            "dtypes": list(grids.correctness.dtypes),
            "max_abs_error": config.correctness.max_abs_error,
        },
    }
