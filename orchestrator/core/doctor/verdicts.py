"""The verdicts of checks, how checks depend on each other, and the exit code and repairs of a page of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orchestrator.core.market.catalog import CATALOG, Gpu
from orchestrator.core.rest import RestAnswer
from orchestrator.core.setup.steps import EnableApis, Step, one_line_command


class CheckLevel(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What a check found. `remedy` is a command or an instruction; `steps` are what `--fix` does instead."""

    level: CheckLevel
    why: str
    remedy: str = ""
    steps: tuple[Step, ...] = ()


def pass_verdict(why: str) -> CheckVerdict:
    return CheckVerdict(CheckLevel.OK, why)


def warn_verdict(why: str, remedy: str = "", *steps: Step) -> CheckVerdict:
    """A warning: a launch works, but the user should know this before it costs money."""
    return CheckVerdict(CheckLevel.WARN, why, remedy or _command(steps), steps)


def fail_verdict(why: str, remedy: str = "", *steps: Step) -> CheckVerdict:
    """A failure: a launch would fail, or do damage."""
    return CheckVerdict(CheckLevel.FAIL, why, remedy or _command(steps), steps)


def _command(steps: tuple[Step, ...]) -> str:
    return " && ".join(map(one_line_command, steps))


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check. `needs` are the names of the checks that must not have failed before this one can be made."""

    name: str
    title: str
    area: str
    """`here`, `gce` or `host`."""
    needs: tuple[str, ...] = ()
    exit_code: int = 6
    limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: DoctorCheck
    verdict: CheckVerdict
    seconds: float = 0.0


def skip_verdict(results: Mapping[str, CheckResult], needs: Iterable[str]) -> CheckVerdict | None:
    """The verdict on a check that is not made: it names the first of its `needs` that failed or was skipped. None if
    the check can be made."""
    for name in needs:
        verdict = results[name].verdict
        if verdict.level is CheckLevel.SKIPPED:  # it names the check that failed first
            return verdict
        if verdict.level is CheckLevel.FAIL:
            return CheckVerdict(CheckLevel.SKIPPED, f"not checked, because this failed: {results[name].check.title}")
    return None


def too_slow(check: DoctorCheck) -> CheckVerdict:
    return warn_verdict(f"no answer within {check.limit_s:g} s", "bench doctor")


def crash_verdict(what: str) -> CheckVerdict:
    """The verdict on a check that raised an unexpected error. The other checks go on."""
    return warn_verdict(f"could not be checked: {what}")


def exit_code(results: Iterable[CheckResult]) -> int:
    """The exit code of the first failed check in the order of the page; 0 if none failed. A warning is not a
    failure."""
    return next((result.check.exit_code for result in results if result.verdict.level is CheckLevel.FAIL), 0)


def count_levels(results: Iterable[CheckResult]) -> Mapping[CheckLevel, int]:
    levels = [result.verdict.level for result in results]
    return {level: levels.count(level) for level in CheckLevel}


def proposed_fixes(results: Iterable[CheckResult]) -> tuple[Step, ...]:
    """Every step that a verdict proposes, each once."""
    return tuple(dict.fromkeys(step for result in results for step in result.verdict.steps))


LOGIN: Final = "gcloud auth application-default login"


def error_verdict(answer: RestAnswer, project: str, api: str, grant: str) -> CheckVerdict:
    """The verdict on an answer that is an error. `grant` is the command that gives the right to look."""
    if answer.status == 0:
        return fail_verdict(f"{api} does not answer: {answer.message}", f"curl -sSI https://{api}/")
    if answer.status == 401:
        return fail_verdict(f"the credentials were not accepted: {answer.message}", LOGIN)
    if answer.api_off and answer.consumer not in ("", project) and not answer.consumer.isdecimal():
        why = f"cannot be checked: {api} is not enabled in {answer.consumer}, to which the credentials are billed"
        return warn_verdict(why, f"gcloud auth application-default set-quota-project {project}")
    if answer.api_off:
        return warn_verdict(f"cannot be checked: {api} is not enabled", "", EnableApis(project, (api,)))
    if answer.status == 403:
        return warn_verdict(f"this account has no permission to check it: {answer.message}", grant)
    if answer.status == 429 or answer.status >= 500:
        return warn_verdict(f"{api} failed, which is usually temporary: {answer.message}", "bench doctor")
    return fail_verdict(f"{api} refused the request: {answer.message}", grant)


# The identity behind the credentials in use, as far as it is known.


@dataclass(frozen=True, slots=True)
class Identity:
    """The kind of the credentials, and their IAM member, such as `user:ada@example.com`; empty if it is not known."""

    kind: str
    member: str = ""


@dataclass(frozen=True, slots=True)
class NetworkRoute:
    """How requests leave this machine. Each is empty where there is none."""

    proxy: str = ""
    """Without user name and password."""
    variable: str = ""
    """The variable that names the certificate authorities; empty for the list that comes with Python's requests."""
    authorities: str = ""
    certificate: bool = False
    """Whether a client certificate is shown."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`gpus` are the GPUs to check: the one that was asked for and its fallbacks, or the whole catalog."""

    project: str
    bucket: str
    embedded: bool = False
    gpus: tuple[Gpu, ...] = CATALOG
    chosen: bool = False
    """Whether somebody asked for these GPUs. If not, a GPU without quota is only a warning."""
    zones: tuple[str, ...] = ()
    """Empty: every zone of `gpus`."""
    images: tuple[tuple[str, str], ...] = ()
    """(project, family) of each image; empty: those of `gpus`."""
    network: str = "global/networks/default"
    external_ip: bool = True
    allow_install: bool = True
    service_account: str | None = None
    who: str = ""
    """The account in use as an IAM member; empty if it is not known."""

    @property
    def every_zone(self) -> tuple[str, ...]:
        return self.zones or tuple(dict.fromkeys(zone for gpu in self.gpus for zone in gpu.zones))

    @property
    def every_image(self) -> tuple[tuple[str, str], ...]:
        return self.images or tuple(dict.fromkeys((gpu.image_project, gpu.image_family) for gpu in self.gpus))

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in self.every_zone))

    @property
    def member(self) -> str:
        return self.who or "user:YOUR_ADDRESS"

    @property
    def set_up(self) -> str:
        """The command with which an owner of the project sets up everything."""
        return f"bench init --project {self.project} --bucket {self.bucket} --launcher {self.member}"
