"""A machine to heal: executables on a PATH that holds nothing else of note, and a simulated clock."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from startup.agent.clock import AgentClock, Patience
from startup.agent.diagnosis import Halt
from startup.agent.host import LocalHost
from startup.agent.logs import Log
from startup.agent.packages import Packages
from startup.agent.remediation import HealRecord
from startup.agent.stop import Stop
from tests.support.patience import PATIENCE_S
from tests.unit.startup.machine import stub

SHELL = "/usr/bin:/bin"


class Bench:
    """A host whose commands are stubs, and what its ladder recorded."""

    def __init__(self, root: Path, allow_install: bool = True, clock: AgentClock | None = None) -> None:
        self.bin = root / "bin"
        self.bin.mkdir()
        self.root = root
        self.stop = Stop()
        self.clock = clock or AgentClock()
        self.console = io.StringIO()
        env = {"PATH": f"{self.bin}:{SHELL}"}
        self.host = LocalHost(root, env, "python3", self.clock, self.stop, Log(self.console, self.clock))
        self.host.kill_grace_s = 0.1
        # This machine's own package managers are never within reach.
        for name in ("apt-get", "python3", "nvidia-smi"):
            self.stub(name, "exit 1")
        self.healed: list[HealRecord] = []
        self.packages = Packages(self.host, allow_install, 0, self.healed.append)
        self.patience = Patience(self.clock, PATIENCE_S)

    def stub(self, name: str, body: str) -> Path:
        return stub(self.bin, name, body)

    def driver(self, version: str) -> None:
        self.stub("nvidia-smi", f"echo {version}")

    def python(self, body: str = "", /, **found: object) -> None:
        """A python3 whose probe finds `found`, and on which `body` (sh) handles everything else."""
        self.finds(**found)
        self.stub(
            "python3",
            f'echo "$*" | head -n 1 >> {self.root}/calls\n'
            f'case "$*" in\n"-c "*exchange*) cat {self.root}/found; exit 0 ;;\n{body}\nesac',
        )

    def finds(self, **found: object) -> None:
        (self.root / "found").write_text(self.answer(**found) + "\n")

    def answer(self, **found: object) -> str:
        whole = {"torch": "2.13.0", "cuda": "13.0", "usable": True, "numpy": "2.4.0", "exchange": True, "error": ""}
        return json.dumps({**whole, **found})

    def becomes(self, **found: object) -> str:
        """What a stub does to change what the next probe finds."""
        return f"echo '{self.answer(**found)}' > {self.root}/found"

    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    def installed(self) -> list[str]:
        return [call.split("--quiet ")[1] for call in self.calls() if "pip install" in call]


def cause_of(halted: pytest.ExceptionInfo[Halt]) -> str:
    assert halted.value.ending.diagnosis is not None
    return halted.value.ending.diagnosis.cause


def disk_of(bench: Bench, *free_gb: float) -> None:
    """Each look at the disk finds the next of these; the last one stays."""
    left = list(free_gb)

    class Disk(LocalHost):
        def free_gb(self) -> float:
            return left.pop(0) if len(left) > 1 else left[0]

    bench.host = Disk(bench.root, bench.host.env, "python3", bench.clock, bench.stop, bench.host.log)
    bench.packages.host = bench.host
