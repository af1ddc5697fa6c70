"""The options that every command takes, and how a command gets its wiring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from orchestrator.api.finding import LOCAL, SEEN, SEEN_FLEETS, read_seen
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.names import is_fleet_id
from orchestrator.core.naming import is_run_id
from orchestrator.wiring import Wiring, configs_folder, load_settings, wire

# Options that several commands share, declared once: a frozen dataclass in a command's signature gives the command
# its fields as options.


def group_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer sees it: where a parameter is a dataclass of options, each of its fields is an option in its
    place, and the command is called with the dataclass. Help, completions and order are those of the fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    members = {name: [field.name for field in fields(group)] for name, group in groups.items()}

    @wraps(command)
    def called(**given: Any) -> None:
        made = {name: group(**{one: given.pop(one) for one in members[name]}) for name, group in groups.items()}
        command(**given, **made)

    declared = [
        one
        for parameter in signature(command).parameters.values()
        for one in (
            _options_of(groups[parameter.name])
            if parameter.name in groups
            else (parameter.replace(annotation=hints[parameter.name], kind=Parameter.KEYWORD_ONLY),)
        )
    ]
    called.__signature__ = Signature(declared)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in declared}
    return called


def _options_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])


@dataclass(frozen=True, slots=True)
class Options:
    """The options before the command's name."""

    project: str = ""
    bucket: str = ""
    wire: Callable[..., Wiring] = wire
    """Makes the world of a command; another than the user's own where commands are played on simulated time."""

    def wiring(self, *, needs_bucket: bool = True) -> Wiring:
        wiring = self.wire(project=self.project, bucket=self.bucket, needs_bucket=needs_bucket)
        wiring.fleets = partial(_look_after, wiring)
        return wiring


def _look_after(wiring: Wiring, fleet: str) -> None:
    """The code that drives fleets is loaded only when a fleet needs it."""
    import_module("orchestrator.cli.fleet.context").look_after(wiring, fleet)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def options(ctx: typer.Context) -> Options:
    """The options before the command's name, as `cli.app.root` took them."""
    return Options(**(ctx.find_root().obj or {}))


def completing(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """The completion of a word that was begun, by those that `words` gives then."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


@completing
def known_runs() -> list[str]:
    """The runs that were listed last, newest first, and `last`."""
    return ["last", *reversed(read_seen(load_settings().home / SEEN, is_run_id))]


@completing
def known_fleets() -> list[str]:
    """The fleets that were listed last, newest first, and `last`."""
    return ["last", *reversed(read_seen(load_settings().home / SEEN_FLEETS, is_fleet_id))]


@completing
def known_cases() -> list[str]:
    """The cases of the runs that were fetched into this folder."""
    return sorted({path.stem for path in LOCAL.glob("*/cases/*.csv")})


@completing
def known_configs() -> list[str]:
    return sorted(path.stem for path in configs_folder().glob("*.yaml") if path.stem not in ("grids", "prices"))


known_gpus = completing(lambda: GPU_NAMES)


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, a unique part of one, or `last`.", autocompletion=known_runs)
]
RunOrFolder = Annotated[
    str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder that holds one.", autocompletion=known_runs)
]
FleetName = Annotated[
    str,
    typer.Argument(metavar="FLEET", help="A fleet, a unique part of its name, or `last`.", autocompletion=known_fleets),
]
