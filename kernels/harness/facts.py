"""The protocol with the agent: one JSON fact a line on standard output, an acknowledgement for each file named."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from kernels.harness.calls import THESE

CRASHED = 1


class Silent:
    """Takes facts that are for nobody: those of a trial, and those about single answers to a candidate."""

    def send(self, _fact: str, **_keys: object) -> None:
        """Does nothing."""


class Facts:
    """Writes facts to the original standard output, and waits for acknowledgements on standard input.

    Once this object is made, standard output leads to standard error, for this process and all that it starts. So no
    output of a library can be taken for a fact. When standard input ends, the agent is gone, and the process ends at
    once with exit code 1.
    """

    def __init__(self, *, acknowledged: bool) -> None:
        sys.stdout.flush()
        self.out: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self.acks: queue.Queue[str] | None = None
        self.candidates: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        """What is given to a session to judge, or to one of several processes to measure; None for nothing more."""
        if acknowledged:
            self.acks = queue.Queue()
            threading.Thread(target=self.listen, name="acks", daemon=True).start()

    def send(self, fact: str, **keys: object) -> None:
        """Sends one fact. If it names a `path`, it returns only after the agent has acknowledged that file."""
        line = json.dumps({"fact": fact, **keys}, allow_nan=False)
        try:
            self.out.write(line + "\n")
            self.out.flush()
        except BrokenPipeError:
            log_line("the agent no longer reads the results; stopping")
            THESE.stop_telling()
            os._exit(CRASHED)
        path = keys.get("path")
        if path is None or self.acks is None:
            return
        while (acked := self.acks.get()) != path:
            log_line(f"expected an acknowledgement of {path}, got one of {acked}; still waiting")

    def request_next(self) -> Mapping[str, Any] | None:
        """Says that this process is ready, and waits for the next candidate or case; None when there is no other."""
        self.send("ready")
        return self.candidates.get() if self.acks is not None else None

    def listen(self) -> None:
        """Read acknowledgements until standard input ends, then end the process, whatever it is doing."""
        assert self.acks is not None
        # Unbuffered reads of the descriptor: a buffered reader's lock could be held when the interpreter shuts down.
        remainder = b""
        while chunk := os.read(0, 65536):
            *lines, remainder = (remainder + chunk).split(b"\n")
            for line in lines:
                path, candidate = acknowledged_path(line), named_candidate(line)
                if path is not None:
                    self.acks.put(path)
                elif candidate is not False:
                    self.candidates.put(candidate)
                else:
                    log_line(f"not an acknowledgement: {line[:200]!r}")
        log_line("standard input ended: the agent is gone; stopping")
        THESE.stop_telling()
        os._exit(CRASHED)


def acknowledged_path(line: bytes) -> str | None:
    """The path in `{"ack": "<path>"}`, or None for anything else."""
    try:
        path = json.loads(line)["ack"]
    except (ValueError, KeyError, TypeError):
        return None
    return path if isinstance(path, str) else None


def named_candidate(line: bytes) -> Mapping[str, Any] | Literal[False] | None:
    """The candidate in `{"candidate": {...}}`, or the case in `{"case": {...}}`; None for null in its place, and False
    for anything else."""
    try:
        message = json.loads(line)
        candidate = message["candidate" if "candidate" in message else "case"]
    except (ValueError, KeyError, TypeError):
        return False
    return candidate if candidate is None or isinstance(candidate, dict) else False


def log_line(words: str) -> None:
    """A line for people, on standard error."""
    os.write(2, f"harness: {words}\n".encode())
