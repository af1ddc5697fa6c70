"""`python3 -m startup.agent`, from the payload's root: one run on this VM. BENCH_VM_DIR says where it works."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from startup.agent.agent import Agent, Site
from startup.agent.clock import Clock
from startup.agent.events import EventWriter
from startup.agent.host import Host
from startup.agent.logs import Log
from startup.agent.metadata import Metadata, PreemptionWatcher
from startup.agent.spec import BadSpec, parse
from startup.agent.stop import Signals, Stop
from startup.agent.storage import Storage
from startup.agent.wire import Unreachable

GOOGLE_STORAGE = "https://storage.googleapis.com"
CANNOT_START = 3


class Conductor:
    """Builds the agent from what the metadata server says, and connects what can end it."""

    def __init__(self, environ: Mapping[str, str], stream: TextIO) -> None:
        self.home = Path(environ.get("BENCH_VM_DIR", "/var/lib/bench"))
        self.clock = Clock()
        self.log = Log(stream, self.clock)
        self.stop = Stop()
        self.metadata = Metadata(environ.get("GCE_METADATA_HOST", "metadata.google.internal"), self.clock)
        self.spec = parse(self.metadata.attribute("bench-run") or "")
        endpoints = json.loads(self.metadata.attribute("bench-endpoints") or "{}")
        payload = json.loads(self.metadata.attribute("bench-payload") or "{}")
        zone = last_part(self.metadata.get("instance/zone"))
        machine_type = last_part(self.metadata.get("instance/machine-type"))
        machine = {"zone": zone, "machine_type": machine_type, "image": self.metadata.get("instance/image") or ""}
        site = Site(
            self.home,
            zone,
            self.metadata.get("instance/id") or "",
            str(payload.get("sha256", "")),
            {key: told for key, told in machine.items() if told},
        )
        storage_url = endpoints.get("storage", GOOGLE_STORAGE)
        storage = Storage(storage_url, self.spec.bucket, self.metadata, self.spec.timing)
        writer = f"vm-{self.spec.attempt}"
        self.events = EventWriter(self.spec.run_id, writer, self.home / "events", storage, self.clock)
        # A startup script may run without HOME, which torch and the kernel's cache look for.
        env = {"HOME": str(self.home), **environ}
        # The same python3 that the bootstrap found, also where that is a wrapper.
        python = shutil.which("python3", path=env.get("PATH")) or sys.executable
        host = Host(self.home, env, python, self.clock, self.stop, self.log)
        self.agent = Agent(self.spec, site, self.clock, self.log, self.stop, storage, self.events, host)

    def run(self) -> int:
        """The run, from now on ended by a signal or by preemption."""
        timing = self.spec.timing
        watcher = PreemptionWatcher(self.metadata, self.on_preempted, timing.preempted_wait_s, timing.preempted_poll_s)
        watcher.start()
        code = self.agent.run()
        watcher.close()
        return code

    def on_signal(self, number: int) -> None:
        """TERM comes from the bootstrap's watchdog, from a preemption, or from someone who wants the run to end."""
        self.log.say(f"signal {number}")
        if (self.home / "deadline").exists():
            self.stop.request("deadline")
        elif self.metadata.preempted():
            self.on_preempted()
        else:
            self.stop.request("terminated")

    def on_preempted(self) -> None:
        if self.stop.request("preempted"):
            self.events.append("preempted", detail="the metadata server says that this VM is being preempted")
            self.log.say("preempted")


def last_part(path: str | None) -> str:
    """The name at the end of a resource's path; empty for none."""
    return (path or "").rsplit("/", 1)[-1]


def main(environ: Mapping[str, str], stream: TextIO) -> int:
    """Runs one run. Where even the metadata is of no use the last word is left to the bootstrap."""
    try:
        conductor = Conductor(environ, stream)
    except (BadSpec, Unreachable, ValueError, OSError) as error:
        stream.write(f"the agent cannot start: {error}\n")
        return CANNOT_START
    Signals(conductor.on_signal).install()
    return conductor.run()


if __name__ == "__main__":
    code = main(os.environ, sys.stdout)
    sys.stdout.flush()
    # Threads that still wait on a socket must not hold up a VM that is paid for by the second.
    os._exit(code)
