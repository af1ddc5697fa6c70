"""From what a user typed to a run id."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.completing import known_runs, remember
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.naming import is_run_id
from orchestrator.core.wording import count
from orchestrator.wiring import Wiring

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, a unique part of one, or `last`.", autocompletion=known_runs)
]
RunOrFolder = Annotated[
    str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder that holds one.", autocompletion=known_runs)
]


def named(text: str, what: str, hint: str) -> str:
    """The name that was typed. Raises `ConfigError` for an empty one, for example from a shell variable that is not
    set: it is a part of every name, so it would match any run."""
    if not text.strip():
        raise ConfigError(f"which {what}? the name is empty", hint=hint)
    return text


def find_run(wiring: Wiring, text: str) -> str:
    """The run id that is meant by an id, `last`, or a unique part of an id. Raises `NotFound`, `ConfigError`."""
    if is_run_id(named(text, "run", "`bench status` lists the runs in this bucket; `last` is the newest")):
        return text
    ids = [line.run_id for line in wiring.index.list_runs()]
    remember(wiring.home, ids)
    if text == "last":
        if not ids:
            raise NotFound("there are no runs yet", hint="`bench launch --gpu l4` makes one")
        return max(ids)
    matches = [run_id for run_id in ids if text in run_id]
    if not matches:
        raise NotFound(f"run not found: {text}", hint="`bench status` lists the runs in this bucket")
    if len(matches) > 1:
        listed = f"{count(len(matches), 'run')}: {', '.join(sorted(matches)[-5:])}"
        raise ConfigError(f"{text} is ambiguous: it matches {listed}", hint="give a longer part of the id")
    return matches[0]
