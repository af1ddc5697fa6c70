"""The candidates of a session: the client stores them in the bucket, and the harness judges one after another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass
class CandidateQueue:
    """Reads candidates in order, without those that an earlier attempt has judged."""

    run_id: str
    folder: Path
    storage: AgentStorage
    clock: AgentClock
    stop: Stop
    log: Log
    idle_s: float
    number: int = 1
    judged: set[int] | None = None
    foreseen: tuple[Mapping[str, Any], str] = ({}, "")
    """The files and the path of the candidate that may come next, and the name of the folder that has them."""

    def next(self, patience: Callable[[], Patience], limit: Patience) -> dict[str, Any]:
        """`{"candidate": {…}}` as `admit` has it, or None for the candidate when none has come for `idle_s` seconds,
        the client has closed the session, or a stop is requested. Raises StorageError and ValueError."""
        if self.judged is None:
            names = self.storage.names(f"runs/{self.run_id}/artifacts/candidates/", patience())
            self.judged = {int(match.group(1)) for match in map(VERDICT.search, names) if match}
        wait = Patience(self.clock, min(self.idle_s, limit.left()), self.stop.requested)
        idle_at = self.clock.monotonic() + IDLE_AFTER_S
        while wait.left() > 0:
            stored = self.storage.get(f"payloads/sessions/{self.run_id}/{self.number:06d}.json", patience())
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
            return {"candidate": self.admit(number, document)}
        self.log.say(f"no candidate came for {self.idle_s:g} s")
        return {"candidate": None}

    def admit(self, number: int, document: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the files of a candidate, and of the one that may come next if the document names it. A candidate that
        was foreseen keeps its folder. Returns what the harness is told. Raises ValueError."""
        parts = {"path": document["path"], "files": document["files"]}
        folder = self.foreseen[1] if parts == self.foreseen[0] else f"{number:06d}"
        candidate = {"number": number, "path": self.write(folder, parts), "beat": document.get("beat", {})}
        if "ahead" in document:
            self.foreseen = {**parts, "files": {**parts["files"], **document["ahead"]}}, f"{number:06d}-next"
            candidate["ahead"] = self.write(self.foreseen[1], self.foreseen[0])
        return candidate

    def write(self, folder: str, parts: Mapping[str, Any]) -> str:
        """Writes the files of a candidate, except those that are there, and returns the path of its workload. Raises
        ValueError."""
        for name, content in parts["files"].items():
            if not SAFE.match(name):
                raise ValueError(f"candidate {folder} has a file {name!r}, which is no path below its folder")
            file, data = self.folder / folder / name, bytes.fromhex(content)
            if not file.is_file() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        if not SAFE.match(str(parts["path"])):
            raise ValueError(f"candidate {folder} is at {parts['path']!r}")
        return str(self.folder / folder / str(parts["path"]))
