"""What a machine left behind of itself, in the bucket and on its serial port, and what it says of how the run ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.errors import BenchError
from orchestrator.core.naming import artifacts_prefix
from orchestrator.core.run.diagnose import Diagnosis, diagnose, last_attempt
from orchestrator.core.run.events import Event
from orchestrator.core.run.fold import Vm
from orchestrator.core.text import log_text
from orchestrator.ports import Bucket, Cloud

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


def diagnosis_of(bucket: Bucket, run_id: str, attempt: int, events: Sequence[Event], ended: str) -> Diagnosis:
    """Why the run `ended` so, from everything that is left of it."""
    return diagnose(facts=last_attempt(events), log=log_of(bucket, run_id, attempt), ended=ended)


def live_serial(cloud: Callable[[], Cloud], vm: Vm | None) -> str:
    """The end of the serial output of a machine that is still there; empty when there is none."""
    if vm is None or not vm.open or vm.started_at is None:
        return ""
    chunk = cloud().serial_output(vm.zone, vm.name, -SERIAL_BYTES)
    return log_text(chunk.text) if chunk is not None else ""
