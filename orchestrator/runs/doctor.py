"""Which checks a command line asks for, each with the function that collects its facts."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core.config.model import Config, Environment
from orchestrator.core.doctor import checks, here, project
from orchestrator.core.doctor.here import CommandResult, HostCheck
from orchestrator.core.doctor.verdicts import (
    CheckResult,
    CheckVerdict,
    DoctorCheck,
    Identity,
    NetworkRoute,
    Subject,
    crash_verdict,
    fail_verdict,
    pass_verdict,
    skip_verdict,
    too_slow,
)
from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing
from orchestrator.core.host_answers import answer_error, validate_answer
from orchestrator.core.hosts import HostTarget, gpu_for
from orchestrator.core.market.catalog import CATALOG, GPU_NAMES, find_gpu
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.names import Zone
from orchestrator.core.naming import Mode
from orchestrator.core.rest import Api
from orchestrator.ports import HostShell
from orchestrator.runs.host_planning import needs_of, python_of
from orchestrator.runs.planning import LaunchOptions

# Runs many checks at the same time: each as soon as the checks that it needs are done, and none beyond its limit.


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A check, and the function that collects its facts and judges them."""

    check: DoctorCheck
    make: Callable[[], CheckVerdict]


def run_checks(
    tasks: Sequence[TaskRun], report: Callable[[CheckResult], None] = lambda _result: None
) -> tuple[CheckResult, ...]:
    """The results in the order of `tasks`; `report` gets each one as soon as it is there.

    A check that takes too long is abandoned: its thread ends with the program.
    """
    done: dict[str, CheckResult] = {}
    running: dict[str, tuple[TaskRun, float]] = {}
    waiting = {task.check.name: task for task in tasks}
    answers: queue.Queue[tuple[str, CheckVerdict]] = queue.Queue()

    def finish(check: DoctorCheck, verdict: CheckVerdict, seconds: float) -> None:
        done[check.name] = CheckResult(check, verdict, seconds)
        report(done[check.name])

    while waiting or running:
        for name, task in list(waiting.items()):
            if all(need in done or need not in waiting | running for need in task.check.needs):
                del waiting[name]
                reason = skip_verdict(done, (need for need in task.check.needs if need in done))
                if reason is not None:
                    finish(task.check, reason, 0.0)
                    continue
                running[name] = (task, time.monotonic())
                threading.Thread(target=_make, args=(task, answers), name=f"check-{name}", daemon=True).start()
        if not running:
            continue  # those that were skipped may be what others wait for
        patience = min(begun + task.check.limit_s for task, begun in running.values()) - time.monotonic()
        try:
            name, verdict = answers.get(timeout=max(patience, 0.0))
        except queue.Empty:
            now = time.monotonic()
            for name, (task, begun) in list(running.items()):
                if now >= begun + task.check.limit_s:
                    del running[name]
                    finish(task.check, too_slow(task.check), now - begun)
            continue
        if name in running:
            task, begun = running.pop(name)
            finish(task.check, verdict, time.monotonic() - begun)
    return tuple(done[task.check.name] for task in tasks)


def _make(task: TaskRun, answers: queue.Queue[tuple[str, CheckVerdict]]) -> None:
    try:
        verdict = task.make()
    except BenchError as exc:
        verdict = crash_verdict(str(exc))
    except Exception as exc:
        verdict = crash_verdict(f"{type(exc).__name__}: {exc}")
    answers.put((task.check.name, verdict))


class DoctorSession(Protocol):
    """Reads from a cloud, and changes nothing there."""

    def route(self) -> NetworkRoute: ...
    def prove(self) -> Identity: ...
    def ask_for_machine(self, zone: Zone) -> None: ...
    def api(self) -> Api: ...
    def nobody(self) -> Api: ...
    def close(self) -> None: ...


class Computer(Protocol):
    """What the checks ask about this machine (`adapters.this_machine`)."""

    def requirements(self) -> Sequence[str]: ...
    def installed_versions(self, needed: Sequence[str]) -> Mapping[str, str]: ...
    def writable(self, folder: Path) -> tuple[str, int]: ...
    def compiler(self) -> str: ...
    def torch_version(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the checks of this machine look at."""

    mode: Mode
    home: Path
    configs: Path
    prices: Callable[[], PriceSheet]
    load: Callable[[LaunchOptions], object]
    """Loads a configuration. Raises `ConfigError`."""
    now: Callable[[], datetime]
    """This machine's time: the checks of this machine ask nobody else."""
    computer: Computer
    another_home: Callable[[], str]
    """The command that chooses another BENCH_HOME."""
    embedded: here.Embedded
    """The embedded cloud, before another check starts it."""


class CloudExamination:
    """What the checks of a cloud share: a session, what is checked, and the login."""

    def __init__(
        self,
        session: DoctorSession,
        base: Callable[[], Subject],
        config: Config | None = None,
        gpus: tuple[str, ...] = (),
    ) -> None:
        self.session = session
        self.config = config
        self.gpus = tuple(found for name in gpus if (found := find_gpu(name)))
        self.who = ""
        self._base = base

    def subject(self) -> Subject:
        """What is checked."""
        subject = replace(self._base(), who=self.who)
        if self.config is None:
            return subject
        machine = self.config.machine
        return replace(
            subject,
            gpus=self.gpus or CATALOG,
            chosen=True,
            zones=tuple(self.config.allowed_zones()),
            images=(self.config.image_source,),
            network=machine.network,
            external_ip=machine.external_ip,
            allow_install=self.config.environment.allow_install,
            service_account=machine.service_account or subject.service_account,
        )

    def prove(self) -> CheckVerdict:
        try:
            identity = self.session.prove()
        except CredentialsMissing as exc:
            return project.check_credentials(None, str(exc).partition(". ")[0])
        except BenchError as exc:
            return fail_verdict(str(exc), exc.hint or "bench cloud stop; bench cloud start")
        self.who = identity.member
        return project.check_credentials(identity, "")

    def connect(self) -> CheckVerdict:
        try:
            return project.check_connection(self.session.route())
        except BenchError as exc:
            return fail_verdict(str(exc), exc.hint)

    def ask_for_machine(self) -> CheckVerdict:
        subject = self.subject()
        if subject.embedded:
            return pass_verdict("practice needs no network: the client is loaded by the first launch")
        try:
            self.session.ask_for_machine(Zone(subject.every_zone[0]))
        except BenchError as exc:
            return fail_verdict(str(exc), exc.hint)
        return pass_verdict("the client that creates machines gets answers")

    def look(self, check: checks.CloudCheck) -> CheckVerdict:
        return check(self.session.api(), self.subject())

    def tasks(self) -> tuple[TaskRun, ...]:
        """The checks of the project; the embedded cloud is checked like any other project. The list needs no request to
        the cloud."""
        images = (self.config.image_source,) if self.config else ()
        listed = checks.cloud_checks(Subject("", "", gpus=self.gpus or CATALOG, images=images))
        looks = {checks.CLOCK: lambda check: check(self.session.nobody(), self.subject())}
        made = (TaskRun(check, partial(looks.get(check.name, self.look), asks)) for check, asks in listed)
        return (
            TaskRun(checks.CONNECTION, self.connect),
            TaskRun(checks.CREDENTIALS, self.prove),
            *made,
            TaskRun(checks.MACHINES, self.ask_for_machine),
        )


def here_tasks(around: Surroundings, config: Path | None) -> tuple[TaskRun, ...]:
    """The checks of this machine."""
    uses, computer, home = around.mode.simulated, around.computer, around.home
    needed = computer.requirements()
    return (
        TaskRun(checks.PYTHON, lambda: here.check_python(tuple(sys.version_info[:3]))),
        TaskRun(checks.LIBRARIES, lambda: here.check_libraries(needed, computer.installed_versions(needed))),
        TaskRun(checks.HOME, lambda: here.check_home(str(home), *computer.writable(home), around.another_home())),
        TaskRun(checks.DOCUMENTS, lambda: _documents(around, config)),
        TaskRun(checks.PRICES, lambda: here.check_prices(around.prices().as_of, around.now().date())),
        TaskRun(checks.EMBEDDED, lambda: here.check_embedded(around.embedded)),
        TaskRun(checks.COMPILER, lambda: here.check_compiler(computer.compiler(), uses)),
        TaskRun(checks.TORCH, lambda: here.check_torch(computer.torch_version(), uses, Environment().torch)),
    )


def _documents(around: Surroundings, config: Path | None) -> CheckVerdict:
    wanted = [LaunchOptions(gpu, None, ()) for gpu in GPU_NAMES if (around.configs / f"{gpu}.yaml").is_file()]
    wanted += [LaunchOptions("", config, ())] if config else []
    troubles: list[tuple[str, str]] = []
    for options in wanted:
        try:
            around.load(options)
        except ConfigError as exc:
            troubles.append((str(options.path or options.gpu), str(exc)))
    return here.check_documents(troubles, len(wanted))


# The checks of a machine that the user owns: plain commands first, then the same checks as before a launch there.


ASK_S = 240.0
"""Importing torch for the first time from a slow disk takes minutes."""


def host_tasks(
    host: HostTarget,
    connect: Callable[[], HostShell],
    asked: LaunchOptions,
    configured: Callable[[LaunchOptions], tuple[Config, str]],
) -> tuple[TaskRun, ...]:
    """The checks of `host` for the run in `asked`. If that has neither a GPU nor a configuration, they are for the
    configuration that suits the host. `configured` loads a configuration. Each check has
    a connection of its own, so that one which ends its connection fails alone."""
    plan = _Plan(host, asked, configured)
    plain = tuple(
        TaskRun(check, partial(_guarded, connect, partial(_look, host, made))) for check, made in here.HOST_CHECKS
    )
    host_checks = ((here.PYTHON, plan.ready), (here.FILES, plan.files), (here.TORCH, plan.packaged))
    return (*plain, *(TaskRun(check, partial(_guarded, connect, work)) for check, work in host_checks))


class _Plan:
    """What a launch checks on the host. `packaged` needs what `ready` found."""

    def __init__(
        self,
        host: HostTarget,
        asked: LaunchOptions,
        configured: Callable[[LaunchOptions], tuple[Config, str]],
    ) -> None:
        self.host, self.asked, self.configured = host, asked, configured
        self.config = configured(asked)[0] if asked.gpu or asked.path else None
        self.executable = ""

    def ready(self, shell: HostShell) -> CheckVerdict:
        probe = self._told(shell, "probe")
        self.executable = str(probe["executable"])
        if self.config is None:
            self.config = self.configured(replace(self.asked, gpu=gpu_for(probe)))[0]
        return here.check_readiness(probe, needs_of(self.config), self.host.called)

    def packaged(self, shell: HostShell) -> CheckVerdict:
        assert self.config is not None, "the check before this one has it"
        packages, torch = self._told(shell, "packages"), self.config.environment.torch
        return here.check_packages(packages, needs_of(self.config), self.host.called, self.executable, torch)

    def files(self, shell: HostShell) -> CheckVerdict:
        shell.get("/nonexistent/bench", limit=1)
        return pass_verdict("files can be sent and fetched")

    def _told(self, shell: HostShell, operation: str) -> Mapping[str, Any]:
        python = self.config.host.python if self.config else python_of(self.asked)
        answer = shell.ask(operation, {}, python=python, timeout_s=ASK_S)
        if (error := answer_error(answer, self.host)) is not None:
            raise error
        return validate_answer(answer, operation)


def _look(host: HostTarget, check: HostCheck, shell: HostShell) -> CheckVerdict:
    return check(lambda line: CommandResult(*shell.run(line)), host)


def _guarded(connect: Callable[[], HostShell], work: Callable[[HostShell], CheckVerdict]) -> CheckVerdict:
    shell = connect()
    try:
        return work(shell)
    except BenchError as exc:
        return fail_verdict(str(exc), exc.hint)
    finally:
        shell.close()
