"""Every error that a user can meet, and its exit code, by which a script can tell the kind.

```
BenchError 1                      something else went wrong
├── ConfigError 2                 the request cannot be carried out; the message names file, key and valid choices
├── BudgetExceeded 3              the worst case does not fit under a cap; nothing was requested
├── NoCapacity 4                  every allowed zone is out of machines
├── RunFailed 5                   the run ended without the measurements it was asked for
│   ├── KernelIncorrect 7         measured, but an implementation was wrong on some case and was not timed there
│   ├── RunPreempted 8            the machine was preempted; what was measured is kept
│   └── RunStopped 9              somebody stopped it, or it reached its deadline
├── ProviderError 6               the cloud refused, or did not answer
│   ├── QuotaExceeded 6
│   ├── PermissionDenied 6
│   │   └── HostKeyRefused 6      the host key of a machine is unknown or has changed
│   ├── CredentialsMissing 6
│   └── Unavailable 6
│       └── StillThere 6          this client may not delete a machine; its deadline ends it
├── NotFound 10                   no such run, bucket or object
├── LocalError 11                 a problem on this machine, such as a folder that cannot be written
├── Regression 12                 a comparison found something slower, beyond noise and tolerance
├── NotComparable 13              runs that must not be compared, or that have nothing in common
├── Undecided 14                  `--fail-on inconclusive`, and a comparison came to no conclusion
├── HostUnfit 15                  a machine of yours was reached, but lacks something that a run needs
└── DocumentUnreadable 16         an object in the bucket could not be read; everything else was done or shown
```
130 is Ctrl-C outside a followed run. In a followed run, Ctrl-C detaches and exits 0: the run continues.
141 means that the reader of standard output left, as in `bench launch | head`. The command did all its work; if it
followed a run, it left the run once it had a machine, and the run continues.
"""

from __future__ import annotations

import re


class BenchError(Exception):
    """The base of every expected error. `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(BenchError):
    exit_code = 2


class BudgetExceeded(BenchError):
    exit_code = 3


class NoCapacity(BenchError):
    exit_code = 4


class RunFailed(BenchError):
    exit_code = 5


class KernelIncorrect(RunFailed):
    exit_code = 7


class RunPreempted(RunFailed):
    exit_code = 8


class RunStopped(RunFailed):
    exit_code = 9


class ProviderError(BenchError):
    """An error of the cloud. Only adapters raise it, in place of the foreign exception."""

    exit_code = 6


class QuotaExceeded(ProviderError):
    pass


class PermissionDenied(ProviderError):
    pass


class HostKeyRefused(PermissionDenied):
    """Over SSH, a host showed a key that is not in known_hosts, or another key than the one there."""


class CredentialsMissing(ProviderError):
    pass


class Unavailable(ProviderError):
    """The service did not answer, or answered that it cannot do so now. Trying again later may work."""


class StillThere(Unavailable):
    """This client may not delete a machine. The deletion is tried again for as long as the machine may live."""


class NotFound(BenchError):
    exit_code = 10


class LocalError(BenchError):
    exit_code = 11


class Regression(BenchError):
    exit_code = 12


class NotComparable(BenchError):
    exit_code = 13


class Undecided(BenchError):
    exit_code = 14


class HostUnfit(BenchError):
    exit_code = 15


class DocumentUnreadable(BenchError):
    """This version cannot read an object of the bucket: it is damaged, of a newer version, or not ours."""

    exit_code = 16


def too_large(name: str, most: int) -> DocumentUnreadable:
    """The error for an object that is larger than any that bench stores in its place."""
    is_ledger = name.endswith("/ledger/ledger.json")
    again = "look at who wrote it; `bench budget rebuild` puts it aside and makes it again from the events of the runs"
    return DocumentUnreadable(
        f"{name} has more than {most} bytes, so it is not read: bench stores nothing so large there",
        hint=again if is_ledger else "look at who wrote it, and delete it",
    )


def exit_codes() -> dict[int, str]:
    """The meaning of each exit code, read from the tree in this module's docstring."""
    rows = re.findall(r"\w+ (\d+) {2,}(\S.*)", __doc__ or "")
    outside = {0: "done", 130: "interrupted", 141: "done, but the reader of standard output left before the end"}
    return dict(sorted((outside | {int(code): about for code, about in reversed(rows)}).items()))
