"""Compiles Hopper kernels' own source for the CPU and runs their plans: a fiber a thread, blocks in turns."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention.cuda.plan.variants import SOURCE, Entry
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.run.launching import Step
from tests.kernels.cuda.compiled import answered, compiled, map_at, table
from tests.kernels.cuda.simt_ways import fill, places_of_pointers, span

MAPS, MAP_BYTES = 4, 128


@dataclass(frozen=True)
class Schedule:
    """When the chip does what it does in its own time: copies and products as late as the program allows, or at once.

    `seed` shuffles warps and copies under way, 0 keeps their order; `greedy`: one block works to its end before the
    next begins, else blocks change at every tile. `resident`: no more blocks have begun and not ended; 0 for no limit.
    `overlap`: a kernel that may start early starts with the one before it.
    """

    late_copies: bool = False
    late_products: bool = False
    reverse: bool = False
    seed: int = 0
    greedy: bool = False
    resident: int = 0
    overlap: bool = False

    @property
    def name(self) -> str:
        parts = [
            name for name in ("late_copies", "late_products", "reverse", "greedy", "overlap") if getattr(self, name)
        ]
        return "-".join([*parts, *([f"seed{self.seed}"] if self.seed else [])]) or "early"


WAITING = Schedule(late_copies=True, greedy=True)
"""A missing wait for a copy shows: products read at once, copies land at the last moment."""
RELEASING = Schedule(late_products=True)
"""A place released too early shows: copies land at once, products read at the last moment."""
SHUFFLED = Schedule(late_copies=True, late_products=True, reverse=True, seed=5)


@dataclass(frozen=True)
class HopperProgram:
    """Some kernels that are given three tensor maps, or with that of a mask four, and one structure."""

    path: Path
    entries: tuple[Entry, ...]

    def run(self, step: Step, tensors: Sequence[torch.Tensor], scratch: Path, schedule: Schedule) -> None:
        """Launch the step; `tensors`, all that its arguments point to, are changed in place as the kernel does.

        Raises Failed with what the fibers' scheduler, or a guard band, has to say.
        """
        spans = [span(tensor) for tensor in tensors]
        *maps, parameters = step.arguments
        assert len(maps) in (3, MAPS)
        assert all(isinstance(one, TensorMap) for one in maps)
        offsets = places_of_pointers(type(parameters))
        index = [entry.name for entry in self.entries].index(step.entry.name)
        header = [len(spans), index, step.entry.shared_bytes, *step.grid, len(offsets)]
        header += [schedule.late_copies, schedule.late_products, schedule.reverse, schedule.seed, schedule.greedy]
        data = [struct.pack(f"{len(header)}i", *header)]
        data += [struct.pack("Qq", one.data_ptr(), one.numel()) for one in spans]
        data += [one.numpy().tobytes() for one in spans]
        data += [ctypes.string_at(ctypes.addressof(one), MAP_BYTES) for one in maps]
        data.append(bytes(MAP_BYTES * (MAPS - len(maps))))
        data += [struct.pack(f"{len(offsets)}i", *offsets), bytes(parameters)]
        fill(spans, answered(self.path, b"".join(data), scratch))


def calling(entry: Entry) -> str:
    """C++ that calls an entry point with what it takes of four maps, and with its structure."""
    staged = "TensorMap mask" in entry.source
    maps = map(map_at, range(MAPS if staged else MAPS - 1))
    return f"{entry.name}({', '.join(maps)}, p)"


def compile_hopper(
    entries: Sequence[Entry],
    parameters: str,
    folder: Path,
    *,
    source: Path = SOURCE,
    flags: Sequence[str] = (),
    races: bool = False,
) -> HopperProgram:
    """Compile with g++; `parameters` is what the kernels are given beside the maps, `source` where they lie."""
    text = "".join(entry.source for entry in entries)
    text += table(parameters, ((calling(entry), entry.threads) for entry in entries))
    program = compiled(text, "hopper", 900, folder, source=source, flags=flags, races=races)
    return HopperProgram(program, tuple(entries))
