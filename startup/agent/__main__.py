"""`python3 -m startup.agent`, from the payload's root: one run on this VM. BENCH_VM_DIR says where it works."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from startup.agent.agent import Agent, RunSite
from startup.agent.clock import AgentClock, Patience
from startup.agent.container import INSIDE, Container
from startup.agent.diagnosis import Halt
from startup.agent.events import EventWriter, boot_id, writer_name
from startup.agent.host import LocalHost
from startup.agent.http_client import Unreachable
from startup.agent.logs import Log
from startup.agent.metadata import Metadata, PreemptionWatcher
from startup.agent.slot_keeper import Keeper, MachineClaim, folder_of
from startup.agent.spec import InvalidSpec, parse_spec
from startup.agent.stop import Signals, Stop
from startup.agent.storage import AgentStorage, StorageError

GOOGLE_STORAGE = "https://storage.googleapis.com"
CANNOT_START = 3


class Conductor:
    """Builds the agent from the metadata, and connects signals and preemption, which can end the run.

    On a kept VM that works for its next run, BENCH_NEXT names the file of the claim. The spec of that run then replaces
    the one in the metadata, and only the keeper writes events for the VM's own run, which pays for the VM. All limits
    use `clock`; None is the VM's own clock.
    """

    def __init__(self, environ: Mapping[str, str], stream: TextIO, clock: AgentClock | None = None) -> None:
        self.home = Path(environ.get("BENCH_VM_DIR", "/var/lib/bench"))
        self.environ = environ
        self.clock = clock or AgentClock()
        self.log = Log(stream, self.clock)
        self.stop = Stop()
        self.metadata = Metadata(environ.get("GCE_METADATA_HOST", "metadata.google.internal"), self.clock)
        own_spec = parse_spec(self.metadata.attribute("bench-run") or "")
        endpoints = json.loads(self.metadata.attribute("bench-endpoints") or "{}")
        payload = json.loads(self.metadata.attribute("bench-payload") or "{}")
        self.own_sha256 = str(payload.get("sha256", ""))
        zone = last_part(self.metadata.get("instance/zone"))
        machine_type = last_part(self.metadata.get("instance/machine-type"))
        machine = {"zone": zone, "machine_type": machine_type, "image": self.metadata.get("instance/image") or ""}
        machine["container"] = environ.get(INSIDE, "")
        machine = {key: told for key, told in machine.items() if told}
        instance_id = self.metadata.get("instance/id") or ""
        storage = AgentStorage(
            endpoints.get("storage", GOOGLE_STORAGE), own_spec.bucket, self.metadata, own_spec.timing
        )
        writer = writer_name(own_spec.attempt, instance_id, boot_id())
        own_events = EventWriter(own_spec.run_id, writer, self.home / "events", storage, self.clock)
        claim = self.claim(environ.get("BENCH_NEXT", ""))
        if claim is None:
            self.spec, self.events = own_spec, own_events
            site = RunSite(self.home, zone, instance_id, self.own_sha256, machine)
        else:
            self.spec = parse_spec(json.dumps(claim.spec))
            folder = f"runs/{self.spec.run_id}"
            writer = writer_name(self.spec.attempt, instance_id, boot_id())
            self.events = EventWriter(self.spec.run_id, writer, self.home / folder / "events", storage, self.clock)
            payload = folder_of(claim.sha256, self.own_sha256)
            site = RunSite(self.home, zone, instance_id, claim.sha256, machine, folder, payload, self.log_size())
        # A startup script may run without HOME, which torch and the kernel's cache look for.
        env = {"HOME": str(self.home), **environ}
        # The python3 that the bootstrap found, even if it is a wrapper.
        self.python = shutil.which("python3", path=env.get("PATH")) or sys.executable
        self.host = host = LocalHost(self.home, env, self.python, self.clock, self.stop, self.log)
        self.agent = Agent(self.spec, site, storage, self.events, host)
        self.own_events = own_events
        self.keeper = Keeper(host, own_spec.vm, zone, own_spec.run_id, storage, own_events, own_spec.timing.keep_poll_s)

    def into_container(self) -> int:
        """Replaces this process by the same agent in the run's container. Returns only if that fails, with the exit
        code; then the run has ended with a diagnosis."""
        spec = self.spec
        container = Container(self.host, spec.container, self.home, spec.require_cuda, spec.allow_install)
        patience = Patience(self.clock, spec.limits_s["preflight"], self.stop.requested)
        try:
            container.fetch(self.metadata.token(), patience)
            command = container.command(self.agent.payload, self.environ)
            docker = self.host.which(command[0])
            assert docker is not None, "it fetched the image"
            (self.home / "container").write_text(spec.container + "\n")
            self.log.say(f"continuing in {spec.container}")
            os.execve(docker, command, dict(self.host.env))
        except (Halt, OSError, Unreachable) as error:
            return self.agent.unable(error)

    def claim(self, path: str) -> MachineClaim | None:
        """The run that this VM is lent to. Raises ValueError for a claim that cannot be read."""
        if not path:
            return None
        try:
            return MachineClaim.read(json.loads(Path(path).read_text(encoding="utf-8")))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: {type(error).__name__} {error}") from error

    def log_size(self) -> int:
        log = self.home / "log.txt"
        return log.stat().st_size if log.exists() else 0

    def run(self) -> int:
        """Runs the run, which a signal or a preemption may end from now on; and after it the next one, if the VM is
        kept."""
        timing = self.spec.timing
        watcher = PreemptionWatcher(self.metadata, self.on_preempted, timing.preempted_wait_s, timing.preempted_poll_s)
        watcher.start()
        code = self.agent.run()
        if self.agent.keeps or self.spec.taken:
            self.events = self.own_events
            self.then()
        watcher.close()
        return code

    def then(self) -> None:
        """What follows a finished run: this process is replaced by the next run, or the VM's last event is written."""
        claim = self.keeper.wait(self.agent.ending, self.spec.idle_limit_s) if self.agent.keeps else None
        if claim is not None:
            try:
                payload = self.keeper.payload(claim, self.own_sha256)
                next_run = self.home / "next.json"
                next_run.write_text(json.dumps(claim.document()), encoding="utf-8")
                self.keeper.lend(claim)
                os.chdir(payload)
                self.agent.await_log(math.inf)  # the next run's log begins where the file ends
                env = {**self.environ, "BENCH_NEXT": str(next_run), "PYTHONUNBUFFERED": "1"}
                os.execve(self.python, ["python3", "-m", "startup.agent"], env)
            except (StorageError, OSError, tarfile.TarError) as error:
                self.log.say(f"{claim.run_id} could not be started: {error}")
        self.keeper.last_word()

    def on_signal(self, number: int) -> None:
        """Ends the run. TERM comes from the bootstrap's watchdog, from a preemption, or from a person."""
        self.log.say(f"signal {number}")
        if (self.home / "deadline").exists():
            self.stop.request("deadline")
        elif self.metadata.preempted(self.spec.timing.preempted_ask_s):
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
    """Runs one run and returns the exit code. If even the metadata is not usable, the bootstrap writes the last
    event."""
    try:
        conductor = Conductor(environ, stream)
    except (InvalidSpec, Unreachable, ValueError, OSError) as error:
        stream.write(f"the agent cannot start: {error}\n")
        return CANNOT_START
    Signals(conductor.on_signal, conductor.stop).install()
    if conductor.spec.container and not environ.get(INSIDE):
        return conductor.into_container()
    return conductor.run()


if __name__ == "__main__":
    code = main(os.environ, sys.stdout)
    sys.stdout.flush()
    # Threads that still wait on a socket must not hold up a VM that is paid for by the second.
    os._exit(code)
