"""Shell completion: runs, fleets, cases, GPUs, configurations and their keys. It never contacts a cloud: it offers the
runs and fleets that were listed last, and the cases that were fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.core.errors import LocalError
from orchestrator.core.fleet.names import is_fleet_id
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.naming import is_run_id
from orchestrator.user_settings import load_settings
from orchestrator.wiring import configs, write_atomically

SEEN = "seen-runs.json"
SEEN_FLEETS = "seen-fleets.json"
MOST = 200
LOCAL = Path("results/local")


def remember(home: Path, run_ids: Sequence[str]) -> None:
    """Stores the newest runs of a listing for completion. If BENCH_HOME cannot be written, nothing is stored."""
    _remember(home / SEEN, run_ids, is_run_id)


def remember_fleets(home: Path, fleets: Sequence[str]) -> None:
    """The same for fleets."""
    _remember(home / SEEN_FLEETS, fleets, is_fleet_id)


def _remember(file: Path, names: Sequence[str], one_of_ours: Callable[[str], bool]) -> None:
    newest = sorted(names)[-MOST:]
    if newest == _seen(file, one_of_ours):
        return
    try:
        write_atomically(file, json.dumps(newest).encode())
    except LocalError:
        return


def _seen(file: Path, one_of_ours: Callable[[str], bool]) -> list[str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for one in found if isinstance(one, str) and one_of_ours(one)] if isinstance(found, list) else []


def known_runs(incomplete: str) -> list[str]:
    """The runs that were listed last, newest first, and `last`."""
    return _fitting(["last", *reversed(_seen(load_settings().home / SEEN, is_run_id))], incomplete)


def known_fleets(incomplete: str) -> list[str]:
    """The fleets that were listed last, newest first, and `last`."""
    return _fitting(["last", *reversed(_seen(load_settings().home / SEEN_FLEETS, is_fleet_id))], incomplete)


def known_cases(incomplete: str) -> list[str]:
    """The cases of the runs that were fetched into this folder."""
    return _fitting(sorted({path.stem for path in LOCAL.glob("*/cases/*.csv")}), incomplete)


def known_gpus(incomplete: str) -> list[str]:
    return _fitting(list(GPU_NAMES), incomplete)


def known_configs(incomplete: str) -> list[str]:
    return _fitting(
        sorted(path.stem for path in configs().glob("*.yaml") if path.stem not in ("grids", "prices")), incomplete
    )


def _fitting(words: list[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
