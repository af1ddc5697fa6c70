"""Lets a VM that has finished its run wait for another run, through its slot, which is one object in the bucket.

The slot changes only by compare-and-swap. The VM writes `idle`; a client changes that to `claimed`; the VM changes that
to `running`. When its time limit is over the VM changes `idle` to `closed`. So a claim is either accepted or refused,
but never lost.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from startup.agent.clock import Patience, iso_time
from startup.agent.diagnosis import Ending
from startup.agent.events import EventWriter
from startup.agent.host import LocalHost
from startup.agent.storage import AgentStorage, StorageError

BRIEF_S = 15.0
"""How long a request is repeated that must not hold up the VM, in seconds."""


@dataclass(frozen=True)
class MachineClaim:
    """The next run: its spec, and the payload that it runs."""

    run_id: str
    spec: Mapping[str, Any]
    object: str
    sha256: str

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> MachineClaim:
        """The claim in a document. Raises KeyError, TypeError, ValueError. The payload must be below payloads/, where
        no machine may write: a claim alone must not make the VM run any other object."""
        payload, spec = raw["payload"], dict(raw["spec"])
        run_id, name, sha256 = str(raw["run_id"]), str(payload["object"]), str(payload["sha256"])
        if re.fullmatch(r"[0-9a-f]{64}", sha256) is None or name != f"payloads/{sha256}.tar.gz":
            raise ValueError(f"{name[:100]!r} is not a payload")
        if spec.get("run_id") != run_id:
            raise ValueError("its spec is another run's")
        return cls(run_id, spec, name, sha256)

    def document(self) -> dict[str, Any]:
        payload = {"object": self.object, "sha256": self.sha256}
        return {"run_id": self.run_id, "spec": dict(self.spec), "payload": payload}


@dataclass(frozen=True)
class KeptMachine:
    """The result of the VM's own run, and the slot's generation: all that a later agent on this VM must know."""

    outcome: str
    exit_code: int
    detail: str
    generation: int = 0


def folder_of(sha256: str, own_sha256: str) -> str:
    """The folder into which a claim's payload is unpacked; that of the bootstrap where the payload is the same."""
    return "payload" if sha256 == own_sha256 else f"payload-{sha256[:16]}"


class Keeper:
    """Writes events for the run that the VM was made for, from the end of its work to its last event."""

    def __init__(
        self, host: LocalHost, vm: str, zone: str, owner: str, storage: AgentStorage, events: EventWriter, poll_s: float
    ) -> None:
        self.home = host.home
        self.vm = vm
        self.zone = zone
        self.owner = owner
        self.storage = storage
        self.events = events
        self.clock = host.clock
        self.log = host.log
        self.stop = host.stop
        self.poll_s = poll_s
        self.name = f"machines/{vm}.json"
        self.file = self.home / "kept.json"
        self.kept = KeptMachine(**json.loads(self.file.read_text())) if self.file.exists() else None

    def remember(self, kept: KeptMachine) -> None:
        self.kept = kept
        self.file.write_text(json.dumps(asdict(kept)))

    def wait(self, ending: Ending, idle_limit_s: float) -> MachineClaim | None:
        """Waits for the next run. None when none came within the limit or a stop was requested. The first time,
        `ending` is that of the VM's own run. If the bucket is unreachable for longer than the limit, the wait ends
        too."""
        if self.kept is None:
            self.remember(KeptMachine(ending.outcome, ending.exit_code, ending.detail))
        kept = self.kept
        assert kept is not None
        limit = Patience(self.clock, idle_limit_s, self.stop.requested)
        until = iso_time(self.clock.now() + timedelta(seconds=idle_limit_s))
        self.events.start()
        try:
            opening = Patience(self.clock, max(idle_limit_s, BRIEF_S), self.stop.requested)
            if self.swap(kept.generation, "idle", until, opening) is None:
                self.log.say("the slot belongs to another run: this VM is not kept")
                return None
            self.events.append(
                "kept", outcome=kept.outcome, exit_code=kept.exit_code, detail=kept.detail, idle_limit_s=idle_limit_s
            )
            self.log.say(f"kept: waiting for another run, at most {idle_limit_s:g} s")
            claim = self.poll_slot(limit)
            if claim is not None:
                return claim
            # A claim in the last moment is accepted, unless the VM must end.
            generation = (self.kept or kept).generation
            if not self.stop.reason and self.swap(generation, "closed", until, self.brief()) is None:
                return self.accept_claim(self.brief())
        except StorageError as error:
            self.log.say(f"the slot cannot be reached: {error}")
        return None

    def poll_slot(self, limit: Patience) -> MachineClaim | None:
        """Accepts the first claim that comes within the limit. A bucket that is away meanwhile may be there again at
        its end, when a claim is still accepted."""
        unreachable = False
        while limit.pause(self.poll_s):
            try:
                claim = self.accept_claim(limit)
            except StorageError as error:
                if not unreachable:
                    self.log.say(f"the slot cannot be reached: {error}")
                unreachable = True
            else:
                if claim is not None:
                    return claim
        return None

    def accept_claim(self, patience: Patience) -> MachineClaim | None:
        """Accepts the claim in the slot and returns it; None while there is none, or when it cannot be read."""
        there = self.storage.get(self.name, patience)
        if there is None:
            return None
        try:
            slot = dict(json.loads(there[0]))
            until, wish = str(slot["idle_until"]), slot["claim"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None  # it was written by somebody who is no client
        if slot.get("state") == "idle" and self.kept is not None:
            self.remember(replace(self.kept, generation=there[1]))  # the client has taken its claim back
        if slot.get("state") != "claimed" or slot.get("schema", 1) != 1:
            return None
        generation = self.swap(there[1], "running", until, patience, wish)
        if generation is None:
            return None
        try:
            claim = MachineClaim.read(wish)
        except (KeyError, TypeError, ValueError) as error:
            self.log.say(f"the claim cannot be read: {type(error).__name__} {error}")
            return None
        self.log.say(f"claimed by {claim.run_id}")
        return claim

    def swap(
        self, generation: int, state: str, until: str, patience: Patience, claim: Mapping[str, Any] | None = None
    ) -> int | None:
        """Puts the slot into its next state. Returns its new generation; None when somebody else has changed it."""
        slot = {
            "schema": 1,
            "state": state,
            "vm": self.vm,
            "zone": self.zone,
            "owner": self.owner,
            "idle_until": until,
            "claim": claim,
        }
        new = self.storage.swap(self.name, json.dumps(slot, indent=1).encode(), generation, patience)
        if new is not None and self.kept is not None:
            self.remember(KeptMachine(self.kept.outcome, self.kept.exit_code, self.kept.detail, new))
        return new

    def payload(self, claim: MachineClaim, own_sha256: str) -> Path:
        """The folder of the claim's unpacked payload, kept from an earlier run or fetched now. Raises StorageError."""
        folder = self.home / folder_of(claim.sha256, own_sha256)
        if (folder / "manifest.json").exists():
            return folder
        there = self.storage.get(claim.object, Patience(self.clock, 120.0, self.stop.requested))
        if there is None or hashlib.sha256(there[0]).hexdigest() != claim.sha256:
            raise StorageError(f"there is no {claim.object} with the sha256 that it should have")
        fresh = folder.with_suffix(".new")
        with tarfile.open(fileobj=io.BytesIO(there[0]), mode="r:gz") as archive:
            archive.extractall(fresh)
        fresh.rename(folder)
        return folder

    def lend(self, claim: MachineClaim) -> None:
        """Writes an event to the log of the VM's own run: it works for another run now."""
        self.events.append("lent", to=claim.run_id)
        self.events.flush(self.brief())
        self.events.close()

    def last_word(self) -> None:
        """Writes the last event of the VM's own run, with the result that its work had, whatever ends the VM now."""
        kept = self.kept
        assert kept is not None
        self.events.start()
        self.events.append(
            "finished", outcome=kept.outcome, exit_code=kept.exit_code, phase="finish", detail=kept.detail
        )
        patience = self.brief()
        try:
            self.close(kept.generation, patience)
        except StorageError:
            pass  # A client that claims the slot now finds a VM that is ending.
        if self.events.flush(patience):
            (self.home / "last-word").touch()
        self.events.close()

    def close(self, generation: int, patience: Patience) -> None:
        """Closes the slot, also when it has become idle in a generation that this VM has not seen: a client has taken
        its claim back, or a request of this VM has arrived late. Nobody may claim a VM that is gone."""
        now = iso_time(self.clock.now())
        if self.swap(generation, "closed", now, patience) is not None:
            return
        there = self.storage.get(self.name, patience)
        try:
            slot = {} if there is None else dict(json.loads(there[0]))
        except (ValueError, TypeError, RecursionError):
            return  # it was written by somebody who is no client
        if there is not None and (slot.get("state"), slot.get("vm")) == ("idle", self.vm):
            self.swap(there[1], "closed", now, patience)

    def brief(self) -> Patience:
        return Patience(self.clock, BRIEF_S)
