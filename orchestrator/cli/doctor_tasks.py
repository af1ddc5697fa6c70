"""Which checks a command line asks for, each with the thin edge that gathers its facts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from orchestrator.core.doctor import checks, here, project
from orchestrator.core.doctor.host import HOST_CHECKS, HostCheck, Ran
from orchestrator.core.doctor.subject import Subject
from orchestrator.core.doctor.verdicts import Verdict, bad
from orchestrator.core.errors import BenchError, ConfigError, CredentialsMissing
from orchestrator.doctor import Task

if TYPE_CHECKING:
    from orchestrator.adapters.rest import Rest
    from orchestrator.adapters.setup import Setup
    from orchestrator.core.config import Config
    from orchestrator.core.hosts import Target
    from orchestrator.wiring import Wiring

RunCommand = Callable[[str], tuple[int, str, str]]
"""Runs a command on a host: exit code, standard output, standard error."""


class Clinic:
    """What the checks of one command share: a session, made when the first of them needs it, and who is asking."""

    def __init__(self, wiring: Wiring, config: Config | None, gpus: tuple[str, ...]) -> None:
        self.wiring = wiring
        self.config = config
        self.gpus = gpus
        self.who = ""
        self._guard = Lock()

    @cached_property
    def _rest(self) -> Rest:
        from orchestrator.adapters.rest import Rest

        return Rest(self.credentials, self.endpoints, remembers=True)

    def look_unknown(self, check: checks.CloudCheck) -> Verdict:
        """The same as `look` by nobody in particular: a refusal is an answer too, and has a date."""
        from orchestrator.adapters.google_auth import credentials_for
        from orchestrator.adapters.rest import Rest

        nobody = Rest(credentials_for("nobody"), self.endpoints)
        try:
            return nobody.hold(check(self.subject()))
        finally:
            nobody.close()

    @property
    def rest(self) -> Rest:
        with self._guard:
            return self._rest

    @cached_property
    def credentials(self) -> Any:
        from orchestrator.adapters.google_auth import credentials_for

        return credentials_for("embedded" if self.wiring.mode == "embedded" else None)

    @cached_property
    def endpoints(self) -> dict[str, str] | None:
        from orchestrator.adapters.rest import endpoints

        address = self.wiring.address
        return None if address is None else dict(endpoints(address.compute, address.storage))

    def subject(self) -> Subject:
        from orchestrator.core.catalog import CATALOG, lookup

        address = self.wiring.address
        settings = self.wiring.settings
        subject = Subject(
            project=address.project if address else settings.project,
            bucket=address.bucket if address else settings.bucket,
            embedded=address is not None,
            service_account=settings.service_account or None,
            who=self.who,
        )
        if self.config is None:
            return subject
        machine = self.config.machine
        gpus = tuple(found for name in self.gpus if (found := lookup(name)))
        from dataclasses import replace

        return replace(
            subject,
            gpus=gpus or CATALOG,
            chosen=True,
            zones=tuple(self.config.allowed_zones()),
            images=(self.config.image_source,),
            network=machine.network,
            external_ip=machine.external_ip,
            allow_install=self.config.environment.allow_install,
            service_account=machine.service_account or subject.service_account,
        )

    # The edges

    def prove(self) -> Verdict:
        from orchestrator.adapters.google_auth import proven

        try:
            _ = self.endpoints  # starts the embedded cloud, where that is what is looked at
            found = proven(self.credentials)
        except CredentialsMissing as exc:
            return project.credentials(None, str(exc).partition(". ")[0])
        except BenchError as exc:
            return bad(str(exc), "bench cloud stop; bench cloud start")
        self.who = found.member
        return project.credentials(found, "")

    def look(self, check: checks.CloudCheck) -> Verdict:
        return self.rest.hold(check(self.subject()))

    @property
    def ready(self) -> bool:
        """Whether there was anything to ask, so that the project has a name."""
        return bool(self.wiring.settings.project) or "address" in self.wiring.__dict__

    def setup(self) -> Setup:
        """What makes changes, for `--fix`."""
        from orchestrator.adapters.rest import Rest
        from orchestrator.adapters.setup import Setup

        storage = self.endpoints["storage"] if self.endpoints else None
        rest = Rest(self.credentials, self.endpoints, changes=True)
        return Setup(rest, self.credentials, self.wiring.home / "settings.yaml", storage=storage)

    def close(self) -> None:
        with self._guard:
            if "_rest" in self.__dict__:
                self._rest.close()


def cloud_tasks(clinic: Clinic) -> tuple[Task, ...]:
    """Those of the project; the embedded cloud is a project like any other."""
    subject = _before(clinic)
    listed = checks.cloud_checks(subject)
    looks = {checks.CLOCK: clinic.look_unknown}
    made = (Task(check, partial(looks.get(check.name, clinic.look), asks)) for check, asks in listed)
    return (Task(checks.CREDENTIALS, clinic.prove), *made)


def _before(clinic: Clinic) -> Subject:
    """The subject as far as it is known without asking anybody: which checks there are depends on no more."""
    from orchestrator.core.catalog import CATALOG, lookup

    gpus = tuple(found for name in clinic.gpus if (found := lookup(name)))
    images = (clinic.config.image_source,) if clinic.config else ()
    return Subject("", "", gpus=gpus or CATALOG, images=images)


def here_tasks(clinic: Clinic, config: Path | None) -> tuple[Task, ...]:
    """Those of this machine."""
    from orchestrator.adapters import this_machine

    uses = clinic.wiring.mode == "embedded"
    needed = this_machine.requirements()
    home = clinic.wiring.home
    # Looked at before another check starts it.
    cloud = _embedded(home / "cloud")
    return (
        Task(checks.PYTHON, lambda: here.python(tuple(sys.version_info[:3]))),
        Task(checks.LIBRARIES, lambda: here.libraries(needed, this_machine.installed(needed))),
        Task(checks.HOME, lambda: here.home(str(home), *this_machine.writable(home))),
        Task(checks.DOCUMENTS, lambda: _documents(config)),
        Task(checks.PRICES, _prices),
        Task(checks.EMBEDDED, lambda: here.embedded(cloud)),
        Task(checks.COMPILER, lambda: here.compiler(this_machine.compiler(), uses)),
        Task(checks.TORCH, lambda: here.torch(this_machine.torch_version(), uses)),
    )


def host_tasks(host: Target, run: RunCommand) -> tuple[Task, ...]:
    """Those of a machine that the user owns."""

    def look(check: HostCheck) -> Verdict:
        conversation = check(host)
        try:
            said = next(conversation)
            while True:
                said = conversation.send(Ran(*run(said)))
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        except BenchError as exc:
            return bad(str(exc), exc.hint)

    return tuple(Task(check, partial(look, made)) for check, made in HOST_CHECKS)


def _documents(config: Path | None) -> Verdict:
    from orchestrator.cli.asking import Asked, bundled, known_gpus, load_asked

    troubles: list[tuple[str, str]] = []
    asked = [Asked(gpu, None, (), False) for gpu in known_gpus() if bundled(f"{gpu}.yaml").is_file()]
    asked += [Asked("", config, (), False)] if config else []
    for one in asked:
        try:
            load_asked(one)
        except ConfigError as exc:
            troubles.append((str(one.path or one.gpu), str(exc)))
    return here.documents(troubles, len(asked))


def _prices() -> Verdict:
    from orchestrator.cli.asking import bundled
    from orchestrator.core.pricing import PriceSheet

    sheet = PriceSheet.parse(bundled("prices.yaml").read_text(encoding="utf-8"))
    return here.prices(sheet.as_of, datetime.now(UTC).date())


def _embedded(home: Path) -> here.Embedded:
    from orchestrator.adapters.this_machine import newest_source
    from orchestrator.embedded import client

    address = client.published(home)
    if address is None:
        return here.Embedded("down")
    if client.running(home) is None:
        return here.Embedded("stale", f" (process {address.pid})")
    started = datetime.fromisoformat(address.started_at).timestamp()
    if started < newest_source(Path(client.__file__).parent):
        return here.Embedded("old", f" (since {address.started_at[:19]})")
    return here.Embedded("up", f" since {address.started_at[11:16]} UTC")
