"""What a person reads while the run goes on: lines on the serial console, and log.txt in the bucket."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TextIO

from startup.agent.clock import AgentClock, Patience
from startup.agent.storage import AgentStorage, StorageError

LONGEST_LINE = 500


class Log:
    """Writes one timestamped line at a time. The bootstrap copies them to the serial console and to log.txt."""

    def __init__(self, stream: TextIO, clock: AgentClock) -> None:
        self.stream = stream
        self.clock = clock
        self.lock = threading.Lock()
        self.last = ""

    def say(self, text: str) -> None:
        """Writes a line. Never raises: the run must not end because the console is gone."""
        moment = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        with self.lock:
            try:
                for line in text.splitlines() or [""]:
                    self.last = f"{moment} {line[:LONGEST_LINE]}"
                    self.stream.write(self.last + "\n")
                self.stream.flush()
            except (OSError, ValueError):
                pass

    def await_copy(self, path: Path, patience: Patience, start: int = 0) -> None:
        """Waits until the last line is in `path`, from byte `start` on: another process copies it from the pipe that
        this log writes to, and may be late on a busy machine. Does not wait where there is no pipe."""
        try:
            if not stat.S_ISFIFO(os.fstat(self.stream.fileno()).st_mode):
                return
        except (OSError, ValueError):
            return
        while self.last.encode("utf-8", "replace") not in file_tail(path, start):
            if not patience.pause(0.01):
                return


def file_tail(path: Path, start: int, size: int = 8192) -> bytes:
    """The last `size` bytes of a file, none of them before byte `start`; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - size))
            return file.read()
    except OSError:
        return b""


class LogUploader:
    """A thread that stores log.txt from byte `start` on, every `every_s` seconds if it has changed."""

    def __init__(
        self, path: Path, name: str, storage: AgentStorage, clock: AgentClock, every_s: float, start: int = 0
    ) -> None:
        self.start_at = start
        self.path = path
        self.name = name
        self.storage = storage
        self.clock = clock
        self.every_s = every_s
        self.stored_size = -1
        self.closed = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.keep_up, name="log", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def close(self) -> None:
        self.closed.set()

    def keep_up(self) -> None:
        while not self.closed.wait(self.every_s):
            # What is not stored this time is stored next time, so there is one try only.
            self.upload(Patience(self.clock, self.every_s, self.closed))

    def upload(self, patience: Patience) -> bool:
        """Stores the log as it is now; False when that failed. An unchanged log is not stored again."""
        with self.lock:
            try:
                body = self.path.read_bytes()[self.start_at :]
                if len(body) != self.stored_size:
                    self.storage.replace(self.name, body, "text/plain", patience)
                    self.stored_size = len(body)
            except (OSError, StorageError):
                return False
            return True
