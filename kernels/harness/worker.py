"""The process that a user's code runs in. It holds nothing but one pipe to the harness, and answers what it is asked.

An implementation has a worker of its own: what it breaks, leaks or takes over is gone with the process. The reference
is computed in another one, so that its answer never lies in memory that an implementation could find. Requests and
answers are JSON; tensors travel as files. Nothing here is imported by the process that writes results.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from kernels.forms.definition import BadWorkload
from kernels.forms.load import load
from kernels.harness.answers import Reply
from kernels.harness.bench import Bench
from kernels.harness.handles import Handles
from kernels.harness.judge import Judge, place
from kernels.harness.workload import BuildFailed, Unavailable

PDEATHSIG = 1


def serve(pipe: Connection, told: dict[str, Any]) -> None:
    """Answer requests until the pipe ends. The first thing that happens is that the harness's own handles are taken."""
    alone(pipe)
    handles = Handles()
    device = torch.device(told["device"])
    if told["threads"]:
        torch.set_num_threads(told["threads"])
    subject: Any = None
    file = Path(told["path"])
    with torch.inference_mode():
        while True:
            try:
                request = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            try:
                if request["op"] == "load":
                    definition = load(told["form"], file)
                    file = definition.file
                    name = request["name"]
                    subject = Judge(definition, device) if name is None else Bench(definition, name, device)
                    reply: Reply = {"record": getattr(subject, "record", None)}
                elif request["op"] == "ping":
                    reply = {}
                else:
                    reply = getattr(subject, request["op"])(**request["with"])
                replaced = handles.compared()
                if replaced:
                    reply = {"error": "untrusted", "text": f"untrusted: {', '.join(replaced[:3])} was replaced"}
            except BaseException as exc:
                reply = failure(exc, file)
                if device.type == "cuda" and reply["error"] != "unavailable":
                    reply["sticky"] = broken(device)
            pipe.send_bytes(json.dumps(reply).encode())


def failure(exc: BaseException, file: Path) -> Reply:
    """What an exception comes to, in words that fit a row."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    words = lines[0] if lines else "no message"
    if isinstance(exc, (torch.OutOfMemoryError, MemoryError)):
        return {"error": "memory", "text": "out of memory"}
    if isinstance(exc, (Unavailable, NotImplementedError)):
        return {"error": "unavailable", "text": words[:300]}
    if isinstance(exc, BadWorkload):
        return {"error": "workload", "text": str(exc)[:1000]}
    if isinstance(exc, BuildFailed):
        return {"error": "build", "text": str(exc)[:2000], "remedy": exc.remedy}
    traceback.print_exception(exc, limit=-8, file=sys.stderr)
    return {"error": "raised", "text": f"{place(exc, file)}: raised {type(exc).__name__}: {words}"[:300]}


def broken(device: torch.device) -> bool:
    """Whether the device refuses everything from now on."""
    try:
        torch.cuda.synchronize(device)
        torch.ones(1, device=device).add_(1).item()
    except BaseException:
        return True
    return False


def alone(pipe: Connection) -> None:
    """With no file of the harness's but this pipe, nor its standard input; and gone when the harness is."""
    last = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, pipe.fileno())
    os.closerange(pipe.fileno() + 1, min(last, 1 << 16))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):  # no Linux: the pipe's end ends it all the same
        pass
    sys.stdout = sys.stderr
