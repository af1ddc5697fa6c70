"""All pages of a site but those of the runs, made from the digests of the runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.report.site import cases, costs, index
from orchestrator.report.site.digest import Digest
from orchestrator.report.site.index import CASES, COSTS, GPUS, INDEX, case_page


@dataclass(frozen=True, slots=True)
class Money:
    """What the costs page needs of the ledger; `trouble` says why it cannot be read."""

    ledger: Ledger | None = None
    caps: Caps = field(default_factory=Caps)
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A page: its path, a digest of what it was made from, and its text, which is None where it did not change."""

    path: str
    source: str
    text: str | None


def shared_pages(
    digests: Sequence[Digest], bucket: str, money: Money, now: datetime, before: Mapping[str, str]
) -> Iterator[Made]:
    """The pages of the index, the cases, the devices and the costs. `before` has the source digest of each page of the
    last build: the page of a case is made again only where its source has changed."""
    yield Made(INDEX, "", index.index_page(digests, bucket))
    pages_by_case = cases.by_case(digests)
    points = {case_id: cases.judge_series(followed) for case_id, followed in pages_by_case.items()}
    for case_id, followed in pages_by_case.items():
        path, source = case_page(case_id), source_of(followed)
        yield Made(
            path,
            source,
            None if before.get(path) == source else cases.write_case_page(case_id, followed, points[case_id]),
        )
    yield Made(CASES, "", cases.case_list_page(pages_by_case, points, digests))
    yield Made(GPUS, "", cases.gpus_page(digests))
    yield Made(COSTS, "", costs.costs_page(digests, money.ledger, money.caps, now, money.trouble))


def source_of(followed: cases.Followed) -> str:
    """The digest of everything from which the page of a case is made."""
    sources = [
        [
            asdict(series),
            [[run.run_id, dict(run.fingerprint), run.busy, case.value, case.noise, case.backend] for run, case in own],
        ]
        for series, own in sorted(followed.items())
    ]
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:32]
