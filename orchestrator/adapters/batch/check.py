"""Looks at what Google Cloud Batch really does with a template that has an absolute end: four answers, for cents.

Three tasks on two small spot machines. One ends, one deletes its own machine, one waits to be ended; a machine is
preempted on the way. Whatever happens, the job and the template are gone afterwards, and the machines have an end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.api_core import exceptions
from google.cloud import batch_v1

from orchestrator.adapters.batch.bodies import scheduling_policy
from orchestrator.adapters.batch.templates import InstanceTemplates, create_job, send_unless_refused
from orchestrator.adapters.google.compute_calls import parse_guard
from orchestrator.adapters.google.compute_library import compute_v1
from orchestrator.adapters.google.errors import translate_google_errors
from orchestrator.adapters.google.instance_body import ending_with_its_disk, network_interface, service_accounts
from orchestrator.core.fleet.batch import RETRIED, GateAnswer, GatePace, GateSite, GateVerdict
from orchestrator.core.text import count
from orchestrator.ports import Clock

LABEL: Final = "bench-check"
PARALLEL: Final = 2
TASKS: Final = 3
GOING: Final = ("STOPPING", "TERMINATED", "STOPPED", "PENDING_STOP", "DEPROVISIONING")
RECREATED: Final = 50006


@dataclass
class CheckSighting:
    """What was observed."""

    most: int = 0
    scheduling: list[tuple[str, int]] = field(default_factory=list)
    """Of each machine: its terminationTime, and its maxRunDuration in seconds."""
    names: set[str] = field(default_factory=set)
    alive_late: int = 0
    made_late: set[str] = field(default_factory=set)
    preempted: str = ""
    machine_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Clients:
    """Google's own, of what a check asks."""

    jobs: batch_v1.BatchServiceClient
    templates: InstanceTemplates
    instances: compute_v1.InstancesClient


class BatchCheck:
    """One check. `say` hears what is under way."""

    def __init__(
        self,
        site: GateSite,
        clients: Clients,
        clock: Clock,
        script: str,
        pace: GatePace,
        say: Callable[[str], None],
    ) -> None:
        self.site, self.jobs, self.templates, self.instances = site, clients.jobs, clients.templates, clients.instances
        self.clock, self.script, self.pace, self.say = clock, script, pace, say
        self.id = f"bench-check-{uuid.uuid4().hex[:8]}"
        self.seen = CheckSighting()
        self.both = True

    @property
    def job(self) -> str:
        return f"projects/{self.site.project}/locations/{self.site.region}/jobs/{self.id}"

    def run(self) -> GateVerdict:
        """The verdict. Raises `ProviderError` and its kin; leaves nothing behind either way."""
        ends = (self.clock.now() + timedelta(seconds=self.pace.end_s)).astimezone(UTC).replace(microsecond=0)
        try:
            self._begin(ends)
            self._watch(ends)
            job = send_unless_refused(
                self.clock, lambda: self.jobs.get_job(name=self.job), "look at the job of the check"
            )
            codes = self._codes()
        finally:
            self._clear()
        return GateVerdict(
            project=self.site.project,
            region=self.site.region,
            checked_at=self.clock.now(),
            answers=check_answers(self.seen, ends, job or batch_v1.Job(), codes, both=self.both),
        )

    def _begin(self, ends: datetime) -> None:
        self.both = self.templates.insert_with_an_end(self._template(ends))
        if not self.both:
            self.say("Google takes one time limit, not both: only terminationTime is asked for")
        create_job(self.jobs, self.clock, self.job, self._job(), str(uuid.uuid4()))
        self.say(f"{self.id}: {TASKS} tasks on {PARALLEL} {self.site.machine_type} until {ends:%H:%M:%S} UTC")

    def _watch(self, ends: datetime) -> None:
        until = ends + timedelta(seconds=self.pace.late_s + self.pace.quiet_s)
        halfway = ends - timedelta(seconds=self.pace.end_s / 2)
        while (now := self.clock.now()) < until:
            alive = [one for one in self._machines() if one.status not in GOING]
            self._note(alive, now, ends)
            if not self.seen.preempted and now >= halfway:
                self._preempt(alive)
            self.clock.sleep(self.pace.poll_s)

    def _note(self, alive: Sequence[compute_v1.Instance], now: datetime, ends: datetime) -> None:
        seen = self.seen
        seen.most = max(seen.most, len(alive))
        seen.machine_s += len(alive) * self.pace.poll_s
        for one in alive:
            if one.name not in seen.names:
                limits = one.scheduling
                seen.scheduling.append((limits.termination_time, int(limits.max_run_duration.seconds)))
                if now > ends + timedelta(seconds=self.pace.late_s / 2):
                    seen.made_late.add(one.name)
            seen.names.add(one.name)
        if now > ends + timedelta(seconds=self.pace.late_s):
            seen.alive_late = max(seen.alive_late, len(alive))

    def _preempt(self, alive: Sequence[compute_v1.Instance]) -> None:
        """What Google offers for this: a spot machine whose host is said to be maintained is preempted."""
        running = [machine for machine in alive if machine.status == "RUNNING"]
        if not running:
            return
        machine = running[0]
        with translate_google_errors(f"preempt {machine.name}"):
            try:
                with parse_guard():
                    self.instances.simulate_maintenance_event_unary(
                        project=self.site.project, zone=machine.zone.rpartition("/")[2], instance=machine.name
                    )
            except (exceptions.NotFound, exceptions.BadRequest):
                return
        self.seen.preempted = machine.name
        self.say(f"{machine.name} is being preempted")

    def _machines(self) -> list[compute_v1.Instance]:
        request = {"project": self.site.project, "filter": f"labels.{LABEL}={self.id}"}
        doing = "list the machines of the check"
        scopes = send_unless_refused(self.clock, lambda: list(self.instances.aggregated_list(request=request)), doing)
        return [instance for _zone, scope in scopes or () for instance in scope.instances]

    def _codes(self) -> dict[int, list[int]]:
        """The exit codes of each task's attempts, by its index."""
        codes_by_task: dict[int, list[int]] = {}
        doing = "list the tasks of the check"
        group = f"{self.job}/taskGroups/group0"
        tasks = send_unless_refused(self.clock, lambda: list(self.jobs.list_tasks(parent=group)), doing)
        for task in tasks or ():
            events = [event.task_execution.exit_code for event in task.status.status_events]
            codes_by_task[int(task.name.rpartition("/")[2])] = [code for code in events if code]
        return codes_by_task

    def _clear(self) -> None:
        gone = (exceptions.NotFound,)
        send_unless_refused(self.clock, lambda: self.jobs.delete_job(name=self.job), f"delete the job {self.id}", gone)
        self.templates.delete(self.id)

    def _template(self, ends: datetime) -> dict[str, Any]:
        labels = {**self.site.labels, LABEL: self.id}
        limited = scheduling_policy("SPOT", self.pace.run_s, ends)
        properties = {
            "machineType": self.site.machine_type,
            **ending_with_its_disk(limited, self.site.image, (10, "pd-standard"), labels),
            "networkInterfaces": [network_interface(self.site.network, external_ip=True)],
            "serviceAccounts": service_accounts(self.site.service_account),
        }
        return {"name": self.id, "properties": properties}

    def _job(self) -> dict[str, Any]:
        variables = {"BENCH_STEP_S": str(self.pace.step_s)}
        if self.site.compute:
            variables["BENCH_COMPUTE"] = self.site.compute
        retry = {"action": "RETRY_TASK", "actionCondition": {"exitCodes": list(RETRIED)}}
        spec = {
            "runnables": [{"script": {"text": self.script}}],
            "maxRetryCount": 5,
            "lifecyclePolicies": [retry],
            "environment": {"variables": variables},
        }
        template = f"projects/{self.site.project}/global/instanceTemplates/{self.id}"
        return {
            "taskGroups": [
                {"taskSpec": spec, "taskCount": str(TASKS), "parallelism": str(PARALLEL), "taskCountPerNode": "1"}
            ],
            "allocationPolicy": {
                "instances": [{"instanceTemplate": template}],
                "location": {"allowedLocations": [f"regions/{self.site.region}"]},
                "labels": {**self.site.labels, LABEL: self.id},
            },
            "logsPolicy": {"destination": "CLOUD_LOGGING"},
        }


def check_answers(
    seen: CheckSighting, ends: datetime, job: batch_v1.Job, codes: dict[int, list[int]], *, both: bool
) -> dict[str, GateAnswer]:
    """The four answers to what was seen."""
    wanted = ends.timestamp()
    carried = [bool(moment) and datetime.fromisoformat(moment).timestamp() == wanted for moment, _ in seen.scheduling]
    limited = [seconds > 0 for _, seconds in seen.scheduling]
    made = len(seen.names)
    events = job.status.status_events
    last = events[-1].description if events else "no event"
    state = job.status.state.name
    limits = (
        "terminationTime and maxRunDuration" if both else "terminationTime; Google refused maxRunDuration beside it"
    )
    late = count(len(seen.made_late), "machine was", "machines were")
    return {
        "limits": GateAnswer(
            ok=made > 0 and all(carried) and seen.alive_late == 0 and (all(limited) or not both),
            seen=f"{sum(carried)} of {count(made, 'machine')} with {limits}; {seen.alive_late} still lived after it",
        ),
        "end": GateAnswer(
            ok=made > 0 and not seen.made_late,
            seen=f"{late} made after the end; the job was {state}: {last[:200]}",
        ),
        "bound": GateAnswer(
            ok=made > 0 and seen.most <= PARALLEL and bool(seen.preempted),
            seen=f"at most {seen.most} of {PARALLEL} machines at once"
            + ("; one was preempted" if seen.preempted else "; none could be preempted"),
        ),
        "recreate": GateAnswer(
            ok=RECREATED in codes.get(1, ()),
            seen=f"the task ended with {codes.get(1) or 'no exit code'}; {count(made, 'machine')}",
        ),
    }
