"""Checks that a transformer learns the same with our attention as with PyTorch's, and times its steps.

python3 -m tests.kernels.training --steps 1000

Three models with the same seed see the same text in the same order: one uses our attention, two use different backends
of PyTorch. The losses of these two differ only by rounding. The losses of ours may differ from those of the first
backend by at most twice as much. The models take turns of a few steps each, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.attention.baseline import Sdpa
from kernels.attention.cuda.operator import attention

TEXT: Final = Path(__file__).resolve().parents[2]
SYMBOLS: Final = 256
OURS, FIRST, SECOND = "bench", "sdpa:cudnn", "sdpa:flash"
NOISE_TIMES: Final = 2.0
"""Our losses may differ from those of PyTorch's first backend by this many times the difference of its two backends."""
LEAST_NOISE: Final = 1e-4
TURN: Final = 10
"""The number of steps of one model before the next model takes its turn."""
LEAST_TURNS: Final = 3

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Causal attention on q, k, v of [B, H, S, D]."""


@dataclass(frozen=True, slots=True)
class Way:
    """An attention function, and the scope in which it is called. The scope is entered once per turn."""

    attend: Attend
    scope: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a model and of its batches."""

    layers: int = 6
    heads: int = 16
    head_dim: int = 64
    batch: int = 4
    length: int = 2048


class Block(nn.Module):  # type: ignore[misc] # torch may be missing where types are checked
    """Attention, then two linear layers; each of both is added to its input."""

    def __init__(self, size: Size, attend: Attend) -> None:
        super().__init__()
        width = size.heads * size.head_dim
        self.size, self.attend = size, attend
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.size.heads, self.size.head_dim)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        added: Tensor = x + self.narrow(functional.gelu(self.wide(self.between(x))))
        return added


class Model(nn.Module):  # type: ignore[misc] # likewise
    """The model: its input is bytes, its output the logits of each next byte."""

    def __init__(self, size: Size, attend: Attend) -> None:
        super().__init__()
        width = size.heads * size.head_dim
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(size.length, width)
        self.blocks = nn.Sequential(*(Block(size, attend) for _ in range(size.layers)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, SYMBOLS)

    def forward(self, given: Tensor) -> Tensor:
        x = self.symbols(given) + self.places.weight[: given.shape[1]]
        logits: Tensor = self.head(self.last(self.blocks(x)))
        return logits


@dataclass(slots=True)
class Trained:
    """One model in training: its loss at each step, and the seconds of each turn."""

    way: Way
    model: Model
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)

    def turn(self, batches: Sequence[Tensor]) -> None:
        """Take one step on each batch, and record the losses and the seconds of all these steps together."""
        device, losses = batches[0].device.type, []
        started = device_time(device)
        with self.way.scope():
            for batch in batches:
                with torch.autocast(device, torch.bfloat16):
                    logits = self.model(batch[:, :-1])
                loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
        self.turns.append(device_time(device) - started)
        self.losses += torch.stack(losses).tolist()


def device_time(device: str) -> float:
    """Wait until the device has finished its work, and return the time in seconds of a monotonic clock."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def our_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the output of our attention."""
    output = attention(q, k, v, causal=True)
    assert isinstance(output, Tensor), "no log-sum-exp was asked for"
    return output


def pytorch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the output of PyTorch's attention; the scope decides the backend."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def text_of(folder: Path) -> Tensor:
    """Return the bytes of the sources and documents in a folder, in the order of their paths."""
    kinds = ("*.py", "*.md", "*.cuh")
    paths = sorted(path for kind in kinds for path in folder.rglob(kind) if ".venv" not in path.parts)
    return torch.tensor(list(b"\n".join(path.read_bytes() for path in paths)), dtype=torch.uint8)


def train_ways(ways: Mapping[str, Way], size: Size, text: Tensor, steps: int, device: str) -> dict[str, Trained]:
    """Train one model for each way, in turns, for at least `steps` steps on the same batches of `text`. Return the
    models by name."""
    trained = {}
    for name, way in ways.items():
        torch.manual_seed(1)
        model = Model(size, way.attend).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
        trained[name] = Trained(way, model, optimizer)
    rng = torch.Generator().manual_seed(2)
    names = list(trained)
    for number in range(-(-steps // TURN)):
        starts = torch.randint(text.numel() - size.length - 1, (TURN, size.batch), generator=rng)
        places = starts[..., None] + torch.arange(size.length + 1)
        batches = list(text[places].long().to(device))
        for name in names if number % 2 else reversed(names):
            trained[name].turn(batches)
    return trained


def judge_training(found: Mapping[str, Trained]) -> dict[str, Any]:
    """Return a row with the mean differences of the losses, whether ours is within the noise, the milliseconds per
    step, and the median over turns of the ratios of step times."""
    first = found[FIRST].losses
    apart = {
        name: statistics.fmean(abs(a - b) for a, b in zip(found[name].losses, first, strict=True))
        for name in (OURS, SECOND)
    }
    noise = max(apart[SECOND], LEAST_NOISE)
    ratios = {
        name: statistics.median(a / b for a, b in zip(found[name].turns[1:], found[OURS].turns[1:], strict=True))
        for name in (FIRST, SECOND)
    }
    tail, every = -max(1, len(first) // 20), max(1, len(first) // 100)
    return {
        "kind": "training",
        "steps": len(first),
        "loss_first": {name: round(one.losses[0], 4) for name, one in found.items()},
        "loss_last_20th": {name: round(statistics.fmean(one.losses[tail:]), 4) for name, one in found.items()},
        "mean_apart": {name: round(value, 6) for name, value in apart.items()},
        "within_noise": apart[OURS] <= NOISE_TIMES * noise,
        "ms_a_step": {name: round(1e3 * statistics.median(one.turns[1:]) / TURN, 3) for name, one in found.items()},
        "steps_are_faster_by": {name: round(value, 4) for name, value in ratios.items()},
        "curves": {name: [round(loss, 4) for loss in one.losses[::every]] for name, one in found.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--head-dim", type=int, default=64, help="of 1,024 columns in all")
    options = parser.parse_args()
    size = Size(heads=1024 // options.head_dim, head_dim=options.head_dim)
    ways = {
        OURS: Way(our_attention),
        **{name: Way(pytorch_attention, Sdpa(name.removeprefix("sdpa:")).scope) for name in (FIRST, SECOND)},
    }
    row = judge_training(train_ways(ways, size, text_of(TEXT), max(options.steps, LEAST_TURNS * TURN), "cuda"))
    row |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "head_dim": options.head_dim}
    sys.stdout.write(json.dumps(row) + "\n")
    return 0 if row["within_noise"] else 1


if __name__ == "__main__":
    sys.exit(main())
