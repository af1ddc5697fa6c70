"""Reads what the children of a fleet on Batch have stored about their attempts: claims, and how each attempt ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.fleet import batch as rules
from orchestrator.core.fleet.batch import ChildCost
from orchestrator.ports import Bucket


@dataclass(slots=True)
class Words:
    """Of one fleet, as far as this process has read it. Objects are created once, so each is read once."""

    claimed: dict[int, int] = field(default_factory=dict)
    """By child, its latest attempt."""
    ended: dict[int, dict[int, ChildCost]] = field(default_factory=dict)
    """By child and attempt."""
    _known: set[str] = field(default_factory=set)

    def listen(self, bucket: Bucket, fleet: str) -> None:
        """Reads what is new: two listings, and the ends that were not known."""
        for name in self._fresh(bucket, rules.claims_prefix(fleet)):
            place = rules.index_and_attempt(name)
            if place is not None:
                self.claimed[place[0]] = max(self.claimed.get(place[0], 0), place[1])
            self._known.add(name)
        for name, blob in bucket.read_many(self._fresh(bucket, rules.costs_prefix(fleet))).items():
            cost = rules.parse_cost(name, blob.data)
            if cost is not None:
                self.ended.setdefault(cost.index, {})[cost.attempt] = cost
            self._known.add(name)

    def counting(self, index: int) -> ChildCost | None:
        """The attempt that counts: one that measured, whichever it is; else how the latest one ended."""
        ended = self.ended.get(index)
        if ended is None:
            return None
        measured = next((cost for cost in ended.values() if cost.exit_code in (0, rules.WRONG)), None)
        return measured or ended.get(self.claimed.get(index, 0))

    def _fresh(self, bucket: Bucket, prefix: str) -> list[str]:
        return [entry.name for entry in bucket.list(prefix) if entry.name not in self._known]
