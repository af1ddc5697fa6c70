"""One run on one VM, from preflight to its last word."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from startup.agent import requirements
from startup.agent.candidates import CandidateQueue
from startup.agent.clock import Patience
from startup.agent.diagnosis import Diagnosis, Ending, Halt, RebootNeeded, halt_for
from startup.agent.events import EventWriter
from startup.agent.facts import Files, RecordedFacts
from startup.agent.harness import BAD_SPEC, DONE, GATE_FAILED, INCORRECT, NOT_BUILT, Harness, HarnessExit
from startup.agent.host import LocalHost
from startup.agent.image import PREPARED, Preparation
from startup.agent.logs import LogUploader
from startup.agent.packages import Packages, Torch
from startup.agent.remediation import HealRecord, clock_skew, cuda_path, disk_space, driver_wait
from startup.agent.spec import RunSpec
from startup.agent.stop import ENDINGS
from startup.agent.storage import AgentStorage, StorageError

CASE = re.compile(r"cases/([A-Za-z0-9][A-Za-z0-9._+-]{0,199})\.csv\Z", re.ASCII)
"""The path of a case file of a user's own workload, whose axes are defined only in its own file."""
SIGNALLED = 128
REBOOT = 75
"""The exit code upon which the bootstrap reboots the machine."""
REBOOT_TAKES_S = 300.0
VM_HOME = Path("/var/lib/bench")
"""The folder of a real VM; what only stands in for one has another."""
PROFILE_LIMIT_S = 600.0


@dataclass(frozen=True)
class RunSite:
    """Where the agent works: the VM, and the payload that it runs. `home` holds payload/, out/ and log.txt. `machine`
    is what the metadata server says about the VM (zone, machine_type, image), for the record of the environment.

    A run on a VM that was made for another run has its own folder below `home`, and its log begins at a byte of
    log.txt.
    """

    home: Path
    zone: str
    instance_id: str
    payload_sha256: str
    machine: Mapping[str, str]
    folder: str = ""
    payload: str = "payload"
    log_start: int = 0

    @property
    def work(self) -> Path:
        return self.home / self.folder


class Agent:
    """Takes the VM through the phases; `run` returns the exit code and never raises."""

    def __init__(
        self, spec: RunSpec, site: RunSite, storage: AgentStorage, events: EventWriter, host: LocalHost
    ) -> None:
        self.spec = spec
        self.site = site
        self.clock = host.clock
        self.log = host.log
        self.stop = host.stop
        self.storage = storage
        self.events = events
        self.host = host
        if spec.allow_install and (PREPARED / "venv" / "bin" / "python").is_file():
            host.python = str(PREPARED / "venv" / "bin" / "python")
        self.prefix = f"runs/{spec.run_id}/"
        self.payload = site.home / site.payload
        self.files = Files(spec.run_id, site.work / "out", storage)
        log_name = self.prefix + "artifacts/log.txt"
        self.uploader = LogUploader(
            site.home / "log.txt", log_name, storage, host.clock, spec.timing.log_every_s, site.log_start
        )
        self.harness = Harness(host, site.work / "spec.json", site.work / "out", self.payload, spec.timing)
        self.packages = Packages(host, spec.allow_install, spec.min_free_gb, self.record_heal)
        prepared = AgentStorage.name_of(spec.run_id, "sealed.json")
        self.preparation = Preparation(host, self.packages, storage, prepared, spec, site.home)
        self.requirements = requirements.Requirements(host, self.packages, self.payload, site.work / "out")
        self.phase = "boot"
        self.limit = Patience(host.clock, 0)
        self.incorrect = False
        self.not_built = False
        self.ending = Ending("failed", 1)

    @property
    def keeps(self) -> bool:
        """Whether the VM waits for another run: it has finished this one, and nothing has asked for its end."""
        return self.spec.idle_limit_s > 0 and self.ending.exit_code in (DONE, INCORRECT) and not self.stop.reason

    def run(self) -> int:
        """Runs the whole run. Its last event is then in the bucket and its marker is set, unless the bucket cannot be
        reached. If the VM is kept, or another run pays for it, the keeper writes that event."""
        try:
            self.ending = self.work()
        except RebootNeeded as need:
            return self.leave_for_reboot(str(need))
        except Exception as error:
            self.ending = self.ending_after(error, "agent_crashed")
        self.finish(self.ending)
        return self.ending.exit_code

    def ending_after(self, error: Exception, cause: str) -> Ending:
        """How a run ends that an error has ended; `cause` is that of one which is no Halt. What a signal has ended too
        looks like a failure until it is known what the signal means."""
        self.stop.await_signals(self.spec.timing.preempted_ask_s + 1)
        if isinstance(error, Halt):
            return ENDINGS.get(self.stop.reason, error.ending)
        self.log.say(traceback.format_exc())
        detail = f"{type(error).__name__}: {error}"
        return Ending("failed", 1, detail, Diagnosis(cause, detail))

    def may_reboot(self) -> bool:
        """Whether the machine is a VM of this run's own, has not been rebooted for it, and has the time for it."""
        home = self.site.home
        is_vm = home == VM_HOME or "BENCH_REBOOT" in self.host.env
        if not is_vm or self.spec.taken or (home / "rebooted").exists():
            return False
        began = float((home / "first-boot").read_text())
        return began + self.spec.deadline_s - time.time() > REBOOT_TAKES_S

    def leave_for_reboot(self, why: str) -> int:
        """Stores what there is to know before the machine is rebooted; the run goes on after it. Returns the exit
        code."""
        (self.site.home / "rebooted").touch()
        self.record_heal(HealRecord("reboot", why))
        self.harness.close()
        self.uploader.close()
        self.events.flush(Patience(self.clock, self.spec.timing.hurried_finish_s))
        self.events.close()
        return REBOOT

    def unable(self, error: Exception) -> int:
        """Ends a run that could not begin here: writes its last event, and returns the exit code."""
        self.ending = self.ending_after(error, "container_unavailable")
        self.events.start()
        self.uploader.start()
        self.finish(self.ending)
        return self.ending.exit_code

    def work(self) -> Ending:
        self.events.start()
        self.uploader.start()
        # Every later stamp depends on the clock, so it is compared before the first event.
        storage_error, skew_s = self.compare_clocks()
        corrected = clock_skew(self.clock, skew_s, self.spec.timing.clock_skew_s)
        if self.spec.taken:
            self.events.append(
                "machine_taken", vm=self.spec.vm, zone=self.site.zone, attempt=self.spec.attempt, **self.spec.taken
            )
        place = {"zone": self.site.zone, "instance_id": self.site.instance_id}
        self.events.append("vm_booted", vm=self.spec.vm, **place, attempt=self.spec.attempt)
        with self.run_phase("preflight"):
            if storage_error is not None:
                self.stop.check()
                raise halt_for("storage_unreachable", str(storage_error))
            self.record_heal(corrected)
            done = self.finished_cases()
            self.preflight()
        with self.run_phase("environment"):
            self.prepare(done)
            self.provide_torch()
            self.requirements.provide(self.needed(), self.limit)
            self.step("environment")
        if self.spec.prepare:
            with self.run_phase("build"):
                return self.preparation.run(self.limit, self.events, self.stop)
        if session := self.spec.harness.get("session"):
            return self.serve_session(float(session["idle_s"]))
        for phase in ("build", "correctness", "measure"):
            with self.run_phase(phase):
                self.step(phase)
        if self.spec.harness.get("profile"):
            self.profile()
        if self.incorrect:
            what = "the kernel was not built" if self.not_built else "an implementation was wrong on a case"
            return Ending("incorrect", INCORRECT, what)
        return Ending("succeeded", DONE, "every case is measured")

    def serve_session(self, idle_s: float) -> Ending:
        """Has candidates judged until none comes for `idle_s` seconds."""
        folder = self.site.work / "candidates"
        queue = CandidateQueue(self.spec.run_id, folder, self.storage, self.clock, self.stop, self.log, idle_s)
        with self.run_phase("measure"):
            self.step("session", lambda: queue.next(self.patience, self.limit))
        return Ending("succeeded", DONE, "the session is over")

    def provide_torch(self) -> None:
        """Finds a torch that can be used, or installs one. The harness has imported what is there; if that is not what
        is used, it is started again."""
        answer = self.harness.preloaded(self.limit)
        self.stop.check()
        there = None if answer is None else Torch(**answer)
        found = self.packages.torch(self.spec.torch, self.spec.require_cuda, self.limit, there)
        self.packages.numpy(found, self.limit)
        if found is not there or not found.exchange:
            self.harness.close()

    def needed(self) -> requirements.RequirementList:
        """What the workload needs installed. On a machine that becomes an image nothing is built: the result would be
        part of the payload, which no image keeps."""
        wanted = requirements.read_requirements(self.payload)
        return replace(wanted, build="") if self.spec.prepare else wanted

    def profile(self) -> None:
        """Makes the profiles after everything is measured and stored. Failures are logged and do not change the
        result."""
        try:
            with self.run_phase("profile"):
                self.step("profile")
        except Halt as halt:
            self.stop.check()
            self.log.say(f"no profile: {halt.ending.detail}")

    @contextmanager
    def run_phase(self, phase: str) -> Iterator[None]:
        """The context of a phase: it applies the limit, and writes the two events with the exit code."""
        self.phase = phase
        limit_s = self.spec.limits_s.get(phase, PROFILE_LIMIT_S)
        self.limit = Patience(self.clock, limit_s, self.stop.requested)
        began = self.clock.monotonic()
        self.events.append("phase_started", phase=phase, limit_s=limit_s)
        self.log.say(f"{phase} (at most {limit_s:g} s)")
        code = 1
        try:
            self.stop.check()
            yield
            code = INCORRECT if self.incorrect and phase != "environment" else DONE
        except Halt as halt:
            code = halt.ending.exit_code
            raise
        finally:
            seconds = round(self.clock.monotonic() - began, 3)
            self.events.append("phase_finished", phase=phase, exit_code=code, seconds=seconds)
            self.log.say(f"{phase} ended with exit code {code} after {seconds:.1f} s")

    def compare_clocks(self) -> tuple[StorageError | None, float | None]:
        """Compares our clock with that of the bucket. Returns the error if the bucket cannot be reached, which shows
        here first, and the seconds by which its clock is ahead."""
        try:
            return None, self.storage.skew_s(self.patience())
        except StorageError as error:
            return error, None

    def patience(self) -> Patience:
        """How long to try for one object: as long as the bucket may be away, but not beyond the phase's limit."""
        seconds = self.spec.timing.storage_patience_s
        if self.phase != "boot":
            seconds = min(seconds, self.limit.left())
        return Patience(self.clock, seconds, self.stop.requested)

    def finished_cases(self) -> list[str]:
        """The cases that an earlier attempt has stored."""
        try:
            names = self.storage.names(self.prefix + "cases/", self.patience())
        except StorageError as error:
            self.stop.check()
            raise halt_for("storage_unreachable", str(error)) from error
        matches = (CASE.match(name[len(self.prefix) :]) for name in names)
        cases = [match.group(1) for match in matches if match]
        if cases:
            self.log.say(f"{len(cases)} cases are finished already and will be skipped")
        return cases

    def record_heal(self, heal: HealRecord | None) -> None:
        """Records a heal; None means that there was nothing to heal."""
        if heal is not None:
            self.events.append("healed", what=heal.what, detail=heal.detail)
            self.log.say(f"healed {heal.what}: {heal.detail}")

    def preflight(self) -> None:
        """Runs the checks that need no package. The disk is checked before torch is installed, which would fill it."""
        timing = self.spec.timing
        if self.spec.require_cuda:
            self.record_heal(cuda_path(self.host))
            waited = driver_wait(
                self.host, timing.driver_wait_s, timing.driver_poll_s, self.limit, may_reboot=self.may_reboot()
            )
            self.record_heal(waited)
        self.record_heal(disk_space(self.host, self.spec.min_free_gb, self.spec.allow_install, self.limit))

    def prepare(self, done: list[str]) -> None:
        """Writes the harness's spec, and writes the payload's checksum into its folder, as the payload cannot contain
        it."""
        skip = list(dict.fromkeys([*self.spec.harness.get("skip_cases", []), *done]))
        run_facts = {
            "run_id": self.spec.run_id,
            "vm": self.spec.vm,
            "skip_cases": skip,
            "machine": dict(self.site.machine),
        }
        harness = {**self.spec.harness, **run_facts}
        self.harness.spec_path.write_text(json.dumps(harness), encoding="utf-8")
        self.files.out.mkdir(parents=True, exist_ok=True)
        manifest = self.payload / "manifest.json"
        try:
            manifest_document = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            manifest_document = {"schema": 1}
        manifest.write_text(
            json.dumps({**manifest_document, "payload_sha256": self.site.payload_sha256}), encoding="utf-8"
        )

    def step(self, name: str, candidates: Callable[[], Mapping[str, Any]] | None = None) -> None:
        """One step of the harness. Raises Halt when the run cannot go on after it."""
        facts = RecordedFacts(self.files, self.events, self.log, self.patience, self.stop, candidates)
        outcome = self.harness.run(name, self.limit, facts.receive)
        if outcome.code == DONE and facts.diagnosis is None:
            return
        if outcome.code == NOT_BUILT and (self.spec.others or self.not_built):
            self.diagnose(None if self.not_built else facts.diagnosis or Diagnosis("build_failed", outcome.log_tail))
            self.incorrect = self.not_built = True
        elif outcome.code == INCORRECT:
            # This is reported once, although later steps find the same implementation wrong again.
            wrong = facts.diagnosis or Diagnosis("kernel_wrong", f"an implementation was wrong in step {name}")
            self.diagnose(None if self.incorrect else wrong)
            self.incorrect = True
        else:
            diagnosis = facts.diagnosis or unexplained_exit(name, outcome)
            code = outcome.code if outcome.code >= 0 else SIGNALLED - outcome.code
            raise Halt(Ending("failed", code or GATE_FAILED, diagnosis.detail, diagnosis))

    def diagnose(self, diagnosis: Diagnosis | None) -> None:
        if diagnosis is not None:
            cause, detail = diagnosis.cause, diagnosis.detail
            self.events.append("diagnosed", cause=cause, detail=detail, phase=self.phase)
            self.log.say(f"diagnosed {cause}: {first_line(detail)}")

    def finish(self, ending: Ending) -> None:
        """Stores everything that exists in the bucket, the log last, and then writes the last event. Never raises, and
        takes a limited time."""
        ended_in = self.phase
        self.diagnose(ending.diagnosis)
        self.harness.close()
        limit_s = self.spec.limits_s["finish"]
        if self.stop.reason:
            limit_s = min(limit_s, self.spec.timing.hurried_finish_s)
        # A stop does not interrupt this, as a stop leads here.
        patience = Patience(self.clock, limit_s)
        began = self.clock.monotonic()
        self.events.append("phase_started", phase="finish", limit_s=limit_s)
        detail = first_line(ending.detail)
        self.log.say(f"finish: {ending.outcome}, {detail}")
        self.uploader.close()
        lost = self.files.put_rest(patience)
        for path in lost:
            self.log.say(f"could not store {path}")
        seconds = round(self.clock.monotonic() - began, 3)
        self.events.append("phase_finished", phase="finish", exit_code=1 if lost else 0, seconds=seconds)
        self.events.flush(patience)
        self.await_log(patience.left())
        self.uploader.upload(patience)
        if self.keeps and not self.spec.taken:
            return
        self.events.append(
            "finished", outcome=ending.outcome, exit_code=ending.exit_code, phase=ended_in, detail=detail
        )
        if self.events.flush(patience) and not self.spec.taken:
            (self.site.home / "last-word").touch()
        self.events.close()

    def await_log(self, seconds: float) -> None:
        """Waits until what was said last is in log.txt, but not for longer than its copy may be late."""
        patience = Patience(self.clock, min(seconds, self.spec.timing.log_lag_s))
        self.log.await_copy(self.uploader.path, patience, self.site.log_start)


def first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def unexplained_exit(step: str, outcome: HarnessExit) -> Diagnosis:
    """What an exit code stands for when the harness said nothing about it."""
    if outcome.code == BAD_SPEC:
        return Diagnosis("spec_refused", f"the harness refuses its spec in step {step}:\n{outcome.log_tail}")
    if outcome.code == NOT_BUILT:
        return Diagnosis("build_failed", f"the kernel was not built:\n{outcome.log_tail}")
    if outcome.code == GATE_FAILED:
        return Diagnosis("gate_failed", f"a gate failed in step {step}:\n{outcome.log_tail}")
    full = "No space left on device" in outcome.log_tail and "/dev/shm" not in outcome.log_tail  # which is memory
    return Diagnosis(
        "disk_full" if full else "harness_crashed",
        f"step {step} ended with {outcome.how}; the last lines of its log:\n{outcome.log_tail}",
    )
