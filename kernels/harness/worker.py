"""The process in which a user's code runs. It has only one pipe to the harness, and answers requests from it.

Each implementation has its own worker: whatever it breaks, leaks or manipulates ends with the process. The reference is
computed in another process, so that its answer is never in memory that an implementation could read. Requests and
answers are JSON; tensors are passed as files. The process that writes results imports nothing from here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from kernels.forms.definition import BadWorkload, Definition, place
from kernels.forms.load import load_workload
from kernels.harness.answers import Reply
from kernels.harness.bench import Bench
from kernels.harness.confinement import confine
from kernels.harness.ending import close_files_except, end_with_parent
from kernels.harness.gate import gate_of
from kernels.harness.handles import Handles
from kernels.harness.judge import Judge
from kernels.harness.settings import FRAMES_SIGNAL, NATIVE_FRAMES_SIGNAL, without_collector
from kernels.harness.users import become_user
from kernels.harness.workload import BuildFailed, Unavailable

MOST_FRAMES = 100


def serve_requests(pipe: Connection, frames: Connection, settings: Mapping[str, Any]) -> None:
    """Answers requests until the pipe ends. Before anything else it takes the references of `handles`."""
    close_inherited(pipe, frames)
    show_frames(frames.fileno())
    os.nice(settings.get("niceness", 0))
    if settings.get("user"):
        become_user(**settings["user"])
        end_with_parent()  # who becomes another user is not ended with its parent any more
    confine()
    handles = Handles()
    device = torch.device(settings["device"])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    subject: Any = None
    definition: Definition | None = None
    file = Path(settings["path"])
    with torch.inference_mode():
        while True:
            try:
                request = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            try:
                if request["op"] in ("import", "load"):
                    name, definition = request["name"], definition or import_workload(settings, file)
                    file = definition.file
                    if request["op"] == "import":
                        compile_entry(definition, name, device)
                        reply: Reply = {"implementations": [*definition.implementations]}
                        reply |= {"baselines": definition.baselines}
                    else:
                        subject = Judge(definition, device) if name is None else Bench(definition, name, device)
                        if not settings.get("reads"):
                            prepare_device(device, times=name is not None)
                        reply = {"record": getattr(subject, "record", None)}
                elif request["op"] == "ping":
                    reply = {}
                else:
                    reply = getattr(subject, request["op"])(**request["with"])
                replaced = handles.compared()
                if replaced:
                    reply = {"error": "untrusted", "text": f"untrusted: {', '.join(replaced[:3])} was replaced"}
            except BaseException as exc:
                reply = failure_reply(exc, file)
                if device.type == "cuda" and reply["error"] != "unavailable":
                    reply["sticky"] = is_broken(device)
            pipe.send_bytes(json.dumps(reply).encode())


def import_workload(settings: Mapping[str, Any], file: Path) -> Definition:
    """The workload of a worker. Raises `BadWorkload`."""
    load = load_uncompiled if settings.get("reads") else load_workload
    with without_collector():
        return load(settings["form"], file)


def compile_entry(definition: Definition, name: str, device: torch.device) -> None:
    """Compiles an implementation that is a CUDA entry, before its device may be used. What fails here will fail, and be
    reported, when it is loaded."""
    described = definition.implementations.get(name)
    if isinstance(described, dict) and device.type == "cuda":
        from kernels.forms.cuda_entry import compile_described

        with contextlib.suppress(Exception):
            compile_described(described, definition.file.parent, device)


def load_uncompiled(form: str, path: Path) -> Definition:
    """The workload at `path`, with nothing compiled. A file that needs more of what `torch.compile` returns than that
    it can be called is loaded with it. Raises `BadWorkload`."""
    compile_model, torch.compile = torch.compile, leave_uncompiled
    try:
        return load_workload(form, path)
    except BadWorkload:
        torch.compile = compile_model
        return load_workload(form, path)
    finally:
        torch.compile = compile_model


def leave_uncompiled(model: Any = None, **options: Any) -> Any:
    """Takes the place of `torch.compile` where nothing is called: that would import the compiler, for seconds."""
    return model if model is not None else partial(leave_uncompiled, **options)


def prepare_device(device: torch.device, *, times: bool) -> None:
    """Makes what every first call on a device waits for, while other processes load: its context, and with `times` the
    gate of the timers. What fails here will fail, and be reported, where it is needed."""
    if device.type == "cuda":
        with contextlib.suppress(Exception):
            torch.zeros(1, device=device)
            if times:
                gate_of(device)


def show_frames(file: int) -> None:
    """Lets `FRAMES_SIGNAL` write to a file where the main thread is, and `NATIVE_FRAMES_SIGNAL` even if it is in native
    code that never returns. `faulthandler` alone would not do: in code that starts threads it now and then reads one
    that has just ended, or ends a call with a wrong `errno`, and the process crashes."""

    def write_frames(_: int, frame: FrameType | None) -> None:
        lines: list[str] = []
        while frame is not None and len(lines) < MOST_FRAMES:
            lines.append(f'File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n')
            frame = frame.f_back
        os.write(file, "".join(lines).encode(errors="replace"))

    signal.signal(FRAMES_SIGNAL, write_frames)
    signal.siginterrupt(FRAMES_SIGNAL, False)
    signal.signal(NATIVE_FRAMES_SIGNAL, signal.SIG_IGN)
    faulthandler.register(NATIVE_FRAMES_SIGNAL, file=file, all_threads=False, chain=True)  # with it, `errno` is kept


def failure_reply(exc: BaseException, file: Path) -> Reply:
    """The reply for an exception, with a reason that fits a row."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    message_text = lines[0] if lines else "no message"
    if isinstance(exc, (torch.OutOfMemoryError, MemoryError)):
        return {"error": "memory", "text": "out of memory"}
    if isinstance(exc, (Unavailable, NotImplementedError)):
        return {"error": "unavailable", "text": message_text[:300]}
    if isinstance(exc, BadWorkload):
        return {"error": "workload", "text": str(exc)[:1000]}
    if isinstance(exc, BuildFailed):
        return {"error": "build", "text": str(exc)[:2000], "remedy": exc.remedy}
    traceback.print_exception(exc, limit=-8, file=sys.stderr)
    return {"error": "raised", "text": f"{place(exc, file)}: raised {type(exc).__name__}: {message_text}"[:300]}


def is_broken(device: torch.device) -> bool:
    """Whether the device refuses everything from now on."""
    try:
        torch.cuda.synchronize(device)
        torch.ones(1, device=device).add_(1).item()
    except torch.OutOfMemoryError:
        return False
    except BaseException:
        return True
    return False


def close_inherited(*kept: Connection) -> None:
    """Closes all files of the harness but these, and its standard input. The process will end with the harness."""
    close_files_except(*(connection.fileno() for connection in kept))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    end_with_parent()  # elsewhere than on Linux it ends when the pipe ends
    sys.stdout = sys.stderr
