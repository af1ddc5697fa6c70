"""Which cases of a shared grid this machine is to measure: an object that whoever hands them out keeps up to date."""

from __future__ import annotations

import json

from startup.agent.clock import Clock, Patience
from startup.agent.diagnosis import failed, timed_out
from startup.agent.logs import Log
from startup.agent.spec import Timing
from startup.agent.stop import Stop
from startup.agent.storage import Storage, StorageError


class Grants:
    """Reads `runs/<run-id>/grants.json`: `{"cases": [...], "over": bool}`, the cases that are its own now."""

    def __init__(self, run_id: str, storage: Storage, clock: Clock, log: Log, timing: Timing) -> None:
        self.name = f"runs/{run_id}/grants.json"
        self.storage = storage
        self.clock = clock
        self.log = log
        self.timing = timing
        self.taken: set[str] = set()
        self.waiting = False

    def next(self, limit: Patience, stop: Stop) -> str:
        """The next case that was granted, as soon as there is one; empty when the grid is over.

        Raises Halt on a stop, past the phase's limit, and when nobody has granted anything for too long: then whoever
        hands out the cases is gone, and the machine is of no use.
        """
        patience = Patience(self.clock, self.timing.grant_patience_s, stop.requested)
        while True:
            stop.check()
            granted, over = self.read(limit)
            for case in granted:
                if case not in self.taken:
                    self.taken.add(case)
                    self.waiting = False
                    return case
            if over:
                return ""
            if not self.waiting:
                self.log.say("no case is granted: waiting for more, or for the end of the grid")
                self.waiting = True
            if limit.left() <= 0:
                stop.check()
                raise timed_out("the phase's limit passed while no case was granted")
            if not patience.pause(self.timing.grant_poll_s):
                stop.check()
                raise failed("unknown", f"nobody has granted a case for {self.timing.grant_patience_s:g} s")

    def read(self, limit: Patience) -> tuple[list[str], bool]:
        """The cases granted by now, and whether the grid is over. While the object is away it grants nothing."""
        try:
            there = self.storage.get(self.name, Patience(self.clock, min(5.0, limit.left()), limit.interrupt))
            document = json.loads(there[0]) if there is not None else {}
            return [str(case) for case in document.get("cases", [])], bool(document.get("over", False))
        except (StorageError, ValueError, AttributeError, TypeError) as error:
            self.log.say(f"the grants cannot be read: {error}")
            return [], False
