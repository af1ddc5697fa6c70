"""Where a rehearsal is held: a project and its bucket through the real adapters, with money and machines counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from orchestrator.adapters.google.rest import Rest
from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import HoldRefused, Ledger, add_cost, authorize, lower_caps, take_back
from orchestrator.core.market.machines import Accepted, CloudRefusal, Instance, InstanceRequest
from orchestrator.core.market.pricing import ceiling_usd
from orchestrator.core.naming import artifacts_prefix, instance_name, machine_labels
from orchestrator.core.rest import RestAnswer, RestRequest
from orchestrator.ports import Bucket, Clock, Cloud
from orchestrator.runs.holds import Accounts

PROBE = Path(__file__).with_name("probe.sh")
LONGEST_S = 300
"""No machine of a rehearsal may run for longer, whatever becomes of its client."""
DRIVER_S = 900
"""But the one with a GPU: it boots a large image."""


class Refuted(AssertionError):
    """An assumption is wrong."""


class NotSeen(Exception):
    """It could not be provoked here; the text says why."""


@dataclass
class Place:
    """`small` is the cheapest machine type and `usd_per_hour` no less than what it costs; `account` is whom the
    machines run as; `preempt` has a running spot machine taken back."""

    project: str
    run: str
    zone: str
    small: str
    usd_per_hour: Decimal
    cloud: Cloud
    bucket: Bucket
    rest: Rest
    clock: Clock
    accounts: Accounts
    preempt: Callable[[Instance], None]
    account: str | None = None
    endpoints: Mapping[str, str] | None = None
    google: bool = True
    gpu: bool = False
    gpu_usd_per_hour: Decimal = Decimal(0)
    bill: Callable[[str], Decimal] | None = None
    unlike_google: Mapping[str, str] = field(default_factory=dict)
    """What the place does not do as Google does, and why: it is not looked at there."""
    spare_api: Callable[[], str] | None = None
    """Switches an API off that nothing else here needs, and names it; no project of somebody's is treated so."""
    machines: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each machine was there, by our clock: from before the request until it was seen gone."""

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    # Money

    def hold(self, cap: Decimal) -> Decimal:
        """Counts the worst case of all machines as spent, before the first is asked for. Raises `BudgetExceeded`."""
        worst = ceiling_usd(self.usd_per_hour, LONGEST_S, MACHINES)
        if self.gpu:
            worst += ceiling_usd(self.gpu_usd_per_hour, DRIVER_S, 1)
        now = self.clock.now()

        def change(ledger: Ledger) -> Ledger | HoldRefused:
            asked = replace(self.accounts.caps, run=cap)
            answer = authorize(ledger, lower_caps(ledger, asked), worst, now, run_id=self.run)
            return (
                answer
                if isinstance(answer, HoldRefused)
                else add_cost(ledger, "rehearsal", worst, "at most", now, self.run)
            )

        answer = self.accounts.change(change)
        if isinstance(answer, HoldRefused):
            text = f"a rehearsal can cost up to ${worst}; ${answer.cap} is the cap for {answer.window}"
            raise BudgetExceeded(
                text, hint=f"make live PROJECT={self.project} CAP={worst.quantize(Decimal('0.01')) + Decimal('0.01')}"
            )
        return worst

    def settle(self) -> Decimal:
        """Puts what the machines cost at most in the place of the worst case."""
        # A machine that was not seen to its end may have lived as long as it was allowed to; 0: it was never made.
        asked = [instance_name(self.run, number + 1) for number in range(self.machines)]
        lived = dict.fromkeys((name for name in asked if name not in self.seconds), float(LONGEST_S)) | self.seconds
        each = [ceiling_usd(self.rate_of(name), max(int(s) - 29, 1), 1) for name, s in lived.items() if s]
        cost, now = sum(each, Decimal(0)), self.clock.now()

        def change(ledger: Ledger) -> Ledger:
            less = take_back(ledger, self.run, "the worst case, which it was not", now, f"{self.run}-back") or ledger
            return add_cost(less, "rehearsal", cost, f"{len(each)} machines", now, f"{self.run}-cost")

        self.accounts.change(change)
        return cost

    def rate_of(self, name: str) -> Decimal:
        return self.gpu_usd_per_hour if name.endswith("-99") else self.usd_per_hour

    # Machines

    def request(
        self, *, seconds: int = LONGEST_S, spot: bool = False, probe: Mapping[str, Any] | None = None, **other: Any
    ) -> InstanceRequest:
        """The next small machine."""
        self.machines += 1
        if self.machines > MACHINES + self.gpu:
            raise AssertionError("more machines than are paid for")
        metadata = {}
        if probe is not None:
            metadata = {"startup-script": PROBE.read_text("utf-8"), "bench-probe": json.dumps(dict(probe))}
        if self.endpoints is not None:
            metadata["bench-endpoints"] = json.dumps(dict(self.endpoints))
        base = InstanceRequest(
            name=instance_name(self.run, self.machines),
            zone=self.zone,
            machine_type=self.small,
            accelerator=None,
            accelerator_count=0,
            provisioning="SPOT" if spot else "STANDARD",
            max_run_s=seconds,
            image=self.cloud.image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64"),
            disk_gb=10,
            disk_type="pd-balanced",
            network="global/networks/default",
            external_ip=True,
            service_account=self.account,
            labels=machine_labels(self.run, self.machines, "rehearsal", self.bucket.name),
            metadata=metadata,
            request_id=token(self.run, str(self.machines)),
        )
        return replace(base, **other)

    @contextmanager
    def machine(self, request: InstanceRequest) -> Iterator[Instance]:
        """A machine while it is looked at; whatever happens, it is gone afterwards."""
        begun = self.clock.now()
        try:
            answer = self.cloud.insert(request)
            if isinstance(answer, CloudRefusal):
                raise NotSeen(f"there was no machine: {answer.code} {answer.message}")
            yield answer.instance
        finally:
            self.end(request)
            self.seconds[request.name] = (self.clock.now() - begun) / timedelta(seconds=1)

    def end(self, request: InstanceRequest) -> None:
        if self.cloud.instance(request.zone, request.name) is not None:
            self.cloud.delete(request.zone, request.name, token(request.name, "end"))
        self.until(lambda: self.cloud.instance(request.zone, request.name) is None, 300, f"{request.name} is gone")

    def insert(self, request: InstanceRequest) -> Accepted | CloudRefusal:
        return self.cloud.insert(request)

    def until(self, true: Callable[[], bool], seconds: float, what: str, every: float = 5.0) -> float:
        """Waits until it is so, and says how long that took; `NotSeen` after so many seconds."""
        begun = self.clock.now()
        while not true():
            if self.clock.now() - begun > timedelta(seconds=seconds):
                raise NotSeen(f"waited {seconds:g} s for: {what}")
            self.clock.sleep(every)
        return (self.clock.now() - begun) / timedelta(seconds=1)

    def raw(self, instance: Instance) -> Mapping[str, Any]:
        """The machine as the API shows it, whole."""
        path = f"/compute/v1/projects/{self.project}/zones/{instance.zone}/instances/{instance.name}"
        return self.rest.ask(RestRequest("compute", "GET", path)).document

    def probed(self, instance: Instance, seconds: float = 240) -> dict[str, Any]:
        """What the machine's probe reported."""
        name = f"{artifacts_prefix(self.run)}{instance.name}.json"
        self.until(lambda: self.bucket.read(name) is not None, seconds, f"{instance.name} reports")
        found = self.bucket.read(name)
        assert found is not None
        report: dict[str, Any] = json.loads(found.data)
        return report

    def clean(self) -> None:
        """Deletes every machine and every object of this rehearsal."""
        for left in self.cloud.instances():
            if left.labels.get("bench-run") == self.run:
                self.cloud.delete(left.zone, left.name, token(left.name, "clean"))
        for entry in self.bucket.list(f"runs/{self.run}/"):
            self.forget(entry.name)
        for entry in self.bucket.list(f"{self.run}-"):
            self.forget(entry.name)

    def forget(self, name: str) -> RestAnswer:
        """Deletes an object. The `/` of its name must reach the server as %2F."""
        url = (
            self.rest._endpoints.get("storage", self.rest.session.base_url("storage"))
            + f"/storage/v1/b/{self.bucket.name}/o/"
            + name.replace("/", "%2F")
        )
        return RestAnswer(self.rest.session.request("DELETE", url, timeout=30).status_code)


def token(*words: str) -> str:
    """A request id, always the same for the same words."""
    return str(uuid5(NAMESPACE_URL, "/".join(words)))


MACHINES = 5
"""As many as the assumptions ask for, but for the one with a GPU."""
