"""The single place through which a preemption, a stop request or the deadline ends the work."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from startup.agent.diagnosis import Diagnosis, Ending, Halt

ENDINGS = {
    "preempted": Ending("preempted", 143, "the VM was preempted"),
    "terminated": Ending("terminated", 143, "asked to stop"),
    "deadline": Ending(
        "timed_out", 124, "the VM's deadline is near", Diagnosis("deadline", "stopped ahead of the VM's deadline")
    ),
}


class Stop:
    """A request to stop, with its reason. Only the first one counts. Code that waits for something else adds a
    listener."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.reason = ""
        self.listeners: list[Callable[[], None]] = []
        self.lock = threading.Lock()
        self.signals_received = self.signals_understood = 0

    def request(self, reason: str) -> bool:
        """Asks for the end of the run; `reason` is a key of ENDINGS. False when it was asked for before."""
        with self.lock:
            if self.reason:
                return False
            self.reason = reason
            self.requested.set()
            listeners = list(self.listeners)
        for listener in listeners:
            listener()
        return True

    def await_signals(self, limit_s: float) -> None:
        """Waits until it is known what each signal means that has come."""
        end = time.monotonic() + limit_s
        while self.signals_understood < self.signals_received and time.monotonic() < end:
            time.sleep(0.02)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once when a stop is requested; at once when it has been."""
        with self.lock:
            self.listeners.append(listener)
            late = self.requested.is_set()
        if late:
            listener()

    def forget(self, listener: Callable[[], None]) -> None:
        with self.lock:
            self.listeners.remove(listener)

    def check(self) -> None:
        """Raises the Halt of the stop, if one was requested."""
        if self.requested.is_set():
            raise Halt(ENDINGS[self.reason])


class Signals:
    """Turns TERM, INT and HUP into a call on a thread of its own.

    A Python signal handler runs between two instructions of the main thread, which may hold the very lock that the
    handler would need; SimpleQueue.put is the one operation that is safe there.
    """

    def __init__(self, on_signal: Callable[[int], None], stop: Stop) -> None:
        self.inbox: SimpleQueue[int] = SimpleQueue()
        self.on_signal, self.stop = on_signal, stop
        threading.Thread(target=self.serve, name="signals", daemon=True).start()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.receive)

    def receive(self, number: int, _: FrameType | None) -> None:
        self.stop.signals_received += 1
        self.inbox.put(number)

    def serve(self) -> None:
        while True:
            self.on_signal(self.inbox.get())
            self.stop.signals_understood += 1
