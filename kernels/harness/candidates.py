"""The processes of a candidate of a session: they import its files, and become those of its kernels.

The candidate that may come next is prepared while the one before it is judged. Its processes have users of their own
and the lowest priority, leave the device alone, and are stopped while times are measured. They make no call. What they
fail at is forgotten, and done again in the candidate's turn, unless they hang there for the whole limit of an import or
while they are loaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernels.harness.hands import AnswerLimits, Hand
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.users import Users, has_rights, process_ids
from kernels.harness.workload import Unavailable

LOWEST = 19
SET_PRIORITY = 1 << 23
"""The kernel's bit for the capability sys_nice: without it a priority that was lowered cannot be raised again."""
STOPPING_ROUNDS = 50
"""How often the processes of a candidate are listed and stopped, until there are no others."""


@dataclass
class CandidateProcesses:
    """The processes of the candidate at `path` that are not those of one of its kernels yet, by the names of their
    users. What is prepared `is_ahead`."""

    path: str
    users: Users | None
    is_ahead: bool = False
    hands: dict[str, Hand] = field(default_factory=dict)

    def begin(self, names: Sequence[str], start: Callable[[str], Worker], limits: AnswerLimits) -> None:
        """Starts a process for each kernel that the candidate is expected to have; an empty name is any kernel's."""
        for number, name in enumerate(names):
            user = f"@{number} {self.path}"  # no implementation has such a name
            self.hands[user] = Hand(name, partial(start, user), limits)
            self.hands[user].begin_import()

    def names(self, limit_s: float) -> Mapping[str, Any]:
        """The names of the candidate's implementations and baselines. Raises `Lost` and `Answered`."""
        for user in self.hands:
            self.raise_priority(user)
        return next(iter(self.hands.values())).imported(limit_s)

    def take(self, name: str, start: Callable[[], Worker]) -> Hand | None:
        """The hand of a kernel, whose later processes `start` starts; None if there is none. What was prepared is
        loaded then; if that hangs, the hand keeps the failure."""
        user = next((user for user, hand in self.hands.items() if hand.name in ("", name)), "")
        if not user:
            return None
        hand = self.hands[user]
        hand.name = name
        if self.is_ahead:
            try:
                hand.ready()
            except (Lost, Answered, Unavailable):
                if hand.load_failure is None:
                    return None
            self.raise_priority(user)
        if self.users is not None:
            self.users.rename(user, name)
        hand.start = start
        return self.hands.pop(user)

    def raise_priority(self, user: str) -> None:
        """Gives the processes of a user the priority of this one."""
        if self.is_ahead and self.users is not None:
            with contextlib.suppress(OSError):  # they may have ended
                os.setpriority(os.PRIO_USER, self.users.known[user].uid, os.getpriority(os.PRIO_PROCESS, 0))

    def pause(self) -> bool:
        """Stops all processes. Returns whether none is left that runs."""
        stopped: set[int] = set()
        for _ in range(STOPPING_ROUNDS):
            running = self.list_processes() - stopped
            if not running:
                return True
            send_signal(running, signal.SIGSTOP)
            stopped |= running
        return False

    def resume(self) -> None:
        """Lets all processes go on."""
        send_signal(self.list_processes(), signal.SIGCONT)

    def list_processes(self) -> set[int]:
        """Every process of these users, and those that are about to change to them."""
        assert self.users is not None, "nothing is prepared without users"
        uids = {self.users.known[user].uid for user in self.hands if user in self.users.known}
        workers = filter(None, (hand.loading or hand.worker for hand in self.hands.values()))
        begun = {worker.process.pid for worker in workers if worker.process.pid is not None}
        return begun | {pid for pid, uid in process_ids().items() if uid in uids}

    def load(self) -> None:
        """Lets the processes use the device, as their turn may come now."""
        for hand in self.hands.values():
            hand.begin()

    def end(self) -> None:
        """Ends all processes, and removes what they have left."""
        if self.is_ahead and self.hands:
            self.pause()  # whatever forks without end cannot go on while it is killed
        for hand in self.hands.values():
            hand.kill()
        for user, hand in self.hands.items():
            hand.end()
            if self.users is not None:
                self.users.release(user)


def can_prepare(users: Users | None) -> bool:
    """Whether a candidate can be prepared without harm to others: its processes need users of their own, and the right
    to raise their priority again."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return users is not None and has_rights(SET_PRIORITY)
    return False


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
