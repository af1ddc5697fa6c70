"""Embedded clouds that are up at once: a session imports what the daemon needs once, and each cloud's process is a fork.

What runs is `python -m orchestrator.embedded.daemon --home HOME` in every other respect: it detaches, and lives alone.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from orchestrator.embedded import daemon

LONGEST: Final = 1 << 17
"""Bytes of a request."""


class CloudForks:
    """The process that imported the daemon. It ends with whoever made it; clouds live on until they are stopped."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, home: Path) -> None:
        """Returns when a cloud answers in `home`."""
        asked = json.dumps({"home": str(home), "environ": dict(os.environ), "cwd": str(Path.cwd())}).encode()
        assert len(asked) < LONGEST
        self.control.sendall(asked)
        assert self.control.recv(16) == b"0", f"no cloud came up in {home}"

    def close(self) -> None:
        self.control.close()
        self.process.wait()


def serve(control: socket.socket) -> None:
    control.setblocking(True)
    while asked := control.recv(LONGEST):
        pid = os.fork()
        if not pid:
            control.close()
            told = json.loads(asked)
            os.environ.clear()
            os.environ.update(told["environ"])
            os.chdir(told["cwd"])
            os._exit(daemon.main(["--home", told["home"]]))
        control.sendall(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
