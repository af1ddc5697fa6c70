"""What a machine left behind of itself, in the bucket and on its serial port, and what it says of how the run ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.hosts import is_host
from orchestrator.core.market.machines import SerialChunk
from orchestrator.core.naming import artifacts_prefix
from orchestrator.core.run.diagnose import RunDiagnosis, diagnose_run, last_attempt
from orchestrator.core.run.events import Event
from orchestrator.core.run.fold import Run, Vm
from orchestrator.core.text import log_text
from orchestrator.ports import DATA_BYTES, Bucket, Cloud

# Follows the log of a run: from the machine's serial port while the machine exists, otherwise from the bucket.


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
        blob = self.bucket.read(f"{artifacts_prefix(self.run_id)}log.txt", largest=DATA_BYTES)
        if blob is None:
            return ""
        self.source = "bucket"
        text = blob.data.decode("utf-8", "replace")
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        return log_text(new)


SERIAL_BYTES = 64 * 1024


def serial_object(run_id: str, attempt: int) -> str:
    return f"{artifacts_prefix(run_id)}serial-{attempt}.txt"


def keep_serial(bucket: Bucket, cloud: Cloud, run_id: str, vm: Vm) -> None:
    """Stores the end of a machine's serial output before the machine is deleted, which takes it along.

    Best effort: a machine that should be gone must not live on because its words could not be read or stored.
    """
    try:
        chunk = cloud.serial_output(vm.zone, vm.name, -SERIAL_BYTES)
        if chunk is not None and chunk.text:
            name = serial_object(run_id, vm.attempt)
            bucket.replace(name, chunk.text.encode(), generation=None, content_type="text/plain")
    except BenchError:
        return


def log_of(bucket: Bucket, run_id: str, attempt: int) -> str:
    """What the machine of this attempt said: its kept serial output, then its own log. Empty when it left nothing."""
    names = (serial_object(run_id, attempt), f"{artifacts_prefix(run_id)}log.txt")
    blobs = bucket.read_many(names)
    return log_text("\n".join(blobs[name].data.decode("utf-8", "replace") for name in names if name in blobs))


def diagnosis_of(bucket: Bucket, run_id: str, attempt: int, events: Sequence[Event], ended: str) -> RunDiagnosis:
    """Why the run `ended` so, from everything that is left of it."""
    return diagnose_run(facts=last_attempt(events), log=log_of(bucket, run_id, attempt), ended=ended)


def live_serial(cloud: Callable[[], Cloud], vm: Vm | None) -> str:
    """The end of the serial output of a machine that is still there; empty when there is none."""
    if vm is None or not vm.open or vm.started_at is None:
        return ""
    chunk = cloud().serial_output(vm.zone, vm.name, -SERIAL_BYTES)
    return log_text(chunk.text) if chunk is not None else ""
