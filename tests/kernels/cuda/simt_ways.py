"""Runs a way of computing a problem on the CPU: its own plan, its own launches, a fiber for each thread."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernels.attention.cuda.backward.kernels import DroppingBackwardParameters
from kernels.attention.cuda.plan.parameters import DroppingParameters, fields_of
from kernels.attention.cuda.plan.variants import SOURCE, Entry
from kernels.attention.cuda.run.launching import Step
from tests.kernels.cuda.compiled import answered, compiled, table

LARGER = {"DroppingParams": DroppingParameters, "DroppingBackwardParams": DroppingBackwardParameters}
"""The types of parameters with dropout, from which kernels without it take what they know."""


@dataclass
class HostBuffers:
    """What a way asks for beside its tensors, in the host's memory."""

    lse: int = 0
    memory: list[torch.Tensor] = field(default_factory=list)

    def scratch(self, size: int) -> int:
        """Poisoned: NaN in every format."""
        return self.keep(torch.full((size,), 0xFF, dtype=torch.uint8))

    def counter(self, size: int = 32) -> int:
        return self.keep(torch.zeros(size, dtype=torch.uint8))

    def keep(self, tensor: torch.Tensor) -> int:
        self.memory.append(tensor)
        return tensor.data_ptr()


def span(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes from a tensor's first element to its last, holes included."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.as_strided(tensor, (length,), (1,)).view(torch.uint8)


def places_of_pointers(parameters: type) -> list[int]:
    """Where in a structure of parameters the pointers are, in bytes."""
    names = [name for name, kind in fields_of(parameters) if kind is ctypes.c_void_p]
    return [getattr(parameters, name).offset for name in names]


def fill(spans: Sequence[torch.Tensor], answer: bytearray) -> None:
    """Copies what a program wrote of the spans, one behind the other, into them."""
    at = 0
    for one in spans:
        one.copy_(torch.frombuffer(answer, dtype=torch.uint8, offset=at, count=one.numel()))
        at += one.numel()


@dataclass(frozen=True)
class Program:
    """Some kernels, compiled for one code path."""

    path: Path
    entries: tuple[Entry, ...]
    size: int = 0
    """Of the parameters, if they may be larger than those of the launches."""

    def run(
        self,
        steps: Sequence[Step],
        tensors: Sequence[torch.Tensor],
        scratch: Path,
        *,
        eager: bool = False,
        reverse: bool = False,
    ) -> None:
        """Launch the steps; `tensors`, all that their arguments point to, are changed in place as the kernels do."""
        spans = [span(tensor) for tensor in tensors]
        largest = max((type(step.arguments[0]) for step in steps), key=ctypes.sizeof)
        pointers = places_of_pointers(largest)
        data = [struct.pack("5i", len(spans), len(steps), len(pointers), eager, reverse)]
        data += [struct.pack("Qq", one.data_ptr(), one.numel()) for one in spans]
        data += [one.numpy().tobytes() for one in spans]
        data.append(struct.pack(f"{len(pointers)}i", *pointers))
        names = [entry.name for entry in self.entries]
        for step in steps:
            index = names.index(step.entry.name)
            data.append(struct.pack("5i", index, step.entry.shared_bytes, *step.grid))
            data.append(bytes(step.arguments[0]).ljust(self.size or ctypes.sizeof(largest), b"\0"))
        fill(spans, answered(self.path, b"".join(data), scratch))


def compile_program(
    entries: Sequence[Entry],
    arch: int,
    folder: Path,
    *,
    source: Path = SOURCE,
    flags: Sequence[str] = (),
    races: bool = False,
    parameters: str = "AttentionParams",
) -> Program:
    """Compile with g++; `arch` is 750 or 800, `source` where the kernels' files lie, `parameters` the type of what they
    are launched with."""
    text = "".join(entry.source for entry in entries)
    text += table(parameters, ((f"{entry.name}(p)", entry.threads) for entry in entries))
    program = compiled(text, "ways", arch, folder, source=source, flags=flags, races=races)
    return Program(program, tuple(entries), ctypes.sizeof(LARGER[parameters]) if parameters in LARGER else 0)
