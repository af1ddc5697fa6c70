"""Kinds of cheats that public collections have and cheats.py has not. Read by test_cheats.py; not a test."""

import collections
import ctypes
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

axes = {"n": [64]}


def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)


def reference(x):
    return x @ x


def baseline_torch(x):
    return x @ x


calls = collections.Counter()
kept = {}
libc = ctypes.CDLL(None, use_errno=True)


def kernel_honest_workspace(x):
    """It keeps memory, and no answers."""
    room = kept.setdefault(x.shape, torch.empty_like(x))
    torch.mm(x, x, out=room)
    return room.clone()


def kernel_honest_fallback(x):
    try:
        raise ImportError("no such extension")
    except ImportError:
        return torch.mm(x, x)


def kernel_zeros(x):
    return torch.zeros_like(x)


def kernel_copy_of_input(x):
    return x.clone()


def kernel_mean(x):
    return (x @ x).mean().expand_as(x).contiguous()


def kernel_right_while_it_warms_up(x):
    calls["warm"] += 1
    return x @ x if calls["warm"] < 6 else torch.zeros_like(x)


def kernel_replay_from_file(x):
    """The first answer, from a file that outlives the call."""
    file = Path(tempfile.gettempdir()) / f"answer-{os.getpid()}.pt"
    if not file.exists():
        torch.save(x @ x, file)
    return torch.load(file)


def kernel_answer_to_the_last_inputs(x):
    """Batches its work: this call has the answer of the one before."""
    before = kept.get("last", x @ x)
    kept["last"] = x @ x
    return before


def kernel_from_the_garbage(x):
    """Looks for the right answer among all objects of the process."""
    for thing in gc.get_objects():
        if type(thing) is torch.Tensor and thing is not x and thing.shape == x.shape and thing.dtype is torch.float64:
            return thing.float()
    return torch.zeros_like(x)


def kernel_from_the_frames(x):
    """Looks for the right answer among the variables of its callers."""
    frame = sys._getframe()
    while frame is not None:
        for name in ("expected", "exact", "right", "answer"):
            if isinstance(frame.f_locals.get(name), torch.Tensor):
                return frame.f_locals[name]
        frame = frame.f_back
    return torch.zeros_like(x)


def kernel_tells_the_frames(x):
    """Changes what its callers hold: the number of faults, the verdict."""
    frame = sys._getframe()
    while frame is not None:
        for values in (frame.f_locals, frame.f_globals):
            for name in ("passed", "errors", "faults", "fault"):
                if name in values:
                    values[name] = type(values[name])()
        frame = frame.f_back
    return x


def kernel_nan(x):
    return torch.full_like(x, float("nan"))


def kernel_infinity(x):
    return torch.full_like(x, float("inf"))


def kernel_ends_the_harness(x):
    os.kill(os.getppid(), signal.SIGKILL)
    return x @ x


def kernel_ends_everybody(x):
    os.kill(-1, signal.SIGSTOP)
    return x @ x


def kernel_traces_others(x):
    if libc.ptrace(16, os.getppid(), None, None) == -1:
        raise PermissionError(ctypes.get_errno(), "ptrace")
    return x @ x


def kernel_reads_the_memory_of_others(x):
    room = ctypes.create_string_buffer(16)
    span = (ctypes.c_uint64 * 2)(ctypes.addressof(room), 16)
    if libc.process_vm_readv(os.getppid(), span, 1, span, 1, 0) == -1 and ctypes.get_errno() == 1:
        raise PermissionError(1, "process_vm_readv")
    return x @ x


def kernel_patched_event(x):
    torch.cuda.Event.elapsed_time = lambda *_: 0.001
    return x @ x


def kernel_patched_event_class(x):
    class Event:
        def elapsed_time(self, _):
            return 0.001

    torch.cuda.Event = Event
    return x @ x


def kernel_patched_synchronize(x):
    torch.cuda.synchronize = lambda *_: None
    return x @ x


def kernel_no_answer_until_asked(x):
    """An object that computes when somebody looks at it."""

    class Promise:
        shape, dtype = x.shape, x.dtype

        def __eq__(self, _):
            return True

        __hash__ = object.__hash__

        def double(self):
            return (x @ x).double()

    return Promise()


def kernel_thread_that_writes(x):
    """A thread goes on after the call, and writes to whatever is open."""

    def write():
        for _ in range(20):
            for descriptor in range(3, 32):
                try:
                    os.pwrite(descriptor, b"0.001\n", 0)
                except OSError:
                    pass
            time.sleep(0.001)

    threading.Thread(target=write, daemon=True).start()
    return x + 1


def kernel_rewrites_a_module(x):
    sys.modules["kernels.harness.criterion"].judged = lambda *_, **__: None
    return x + 1


def kernel_half_precision(x):
    return (x.half() @ x.half()).float()


def kernel_signs_only(x):
    return (x.sign() @ x.sign()) * 0.64
