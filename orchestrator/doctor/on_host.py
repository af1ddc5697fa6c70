"""The checks of a machine that the user owns: plain commands first, then the same checks as before a launch there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.core.config.model import Config
from orchestrator.core.doctor import host as on_host
from orchestrator.core.doctor.host import HostCheck, Ran
from orchestrator.core.doctor.verdicts import Verdict, bad, fine
from orchestrator.core.errors import BenchError
from orchestrator.core.hosts import Target, gpu_for
from orchestrator.doctor.runner import Task
from orchestrator.hosts.admission import needs_of
from orchestrator.hosts.answers import looked, trouble
from orchestrator.hosts.planning import python_of
from orchestrator.ports import HostShell
from orchestrator.runs.planning import LaunchOptions

ASK_S = 240.0
"""Importing torch for the first time from a slow disk takes minutes."""


def host_tasks(
    host: Target,
    shell: HostShell,
    asked: LaunchOptions,
    configured: Callable[[LaunchOptions], tuple[Config, str]],
) -> tuple[Task, ...]:
    """The checks of `host` for the run in `asked`. If that has neither a GPU nor a configuration, they are for the
    configuration that suits the host. `configured` loads a configuration."""
    plan = _Plan(host, shell, asked, configured)
    plain = tuple(
        Task(check, partial(_guarded, partial(_look, host, shell, made))) for check, made in on_host.HOST_CHECKS
    )
    own = ((on_host.PYTHON, plan.ready), (on_host.FILES, plan.files), (on_host.TORCH, plan.packaged))
    return (*plain, *(Task(check, partial(_guarded, work)) for check, work in own))


class _Plan:
    """What a launch checks on the host. `packaged` needs what `ready` found."""

    def __init__(
        self,
        host: Target,
        shell: HostShell,
        asked: LaunchOptions,
        configured: Callable[[LaunchOptions], tuple[Config, str]],
    ) -> None:
        self.host, self.shell, self.asked, self.configured = host, shell, asked, configured
        self.config = configured(asked)[0] if asked.gpu or asked.path else None
        self.executable = ""

    def ready(self) -> Verdict:
        probe = self._told("probe")
        self.executable = str(probe["executable"])
        if self.config is None:
            self.config = self.configured(replace(self.asked, gpu=gpu_for(probe)))[0]
        return on_host.ready(probe, needs_of(self.config), self.host.called)

    def packaged(self) -> Verdict:
        assert self.config is not None, "the check before this one has it"
        found, torch = self._told("packages"), self.config.environment.torch
        return on_host.packaged(found, needs_of(self.config), self.host.called, self.executable, torch)

    def files(self) -> Verdict:
        self.shell.get("/nonexistent/bench", limit=1)
        return fine("files can be sent and fetched")

    def _told(self, operation: str) -> Mapping[str, Any]:
        python = self.config.host.python if self.config else python_of(self.asked)
        answer = self.shell.ask(operation, {}, python=python, timeout_s=ASK_S)
        if (error := trouble(answer, self.host)) is not None:
            raise error
        return looked(answer, operation)


def _look(host: Target, shell: HostShell, check: HostCheck) -> Verdict:
    return check(lambda line: Ran(*shell.run(line)), host)


def _guarded(work: Callable[[], Verdict]) -> Verdict:
    try:
        return work()
    except BenchError as exc:
        return bad(str(exc), exc.hint)
