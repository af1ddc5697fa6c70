"""Reads a configuration: YAML and overrides, checked against the catalog before anything is planned.

`load` collects every problem that it can find and raises one `ConfigError`. The message has a line for each problem,
with the file, the line, the key, and a valid value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from orchestrator.core import yamltext
from orchestrator.core.bundled import PLACEHOLDER
from orchestrator.core.config.model import Config, Grid, Workload, resolve_grid
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import (
    FRACTIONS,
    GPU_NAMES,
    Gpu,
    carrier_of,
    find_gpu,
    nearest_gpu,
    suggest,
    unknown_gpu_message,
)
from orchestrator.core.market.offers import region_of
from orchestrator.core.results import CONTROL
from orchestrator.core.workload import HINT, axis_text, case_id

# Translates pydantic's errors into messages for the user who wrote the file.


Path = tuple[str | int, ...]

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "decimal_parsing": "an amount of dollars",
    "decimal_type": "an amount of dollars",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a section with keys of its own",
    "model_type": "a section with keys of its own",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def explain_errors(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Path, str]]:
    """(path, what is wrong and what would be right) for each finding of `error` about a document of type `model`."""
    items = error.errors()
    for item in items:
        if item["type"] == "too_short" and any(len(other["loc"]) > len(item["loc"]) for other in items):
            continue  # empty only because its entries were wrong, and each of them is in the list
        path = tuple(part for part in item["loc"] if part != "[key]")
        yield path, _words(item["type"], item["msg"], item["input"], item.get("ctx", {}), model, path)


def _words(kind: str, message: str, value: Any, context: dict[str, Any], model: type[BaseModel], path: Path) -> str:
    if kind == "extra_forbidden":
        section = str(path[-2]) if len(path) > 1 else ""
        plain_name = re.sub(rf"^{re.escape(section)}s?[._-]|s$", "", str(path[-1]))
        keys = _keys(model, path[:-1])
        return f"unknown key; {suggest(plain_name if plain_name in keys else str(path[-1]), keys)}"
    if kind == "missing":
        return "required"
    if kind == "literal_error":
        if path == ("gpu",):
            return unknown_gpu_message(str(value))
        choices = re.findall("'([^']*)'", context["expected"])
        return f"{_shown(value)} is not a choice; {suggest(str(value), choices)}"
    if kind in _BOUNDS:
        bound_text, key = _BOUNDS[kind]
        return f"must be {bound_text} {context[key]}, not {value}"
    if kind == "too_short":
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"'{value}' is not valid; expected {context['pattern']}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(value)}"
    return message.removeprefix("Value error, ")


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(model: type[BaseModel], path: Path) -> tuple[str, ...]:
    """The keys that may stand at `path` of a document of type `model`."""
    for part in path:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `tuple[Shape, ...]` or `Grid | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


# Selects the cases of a user's workload by the values that were chosen for its axes. It sees only the cases that can
# be read from the workload's text.


LISTED: Final = 20
"""How many choices a message lists."""


def select_cases(config: Config, workload: Workload) -> Config:
    """The configuration with a workload that was read. Raises `ConfigError` for what is asked of it and impossible."""
    if workload.form == "program" and config.correctness.sanitizer is not None:
        raise ConfigError(
            f"correctness.sanitizer: {workload.name} is a program; only functions are called under compute-sanitizer",
            hint="leave it out, or start the program under compute-sanitizer in its `command`",
        )
    return config.model_copy(update={"workload": _chosen_cases(workload)})


def _chosen_cases(workload: Workload) -> Workload:
    """The workload with only the cases that have the chosen values. If the cases cannot be read from its text, it is
    returned unchanged, and the machine checks the choice. Raises `ConfigError` for an axis that the workload does not
    have, for a value that no case has, and for values that no case has together."""
    if workload.axes and workload.form == "program":
        raise ConfigError(
            f"workload.axes: {workload.name} is a program, which chooses its own cases",
            hint="choose them in its `command`",
        )
    for axis, values in workload.axes.items():
        if not values:
            raise _wrong(f".{axis}", "no value, so no case is left", _values(workload, axis))
        if not workload.grid:
            continue
        if axis not in workload.grid[0]:
            raise _wrong(f".{axis}", f"{workload.name} has no such axis", workload.grid[0], axis)
        for value in values:
            if axis_text(value) not in _values(workload, axis):
                raise _wrong(
                    f".{axis}", f"{workload.name} has no case with {value}", _values(workload, axis), axis_text(value)
                )
    if not workload.axes or not workload.grid:
        return workload
    cases_left = [
        case
        for case in workload.grid
        if all(
            axis in case and axis_text(case[axis]) in map(axis_text, values) for axis, values in workload.axes.items()
        )
    ]
    if not cases_left:
        raise _wrong("", f"{workload.name} has no case with these values together", map(case_id, workload.grid))
    return workload.model_copy(update={"cases": tuple(map(case_id, cases_left))})


def _values(workload: Workload, axis: str) -> list[str]:
    return list(dict.fromkeys(axis_text(case[axis]) for case in workload.grid if axis in case))


def _wrong(where: str, what: str, valid: Iterable[str], word: str = "") -> ConfigError:
    choices = tuple(valid)
    suffix = f" and {len(choices) - LISTED} more" if len(choices) > LISTED else ""
    suggestion = f"; {suggest(word, choices, islice(choices, LISTED))}{suffix}" if choices else ""
    return ConfigError(f"workload.axes{where}: {what}{suggestion}", hint=HINT)


# Makes the configuration that repeats the measurements of a stored run from the run's spec.


SAME: Final = ("repeats", "regime", "cache", "seed", "threads", "stop_at_relative_ci")
"""The keys that have the same name in a spec and in the section `measure` of a configuration."""


def repeat_config(spec: Mapping[str, Any], capability: str) -> dict[str, Any]:
    """The configuration as data for YAML, for a GPU of this compute capability (empty text: no GPU). The result is
    empty if the spec is incomplete or has a user's own workload, because a spec does not contain the workload's file.
    The most that a case may cost is left out: a configuration sets its own limits on money."""
    measured, checked, names = spec.get("measure"), spec.get("correctness"), spec.get("implementations")
    if "workload" in spec or not isinstance(names, list) or not names:
        return {}
    if not isinstance(measured, Mapping) or not isinstance(checked, Mapping) or not measured.get("shapes"):
        return {}
    control = f"{names[0]}{CONTROL}"
    measure = {
        "grid": _grid_again(measured),
        "implementations": [name for name in names if name != control],
        "control": control in names,
        **({} if spec.get("warmup") == "steady" else {"warmup": spec.get("warmup")}),
        **{key: spec[key] for key in SAME if key in spec},
    }
    limit = {"max_abs_error": checked["max_abs_error"]} if "max_abs_error" in checked else {}
    return {
        "gpu": nearest_gpu(capability).name,
        "measure": measure,
        **({"correctness": {"grid": _grid_again(checked), **limit}} if checked.get("shapes") else {}),
    }


def _grid_again(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"shapes": part["shapes"], "dtypes": part.get("dtypes", [])}


def load(
    text: str, *, source: str, overrides: Sequence[str] = (), grids: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """The configuration in YAML `text`, with `key.path=value` overrides applied and every grid in place of its name.
    Raises `ConfigError` that lists every problem."""
    document = yamltext.read_yaml(text)
    problems = _Problems(source, document)
    written = {} if document.data is None and not document.problems else document.data
    if not isinstance(written, dict):
        if written is not None:
            problems.add((), "expected keys and values, such as `gpu: l4`")
        raise problems.error()
    data = {str(key): _copy(value) for key, value in written.items() if value is not None}
    for override in overrides:
        _apply(override, data, problems)
    _fill_in_grids(data, grids, problems)
    config = _validate(data, problems)
    if config is not None:
        for path, what in _impossible(config):
            problems.add(path, what)
    if problems.found or config is None:
        raise problems.error()
    return config.model_copy(update={"gpu": config.gpu_spec.name})


@dataclass(slots=True)
class _Problems:
    """The problems of a document, each with the place of its key."""

    source: str
    document: yamltext.YamlDocument
    found: list[tuple[int, str]] = field(default_factory=list)
    set_by: dict[yamltext.Path, str] = field(default_factory=dict)
    """The override that set a key, by the key's path."""

    def __post_init__(self) -> None:
        for line, key, what in self.document.problems:
            self.found.append((line, f"{self.source}:{line}: {key + ': ' if key else ''}{what}"))

    def add(self, path: yamltext.Path, what: str) -> None:
        key = f"{yamltext.dotted_path(path)}: " if path else ""
        self.found.append((self.document.line(path), f"{self._place(path)}: {key}{what}"))

    def say(self, what: str) -> None:
        self.found.append((1_000_000, what))

    def _place(self, path: yamltext.Path) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.set_by:
                return f"--set {self.set_by[path[:length]]}"
        line = self.document.line(path)
        return f"{self.source}:{line}" if line else self.source

    def error(self) -> ConfigError:
        lines = list(dict.fromkeys(text for _, text in sorted(self.found)))
        return ConfigError(
            "\n".join(lines),
            hint="`bench config keys` explains every key; `bench config show l4` is a complete example",
        )


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _copy(entry) for key, entry in value.items()}
    return [_copy(entry) for entry in value] if isinstance(value, list) else value


def _apply(override: str, data: dict[str, Any], problems: _Problems) -> None:
    key, equals, value = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        problems.say(f"--set {override}: expected key.path=value, such as run.max_minutes=20")
        return
    section = data
    for index, name in enumerate(path[:-1]):
        below = section.setdefault(name, {})
        if not isinstance(below, dict):
            problems.say(f"--set {override}: {'.'.join(path[: index + 1])} is not a section")
            return
        section = below
    section[path[-1]] = yamltext.read_scalar(value)
    problems.set_by[path] = override


_GRID_DEFAULTS: Final = {"measure": ("standard", "cpu"), "correctness": ("correctness-classic", "correctness-cpu")}
_PLACEHOLDER: Final = Grid.model_validate({"shapes": [PLACEHOLDER]})
"""Replaces a grid that could not be read, so that the rest of the document is still checked."""


def _fill_in_grids(data: dict[str, Any], grids: Mapping[str, Any], problems: _Problems) -> None:
    """Replaces the names of grids in `data` by the grids. A section without a grid gets the default for the cloud and
    the default for the embedded cloud; a grid that is named is used in both."""
    for name, (default, embedded_default) in _GRID_DEFAULTS.items():
        section = data.setdefault(name, {})
        if not isinstance(section, dict):
            problems.add((name,), "expected a section with keys of its own")
            section = data[name] = {}
        # A grid or dtypes given as an override apply to the embedded cloud too.
        for key in ("grid", "dtypes"):
            if (name, key) in problems.set_by and (name, f"embedded_{key}") not in problems.set_by:
                section[f"embedded_{key}"] = None if key == "grid" else section[key]
        if "grid" not in section:
            section["grid"] = default
            section.setdefault("embedded_grid", embedded_default)
        for key in ("grid", "embedded_grid"):
            section[key] = _grid(section.get(key), (name, key), grids, problems)


def _grid(value: Any, path: yamltext.Path, grids: Mapping[str, Any], problems: _Problems) -> Grid | None:
    if value is None and path[-1] == "embedded_grid":
        return None
    if not isinstance(value, (str, dict)):
        problems.add(path, "expected the name of a grid, or a grid written out")
    elif isinstance(value, str) and value not in grids:
        problems.add(path, f"no grid called '{value}'; {suggest(value, sorted(grids))}")
    else:
        try:
            return resolve_grid(value, grids)
        except ValidationError as error:
            for below, what in explain_errors(error, Grid):
                problems.add((*path, *below), what)
    return _PLACEHOLDER


def _validate(data: dict[str, Any], problems: _Problems) -> Config | None:
    """The configuration in `data`. Wrong keys are reported and removed from `data`, so that the rest is checked too."""
    gpu = data.get("gpu")
    if not isinstance(gpu, str) or not gpu.strip():
        problems.add(("gpu",), f"{'expected one of' if gpu else 'required; one of:'} {', '.join(GPU_NAMES)}")
        data["gpu"] = ""
    while True:
        try:
            return Config.model_validate(data)
        except ValidationError as error:
            removed = False
            for path, what in explain_errors(error, Config):
                problems.add(path, what)
                removed |= _take_out(data, path)
            # Nothing was removed if pydantic reports a key that cannot be encoded: it changes such a key's name.
            if not removed:
                return None


def _take_out(data: Any, path: yamltext.Path) -> bool:
    """Removes the value at `path`, or else the innermost section that exists on the way there. Returns whether anything
    was removed."""
    for part in path[:-1]:
        below = data.get(part)
        if not isinstance(below, dict):
            break
        data, path = below, path[1:]
    if path[0] not in data:
        return False
    del data[path[0]]
    return True


def _impossible(config: Config) -> Iterator[tuple[yamltext.Path, str]]:
    """(path, what is wrong and what to change) for each combination of values that no machine can satisfy."""
    gpu = find_gpu(config.gpu)
    if gpu is None:
        if config.gpu:
            yield ("gpu",), unknown_gpu_message(config.gpu)
        return
    yield from _impossible_machine(config, gpu)
    yield from _impossible_places(config, gpu)
    if config.correctness.sanitizer is not None and config.workload is None:
        yield (
            ("correctness", "sanitizer"),
            "is for a workload of your own: the bundled kernels are not called under compute-sanitizer. Leave it out",
        )
    for name in config.placement.fallback_gpus:
        if find_gpu(name) is None:
            yield ("placement", "fallback_gpus"), unknown_gpu_message(name)
    for name, dtypes in (("measure", config.measure.dtypes), ("correctness", config.correctness.dtypes)):
        for dtype in dtypes:
            if dtype not in gpu.dtypes:
                yield (name, "dtypes"), f"{gpu.name} has no {dtype} arithmetic; valid: {', '.join(gpu.dtypes)}"
    grid = config.measure.grid
    if not config.measure.dtypes and grid.dtypes and not set(grid.dtypes) & set(gpu.dtypes):
        yield (
            ("measure", "grid"),
            f"grid '{grid.name}' asks for {', '.join(grid.dtypes)} only; {gpu.name} has: {', '.join(gpu.dtypes)}",
        )


def _impossible_machine(config: Config, gpu: Gpu) -> Iterator[tuple[yamltext.Path, str]]:
    machine, names = config.machine, tuple(machine.name for machine in gpu.machine_types)
    if machine.type in FRACTIONS:
        why = "has a part of a GPU and needs NVIDIA's vGPU driver, which no image here has"
        yield ("machine", "type"), f"{machine.type} {why}; machine types for {gpu.name}: {', '.join(names)}"
    elif machine.type and machine.type not in names:
        other = carrier_of(machine.type)
        why = f"carries {other.title}" if other else f"is not known to carry {gpu.title}"
        yield ("machine", "type"), f"{machine.type} {why}; machine types for {gpu.name}: {', '.join(names)}"
    hyperdisk = "hyperdisk-balanced"
    if machine.disk_type and (machine.disk_type == hyperdisk) != (gpu.disk_type == hyperdisk):
        yield ("machine", "disk_type"), f"{config.machine_type} boots from {gpu.disk_type} disks only; leave it out"
    if not machine.image_family and machine.disk_gb < gpu.min_disk_gb:
        yield (
            ("machine", "disk_gb"),
            f"{machine.disk_gb} GB is smaller than the image of {gpu.image_family}; use at least {gpu.min_disk_gb}",
        )
    if machine.container and config.run.keep:
        yield (
            ("machine", "container"),
            (
                "a container runs only its own run: run.keep=true is not possible with machine.container; set "
                "run.keep=false"
            ),
        )
    if not gpu.is_sold(machine.provisioning):
        how = "on demand" if machine.provisioning == "standard" else machine.provisioning
        yield ("machine", "provisioning"), f"{gpu.default_machine} is not sold {how}; use spot"


def _impossible_places(config: Config, gpu: Gpu) -> Iterator[tuple[yamltext.Path, str]]:
    if config.zones and config.regions:
        yield ("regions",), "zones and regions are both given: give only one of them"
    for index, zone in enumerate(config.zones):
        if zone not in gpu.zones:
            near = [name for name in gpu.zones if region_of(name) == region_of(zone)] or gpu.regions
            yield ("zones", index), f"{gpu.name} is not offered in '{zone}'; {suggest(zone, gpu.zones, near)}"
    for index, region in enumerate(config.regions):
        if region not in gpu.regions:
            yield (
                ("regions", index),
                f"{gpu.name} is not offered in '{region}'; {suggest(region, gpu.regions)}",
            )
