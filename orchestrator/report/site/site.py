"""All pages of a site but those of the runs, from what is kept of each run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.report.site import cases, costs, gpus, index
from orchestrator.report.site.digest import Digest
from orchestrator.report.site.links import CASES, COSTS, GPUS, INDEX, case_page


@dataclass(frozen=True, slots=True)
class Money:
    """What the costs page has of the ledger; `trouble` is why it cannot be read."""

    ledger: Ledger | None = None
    caps: Caps = field(default_factory=Caps)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A page: where it is, what it was made from (a digest), and its text; None where that is the same as before."""

    path: str
    source: str
    text: str | None


def shared_pages(
    digests: Sequence[Digest], bucket: str, money: Money, now: datetime, before: Mapping[str, str]
) -> Iterator[Made]:
    """The index, the cases, the devices and the costs. `before` has the sources of what was made the last time: the
    page of a case is made again only where one of its runs is another."""
    yield Made(INDEX, "", index.page(digests, bucket))
    found = cases.by_case(digests)
    points = {case_id: cases.judged(followed) for case_id, followed in found.items()}
    for case_id, followed in found.items():
        path, source = case_page(case_id), source_of(followed)
        yield Made(path, source, None if before.get(path) == source else cases.page(case_id, followed, points[case_id]))
    yield Made(CASES, "", cases.contents(found, points, digests))
    yield Made(GPUS, "", gpus.page(digests))
    yield Made(COSTS, "", costs.page(digests, money.ledger, money.caps, now, money.trouble))


def source_of(followed: cases.Followed) -> str:
    """A digest of all that the page of a case is made from."""
    told = [
        [
            asdict(series),
            [[run.run_id, dict(run.fingerprint), run.busy, case.value, case.noise, case.backend] for run, case in own],
        ]
        for series, own in sorted(followed.items())
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]
