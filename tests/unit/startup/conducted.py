"""An agent that is run from its start to its end against a cloud of the tests."""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from startup.agent.__main__ import Conductor
from startup.agent.clock import AgentClock
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import fast_python, payload, run_spec


def cloud_for(script: dict[str, Any] | None = None, **spec: Any) -> Cloud:
    return Cloud(run_spec(script, **spec), payload())


def environ(cloud: Cloud, home: Path) -> dict[str, str]:
    """What the bootstrap leaves behind: an unpacked payload, a log, and where to ask."""
    vm = home / "vm"
    vm.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(cloud.payload)) as tar:
        tar.extractall(vm / "payload", filter="data")
    (vm / "log.txt").write_text("the log\n")
    python = fast_python(home / "bin")
    path = f"{python.parent}:/usr/bin:/bin"
    temporary = home / "temporary"
    temporary.mkdir(exist_ok=True)
    return {"PATH": path, "BENCH_VM_DIR": str(vm), "GCE_METADATA_HOST": cloud.host, "TMPDIR": str(temporary)}


class WindUp(AgentClock):
    """The monotonic clock, which a test can put forward: hours pass for every limit, and none for the test."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Conducted:
    """An agent run to its end in this process, with its console."""

    def __init__(
        self,
        cloud: Cloud,
        home: Path,
        meanwhile: Callable[[Conductor], None] | None = None,
        clock: AgentClock | None = None,
    ) -> None:
        self.console = io.StringIO()
        self.conductor = Conductor(environ(cloud, home), self.console, clock)
        if meanwhile is not None:
            threading.Thread(target=meanwhile, args=(self.conductor,), daemon=True).start()
        began = time.monotonic()
        self.code = self.conductor.run()
        self.seconds = time.monotonic() - began
        self.vm = home / "vm"

    @property
    def has_last_word(self) -> bool:
        return (self.vm / "last-word").exists()


def ended(cloud: Cloud) -> dict[str, Any]:
    (last,) = cloud.said("finished")
    assert cloud.kinds()[-1] == "finished", "nothing comes after the last word"
    return last


def cause(cloud: Cloud) -> str:
    (diagnosed,) = cloud.said("diagnosed")
    assert diagnosed["detail"]
    return str(diagnosed["cause"])
