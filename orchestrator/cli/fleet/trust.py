"""Which fleets in the bucket are acted on: those that were launched from here, or whose digest was given.

A fleet's record decides which machines are connected to, which accounts and images are used, and where alerts are sent.
Every machine can write to the bucket, so a document there alone is not trusted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.sweep import Child, Sweep
from orchestrator.core.naming import SHORTEST_DIGEST
from orchestrator.core.text import clean_line
from orchestrator.store.fleets import FleetStore
from orchestrator.wiring import Wiring

Accept = Annotated[
    str, typer.Option("--accept", metavar="SHA256", help="Accept this fleet, which was launched from another computer.")
]


def remember(wiring: Wiring, store: FleetStore) -> None:
    """Records that this user has launched or accepted the fleet as it is."""
    wiring.named.add(_name(store))


def is_trusted(wiring: Wiring, store: FleetStore) -> bool:
    """Whether what was read of a fleet is what this user launched or accepted."""
    return _name(store) in wiring.named


def accept(wiring: Wiring, store: FleetStore, digest: str) -> None:
    """Raises `ConfigError` if this is not the digest of the fleet as it is in the bucket."""
    if not digest:
        return
    if len(digest) < SHORTEST_DIGEST or not store.digest.startswith(digest):
        raise ConfigError(
            f"--accept {clean_line(digest, 80)} does not match: {store.fleet} is {store.digest[:SHORTEST_DIGEST]} in "
            "the bucket",
            hint=f"`bench fleet status --look {store.fleet}` shows it; give at least {SHORTEST_DIGEST} digits",
        )
    remember(wiring, store)


def check(wiring: Wiring, store: FleetStore, sweep: Sweep, children: tuple[Child, ...]) -> None:
    """Raises `ConfigError` for a fleet that is not trusted."""
    if not is_trusted(wiring, store):
        raise ConfigError(
            f"{store.fleet} was not launched from this computer; the bucket says it wants {asked_of(sweep, children)}",
            hint=(
                f"to accept it: `bench fleet resume {store.fleet} --accept {store.digest[:SHORTEST_DIGEST]}`; to only "
                f"look: `bench fleet status --look {store.fleet}`"
            ),
        )


def asked_of(sweep: Sweep, children: tuple[Child, ...]) -> str:
    """What a fleet asks for, for the user who decides about it: first its machines, then its settings."""
    where = [*sweep.hosts, *filter(None, (sweep.slurm.login, sweep.slurm.folder, sweep.config))]
    cells = {child.cell for child in children}
    override_texts = [
        *sweep.overrides,
        *sorted({text for cell in cells for text in (*cell.overrides, cell.workload) if text}),
    ]
    asked_texts = [text for text in override_texts if not text.startswith(("measure.", "correctness."))]
    return clean_line("; ".join([f"engine {sweep.engine}", *where, *asked_texts]), 600)


def _name(store: FleetStore) -> str:
    return f"fleet {store.fleet} {store.digest}"
