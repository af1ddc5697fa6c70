"""What a client does on a host: one operation a call, JSON in and JSON out.

The client sends the text of this file and of the modules that it imports over SSH (`python3 -c`), so that it works
before anything of ours is on the host (`orchestrator/adapters/hosts/host_operations.py` joins them).
"""

from __future__ import annotations

import errno
import json
import signal
import sys
import tarfile
from collections.abc import Callable
from typing import Any

from startup.host.machine import check_packages, probe_host, validate_host
from startup.host.paths import Trouble
from startup.host.runs import (
    accept_upload,
    forget_run,
    list_runs,
    prepare_payload,
    read_log,
    run_state,
    start_run,
    stop_run,
)

ANSWER = "@@spotbench@@"
"""Begins the line that holds the answer: a login shell may print before it."""

OPERATIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "probe": probe_host,
    "validate": validate_host,
    "packages": check_packages,
    "prepare": prepare_payload,
    "accept": accept_upload,
    "start": start_run,
    "state": run_state,
    "read_log": read_log,
    "stop": stop_run,
    "forget": forget_run,
    "runs": list_runs,
}
"""By the names that clients use."""
KINDS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.EACCES: "not_writable",
    errno.EPERM: "not_writable",
    errno.EROFS: "not_writable",
    errno.ENOTDIR: "not_writable",
}


def main(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One operation. What goes wrong is an answer too: `trouble`, `message`, `path`."""
    try:
        return OPERATIONS[operation](arguments)
    except Trouble as trouble:
        return {"trouble": trouble.kind, "message": str(trouble), "path": trouble.path}
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "failed")
        return {"trouble": kind, "message": error.strerror or str(error), "path": str(error.filename or "")}
    except (KeyError, TypeError, ValueError, tarfile.TarError) as error:
        return {"trouble": "failed", "message": f"{type(error).__name__}: {error}", "path": ""}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout.write("\n" + ANSWER + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
