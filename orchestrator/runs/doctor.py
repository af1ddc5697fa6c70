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

from orchestrator.core.config.model import Config
from orchestrator.core.doctor import checks, here, project
from orchestrator.core.doctor import host as on_host
from orchestrator.core.doctor.host import HostCheck, Ran
from orchestrator.core.doctor.subject import Identity, Subject
from orchestrator.core.doctor.verdicts import Check, Result, Verdict, bad, crashed, fine, skipped, too_slow
from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing
from orchestrator.core.host_answers import looked, trouble
from orchestrator.core.hosts import Target, gpu_for
from orchestrator.core.market.catalog import CATALOG, GPU_NAMES, lookup
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.mode import Mode
from orchestrator.core.rest import Api
from orchestrator.ports import HostShell
from orchestrator.runs.host_planning import needs_of, python_of
from orchestrator.runs.planning import LaunchOptions

# Runs many checks at the same time: each as soon as the checks that it needs are done, and none beyond its limit.


@dataclass(frozen=True, slots=True)
class Task:
    """A check, and the function that collects its facts and judges them."""

    check: Check
    make: Callable[[], Verdict]


def examine(tasks: Sequence[Task], report: Callable[[Result], None] = lambda _result: None) -> tuple[Result, ...]:
    """The results in the order of `tasks`; `report` gets each one as soon as it is there.

    A check that takes too long is abandoned: its thread ends with the program.
    """
    done: dict[str, Result] = {}
    running: dict[str, tuple[Task, float]] = {}
    waiting = {task.check.name: task for task in tasks}
    answers: queue.Queue[tuple[str, Verdict]] = queue.Queue()

    def finish(check: Check, verdict: Verdict, seconds: float) -> None:
        done[check.name] = Result(check, verdict, seconds)
        report(done[check.name])

    while waiting or running:
        for name, task in list(waiting.items()):
            if all(need in done or need not in waiting | running for need in task.check.needs):
                del waiting[name]
                reason = skipped(done, (need for need in task.check.needs if need in done))
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


def _make(task: Task, answers: queue.Queue[tuple[str, Verdict]]) -> None:
    try:
        verdict = task.make()
    except BenchError as exc:
        verdict = crashed(str(exc))
    except Exception as exc:
        verdict = crashed(f"{type(exc).__name__}: {exc}")
    answers.put((task.check.name, verdict))


class Session(Protocol):
    """Reads from a cloud, and changes nothing there."""

    def prove(self) -> Identity: ...
    def api(self) -> Api: ...
    def nobody(self) -> Api: ...
    def close(self) -> None: ...


class Computer(Protocol):
    """What the checks ask about this machine (`adapters.this_machine`)."""

    def requirements(self) -> Sequence[str]: ...
    def installed(self, needed: Sequence[str]) -> Mapping[str, str]: ...
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
    embedded: here.Embedded
    """The embedded cloud, before another check starts it."""


class CloudExamination:
    """What the checks of a cloud share: a session, what is checked, and the login."""

    def __init__(
        self, session: Session, base: Callable[[], Subject], config: Config | None = None, gpus: tuple[str, ...] = ()
    ) -> None:
        self.session = session
        self.config = config
        self.gpus = tuple(found for name in gpus if (found := lookup(name)))
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

    def prove(self) -> Verdict:
        try:
            identity = self.session.prove()
        except CredentialsMissing as exc:
            return project.credentials(None, str(exc).partition(". ")[0])
        except BenchError as exc:
            return bad(str(exc), "bench cloud stop; bench cloud start")
        self.who = identity.member
        return project.credentials(identity, "")

    def look(self, check: checks.CloudCheck) -> Verdict:
        return check(self.session.api(), self.subject())

    def look_as_nobody(self, check: checks.CloudCheck) -> Verdict:
        return check(self.session.nobody(), self.subject())

    def tasks(self) -> tuple[Task, ...]:
        """The checks of the project; the embedded cloud is checked like any other project. The list needs no request to
        the cloud."""
        images = (self.config.image_source,) if self.config else ()
        listed = checks.cloud_checks(Subject("", "", gpus=self.gpus or CATALOG, images=images))
        looks = {checks.CLOCK: self.look_as_nobody}
        made = (Task(check, partial(looks.get(check.name, self.look), asks)) for check, asks in listed)
        return (Task(checks.CREDENTIALS, self.prove), *made)


def here_tasks(around: Surroundings, config: Path | None) -> tuple[Task, ...]:
    """The checks of this machine."""
    uses, computer, home = around.mode.simulated, around.computer, around.home
    needed = computer.requirements()
    return (
        Task(checks.PYTHON, lambda: here.python(tuple(sys.version_info[:3]))),
        Task(checks.LIBRARIES, lambda: here.libraries(needed, computer.installed(needed))),
        Task(checks.HOME, lambda: here.home(str(home), *computer.writable(home))),
        Task(checks.DOCUMENTS, lambda: _documents(around, config)),
        Task(checks.PRICES, lambda: here.prices(around.prices().as_of, around.now().date())),
        Task(checks.EMBEDDED, lambda: here.embedded(around.embedded)),
        Task(checks.COMPILER, lambda: here.compiler(computer.compiler(), uses)),
        Task(checks.TORCH, lambda: here.torch(computer.torch_version(), uses)),
    )


def _documents(around: Surroundings, config: Path | None) -> Verdict:
    wanted = [LaunchOptions(gpu, None, ()) for gpu in GPU_NAMES if (around.configs / f"{gpu}.yaml").is_file()]
    wanted += [LaunchOptions("", config, ())] if config else []
    troubles: list[tuple[str, str]] = []
    for options in wanted:
        try:
            around.load(options)
        except ConfigError as exc:
            troubles.append((str(options.path or options.gpu), str(exc)))
    return here.documents(troubles, len(wanted))


# The checks of a machine that the user owns: plain commands first, then the same checks as before a launch there.


ASK_S = 240.0
"""Importing torch for the first time from a slow disk takes minutes."""


def host_tasks(
    host: Target,
    connect: Callable[[], HostShell],
    asked: LaunchOptions,
    configured: Callable[[LaunchOptions], tuple[Config, str]],
) -> tuple[Task, ...]:
    """The checks of `host` for the run in `asked`. If that has neither a GPU nor a configuration, they are for the
    configuration that suits the host. `configured` loads a configuration. Each check has
    a connection of its own, so that one which ends its connection fails alone."""
    plan = _Plan(host, asked, configured)
    plain = tuple(
        Task(check, partial(_guarded, connect, partial(_look, host, made))) for check, made in on_host.HOST_CHECKS
    )
    own = ((on_host.PYTHON, plan.ready), (on_host.FILES, plan.files), (on_host.TORCH, plan.packaged))
    return (*plain, *(Task(check, partial(_guarded, connect, work)) for check, work in own))


class _Plan:
    """What a launch checks on the host. `packaged` needs what `ready` found."""

    def __init__(
        self,
        host: Target,
        asked: LaunchOptions,
        configured: Callable[[LaunchOptions], tuple[Config, str]],
    ) -> None:
        self.host, self.asked, self.configured = host, asked, configured
        self.config = configured(asked)[0] if asked.gpu or asked.path else None
        self.executable = ""

    def ready(self, shell: HostShell) -> Verdict:
        probe = self._told(shell, "probe")
        self.executable = str(probe["executable"])
        if self.config is None:
            self.config = self.configured(replace(self.asked, gpu=gpu_for(probe)))[0]
        return on_host.ready(probe, needs_of(self.config), self.host.called)

    def packaged(self, shell: HostShell) -> Verdict:
        assert self.config is not None, "the check before this one has it"
        found, torch = self._told(shell, "packages"), self.config.environment.torch
        return on_host.packaged(found, needs_of(self.config), self.host.called, self.executable, torch)

    def files(self, shell: HostShell) -> Verdict:
        shell.get("/nonexistent/bench", limit=1)
        return fine("files can be sent and fetched")

    def _told(self, shell: HostShell, operation: str) -> Mapping[str, Any]:
        python = self.config.host.python if self.config else python_of(self.asked)
        answer = shell.ask(operation, {}, python=python, timeout_s=ASK_S)
        if (error := trouble(answer, self.host)) is not None:
            raise error
        return looked(answer, operation)


def _look(host: Target, check: HostCheck, shell: HostShell) -> Verdict:
    return check(lambda line: Ran(*shell.run(line)), host)


def _guarded(connect: Callable[[], HostShell], work: Callable[[HostShell], Verdict]) -> Verdict:
    shell = connect()
    try:
        return work(shell)
    except BenchError as exc:
        return bad(str(exc), exc.hint)
    finally:
        shell.close()
