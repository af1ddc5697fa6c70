"""Takes from a worker's process what only an attack on other processes needs: new privileges, ptrace, reading or
writing the memory of others, their descriptors, and signals to them. What a worker starts is confined too."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Final

NO_NEW_PRIVS, SET_SECCOMP, FILTER_MODE = 38, 22, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16
X32: Final = 0x40000000
"""The bit of the numbers of calls in x86's other interface, which nothing uses."""
REFUSED: Final = {
    # ptrace, process_vm_readv, process_vm_writev, tkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal
    "x86_64": (0xC000003E, (101, 310, 311, 200, 129, 297, 424), (62, 234)),
    "aarch64": (0xC00000B7, (117, 270, 271, 130, 138, 240, 424), (129, 131)),
}
"""For each machine its number, the calls that are refused, and those (kill, tgkill) that are refused with another
process than oneself as the first argument."""


class Program(ctypes.Structure):
    """sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def instructions(machine: str, pid: int) -> bytes:
    """The filter for a process on a machine, as the kernel reads it."""
    number, refused, signals = REFUSED[machine]

    def one(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    checks = [one(AT_LEAST, X32, len(refused) + len(signals) + 3)] if machine == "x86_64" else []
    after = len(refused) + len(signals)
    checks += [one(EQUAL, call, after - at + 2) for at, call in enumerate(refused)]
    checks += [one(EQUAL, call, len(signals) - at) for at, call in enumerate(signals)]
    return b"".join(
        [
            one(LOAD, MACHINE),
            one(EQUAL, number, 1),
            one(RETURN, ALLOW),
            one(LOAD, NUMBER),
            *checks,
            one(RETURN, ALLOW),
            one(LOAD, FIRST_ARGUMENT),
            one(EQUAL, pid, 1),
            one(RETURN, REFUSE),
            one(RETURN, ALLOW),
        ]
    )


def confine() -> bool:
    """Confines this process for good, and says whether it is; on other systems, and where the kernel has no filters, it
    changes nothing."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in REFUSED:
        return False
    content = instructions(machine, os.getpid())
    program = Program(len(content) // 8, content)
    prctl = ctypes.CDLL(None).prctl
    if prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return int(prctl(SET_SECCOMP, FILTER_MODE, ctypes.byref(program), 0, 0)) == 0
