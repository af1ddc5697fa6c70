"""A sweep: what a user wants measured on many machines, as a YAML file or as flags, checked before anything else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from orchestrator.core import yamltext
from orchestrator.core.config.explain import explain
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import LOCAL, parse_target
from orchestrator.core.market.catalog import GPU_NAMES, lookup
from orchestrator.core.market.catalog import unknown as not_rented

EngineName = Literal["cloud", "slurm", "batch", "hosts"]
GPU = "gpu"
WORKLOAD = "workload"


def _values(value: Any) -> Any:
    """A single value is an axis of one; what is not plain data is refused by the type."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _share(value: Any) -> Any:
    """`60%` and `0.6` are the same share."""
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
"""What stands on a scheduler's command line."""


class Cluster(BaseModel):
    """A Slurm cluster: how it is reached, and what it calls things."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    folder: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._/+@-]+)?$")] = ""
    """A folder that the login node and all nodes share."""
    login: str = ""
    """`user@host` of the login node; empty: this machine is one."""
    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    constraint: Word = ""
    gres: dict[str, Word] = Field(default_factory=dict)
    """By GPU, where the cluster's name for it is another than `gpu:<gpu>:1`; `none` asks for none."""
    exclusive: bool = True
    """A whole node for each child, so that nobody else's work is in its times."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/+~-]+$")] = "python3"
    """The interpreter on the nodes that has torch."""


class Sweep(BaseModel):
    """Axes over GPUs, workloads and settings, and how much time and money they may take."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")

    engine: EngineName = "cloud"
    config: str = ""
    """A configuration that every child begins from; empty: the one that comes with its GPU."""
    axes: dict[str, Values]
    settings: dict[str, Any] = Field(default_factory=dict)
    """What every child has besides, by key, as in a configuration."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Cells that are left out: those that have all of an entry's values."""
    repeats: Annotated[Whole, Field(ge=1, le=1000)] = 1
    cases_per_child: Annotated[Whole, Field(ge=0)] = 0
    """How many cases of a configuration one child measures; 0: all of them."""
    child_minutes: Annotated[Whole, Field(ge=1, le=10080)] = 15
    """What a child is expected to take: for the estimate alone, never for a limit."""
    cap_usd: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    """The most that the whole fleet may hold, below the caps of the bucket."""
    wall_minutes: Annotated[Whole, Field(ge=1, le=10080)] = 240
    """From the launch to the moment at which no machine of the fleet exists any more."""
    parallel: Annotated[Whole, Field(ge=1, le=4000)] = 4
    """Machines at the same time, over all GPUs."""
    shares: dict[str, Share] = Field(default_factory=dict)
    """How much of `parallel` a GPU gets; the rest is divided evenly among the others."""
    usd_per_hour: Annotated[Decimal, Field(ge=0, allow_inf_nan=False)] | None = None
    """What an hour of a node counts on a cluster of one's own."""
    slurm: Cluster = Cluster()
    hosts: tuple[str, ...] = ()
    """For the engine `hosts`: machines of one's own, as `bench launch --host` names them."""
    require_cuda: bool = True
    """On a cluster: whether a child whose GPU does not answer fails, in the place of measuring a processor."""
    seed: Whole = 20261122
    """Shuffles the order of configurations, so that a drift lies along no axis."""

    @model_validator(mode="after")
    def makes_sense(self) -> Sweep:
        gpus = self.gpus
        if not gpus:
            raise ValueError(f"axes.gpu is required; of: {', '.join(GPU_NAMES)}")
        for gpu in gpus:
            if lookup(gpu) is None:
                raise ValueError(not_rented(gpu))
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
        if self.engine == "hosts" and not self.hosts:
            raise ValueError("engine hosts needs `hosts: [user@box, …]`, or --host user@box for each")
        if self.engine == "slurm" and not self.slurm.folder:
            raise ValueError("engine slurm needs `slurm: {folder: /shared/folder}`, which all nodes have")
        return self

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings of every child, as `bench launch --set` takes them."""
        return tuple(f"{key}={text_of(value)}" for key, value in self.settings.items())

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(str(gpu).lower() for gpu in self.axes.get(GPU, ()))


def text_of(value: Any) -> str:
    """A value as YAML reads it back, whatever it is: text is put in quotes only where it would read as another type."""
    if isinstance(value, str) and yamltext.scalar(value) == value and value.strip() == value and value:
        return value
    return json.dumps(value, sort_keys=True)


def parse(text: str, *, source: str, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep in YAML `text`; `overrides` are fields that a command's options set. Raises `ConfigError` with every
    problem, one a line."""
    document = yamltext.read(text)
    problems = [f"{source}:{line}: {key + ': ' if key else ''}{what}" for line, key, what in document.problems]
    data = document.data
    if not problems and not isinstance(data, dict):
        problems.append(f"{source}: expected keys and values, such as `axes: {{gpu: [l4, t4]}}`")
    if not problems:
        try:
            found = Sweep.model_validate({**data, **(overrides or {})})
            problems = [f"{source}: {what}" for what in _mistakes(found)]
            if not problems:
                return found
        except ValidationError as error:
            for path, what in explain(error, Sweep):
                line = document.line(path)
                where = f"{source}:{line}" if line else source
                problems.append(f"{where}: {yamltext.dotted(path) + ': ' if path else ''}{what}")
    raise ConfigError("\n".join(problems), hint="docs/fleets.md explains every key of a sweep")


def _mistakes(sweep: Sweep) -> list[str]:
    """What can be read and is surely meant otherwise. A fleet that is stored is not asked."""
    found = []
    for entry in sweep.exclude:
        for axis, value in entry.items():
            there = [text_of(one) for one in sweep.axes[axis]]
            if text_of(value) not in there:
                found.append(f"exclude: {axis} is never {text_of(value)}; it is {', '.join(there)}")
    if twice := sorted(name for name, count in Counter(sweep.hosts).items() if count > 1):
        found.append(f"hosts has {', '.join(twice)} twice: a host measures one child at a time")
    for key, name in (("slurm.login", sweep.slurm.login), *(("hosts", host) for host in sweep.hosts)):
        try:
            parse_target(name or LOCAL)
        except ConfigError as error:
            found.append(f"{key}: {error}")
    return found


def of_flags(gpus: Sequence[str], settings: Sequence[str], fields: Mapping[str, Any]) -> Sweep:
    """The sweep of `--gpu l4,t4 --set measure.cache=cold,warm`, and of other options as `fields`."""
    axes: dict[str, list[Any]] = {GPU: [name.strip().lower() for text in gpus for name in split(text)]}
    for setting in settings:
        key, equals, values = setting.partition("=")
        if not equals or not key.strip() or not values.strip():
            raise ConfigError(f"--set {setting}: expected key.path=a,b", hint="such as --set measure.cache=cold,warm")
        axes[key.strip()] = [yamltext.scalar(value.strip()) for value in split(values)]
    return parse("{}", source="the options", overrides={**fields, "axes": axes})


def split(text: str) -> list[str]:
    """At commas that stand in no bracket: `[a, b],c` is two values."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in (*parts, text[start:]) if part.strip()]
