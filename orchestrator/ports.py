"""What the engine needs from the world. Each port is small, synchronous, in our words, and owns its errors.

Implementations raise only `orchestrator.core.errors.ProviderError` and its kin (plus what a docstring names).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from orchestrator.core.fleet.jobs import ChildSeen, JobSpec, JobStatus, SchedulerTraits
    from orchestrator.core.fleet.state import FleetState
    from orchestrator.core.hosts import HostRecord, HostTarget
    from orchestrator.core.images import CloudImage
    from orchestrator.core.market.machines import (
        Accepted,
        CloudRefusal,
        Instance,
        InstanceRequest,
        Operation,
        Quota,
        SerialChunk,
    )
    from orchestrator.core.market.offers import Offer, ZoneAdvice
    from orchestrator.core.names import (
        FleetId,
        ImageName,
        ImageUrl,
        JobName,
        MachineName,
        ProjectId,
        Region,
        ResourceId,
        Zone,
    )

# --- Cloud ----------------------------------------------------------------------------------------------------------


class Market(Protocol):
    """What a cloud offers: read before any money is spent."""

    def image(self, project: ProjectId, family: ImageName) -> ImageUrl:
        """The dated image that `family` means now, as a partial URL. Raises `NotFound` when the family is gone."""

    def advice(self, offers: Sequence[Offer]) -> tuple[ZoneAdvice, ...]:
        """What the cloud expects of spot machines like these, for the zones that it has a word on. Never more than a
        few requests, and never an error: a project without advice gets none."""

    def quotas(self, region: Region) -> tuple[Quota, ...]:
        """The region's quotas, and the project's (with `region` empty)."""


class Cloud(Market, Protocol):
    """Creates and destroys VMs of one project."""

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        """Asks for a VM and waits until it exists or is refused. Retries lost answers with the same request id, so
        that one request makes at most one VM; a VM of that name and our run label is adopted.
        Raises `PermissionDenied`, `CredentialsMissing`, `Unavailable`."""

    def delete(self, zone: Zone, name: MachineName, request_id: str) -> None:
        """Idempotent: deleting what is already gone is success. Returns when the VM is gone."""

    def instance(self, zone: Zone, name: MachineName) -> Instance | None:
        """The VM, or None once it is gone."""

    def instances(self) -> tuple[Instance, ...]:
        """Every VM in the project that carries our tool label, in all zones."""

    def operations(self, zone: Zone, instance_id: ResourceId) -> tuple[Operation, ...]:
        """What the zone's operation log says of the VM with this numeric id, oldest first."""

    def operations_by_name(self, zone: Zone, name: MachineName) -> tuple[Operation, ...]:
        """The same by target name, for a VM whose id was never learned."""

    def serial_output(self, zone: Zone, name: MachineName, start: int) -> SerialChunk | None:
        """Serial port 1 from byte `start` (negative: the last bytes), or None once the VM is gone."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image to be made from the disk of a machine that lives."""

    name: ImageName
    family: ImageName
    zone: Zone
    disk: MachineName
    labels: Mapping[str, str]
    description: str
    request_id: str
    patience_s: float
    """How long it may take: not beyond the machine's deadline, which takes the disk."""


class Images(Protocol):
    """The images of one project that carry our tool label."""

    def seal(self, request: ImageRequest) -> CloudImage:
        """Makes an image, and returns when it is READY. Sent again with the same request id it makes one image. Raises
        `ProviderError` where it failed, `Unavailable` where it took too long; something may be left then."""

    def images(self) -> tuple[CloudImage, ...]:
        """Every one, whatever its state."""

    def image(self, name: ImageName) -> CloudImage | None:
        """One of them, or None when it is gone."""

    def newest(self, family: ImageName) -> CloudImage | None:
        """The newest that is not deprecated, or None."""

    def deprecate(self, name: ImageName) -> None:
        """No launch should begin with it any more. Idempotent, also where it is gone."""

    def delete(self, name: ImageName) -> None:
        """Idempotent. Returns when it is gone."""


# --- Hosts ----------------------------------------------------------------------------------------------------------


class RemoteShell(Protocol):
    """One machine that its owner lets us into. It connects when it is first used, and again after the connection was
    lost. Raises `Unavailable` when it cannot be reached or the connection is lost, `HostKeyRefused`, `PermissionDenied`
    when it does not let us in, and `HostUnfit` when it has no python to talk to."""

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        """Runs an operation of `startup/host/remote_ops.py` there with `python` (empty: its `python3`) and returns its
        answer, which may be `{"trouble", "message", "path"}`. An operation may have been done though its answer was
        lost: each can be repeated."""

    def put(self, data: bytes, path: str) -> None:
        """Writes a file there. Raises `HostUnfit` when it cannot be written."""

    def get(self, path: str, *, limit: int) -> bytes | None:
        """A file's bytes, or None when it is not there; little more than `limit` of them, however many it has."""

    def close(self) -> None:
        """Ends the connection; another use opens a new one."""


class HostShell(RemoteShell, Protocol):
    """The same, with plain commands for who looks at a machine before anything of ours is there."""

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        """One command line of the login shell there: exit code, standard output, standard error."""


class Hosts(Protocol):
    """The machines that the user owns, and what the bucket knows of each."""

    @property
    def machine(self) -> str:
        """What `local` stands for: the machine that this client runs on."""

    @property
    def clock(self) -> Clock: ...

    def probe(self, target: HostTarget, python: str) -> Mapping[str, Any]:
        """What a host is and has now. Raises `HostUnfit`, `Unavailable`, `PermissionDenied`."""

    def validate(self, target: HostTarget, python: str) -> Mapping[str, Any]:
        """What a host's interpreter and packages can do; takes minutes. Raises as `probe`."""

    def record(self, zone: Zone) -> HostRecord | None:
        """What the bucket has about a host; None if it has nothing. Raises `RecordUnreadable`."""

    def remember(self, target: HostTarget, change: Callable[[HostRecord], HostRecord]) -> None:
        """Changes what the bucket has about a host."""


# --- Bucket ---------------------------------------------------------------------------------------------------------


DOCUMENT_BYTES: Final = 16 << 20
"""More bytes than any document has that bench writes."""
PAYLOAD_BYTES: Final = 256 << 20
"""More bytes than the archive of a payload has."""
DATA_BYTES: Final = 64 << 20
"""As many bytes as the largest file that a run stores and that is read at once."""


@dataclass(frozen=True, slots=True)
class Blob:
    data: bytes
    generation: int


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One line of a listing."""

    name: str
    size: int
    generation: int
    crc32c: str
    metadata: Mapping[str, str]
    updated: datetime | None = None


class Bucket(Protocol):
    """One bucket. Raises `NotFound` when the bucket itself is missing, `PermissionDenied`, `Unavailable`."""

    @property
    def name(self) -> str: ...

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        """Stores a new object; False when there is one already (which is left as it is)."""

    def replace(
        self,
        name: str,
        data: bytes,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> int | None:
        """Compare-and-swap: stores only if the object's generation is `generation` (0: only if there is none;
        None: whatever is there). Returns the new generation, or None when somebody else was first."""

    def read(self, name: str, *, largest: int = DOCUMENT_BYTES) -> Blob | None:
        """The object, its crc32c verified, or None. Raises `DocumentUnreadable`, without reading it, for one of more
        than `largest` bytes."""

    def read_many(self, names: Sequence[str], *, largest: int = DATA_BYTES) -> Mapping[str, Blob]:
        """Several objects at once, in parallel; what is not there, or has more than `largest` bytes, is left out."""

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        """The first `most` objects under `prefix` in name order, with metadata; `after` skips names up to and including
        it. Only those whose whole name matches the pattern `matching`, in which `*` stands for anything but a slash."""

    def download(self, entry: ObjectEntry, to: Path) -> None:
        """Writes the object to `to` atomically, and only if its crc32c is right."""

    def upload(self, name: str, source: Path, *, content_type: str) -> bool:
        """Stores a local file as a new object; False when there is one already."""

    def compose(self, name: str, sources: Sequence[str]) -> None:
        """Makes an object of up to 32 others, one after the other, without moving their bytes; what had that name is
        replaced. Raises `NotFound` where a source is gone."""


# --- Fleets ---------------------------------------------------------------------------------------------------------


class FleetProgress(Protocol):
    """How far a fleet is."""

    @property
    def state(self) -> FleetState: ...

    @property
    def is_halted(self) -> bool:
        """Whether it is paused or stopped, so that nothing more is started."""


class FleetDriver(Protocol):
    """Records what the children of a fleet did, and decides what is started."""

    def step(self, *, start: bool = True) -> FleetProgress:
        """Records and judges what the scheduler knows, and submits what is missing if `start`."""

    def pause(self, why: str) -> object:
        """Starts no more children until a person resumes the fleet."""


class Scheduler(Protocol):
    """Starts the children of fleets on machines, somewhere: the engine of a fleet. It hands out no work of its own
    accord, knows no dollars, and is asked by our names alone, never by an id that it gave out."""

    @property
    def name(self) -> str:
        """The name of the engine."""

    @property
    def traits(self) -> SchedulerTraits: ...

    @property
    def most_children(self) -> int:
        """How many children one job may have."""

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        """Has the scheduler start these jobs, and gives what there is to say of each that it did not. A job of that
        name that is there already is left as it is, so that a submit whose answer was lost can be repeated. Raises
        `ConfigError` for a request that can never be met, `PermissionDenied`, `QuotaExceeded`, `Unavailable`."""

    def counts(self, names: Sequence[JobName]) -> Sequence[JobStatus]:
        """What the scheduler says of these jobs, in their order; cheap: at most one call a job."""

    def reconcile(self, fleet: FleetId, names: Sequence[JobName], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        """Brings to the bucket what machines have stored that cannot reach it themselves, and gives what is known of
        the children `indexes`. Ends what the scheduler would leave behind. Can be repeated at any time."""

    def cancel(self, names: Sequence[JobName]) -> None:
        """Ends jobs and their machines. Idempotent: what is gone is cancelled. Returns when the scheduler has taken it
        on; `counts` says when it is done."""

    def wait(self, seconds: float, driver: FleetDriver) -> bool:
        """Waits for about so long; where children are runs of this process, until they are over, while `driver` judges
        each. Returns whether more can happen: false once this process has left the fleet or has nothing to do."""


# --- the rest -------------------------------------------------------------------------------------------------------


class Interruption:
    """Ctrl-C as a flag. The handler of the signal sets `requested` where `deferred` is set; what waits and what takes a
    step reads it."""

    def __init__(self) -> None:
        self.deferred = self.requested = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` in the main thread, once, if Ctrl-C was pressed."""
        if self.requested and threading.current_thread() is threading.main_thread():
            self.requested = False
            raise KeyboardInterrupt


INTERRUPTION: Final = Interruption()
"""A process has one Ctrl-C."""


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, aware, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait. Raises `KeyboardInterrupt` at Ctrl-C, also at one that is only a flag yet."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should hear of even when no terminal is open."""

    kind: str
    """`budget`, `overspend` or `run`: a cap comes near, a machine outlives its deadline, a run is over."""
    title: str
    text: str
    data: Mapping[str, str]


class Notifier(Protocol):
    def notify(self, notice: Notice) -> None:
        """Delivers, or reports on the terminal that it could not. Never raises: an alert must not end a run."""
