"""Every error that a person can meet, and the exit code that tells a script which kind it was.

```
BenchError 1                      something else went wrong
├── ConfigError 2                 what was asked for cannot be done: file, key and valid choices are named
├── BudgetExceeded 3              the worst case does not fit under a cap; nothing was asked for
├── NoCapacity 4                  every allowed zone is out of machines
├── RunFailed 5                   the run ended without the measurements it was asked for
│   ├── KernelIncorrect 7         measured, but an implementation was wrong on some case and was not timed there
│   ├── RunPreempted 8            the machine was taken back; what was measured is kept
│   └── RunStopped 9              somebody stopped it, or its deadline did
├── ProviderError 6               the cloud said no, or did not answer
│   ├── QuotaExceeded 6
│   ├── PermissionDenied 6
│   │   └── HostKeyRefused 6      a machine is not known to be the one that was meant
│   ├── CredentialsMissing 6
│   └── Unavailable 6
│       └── StillThere 6          a machine may not be deleted by this client; its deadline ends it
├── NotFound 10                   no such run, bucket or object
├── LocalError 11                 this machine: a folder that cannot be written, a file in the way
├── Regression 12                 a comparison found something slower, beyond noise and tolerance
├── NotComparable 13              runs that must not be set side by side, or that have nothing in common
├── Undecided 14                  `--fail-on inconclusive`, and a comparison came to no conclusion
├── HostUnfit 15                  a machine of yours was reached, and lacks something that a run needs
└── DocumentUnreadable 16         an object of the bucket is not what it should be; all else was done or shown
```
130 is Ctrl-C outside a followed run. A followed run detaches on Ctrl-C and exits 0: the run goes on.
141 is a reader of standard output that left, as in `bench launch | head`. All that was asked for is done all the same;
a followed run is left once it has a machine, and goes on.
"""

from __future__ import annotations

import re


class BenchError(Exception):
    """Base of every expected error. `hint` says what to do next."""

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
    """Raised by adapters only, from the foreign exception that it translates."""

    exit_code = 6


class QuotaExceeded(ProviderError):
    pass


class PermissionDenied(ProviderError):
    pass


class HostKeyRefused(PermissionDenied):
    """Over SSH, a host showed a key that is not in known_hosts, or not the one that is there."""


class CredentialsMissing(ProviderError):
    pass


class Unavailable(ProviderError):
    """The service did not answer, or answered that it cannot now. Trying again later may work."""


class StillThere(Unavailable):
    """A machine that this client may not delete. It is tried again for as long as the machine may live."""


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
    """An object of the bucket that this version cannot read: damaged, of a newer version, or not ours."""

    exit_code = 16


def exit_codes() -> dict[int, str]:
    """What each exit code means, as the drawing above says it."""
    drawn = re.findall(r"\w+ (\d+) {2,}(\S.*)", __doc__ or "")
    outside = {0: "done", 130: "interrupted", 141: "done, and whoever read standard output left before it was told"}
    return dict(sorted((outside | {int(code): about for code, about in reversed(drawn)}).items()))
