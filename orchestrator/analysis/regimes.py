"""How a case was timed: its regime and its caches. Numbers of different settings answer different questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.core.text import capitalize_first

MEANINGS: Final = {
    "burst": "one call at a time on a device that has rested: its time from just before the call to just after it, "
    "without the launch on the host",
    "sustained": "calls back to back until clock and power are steady: the time on a device that is always busy",
    "program": "times that the program reported itself: bench built and ran it, but neither timed nor judged it",
    "graph": "many calls in one CUDA graph, back to back: the time of a call without the cost of launching it",
}
"""The regimes of docs/contracts.md, section 6, in the order in which they are shown."""
SHORT: Final = {
    "burst": "one call at a time",
    "sustained": "calls back to back",
    "program": "times of the program itself",
    "graph": "calls in a CUDA graph",
}
"""The same in a few words, for the legend of a table."""
CACHES: Final = {
    "cold": "its inputs were not in the cache",
    "warm": "its inputs were in the cache as far as they fit",
    "mixed": "its inputs were partly in the cache: all the copies of them (256 on a GPU, 128 on a processor, fewer if "
    "memory is short) do not fill it",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A regime and the state of the caches. `cache` is a key of `CACHES`; both are empty where a file does not say."""

    regime: str
    cache: str = ""

    @property
    def name(self) -> str:
        """`burst, cold`; empty where nothing is known."""
        return ", ".join(part for part in (self.regime, self.cache) if part)

    @property
    def slug(self) -> str:
        """The setting as a part of a file name."""
        return "-".join(part for part in (self.regime, self.cache) if part)

    @property
    def meaning(self) -> str:
        """What the setting means, in one sentence."""
        regime = MEANINGS.get(self.regime, "a way of timing that this version does not know" if self.regime else "")
        meaning = "; ".join(part for part in (regime, CACHES.get(self.cache, self.cache)) if part)
        return f"{capitalize_first(meaning)}." if meaning else ""

    @property
    def order(self) -> tuple[int, int, str, str]:
        """A key to sort by: known regimes come first, in the order of `MEANINGS`."""
        return (
            sort_position(self.regime, tuple(MEANINGS)),
            sort_position(self.cache, tuple(CACHES)),
            self.regime,
            self.cache,
        )

    def matches(self, other: Setting) -> bool:
        """Whether times of the two settings may be compared: they have the same regime, and their caches do not differ
        as far as is known."""
        return self.regime == other.regime and (self.cache == other.cache or not self.cache or not other.cache)


def sort_position(word: str, known: tuple[str, ...]) -> int:
    return known.index(word) if word in known else len(known)
