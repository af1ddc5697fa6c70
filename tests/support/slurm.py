"""A Slurm cluster on loopback for tests: the real slurmctld and slurmd, nodes of this machine with GPUs that are names.

It runs without munge, database, cgroups and systemd, believes everybody (so it listens on loopback alone), needs root,
and ends no process but its own. GPUs are character devices that exist everywhere: Slurm counts them and opens nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import own_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
MISSING = tuple(name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")
NOTICED_SOON: Mapping[str, str] = {
    "SlurmdTimeout": "10",
    "SlurmctldTimeout": "10",
    "MessageTimeout": "5",
    "BatchStartTimeout": "5",
}
"""Settings of a cluster that notices failures in seconds."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SETTINGS: Mapping[str, str] = {
    "ClusterName": "bench",
    "SlurmctldHost": "localhost(127.0.0.1)",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    # Nobody is asked who they are, and nodes may claim more than there is.
    "AuthType": "auth/none",
    "CredType": "cred/none",
    "AuthInfo": "cred_expire=5",
    "SlurmdParameters": "config_overrides",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "SwitchType": "switch/none",
    "MpiDefault": "none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "JobCompType": "jobcomp/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "GresTypes": "gpu",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0",
    "CommunicationParameters": "NoAddrCache",
    "ReturnToService": "2",
    # A machine that stands still for a minute is no failure.
    "SlurmdTimeout": "600",
    "SlurmctldTimeout": "600",
    "MessageTimeout": "90",
    "BatchStartTimeout": "90",
    "KillWait": "3",
    "InactiveLimit": "0",
    "MinJobAge": "600",
    "MaxJobCount": "50000",
    "RebootProgram": "/bin/true",
}


@dataclass
class SlurmCluster:
    """One cluster below `folder`. `gpus` are types, one for each node in turn."""

    folder: Path
    nodes: int
    gpus: tuple[str, ...] = ("l4",)
    settings: Mapping[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ.get('PATH', '')}:{PATH}"}

    def run(self, *argv: str, check: bool = True, timeout_s: float = 600) -> str:
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def write(self) -> None:
        for name in ("state", *self.names):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        ports = [own_port() for _ in range(self.nodes + 1)]
        here = {
            "SlurmctldPort": str(ports[0]),
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/%n",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/%n.pid",
            "SlurmctldLogFile": f"{self.folder}/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/%n.log",
        }
        lines = [f"{key}={value}" for key, value in {**SETTINGS, **here, **self.settings}.items()]
        devices = ["AutoDetect=off"]
        for number, name in enumerate(self.names):
            gpu = self.gpus[number % len(self.gpus)]
            lines.append(
                f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[number + 1]} CPUs=4 "
                f"RealMemory=1000 Gres=gpu:{gpu}:1 State=UNKNOWN"
            )
            devices.append(f"NodeName={name} Name=gpu Type={gpu} File={DEVICES[0]}")
        lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP OverSubscribe=NO")
        self.conf.write_text("\n".join(lines) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(devices) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def start(self, within_s: float = 600) -> float:
        """Starts everything and waits until every node is idle; how many seconds it took."""
        began = time.monotonic()
        self.write()
        self.start_controller("-i")
        for name in self.names:
            self.start_node(name)
        while time.monotonic() - began < within_s:
            states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split()
            if states.count("idle") == self.nodes:
                return time.monotonic() - began
            time.sleep(0.2)
        raise TimeoutError(f"the cluster is not up: {(self.folder / 'slurmctld.log').read_text()[-2000:]}")

    def start_controller(self, *flags: str) -> None:
        """Without flags the saved state counts, as after a restart."""
        self._spawn("slurmctld", "slurmctld", "-D", *flags, "-f", str(self.conf))

    def start_node(self, name: str) -> None:
        self._spawn(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def end_controller(self, number: signal.Signals) -> None:
        daemon = self.daemons.pop("slurmctld")
        daemon.send_signal(number)
        daemon.wait(timeout=600)

    def cut_power(self, name: str) -> None:
        """The node and everything that runs on it are gone at once, and say nothing."""
        below = [pid for step in self._steps(name) for pid in _family(step)]
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait(timeout=600)
        _kill(below)

    def stop(self) -> None:
        for step in [pid for name in self.names for pid in self._steps(name)]:
            _kill(_family(step))
        for daemon in self.daemons.values():
            daemon.kill()
        for daemon in self.daemons.values():
            daemon.wait(timeout=600)
        for name in self.names:
            _kill([pid for step in self._steps(name) for pid in _family(step)])
        self.daemons.clear()

    def _spawn(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _steps(self, name: str) -> list[int]:
        """The slurmstepd processes of a node of this cluster: those that write to its log."""
        log, found = str(self.folder / f"{name}.log"), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                if not (entry / "comm").read_text().startswith("slurmstepd"):
                    continue
                if any(str(one.readlink()) == log for one in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
        return found


def _family(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def slurm_cluster(
    folder: Path, nodes: int, gpus: tuple[str, ...] = ("l4",), settings: Mapping[str, str] | None = None
) -> Iterator[SlurmCluster]:
    made = SlurmCluster(folder, nodes, gpus, settings or {})
    try:
        made.start()
        yield made
    finally:
        made.stop()
