"""Which checks a command line asks for, each with the function that collects its facts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from orchestrator.core.config.model import Config
from orchestrator.core.doctor import checks, here, project
from orchestrator.core.doctor.subject import Identity, Subject
from orchestrator.core.doctor.verdicts import Verdict, bad
from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing
from orchestrator.core.market.catalog import CATALOG, GPU_NAMES, lookup
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.mode import Mode
from orchestrator.core.rest import Api
from orchestrator.doctor.runner import Task
from orchestrator.runs.planning import LaunchOptions


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
