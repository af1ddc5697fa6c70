"""The verdicts of checks, how checks depend on each other, and the exit code and repairs of a page of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orchestrator.core.rest import Answer
from orchestrator.core.setup.gcloud import pasted
from orchestrator.core.setup.steps import EnableApis, Step


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. `remedy` is a command or an instruction; `steps` are what `--fix` does instead."""

    level: Level
    why: str
    remedy: str = ""
    steps: tuple[Step, ...] = ()


def fine(why: str) -> Verdict:
    return Verdict(Level.OK, why)


def doubt(why: str, remedy: str = "", *steps: Step) -> Verdict:
    """A warning: a launch works, but the user should know this before it costs money."""
    return Verdict(Level.WARN, why, remedy or _command(steps), steps)


def bad(why: str, remedy: str = "", *steps: Step) -> Verdict:
    """A failure: a launch would fail, or do damage."""
    return Verdict(Level.FAIL, why, remedy or _command(steps), steps)


def _command(steps: tuple[Step, ...]) -> str:
    return " && ".join(map(pasted, steps))


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `needs` are the names of the checks that must not have failed before this one can be made."""

    name: str
    title: str
    area: str
    """`here`, `gce` or `host`."""
    needs: tuple[str, ...] = ()
    exit_code: int = 6
    limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Result:
    check: Check
    verdict: Verdict
    seconds: float = 0.0


def skipped(results: Mapping[str, Result], needs: Iterable[str]) -> Verdict | None:
    """The verdict on a check that is not made: it names the first of its `needs` that failed or was skipped. None if
    the check can be made."""
    for name in needs:
        found = results[name].verdict
        if found.level is Level.SKIPPED:  # it names the check that failed first
            return found
        if found.level is Level.FAIL:
            return Verdict(Level.SKIPPED, f"not checked, because this failed: {results[name].check.title}")
    return None


def too_slow(check: Check) -> Verdict:
    return doubt(f"no answer within {check.limit_s:g} s", "bench doctor")


def crashed(what: str) -> Verdict:
    """The verdict on a check that raised an unexpected error. The other checks go on."""
    return doubt(f"could not be checked: {what}")


def exit_code(results: Iterable[Result]) -> int:
    """The exit code of the first failed check in the order of the page; 0 if none failed. A warning is not a
    failure."""
    return next((result.check.exit_code for result in results if result.verdict.level is Level.FAIL), 0)


def counted(results: Iterable[Result]) -> Mapping[Level, int]:
    levels = [result.verdict.level for result in results]
    return {level: levels.count(level) for level in Level}


def fixes(results: Iterable[Result]) -> tuple[Step, ...]:
    """Every step that a verdict proposes, each once."""
    return tuple(dict.fromkeys(step for result in results for step in result.verdict.steps))


LOGIN: Final = "gcloud auth application-default login"


def refused(answer: Answer, project: str, api: str, grant: str) -> Verdict:
    """The verdict on an answer that is an error. `grant` is the command that gives the right to look."""
    if answer.status == 0:
        return bad(f"{api} does not answer: {answer.message}", f"curl -sSI https://{api}/")
    if answer.status == 401:
        return bad(f"the credentials were not accepted: {answer.message}", LOGIN)
    if answer.api_off and answer.consumer not in ("", project) and not answer.consumer.isdecimal():
        why = f"cannot be checked: {api} is not enabled in {answer.consumer}, to which the credentials are billed"
        return doubt(why, f"gcloud auth application-default set-quota-project {project}")
    if answer.api_off:
        return doubt(f"cannot be checked: {api} is not enabled", "", EnableApis(project, (api,)))
    if answer.status == 403:
        return doubt(f"this account has no permission to check it: {answer.message}", grant)
    if answer.status == 429 or answer.status >= 500:
        return doubt(f"{api} failed, which is usually temporary: {answer.message}", "bench doctor")
    return bad(f"{api} refused the request: {answer.message}", grant)
