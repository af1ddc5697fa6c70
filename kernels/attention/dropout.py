"""Which weights dropout keeps: a function of seed, offset, sequence, head, query and key.

It is that of `cuda/source/dropout.cuh`, bit for bit. The words are those of Philox 4x32-10 (Salmon, Moraes, Dror, Shaw,
"Parallel Random Numbers: As Easy as 1, 2, 3", 2011). The counter is a group of four keys, the query, and the head
counted over all sequences. The key is made of the seed and the offset by the same function, so that all bits count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

WORD, ALL = 1 << 32, (1 << 32) - 1
MULTIPLIERS, STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
Words = Sequence[torch.Tensor]


def least_word(p: float) -> int:
    """The least word of a weight that is kept: p, which is at least 0 and less than 1, in parts of 2^32."""
    return min(round(p * WORD), ALL)


def keep_scale(p: float) -> float:
    """What the weights that are kept are multiplied by: one over the share of words that keep, about 1 / (1 - p)."""
    return WORD / (WORD - least_word(p))


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """The four words of each counter, in int64."""
    for turn in range(10):
        low, high = ((start + turn * step) & ALL for start, step in zip(key, STEPS, strict=True))
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]  # modulo 2^64
        counter = (
            (second >> 32 & ALL) ^ counter[1] ^ low, second & ALL, (first >> 32 & ALL) ^ counter[3] ^ high, first & ALL,
        )  # fmt: skip
    return counter


@dataclass(frozen=True)
class Dropout:
    """Dropout of a call: the probability that a weight is dropped, and the seed and offset, of 64 bits each."""

    p: float
    seed: int
    offset: int = 0

    @cached_property
    def key(self) -> tuple[int, int]:
        """The key of the words."""
        counter = [torch.tensor(word) for word in (self.offset & ALL, self.offset >> 32 & ALL, 0, 0)]
        low, high, *_ = philox(counter, (self.seed & ALL, self.seed >> 32 & ALL))
        return int(low), int(high)

    @property
    def scale(self) -> float:
        """What the weights that are kept are multiplied by."""
        return keep_scale(self.p)

    def kept(self, head: int, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Which weights are kept, [rows, keys], of a head that is counted over all sequences, for these queries and
        keys."""
        group = (keys >> 4) * 4 + (keys >> 1 & 3)
        counter = torch.broadcast_tensors(group[None, :], rows[:, None], torch.full_like(rows, head)[:, None])
        drawn = torch.stack(list(philox((*counter, torch.zeros_like(counter[0])), self.key)))
        place = (keys & 1) + 2 * (keys >> 3 & 1)
        return drawn.gather(0, place.expand(1, *drawn.shape[1:]))[0] >= least_word(self.p)
