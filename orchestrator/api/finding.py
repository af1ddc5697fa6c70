"""From what a user typed to a run id."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.core.errors import ConfigError, LocalError, NotFound
from orchestrator.core.names import is_fleet_id
from orchestrator.core.naming import is_run_id
from orchestrator.core.text import count
from orchestrator.wiring import Wiring, write_atomically

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
    if newest == read_seen(file, one_of_ours):
        return
    try:
        write_atomically(file, json.dumps(newest).encode())
    except LocalError:
        return


def read_seen(file: Path, one_of_ours: Callable[[str], bool]) -> list[str]:
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for one in names if isinstance(one, str) and one_of_ours(one)] if isinstance(names, list) else []


def require_name(text: str, what: str, hint: str) -> str:
    """The name that was typed. Raises `ConfigError` for an empty one, for example from a shell variable that is not
    set: it is a part of every name, so it would match any run."""
    if not text.strip():
        raise ConfigError(f"which {what}? the name is empty", hint=hint)
    return text


def only_match(text: str, names: Sequence[str], what: str, hint: str) -> str:
    """The one of `names` that `text` is or is a part of. Raises `NotFound`, `ConfigError`."""
    matches = [text] if text in names else [name for name in names if text in name]
    if not matches:
        raise NotFound(f"{what} not found: {text}", hint=hint)
    if len(matches) > 1:
        listed = f"{count(len(matches), what)}: {', '.join(sorted(matches)[-5:])}"
        raise ConfigError(f"{text} is ambiguous: it matches {listed}", hint="give a longer part of the id")
    return matches[0]


def find_run(wiring: Wiring, text: str) -> str:
    """The run id that is meant by an id, `last`, or a unique part of an id. Raises `NotFound`, `ConfigError`."""
    if is_run_id(require_name(text, "run", "`bench status` lists the runs in this bucket; `last` is the newest")):
        return text
    index = wiring.index
    ids = [line.run_id for line in (index.list_recent(wiring.clock.now())[0] if text == "last" else index.list_runs())]
    remember(wiring.home, ids)
    if text == "last":
        if not ids:
            raise NotFound("there are no runs yet", hint="`bench launch --gpu l4` makes one")
        return max(ids)
    return only_match(text, ids, "run", "`bench status` lists the runs in this bucket")
