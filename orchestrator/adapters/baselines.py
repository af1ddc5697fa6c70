"""Named baselines in the bucket: one small object a name, changed by compare-and-swap."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from orchestrator.core.baselines import Baseline, Baselines, checked_name, dump, parse
from orchestrator.core.errors import Unavailable
from orchestrator.core.naming import BASELINES_PREFIX, baseline_object
from orchestrator.ports import Bucket, Clock

ATTEMPTS: Final = 12
Refused = TypeVar("Refused")


class BaselineStore:
    """Two pushes that finish at once, of a T4 and of an H100, both keep their baseline."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    def names(self) -> tuple[str, ...]:
        """Every name that was ever set, in order; one that was removed has no baselines."""
        found = self._bucket.list(BASELINES_PREFIX)
        return tuple(entry.name.removeprefix(BASELINES_PREFIX).removesuffix(".json") for entry in found)

    def read(self, name: str) -> Mapping[str, Baseline]:
        """The baselines of a name by device; none where there is no such name. Raises `BaselinesUnreadable`."""
        blob = self._bucket.read(baseline_object(checked_name(name)))
        return {} if blob is None else parse(name, blob.data)

    def update(self, name: str, change: Callable[[Baselines], dict[str, Baseline] | Refused]) -> Baselines | Refused:
        """Stores what `change` makes of the baselines, again on the newer ones when somebody was first. What it returns
        that is no dictionary is a refusal: nothing is stored, and that is returned. Raises `BaselinesUnreadable`, and
        `Unavailable` when others were first every time."""
        place = baseline_object(checked_name(name))
        for attempt in range(ATTEMPTS):
            blob = self._bucket.read(place)
            there = {} if blob is None else parse(name, blob.data)
            wanted = change(there)
            if not isinstance(wanted, dict) or wanted == there:
                return wanted
            generation = 0 if blob is None else blob.generation
            if self._bucket.replace(place, dump(name, wanted), generation=generation) is not None:
                return wanted
            self._clock.sleep(random.uniform(0.02, 0.1) * 2 ** min(attempt, 5))
        raise Unavailable(f"the baseline {name} changed {ATTEMPTS} times while it was updated", hint="try again")

    def clear(self, name: str) -> None:
        """Puts an empty one in the place of whatever is there, readable or not."""
        self._bucket.replace(baseline_object(checked_name(name)), dump(name, {}), generation=None)
