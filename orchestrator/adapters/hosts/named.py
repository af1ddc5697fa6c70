"""What this user's own commands have named: machines to connect to, and fleets to drive.

It lies in BENCH_HOME, where nothing that comes from a bucket is written, so that a document there cannot make a client
connect to a machine, or run what a fleet asks for, that nobody here has chosen.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.adapters.files import write_atomically
from orchestrator.core.errors import ConfigError, Unavailable
from orchestrator.core.hosts import HostTarget, parse_target


@dataclass(frozen=True, slots=True)
class Named:
    """What was named, one small file each."""

    folder: Path

    def __contains__(self, what: str) -> bool:
        return self._file(what).is_file()

    def add(self, what: str) -> None:
        """Raises `LocalError`."""
        if what not in self:
            write_atomically(self._file(what), f"{what}\n".encode(), durable=True)

    def add_hosts(self, texts: Iterable[str], machine: str) -> None:
        """Hosts as they were typed; `local` is `machine`. Raises `ConfigError`, `LocalError`."""
        for text in texts:
            self.add(_host(parse_target(text, machine)))

    def reachable(self, target: HostTarget) -> HostTarget:
        """The same target. Raises `Unavailable` for one that no command has named, as for one that is out of reach."""
        if _host(target) not in self:
            raise Unavailable(f"{_strange(target)}, so nothing is sent there", hint=_hint(target))
        return target

    def chosen(self, texts: Iterable[str], run_id: str) -> None:
        """Raises `ConfigError` where the plan of a run would have it on a host that no command has named."""
        for target in map(parse_target, texts):
            if _host(target) not in self:
                raise ConfigError(
                    f"the plan of {run_id}: {_strange(target)}", hint=f"{_hint(target)}, then the same command again"
                )

    def _file(self, what: str) -> Path:
        return self.folder / hashlib.sha256(what.encode("utf-8", "backslashreplace")).hexdigest()


def _host(target: HostTarget) -> str:
    return f"host {target}"


def _strange(target: HostTarget) -> str:
    return f"the bucket names {target}, but no command on this computer has named it"


def _hint(target: HostTarget) -> str:
    return f"if it is yours, run `bench doctor --host {shlex.quote(str(target))}`"
