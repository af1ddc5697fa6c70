"""A sweep: what a user wants to measure on many machines, given as a YAML file or as flags. It is checked first."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from orchestrator.core import yamltext
from orchestrator.core.bounds import StrictModel
from orchestrator.core.config.load import explain_errors
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import LOCAL, parse_target
from orchestrator.core.market.catalog import GPU_NAMES, find_gpu, unknown_gpu_message
from orchestrator.core.names import MOST_CHILDREN, RunId, child_run
from orchestrator.core.text import clean_line, count, of_schema

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


class Cluster(StrictModel):
    """A Slurm cluster: how it is reached, and its names for partitions, accounts and GPUs."""

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


class Sweep(StrictModel):
    """Axes over GPUs, workloads and settings, and how much time and money they may take."""

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


# The children of a fleet: an immutable list, made once from the sweep, in the order in which they are measured. A
# child is one repeat of one configuration on one GPU, or of a chunk of its cases. Each child is one run. All first
# repeats come before all second repeats, so that a fleet that ends early has measured a complete grid.


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One point of the sweep. `settings` are `(key, YAML text)` in the order of the axes."""

    gpu: str
    settings: tuple[tuple[str, str], ...] = ()
    workload: str = ""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as `bench launch --set` takes them."""
        return tuple(f"{key}={value}" for key, value in self.settings)

    @property
    def title(self) -> str:
        """The workload and the settings for messages, without the GPU."""
        return " ".join(filter(None, (self.workload.rpartition("/")[2], *self.overrides))) or "defaults"

    @property
    def question(self) -> str:
        """The workload and the settings as JSON, without the GPU. Cells of one row of a table have the same."""
        return json.dumps([self.workload, sorted(self.settings)])


@dataclass(frozen=True, slots=True)
class Child:
    """One entry of the list. `index` is its place, from 0."""

    index: int
    cell: SweepCell
    repeat: int
    """From 1."""
    chunk: int
    cases: tuple[str, ...]
    """The case ids that it measures; empty: all cases of its configuration."""
    label: str = ""
    """What its run is named after, for practice; empty: the GPU of its cell."""

    def run_id(self, fleet: str) -> RunId:
        """The id of its run in a fleet."""
        return child_run(fleet, self.label or self.cell.gpu, self.index)

    @property
    def config(self) -> str:
        """The key of its cell and chunk. Repeats share it, because they fail for the same reasons."""
        return f"{self.cell.gpu}-{hashlib.sha256(self.cell.question.encode()).hexdigest()[:8]}-{self.chunk}"


def expand_cells(sweep: Sweep) -> tuple[SweepCell, ...]:
    """Every combination of the axes that is not excluded. Raises `ConfigError` if none is left."""
    names = [GPU, *(name for name in sweep.axes if name != GPU)]
    excluded = [{name: text_of(value) for name, value in entry.items()} for entry in sweep.exclude]
    axes = [[text_of(value) for value in sweep.axes[name]] for name in names]
    cell_list = []
    for values in itertools.product(*axes):
        point = dict(zip(names, values, strict=True))
        if any(all(point[name] == value for name, value in entry.items()) for entry in excluded):
            continue
        settings = tuple((name, value) for name, value in point.items() if name not in (GPU, WORKLOAD))
        workload = str(json.loads(point[WORKLOAD])) if point.get(WORKLOAD, "").startswith('"') else point.get(WORKLOAD)
        cell_list.append(SweepCell(point[GPU].lower(), settings, workload or ""))
    if not cell_list:
        raise ConfigError("the sweep has no cell: everything is excluded", hint="remove an entry from `exclude`")
    return tuple(cell_list)


def chunk_cases(cases: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """The cases in pieces of at most `most`. A single piece is returned as the empty tuple, which means all cases; it
    is the result if `most` is 0 or no fewer than the number of cases."""
    if not most or len(cases) <= most:
        return ((),)
    return tuple(tuple(cases[at : at + most]) for at in range(0, len(cases), most))


def expand_children(sweep: Sweep, cases_of: Callable[[SweepCell], Sequence[str]]) -> tuple[Child, ...]:
    """The list of children. `cases_of` returns the case ids of a cell's configuration that are known before it runs.
    Raises `ConfigError` if the list is empty or longer than `MOST_CHILDREN`."""
    pieces = {cell: chunk_cases(cases_of(cell), sweep.cases_per_child) for cell in expand_cells(sweep)}
    total = sweep.repeats * sum(len(found) for found in pieces.values())
    if total > MOST_CHILDREN:
        raise ConfigError(
            f"the sweep has {count(total, 'child', 'children')}; a fleet has at most {MOST_CHILDREN:,}",
            hint="choose fewer repeats, a larger cases_per_child, or several fleets",
        )
    place = {gpu: number for number, gpu in enumerate(sweep.gpus)}
    entries = [
        ((repeat, _shuffled(sweep.seed, repeat, cell, chunk), place[cell.gpu]), cell, repeat, chunk, cases)
        for repeat in range(1, sweep.repeats + 1)
        for cell, found in pieces.items()
        for chunk, cases in enumerate(found)
    ]
    entries.sort(key=lambda entry: entry[0])
    return tuple(Child(index, *entry[1:]) for index, entry in enumerate(entries))


def _shuffled(seed: int, repeat: int, cell: SweepCell, chunk: int) -> str:
    """A pseudo-random sort key that depends on the seed. It is the same on every GPU, so that a row of the table is
    filled at once."""
    return hashlib.sha256(f"{seed}/{repeat}/{cell.question}/{chunk}".encode()).hexdigest()


def children_document(children: Sequence[Child]) -> dict[str, Any]:
    """The list as JSON data, with each cell and each chunk written once."""
    numbers: dict[SweepCell, int] = {}
    pieces: dict[tuple[SweepCell, int], tuple[str, ...]] = {}
    for child in children:
        numbers.setdefault(child.cell, len(numbers))
        pieces[(child.cell, child.chunk)] = child.cases
    return {
        "schema": 1,
        "cells": _cells(numbers, pieces),
        "children": [[numbers[child.cell], child.repeat, child.chunk] for child in children],
        **({"label": children[0].label} if children and children[0].label else {}),
    }


def _cells(
    numbers: Mapping[SweepCell, int], pieces: Mapping[tuple[SweepCell, int], tuple[str, ...]]
) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = [
        {"gpu": cell.gpu, "workload": cell.workload, "settings": [list(pair) for pair in cell.settings], "chunks": {}}
        for cell in numbers
    ]
    for (cell, chunk), cases in pieces.items():
        cells[numbers[cell]]["chunks"][str(chunk)] = list(cases)
    return cells


def read_children(data: Any) -> tuple[Child, ...]:
    """The list of children in a document. Raises `ValueError` if it is not valid."""
    try:
        of_schema(data)
        return tuple(_read(data))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a list of children: {error}") from error


def _read(data: Any) -> Iterator[Child]:
    cell_list = [
        (
            SweepCell(
                str(one["gpu"]), tuple((str(key), str(value)) for key, value in one["settings"]), str(one["workload"])
            ),
            {int(chunk): tuple(str(case) for case in cases) for chunk, cases in one["chunks"].items()},
        )
        for one in data["cells"]
    ]
    if len(data["children"]) > MOST_CHILDREN:
        raise ValueError("more children than a fleet can have")
    for cell, pieces in cell_list:
        text = "".join((cell.title, *itertools.chain(*pieces.values())))
        if find_gpu(cell.gpu) is None or clean_line(cell.gpu) != cell.gpu or clean_line(text, len(text)) != text:
            raise ValueError("a cell that no sweep has")
    label = str(data.get("label", ""))
    if label not in ("", "cpu", "gpu", *GPU_NAMES):
        raise ValueError("a label that no fleet has")
    for index, (number, repeat, chunk) in enumerate(data["children"]):
        cell, pieces = cell_list[int(number)]
        yield Child(index, cell, int(repeat), int(chunk), pieces[int(chunk)], label)
