"""Follows the log of a run: from the machine's serial port while the machine exists, otherwise from the bucket."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.errors import Unavailable
from orchestrator.core.hosts import is_host
from orchestrator.core.naming import artifacts_prefix
from orchestrator.core.run.fold import Run, Vm
from orchestrator.core.text import log_text
from orchestrator.ports import Bucket, Cloud, SerialChunk


class LogTail:
    """Returns what is new since the last call. The serial port is up to ten seconds ahead of the bucket, and it works
    for a machine that cannot reach the bucket; but it disappears with the machine."""

    def __init__(self, bucket: Bucket, cloud: Callable[[], Cloud], run_id: str) -> None:
        self.bucket = bucket
        self.cloud = cloud
        self.run_id = run_id
        self.source = ""
        self._next = 0
        self._shown = 0

    def more(self, run: Run) -> str:
        vm = run.vm
        if vm is not None and vm.open and vm.started_at is not None and run.closed is None:
            chunk = self._live(vm)
            if chunk is not None:
                self.source = "host, over SSH" if is_host(vm.zone) else "serial port"
                self._next = chunk.next
                self._shown += len(chunk.text)
                lost = "[... output lost: the serial buffer holds 1 MB ...]\n" if chunk.lost else ""
                return lost + log_text(chunk.text)
        return self._stored()

    def _live(self, vm: Vm) -> SerialChunk | None:
        """The machine's own output; None if the machine is gone, or is a host that is unreachable at the moment."""
        try:
            return self.cloud().serial_output(vm.zone, vm.name, self._next)
        except Unavailable:
            if not is_host(vm.zone):
                raise
            return None

    def _stored(self) -> str:
        blob = self.bucket.read(f"{artifacts_prefix(self.run_id)}log.txt")
        if blob is None:
            return ""
        self.source = "bucket"
        text = blob.data.decode("utf-8", "replace")
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return log_text(new)
