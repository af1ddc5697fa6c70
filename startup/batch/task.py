"""`python3 -m startup.batch.task FOLDER`: one child of a fleet on a machine of Google Cloud Batch.

It reads which child it is, claims an attempt, and runs `startup.sh` as on any machine of ours, around which it answers
for the metadata. In the bucket, below `machines/batch/<fleet>/`:

    jobs/<job>.json            the children of a job, by BATCH_TASK_INDEX
    children/<index>.json      what is to be measured: the run spec, the payload, the first free attempt
    claims/<index>-<n>.json    created once by whoever measures attempt n
    costs/<index>-<n>.json     created once when it has ended: how, on which machine, and how many seconds it took

Exit codes: 0 measured (right or wrong: a wrong kernel is a result), 75 taken back or out of time, 1 anything else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from startup.agent.clock import AgentClock, Patience, iso_time
from startup.agent.http_client import Unreachable
from startup.agent.metadata import Metadata
from startup.agent.spec import PhaseTiming
from startup.agent.storage import AgentStorage, StorageError
from startup.batch.around import Around

MEASURED, WRONG, TAKEN, FAILED = 0, 10, 75, 1
ATTEMPTS = 12
SIGNALLED = (143, 137, -15, -9)
SHORTEST_S = 60
MARGIN_S = 45
"""The child is over by so much before the end that the machine's template carries."""
LINGER_S = 90.0
"""How long a task whose machine is being taken back waits for that: Batch then knows what became of it."""
PATIENCE_S = 120.0


class DoctorTask:
    """One child, as the variables of the job name it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], clock: AgentClock | None = None) -> None:
        self.folder = folder
        self.environ = environ
        self.clock = clock or AgentClock()
        self.fleet = environ["BENCH_FLEET"]
        self.prefix = f"machines/batch/{self.fleet}/"
        self.host = environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self.metadata = Metadata(self.host, self.clock)
        self.base = environ.get("BENCH_STORAGE", "https://storage.googleapis.com")
        self.storage = AgentStorage(self.base, environ["BENCH_BUCKET"], self.metadata, PhaseTiming())
        self.process: subprocess.Popen[bytes] | None = None
        self.signalled = False

    def run(self) -> int:
        """The exit code of the task."""
        try:
            return self.work()
        except (StorageError, Unreachable, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            sys.stderr.write(f"the task cannot be done: {type(error).__name__}: {error}\n")
            return FAILED

    def work(self) -> int:
        place = int(self.environ["BATCH_TASK_INDEX"])
        index = int(self.read(f"jobs/{self.environ['BENCH_JOB']}.json")["children"][place])
        order = self.read(f"children/{index}.json")
        left_s = float(self.environ["BENCH_ENDS"]) - self.clock.now().timestamp() - MARGIN_S
        if left_s < SHORTEST_S:
            sys.stderr.write(f"{left_s:.0f} s are left before this fleet's machines end: too little for a child\n")
            return TAKEN
        attempt = self.claim_attempt(index, int(order["attempt"]))
        if attempt is None:
            sys.stderr.write(f"child {index} was tried {ATTEMPTS} times\n")
            return FAILED
        began = self.clock.monotonic()
        started_at = iso_time(self.clock.now())
        code = self.run_bootstrap(order, attempt, left_s)
        taken = self.signalled or self.metadata.preempted()
        outcome = MEASURED if code in (MEASURED, WRONG) else TAKEN if taken or code in SIGNALLED else FAILED
        cost = {
            "child": index,
            "attempt": attempt,
            "machine": self.metadata.get("instance/name") or "",
            "zone": (self.metadata.get("instance/zone") or "").rpartition("/")[2],
            "started_at": started_at,
            "ended_at": iso_time(self.clock.now()),
            "seconds": round(self.clock.monotonic() - began, 3),
            "exit_code": TAKEN if outcome == TAKEN else code,
        }
        self.create(f"costs/{index}-{attempt}.json", cost)
        if outcome == TAKEN and taken:
            self.clock.sleep(LINGER_S)
        return outcome

    def claim_attempt(self, index: int, first: int) -> int | None:
        """The attempt that this task may measure; None when there have been too many."""
        claim = {
            "schema": 1,
            "child": index,
            "machine": self.metadata.get("instance/name") or "",
            "at": iso_time(self.clock.now()),
        }
        for attempt in range(first, ATTEMPTS + 1):
            if self.create(f"claims/{index}-{attempt}.json", {**claim, "attempt": attempt}):
                return attempt
        return None

    def run_bootstrap(self, order: Mapping[str, Any], attempt: int, left_s: float) -> int:
        """The exit code of the bootstrap, which is that of the agent."""
        spec = dict(order["spec"])
        name = f"bench-{order['run_id']}-{attempt}"
        spec.update(attempt=attempt, vm=name, deadline_s=int(min(float(spec["deadline_s"]), left_s)))
        attributes = {"bench-run": json.dumps(spec), "bench-payload": json.dumps(order["payload"])}
        around = Around(self.host, name, attributes, self.base)
        around.serve()
        work = self.folder / name
        work.mkdir(parents=True, exist_ok=True)
        environment = {
            **self.environ,
            "GCE_METADATA_HOST": around.url[len("http://") :],
            "BENCH_VM_DIR": str(work),
            "BENCH_DELETE_TRIES": "5",
            # What one child has built the next one on this machine finds.
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "BENCH_KERNEL_CACHE": str(self.folder / "cache" / "kernels"),
        }
        try:
            self.process = subprocess.Popen(["bash", "startup/startup.sh"], env=environment, start_new_session=True)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self.on_signal)
            return self.process.wait()
        finally:
            around.shutdown()
            around.server_close()
            subprocess.run(["rm", "-rf", str(work)], check=False)

    def on_signal(self, _number: int, _frame: object) -> None:
        """The machine is going, or the task is over its time: the bootstrap ends the run in order."""
        self.signalled = True
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def read(self, name: str) -> Any:
        record = self.storage.get(self.prefix + name, Patience(self.clock, PATIENCE_S))
        if record is None:
            raise ValueError(f"there is no {self.prefix}{name}")
        return json.loads(record[0])

    def create(self, name: str, document: Mapping[str, Any]) -> bool:
        """Creates an object once, on whichever machine; False when somebody was first. A try whose answer was lost is
        known by its bytes."""
        data = json.dumps(document, sort_keys=True).encode()
        patience = Patience(self.clock, PATIENCE_S)
        if self.storage.create(self.prefix + name, data, "application/json", patience):
            return True
        there = self.storage.get(self.prefix + name, patience)
        return there is not None and there[0] == data


def main(folder: str, environ: Mapping[str, str]) -> int:
    return DoctorTask(Path(folder), environ).run()


if __name__ == "__main__":
    started = time.monotonic()
    code = main(sys.argv[1], os.environ)
    sys.stderr.write(f"task: exit code {code} after {time.monotonic() - started:.0f} s\n")
    sys.stderr.flush()
    os._exit(code)
