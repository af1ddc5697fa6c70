"""Names that several programs share: run ids, instance names, labels, object names (docs/contracts.md, section 1)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

TOOL_LABEL: Final = "bench-tool"
TOOL: Final = "spotbench"
RUN_LABEL: Final = "bench-run"
ATTEMPT_LABEL: Final = "bench-attempt"
USER_LABEL: Final = "bench-user"
BUCKET_LABEL: Final = "bench-bucket"
SESSION_LABEL: Final = "bench-session"
"""On the machine of a session, which takes candidates."""

LEDGER: Final = "ledger/ledger.json"
INDEX_PREFIX: Final = "index/"

PLACEMENT_PREFIX: Final = "placement/"
BASELINES_PREFIX: Final = "baselines/"
TUNED_PREFIX: Final = "tuned/"
"""Where clients store the best values of parameters; no machine may write there."""

MACHINES_PREFIX: Final = "machines/"

IMAGE_NAME: Final = "bench-image-"
"""The beginning of the names of prepared images."""

RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]+-[0-9a-f]{4}")
_EVENT_NAME = re.compile(
    r"(?P<stamp>\d{8}T\d{6}\.\d{6}Z)-(?P<writer>[a-z0-9]+(?:-[a-z0-9]+)*)-(?P<seq>\d{6})-(?P<kind>[a-z_]+)\.json"
)
_STAMP = "%Y%m%dT%H%M%S.%fZ"


def run_id(now: datetime, gpu: str, entropy: str) -> str:
    """The id of a new run, such as `20261121-040506-l4-7f3a`. It sorts by time, names the GPU, and may be used in a
    label and an instance name."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{bare_name(gpu)}-{entropy[:4].lower()}"


def bare_name(gpu: str) -> str:
    """The name of a GPU as it is in ids: letters and digits alone."""
    return re.sub("[^a-z0-9]", "", gpu.lower())


def is_run_id(text: str) -> bool:
    return RUN_ID.fullmatch(text) is not None


def instance_name(run: str, attempt: int) -> str:
    return f"bench-{run}-{attempt}"


def is_prepared(image: str) -> bool:
    """Whether an image, by its name or URL, is one that `bench image build` made."""
    return image.rpartition("/")[2].startswith(IMAGE_NAME)


def attempt_of(run: str, instance: str) -> int | None:
    """The attempt number of a machine of the run; None if `instance` is not a machine of this run."""
    head, _, tail = instance.rpartition("-")
    is_of_run = head == f"bench-{run}" and tail.isascii() and tail.isdigit() and len(tail) <= 6
    return int(tail) if is_of_run else None


def label_value(text: str) -> str:
    """`text` as a label value: at most 63 lower case letters, digits, `_` and `-`."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower())[:63]


def bucket_label(bucket: str) -> str:
    """The label of a bucket: the beginning of its name, and a digest of it, so that `acme.bench` and `acme-bench`
    differ."""
    return f"{label_value(bucket)[:46]}-{hashlib.sha256(bucket.encode()).hexdigest()[:16]}"


def is_label_of(label: str, bucket: str) -> bool:
    """Whether a machine with this label belongs to `bucket`. Older versions used the name alone as label; such a label
    is accepted if it contains the whole name."""
    return label == bucket_label(bucket) or label == bucket == label_value(bucket)


def machine_labels(run: str, attempt: int, user: str, bucket: str) -> dict[str, str]:
    """The labels of a machine. They include the bucket, because two buckets may share a project, and a client may
    delete only the machines of its own bucket."""
    return {
        TOOL_LABEL: TOOL,
        RUN_LABEL: run,
        ATTEMPT_LABEL: str(attempt),
        USER_LABEL: label_value(user),
        BUCKET_LABEL: bucket_label(bucket),
    }


def payload_object(sha256: str) -> str:
    return f"payloads/{sha256}.tar.gz"


def slot_object(vm: str) -> str:
    return f"{MACHINES_PREFIX}{vm}.json"


def index_object(run: str) -> str:
    return f"{INDEX_PREFIX}{run}.json"


def baseline_object(name: str) -> str:
    return f"{BASELINES_PREFIX}{name}.json"


def plan_object(run: str) -> str:
    return f"{run_prefix(run)}plan.json"


def plan_name(run: str, digest: str) -> str:
    """What a client remembers of a plan that its user launched or accepted."""
    return f"plan {run} {digest}"


def hold_key(run: str, generation: int) -> str:
    """The key of a run's hold in the ledger: the run id; `<run-id>+1` for its first resumption, and so on."""
    return f"{run}+{generation}" if generation else run


def run_of(key: str) -> str:
    """The run that a hold in the ledger is for."""
    return key.partition("+")[0]


def generation_of(key: str) -> int:
    """The generation of the run that a hold in the ledger is for. Raises `ValueError` if the key does not say."""
    _, plus, number = key.partition("+")
    if plus and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise ValueError(f"{key[:80]!r} is not the key of a hold")
    return int(number or 0)


def run_prefix(run: str) -> str:
    return f"runs/{run}/"


def events_prefix(run: str) -> str:
    return f"runs/{run}/events/"


def cases_prefix(run: str) -> str:
    return f"runs/{run}/cases/"


def artifacts_prefix(run: str) -> str:
    return f"runs/{run}/artifacts/"


def tuned_object(gpu: str, parameters: str) -> str:
    """Where the best values of parameters on a GPU are stored; `parameters` is the digest of what a file declares."""
    return f"{TUNED_PREFIX}{gpu}/{parameters}.json"


def candidates_prefix(run: str) -> str:
    """Where clients store the candidates of a session, which its machine may only read."""
    return f"payloads/sessions/{run}/"


def candidate_object(run: str, number: int) -> str:
    return f"{candidates_prefix(run)}{number:06d}.json"


def verdict_object(run: str, number: int, file: str = "verdict.json") -> str:
    """Where the machine stores what it found about a candidate."""
    return f"{artifacts_prefix(run)}candidates/{number:06d}/{file}"


@dataclass(frozen=True, slots=True, order=True)
class EventName:
    """The parts of an event's object name. Sorting by them gives the order of the events."""

    at: datetime
    writer: str
    seq: int
    kind: str

    def object(self, run: str) -> str:
        stamp = self.at.astimezone(UTC).strftime(_STAMP)
        return f"{events_prefix(run)}{stamp}-{self.writer}-{self.seq:06d}-{self.kind}.json"


def machine_of(writer: str) -> int:
    """The attempt whose machine writes events as `writer`; 0 for a client. Machines of older versions had two parts in
    their names."""
    role, attempt, *_ = [*writer.split("-"), ""]
    return int(attempt) if role in ("vm", "boot") and attempt.isdecimal() else 0


SHORTEST_DIGEST: Final = 32
"""How many hexadecimal digits of a SHA-256 a person must give to accept what others wrote. Whoever writes two documents
with the same digits, one to be shown and one to be followed, needs about the square root of all values: with 12 digits
that is seconds, with 32 it is out of reach."""


def is_client(writer: str) -> bool:
    """Whether the writer is a client. No machine's account can store an event with such a name
    (`core.setup.plan.own_objects`)."""
    return writer.startswith("client-")


def parse_event_object(name: str) -> EventName | None:
    """The parts of `runs/<run>/events/<name>`, or None if it is not the name of an event."""
    match = _EVENT_NAME.fullmatch(name.rsplit("/", 1)[-1])
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match["stamp"])
    except ValueError:
        return None
    return EventName(at, match["writer"], int(match["seq"]), match["kind"])


# The mode of a run: where its machines come from.


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
