"""Whether two ways learn the same is told by the losses: what rounding does is noise, what a mistake does is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels import training
from tests.kernels.training import FIRST, OURS, SECOND, Attend, Size, Way

SIZE = Size(layers=2, heads=2, head_dim=16, batch=4, length=32)
TEXT = torch.tensor(list(b"the quick brown fox jumps over the lazy dog and comes back again; " * 20), dtype=torch.uint8)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Step by step, in the inputs' type."""
    length = q.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


def careful(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in float64, rounded once."""
    return plain(q.double(), k.double(), v.double()).to(q.dtype)


def row(attend: Attend, steps: int) -> dict[str, object]:
    ways = {OURS: Way(attend), FIRST: Way(training.pytorch_attention), SECOND: Way(plain)}
    return training.judge_training(training.train_ways(ways, SIZE, TEXT, steps, "cpu"))


def test_another_rounding_is_noise_and_every_model_learns() -> None:
    found = row(careful, 40)
    assert found["within_noise"] is True
    assert found["steps"] == 40
    last, first = found["loss_last_20th"], found["loss_first"]
    assert isinstance(last, dict)
    assert isinstance(first, dict)
    assert all(last[name] < first[name] - 0.5 for name in (OURS, FIRST, SECOND)), (first, last)


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: careful(q, k, v.detach()),
        lambda q, k, v: careful(q, k.detach(), v),
        lambda q, k, v: careful(2 * q, k, v),
    ],
    ids=["no gradient for v", "no gradient for k", "another scale"],
)
def test_a_dropped_gradient_or_a_wrong_scale_is_not_noise(attend: Attend) -> None:
    assert row(attend, 20)["within_noise"] is False
