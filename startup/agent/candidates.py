"""The candidates of a session: the client stores them in the bucket, and the harness judges one after another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from startup.agent.clock import AgentClock, Patience
from startup.agent.logs import Log
from startup.agent.stop import Stop
from startup.agent.storage import AgentStorage

POLL_S, IDLE_POLL_S, IDLE_AFTER_S = 0.1, 0.3, 5.0
"""How often a candidate is looked for, in seconds: often at first, as a program sends the next one at once."""
VERDICT = re.compile(r"candidates/(\d{6})/verdict\.json\Z", re.ASCII)
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*\Z", re.ASCII)
"""The name of a file of a candidate, below its folder."""


class CandidateQueue:
    """Reads candidates in order, without those that an earlier attempt has judged."""

    def __init__(
        self, run_id: str, folder: Path, storage: AgentStorage, clock: AgentClock, stop: Stop, log: Log, idle_s: float
    ) -> None:
        self.prefix = f"payloads/sessions/{run_id}/"
        self.verdicts = f"runs/{run_id}/artifacts/candidates/"
        self.folder = folder
        self.storage = storage
        self.clock = clock
        self.stop = stop
        self.log = log
        self.idle_s = idle_s
        self.number = 1
        self.judged: set[int] | None = None

    def next(self, patience: Callable[[], Patience], limit: Patience) -> dict[str, Any]:
        """`{"candidate": {"number", "path"}}`, or None for the candidate when none has come for `idle_s` seconds, the
        client has closed the session, or a stop is requested. Raises StorageError and ValueError."""
        if self.judged is None:
            names = self.storage.names(self.verdicts, patience())
            found = (VERDICT.search(name) for name in names)
            self.judged = {int(match.group(1)) for match in found if match}
        wait = Patience(self.clock, min(self.idle_s, limit.left()), self.stop.requested)
        idle_at = self.clock.monotonic() + IDLE_AFTER_S
        while wait.left() > 0:
            stored = self.storage.get(f"{self.prefix}{self.number:06d}.json", patience())
            if stored is None:
                wait.pause(POLL_S if self.clock.monotonic() < idle_at else IDLE_POLL_S)
                continue
            number, self.number = self.number, self.number + 1
            if number in self.judged:
                self.log.say(f"candidate {number} is judged already")
                continue
            document = json.loads(stored[0])
            if document.get("closes"):
                return {"candidate": None}
            candidate = {"number": number, "path": self.write(number, document), "beat": document.get("beat", {})}
            return {"candidate": candidate}
        self.log.say(f"no candidate came for {self.idle_s:g} s")
        return {"candidate": None}

    def write(self, number: int, document: Mapping[str, Any]) -> str:
        """Writes the files of a candidate, and returns the path of its workload. Raises ValueError."""
        folder = self.folder / f"{number:06d}"
        for name, content in document["files"].items():
            if not SAFE.match(name):
                raise ValueError(f"candidate {number} has a file {name!r}, which is no path below its folder")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(bytes.fromhex(content))
        if not SAFE.match(str(document["path"])):
            raise ValueError(f"candidate {number} is at {document['path']!r}")
        return str(folder / str(document["path"]))
