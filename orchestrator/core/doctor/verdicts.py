"""What a check finds, in which order checks depend on each other, and what a page of them comes to."""

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
    """`remedy` is a command, or what to do; `steps` are what `--fix` does instead."""

    level: Level
    why: str
    remedy: str = ""
    steps: tuple[Step, ...] = ()


def fine(why: str) -> Verdict:
    return Verdict(Level.OK, why)


def doubt(why: str, remedy: str = "", *steps: Step) -> Verdict:
    """Not a reason to stop, and something to know before it costs money."""
    return Verdict(Level.WARN, why, remedy or _command(steps), steps)


def bad(why: str, remedy: str = "", *steps: Step) -> Verdict:
    """A launch would fail, or worse."""
    return Verdict(Level.FAIL, why, remedy or _command(steps), steps)


def _command(steps: tuple[Step, ...]) -> str:
    return " && ".join(map(pasted, steps))


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at. `needs` are checks without which there is nothing to see."""

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
    """Why a check is not made: the first of its `needs` that found no firm ground; None when it can be made."""
    for name in needs:
        found = results[name].verdict
        if found.level is Level.SKIPPED:  # what is at the bottom of it is of more use
            return found
        if found.level is Level.FAIL:
            return Verdict(Level.SKIPPED, f"because of: {results[name].check.title}")
    return None


def too_slow(check: Check) -> Verdict:
    return doubt(f"no answer within {check.limit_s:g} s", "bench doctor")


def crashed(what: str) -> Verdict:
    """A check that met something it does not know; the others go on."""
    return doubt(f"could not be looked at: {what}")


def exit_code(results: Iterable[Result]) -> int:
    """That of the first failed check in the order of the page; 0 when none failed. Warnings are no failure."""
    return next((result.check.exit_code for result in results if result.verdict.level is Level.FAIL), 0)


def counted(results: Iterable[Result]) -> Mapping[Level, int]:
    levels = [result.verdict.level for result in results]
    return {level: levels.count(level) for level in Level}


def fixes(results: Iterable[Result]) -> tuple[Step, ...]:
    """Every step that a verdict proposes, each once."""
    return tuple(dict.fromkeys(step for result in results for step in result.verdict.steps))


LOGIN: Final = "gcloud auth application-default login"


def refused(answer: Answer, project: str, api: str, grant: str) -> Verdict:
    """What an answer that is no answer means. `grant` is the command that gives the right to look."""
    if answer.status == 0:
        return bad(f"{api} does not answer: {answer.message}", f"curl -sSI https://{api}/")
    if answer.status == 401:
        return bad(f"the credentials were not accepted: {answer.message}", LOGIN)
    if answer.api_off and answer.consumer not in ("", project) and not answer.consumer.isdecimal():
        why = f"cannot be looked at: {api} is not enabled in {answer.consumer}, which the credentials are billed to"
        return doubt(why, f"gcloud auth application-default set-quota-project {project}")
    if answer.api_off:
        return doubt(f"cannot be looked at: {api} is not enabled", "", EnableApis(project, (api,)))
    if answer.status == 403:
        return doubt(f"may not be looked at: {answer.message}", grant)
    if answer.status == 429 or answer.status >= 500:
        return doubt(f"{api} has trouble of its own: {answer.message}", "bench doctor")
    return bad(f"{api} refuses: {answer.message}", grant)
