"""Shell completion: runs, fleets, cases, GPUs, configurations and their keys. It never contacts a cloud: it offers the
runs and fleets that were listed last, and the cases that were fetched."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.api.finding import LOCAL, SEEN, SEEN_FLEETS, read_seen
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.names import is_fleet_id
from orchestrator.core.naming import is_run_id
from orchestrator.wiring import configs_folder, load_settings


def known_runs(incomplete: str) -> list[str]:
    """The runs that were listed last, newest first, and `last`."""
    return _fitting(["last", *reversed(read_seen(load_settings().home / SEEN, is_run_id))], incomplete)


def known_fleets(incomplete: str) -> list[str]:
    """The fleets that were listed last, newest first, and `last`."""
    return _fitting(["last", *reversed(read_seen(load_settings().home / SEEN_FLEETS, is_fleet_id))], incomplete)


def known_cases(incomplete: str) -> list[str]:
    """The cases of the runs that were fetched into this folder."""
    return _fitting(sorted({path.stem for path in LOCAL.glob("*/cases/*.csv")}), incomplete)


def known_gpus(incomplete: str) -> list[str]:
    return _fitting(list(GPU_NAMES), incomplete)


def known_configs(incomplete: str) -> list[str]:
    return _fitting(
        sorted(path.stem for path in configs_folder().glob("*.yaml") if path.stem not in ("grids", "prices")),
        incomplete,
    )


def _fitting(words: list[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, a unique part of one, or `last`.", autocompletion=known_runs)
]
RunOrFolder = Annotated[
    str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder that holds one.", autocompletion=known_runs)
]
