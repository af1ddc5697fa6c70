"""A steward that is asked to end between two lines of what it does while it waits: each line in turn."""

from __future__ import annotations

import faulthandler
import itertools
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from startup.host import supervisor
from startup.host.supervisor import Steward

supervisor.TICK_S = 0.01
WATCHED = ("threading.py", "queue.py", "supervisor.py")
LINES = 60
"""More than a steward executes between two looks, however it waits."""


def asked_at(line: int, folder: Path) -> str:
    """What the run was ended by, asked to end before the `line`-th line after its script began."""
    folder.mkdir()
    told = {"vm": "vm", "client_time": 0, "host_time": 0, "deadline_s": 600, "executable": sys.executable, "id": "1"}
    (folder / "run.json").write_text(json.dumps({**told, "metadata": {"startup-script": ": > began; exec sleep 600"}}))
    (folder / "scratch").mkdir()
    (folder / "alive").touch()
    one = Steward(folder)
    count = itertools.count()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED) or frame.f_code.co_name in ("asked_at", "on_signal"):
            return None
        if event == "line" and began(one) and next(count) == line:
            sys.settrace(None)
            one.on_signal(signal.SIGTERM, None)
        return trace

    sys.settrace(trace)
    try:
        one.run_to_its_end()
    finally:
        sys.settrace(None)
        one.server.server_close()
    return one.ended_by


def began(one: Steward) -> bool:
    return (one.scratch / "began").exists()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[2]), exit=True)
    for line in range(LINES):
        assert asked_at(line, Path(sys.argv[1]) / str(line)) == "exit", line
