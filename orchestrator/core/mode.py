"""The mode of a run: where its machines come from."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The values are the names in documents: a plan, an event, `--json`."""

    GCE = "gce"
    """Rented on Compute Engine."""
    EMBEDDED = "embedded"
    """Processes of this machine, rented from the embedded cloud at simulated prices."""
    HOST = "host"
    """The user's own machines, over SSH, or the machine on which bench runs."""

    @property
    def simulated(self) -> bool:
        """Whether its dollars are only simulated. They are counted apart from real ones."""
        return self is Mode.EMBEDDED

    def requires_cuda(self, gpu: str, here: str) -> bool:
        """Whether a machine for `gpu` must have CUDA. Machines of the embedded cloud are processes here, and
        have the GPU that is `here`, if there is one."""
        return gpu != "cpu" and (not self.simulated or bool(here))

    @property
    def shortest_s(self) -> int:
        """The shortest deadline with which a machine can measure anything, in seconds."""
        return 240 if self is Mode.GCE else 60
