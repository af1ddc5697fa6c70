"""A sweep: what a user wants to measure on many machines, given as a YAML file or as flags. It is checked first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from orchestrator.core import yamltext
from orchestrator.core.config.explain import explain_errors
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import LOCAL, parse_target
from orchestrator.core.market.catalog import GPU_NAMES, find_gpu, unknown_gpu_message

EngineName = Literal["cloud", "slurm", "batch", "hosts"]
GPU = "gpu"
WORKLOAD = "workload"


def _values(value: Any) -> Any:
    """The values as a list. A single value becomes a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _share(value: Any) -> Any:
    """Converts `60%` to 0.6. Other values are returned unchanged."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    return value


Values = Annotated[tuple[Any, ...], BeforeValidator(_values), Field(min_length=1)]
Share = Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)]
Whole = Annotated[int, Field(strict=True)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:&|,@+-]*$", max_length=200)]
"""Text that is put on a scheduler's command line."""


class Cluster(BaseModel):
    """A Slurm cluster: how it is reached, and its names for partitions, accounts and GPUs."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    folder: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._/+@-]+)?$")] = ""
    """The folder that the login node and all nodes share."""
    login: str = ""
    """`user@host` of the login node; empty: this machine is the login node."""
    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    constraint: Word = ""
    gres: dict[str, Word] = Field(default_factory=dict)
    """The value of `--gres` by GPU, if the cluster's is not `gpu:<gpu>:1`; `none` leaves the option out."""
    exclusive: bool = True
    """Whether each child gets a whole node, so that no other work disturbs its times."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/+~-]+$")] = "python3"
    """The interpreter on the nodes that has torch."""


NEEDED: Final = {
    "hosts": "`hosts: [user@box, …]`, or --host user@box for each",
    "slurm": "`slurm: {folder: /shared/folder}`, which all nodes have",
}
"""What an engine cannot do without."""


class Sweep(BaseModel):
    """Axes over GPUs, workloads and settings, and how much time and money they may take."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    engine: EngineName = "cloud"
    config: str = ""
    """The configuration that every child starts from; empty: the bundled one of its GPU."""
    axes: dict[str, Values]
    settings: dict[str, Any] = Field(default_factory=dict)
    """More settings of every child, by key, as in a configuration."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Which cells are left out: those that have all values of an entry."""
    repeats: Annotated[Whole, Field(ge=1, le=1000)] = 1
    cases_per_child: Annotated[Whole, Field(ge=0)] = 0
    """How many cases of a configuration one child measures; 0: all of them."""
    child_minutes: Annotated[Whole, Field(ge=1, le=10080)] = 15
    """How long a child is expected to take. It is used for the estimate only, never as a limit."""
    cap_usd: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    """The most that the whole fleet may hold. The bucket's caps apply too."""
    wall_minutes: Annotated[Whole, Field(ge=1, le=10080)] = 240
    """The time from the launch to the moment when no machine of the fleet exists any more."""
    parallel: Annotated[Whole, Field(ge=1, le=4000)] = 4
    """The most machines at the same time, over all GPUs."""
    shares: dict[str, Share] = Field(default_factory=dict)
    """The share of `parallel` that a GPU gets. The other GPUs divide the rest evenly."""
    usd_per_hour: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    """How many dollars an hour of a node counts on the user's own cluster."""
    slurm: Cluster = Cluster()
    hosts: tuple[str, ...] = ()
    """For the engine `hosts`: the user's own machines, as `bench launch --host` names them."""
    require_cuda: bool = True
    """On a cluster: whether a child fails if its GPU does not answer, instead of measuring on the CPU."""
    seed: Whole = 20261122
    """Shuffles the order of configurations, so that a drift over time follows no axis."""

    @model_validator(mode="after")
    def makes_sense(self) -> Sweep:
        gpus = self.gpus
        if not gpus:
            raise ValueError(f"axes.gpu is required; of: {', '.join(GPU_NAMES)}")
        for gpu in gpus:
            if find_gpu(gpu) is None:
                raise ValueError(unknown_gpu_message(gpu))
        for axis, values in self.axes.items():
            texts = [text_of(value) for value in values]
            if len(set(texts)) < len(texts):
                raise ValueError(f"axes.{axis} has a value twice: {', '.join(texts)}")
        for entry in self.exclude:
            if unknown := sorted(entry.keys() - self.axes.keys()):
                raise ValueError(
                    f"exclude names {', '.join(unknown)}, which is not an axis; axes: {', '.join(self.axes)}"
                )
        if unknown := sorted(self.shares.keys() - set(gpus)):
            raise ValueError(f"shares names {', '.join(unknown)}, which is not among the GPUs: {', '.join(gpus)}")
        if sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError(f"shares add up to {sum(self.shares.values()):.0%}: at most 100 %")
        settings = {"hosts": self.hosts, "slurm": self.slurm.folder}
        if not settings.get(self.engine, True):
            raise ValueError(f"engine {self.engine} needs {NEEDED[self.engine]}")
        return self

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings of every child, as `bench launch --set` takes them."""
        return tuple(f"{key}={text_of(value)}" for key, value in self.settings.items())

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(str(gpu).lower() for gpu in self.axes.get(GPU, ()))


def text_of(value: Any) -> str:
    """A value as YAML text that reads back as the same value. Text is quoted only if it would read as another type."""
    if isinstance(value, str) and yamltext.read_scalar(value) == value and value.strip() == value and value:
        return value
    return json.dumps(value, sort_keys=True)


def parse_sweep(text: str, *, source: str, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep in YAML `text`. `overrides` are fields that a command's options set. Raises `ConfigError` with every
    problem, one on each line."""
    document = yamltext.read_yaml(text)
    problems = [f"{source}:{line}: {key + ': ' if key else ''}{what}" for line, key, what in document.problems]
    data = document.data
    if not problems and not isinstance(data, dict):
        problems.append(f"{source}: expected keys and values, such as `axes: {{gpu: [l4, t4]}}`")
    if not problems:
        try:
            sweep = Sweep.model_validate({**data, **(overrides or {})})
            problems = [f"{source}: {what}" for what in _mistakes(sweep)]
            if not problems:
                return sweep
        except ValidationError as error:
            for path, what in explain_errors(error, Sweep):
                line = document.line(path)
                where = f"{source}:{line}" if line else source
                problems.append(f"{where}: {yamltext.dotted_path(path) + ': ' if path else ''}{what}")
    raise ConfigError("\n".join(problems), hint="`bench docs fleets` explains every key of a sweep")


def _mistakes(sweep: Sweep) -> list[str]:
    """The mistakes in a sweep that is valid but surely meant otherwise. A stored fleet is not checked for them."""
    mistakes = []
    for entry in sweep.exclude:
        for axis, value in entry.items():
            values = [text_of(one) for one in sweep.axes[axis]]
            if text_of(value) not in values:
                mistakes.append(f"exclude: {axis} is never {text_of(value)}; it is {', '.join(values)}")
    if twice := sorted(name for name, count in Counter(sweep.hosts).items() if count > 1):
        mistakes.append(f"hosts has {', '.join(twice)} twice: a host measures one child at a time")
    for key, name in (("slurm.login", sweep.slurm.login), *(("hosts", host) for host in sweep.hosts)):
        try:
            parse_target(name or LOCAL)
        except ConfigError as error:
            mistakes.append(f"{key}: {error}")
    return mistakes


def of_flags(gpus: Sequence[str], settings: Sequence[str], fields: Mapping[str, Any]) -> Sweep:
    """The sweep of `--gpu l4,t4 --set measure.cache=cold,warm`, and of other options as `fields`."""
    axes: dict[str, list[Any]] = {GPU: [name.strip().lower() for text in gpus for name in split_at_commas(text)]}
    for setting in settings:
        key, equals, values = setting.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError(f"--set {setting}: expected key.path=a,b", hint="such as --set measure.cache=cold,warm")
        axes[key.strip()] = [yamltext.read_scalar(value.strip()) for value in split_at_commas(values)]
    return parse_sweep("{}", source="the options", overrides={**fields, "axes": axes})


def split_at_commas(text: str) -> list[str]:
    """Splits at commas outside brackets: `[a, b],c` has two parts. Empty parts are left out."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in (*parts, text[start:]) if part.strip()]
