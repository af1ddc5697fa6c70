"""What a rehearsal found about our assumptions about Google, and what `bench doctor` says about it.

`make live` writes one object, `rehearsal-<time>.json`, at the top of the bucket, where none of our machines may write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orchestrator.core.doctor.subject import Subject
from orchestrator.core.doctor.verdicts import CheckVerdict, error_verdict, fail_verdict, pass_verdict, warn_verdict
from orchestrator.core.permissions import OBJECT_USER
from orchestrator.core.rest import Api, RestRequest, list_all_pages
from orchestrator.core.text import clean_line, clean_name

PREFIX: Final = "rehearsal-"
ASSUMPTIONS: Final[Mapping[str, str]] = {
    "deadline": "the server deletes a machine at maxRunDuration, within 30 s",
    "deadline-begins": "maxRunDuration counts from when the machine starts to run",
    "request-id": "the same request twice makes one machine",
    "done-with-error": "an operation that is DONE may contain an error",
    "self-delete": "a machine may delete itself, but no other machine",
    "prefixes": "a machine may write below runs/, but not to the ledger",
    "date": "Cloud Storage's Date is right to a second or two",
    "generation": "if several writers send the same precondition, one succeeds",
    "preemption": "a preempted machine leaves an operation that says so",
    "billing": "machines are billed by the second, for at least a minute",
    "spot-quota": "spot machines use the ordinary quota if no spot quota was granted",
    "image": "the image families of the catalog exist",
    "driver": "the driver answers at the first boot",
    "api-settles": "an API that was just enabled is refused for some minutes",
}
"""Each assumption, by the name that docs/assumptions.md uses."""
STATES: Final = ("verified", "refuted", "not seen")


@dataclass(frozen=True, slots=True)
class RehearsalFinding:
    """What a rehearsal saw of one assumption. `state` is one of `STATES`; `detail` has the figures."""

    name: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Rehearsal:
    project: str
    at: datetime
    findings: tuple[RehearsalFinding, ...]
    usd_at_most: str = "0"

    def of(self, state: str) -> tuple[RehearsalFinding, ...]:
        return tuple(finding for finding in self.findings if finding.state == state)

    @property
    def object(self) -> str:
        return f"{PREFIX}{self.at.astimezone(UTC):%Y%m%dT%H%M%SZ}.json"


def rehearsal_document(rehearsal: Rehearsal) -> dict[str, Any]:
    findings = [asdict(finding) for finding in rehearsal.findings]
    when = rehearsal.at.astimezone(UTC).isoformat(timespec="seconds")
    cost = {"usd_at_most": rehearsal.usd_at_most}
    return {"schema": 1, "project": rehearsal.project, "at": when, **cost, "findings": findings}


def read_rehearsal(found: Mapping[str, Any]) -> Rehearsal | None:
    """The rehearsal in a document, or None if the document is not valid: anybody who may write to the bucket may have
    written it."""
    try:
        at = datetime.fromisoformat(found["at"])
        findings = tuple(
            RehearsalFinding(one["name"], one["state"], clean_line(str(one["detail"]), 300))
            for one in found["findings"]
            if one["name"] in ASSUMPTIONS and one["state"] in STATES
        )
        valid = found["schema"] == 1 and at.tzinfo is not None and len({one.name for one in findings}) == len(findings)
        rehearsal = Rehearsal(
            clean_name(str(found["project"])), at, findings, clean_name(str(found.get("usd_at_most", "0")))
        )
    except (KeyError, TypeError, ValueError):
        return None
    return rehearsal if valid else None


def rehearsal_command(project: str) -> str:
    return f"make live PROJECT={project} CAP=0.50"


def check_rehearsal(api: Api, subject: Subject) -> CheckVerdict:
    """The verdict on the newest rehearsal in the bucket."""
    if subject.embedded:
        return pass_verdict("not needed: the embedded cloud is not Google")
    base = f"/storage/v1/b/{subject.bucket}/o"
    listed = list_all_pages(
        api, RestRequest("storage", "GET", base, {"prefix": PREFIX, "fields": "items(name),nextPageToken"})
    )
    grant = (
        f"gcloud storage buckets add-iam-policy-binding gs://{subject.bucket} --member={subject.member}"
        f" --role={OBJECT_USER}"
    )
    if not listed.good:
        return error_verdict(listed, subject.project, "storage.googleapis.com", grant)
    names = sorted(str(entry["name"]) for entry in listed.document["items"] if isinstance(entry, Mapping))
    if not names:
        return _never(subject)
    answer = api.ask(RestRequest("storage", "GET", f"{base}/{names[-1]}", {"alt": "media"}))
    if not answer.good:
        return error_verdict(answer, subject.project, "storage.googleapis.com", grant)
    newest_rehearsal = read_rehearsal(answer.document)
    if newest_rehearsal is None or newest_rehearsal.project != subject.project:
        return _never(subject)
    return judge_rehearsal(newest_rehearsal)


def _never(subject: Subject) -> CheckVerdict:
    return warn_verdict(
        "bench's assumptions about Google were never verified in this project", rehearsal_command(subject.project)
    )


def judge_rehearsal(found: Rehearsal) -> CheckVerdict:
    """The verdict on a rehearsal."""
    on, wrong, unseen = f"{found.at:%Y-%m-%d}", found.of("refuted"), found.of("not seen")
    if wrong:
        details = "; ".join(f"{ASSUMPTIONS[one.name]}: {one.detail}" for one in wrong)
        return fail_verdict(
            f"on {on} an assumption about Google was wrong: {details}", rehearsal_command(found.project)
        )
    unseen_text = f"; not seen: {_listed(unseen)}" if unseen else ""
    return pass_verdict(f"verified on {on}: {len(found.of('verified'))} of {len(ASSUMPTIONS)} assumptions{unseen_text}")


def _listed(findings: Sequence[RehearsalFinding]) -> str:
    return ", ".join(finding.name for finding in findings)
