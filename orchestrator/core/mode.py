"""Where the machines of a run come from."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """Equal to its name in documents: a plan, an event, `--json`."""

    GCE = "gce"
    """Rented on Compute Engine."""
    EMBEDDED = "embedded"
    """Processes of this machine, rented from the embedded cloud at simulated prices."""
    HOST = "host"
    """Machines of the user's own, over SSH or the one in front of them."""

    @property
    def simulated(self) -> bool:
        """Whether its dollars are pretended, and kept apart from real ones."""
        return self is Mode.EMBEDDED

    @property
    def shortest_s(self) -> int:
        """The shortest deadline that lets a machine do anything at all."""
        return 240 if self is Mode.GCE else 60
