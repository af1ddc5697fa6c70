"""Hopper's backward pass, compiled for the CPU: its own plan, its three launches, a fiber for each thread."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.attention.cuda.backward.ampere import AmpereConvertKernel
from kernels.attention.cuda.backward.few import MAPS, FewBackward, FewBackwardKernel, few_refusal
from kernels.attention.cuda.backward.kernels import ConvertKernel, HopperBackwardKernel, Order, PrepareKernel
from kernels.attention.cuda.backward.plan import HopperBackward, hopper_refusal
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import SOURCE, Entry
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.run.launching import Step
from tests.kernels.cuda.backward_runner import Posed, Three
from tests.kernels.cuda.compiled import answered, compiled, map_at, table
from tests.kernels.cuda.hopper_runner import Schedule
from tests.kernels.cuda.simt_ways import HostBuffers, fill, span
from tests.kernels.cuda.stub_driver import HOPPER


@dataclass(frozen=True)
class Backward90:
    """The kernels of the pass."""

    path: Path
    entries: tuple[Entry, ...]

    def run(self, steps: Sequence[Step], tensors: Sequence[torch.Tensor], scratch: Path, schedule: Schedule) -> None:
        """Launch the steps; `tensors`, all that their arguments point to, are changed in place as the kernels do.

        Raises Failed with what the fibers' scheduler has to say.
        """
        spans = [span(tensor) for tensor in tensors]
        header = [len(spans), len(steps), schedule.late_copies, schedule.late_products, schedule.reverse]
        data = [struct.pack("9i", *header, schedule.seed, schedule.greedy, schedule.resident, schedule.overlap)]
        data += [struct.pack("Qq", one.data_ptr(), one.numel()) for one in spans]
        data += [one.numpy().tobytes() for one in spans]
        names = [entry.name for entry in self.entries]
        for step in steps:
            *maps, parameters = step.arguments
            assert all(isinstance(one, TensorMap) for one in maps)
            index = names.index(step.entry.name)
            data.append(struct.pack("6i", index, step.entry.shared_bytes, *step.grid, len(maps)))
            data += [ctypes.string_at(ctypes.addressof(one), 128) for one in maps]
            data.append(bytes(parameters))
        fill(spans, answered(self.path, b"".join(data), scratch))


def compile_backward90(
    entries: Sequence[Entry], folder: Path, *, source: Path = SOURCE, races: bool = False
) -> Backward90:
    """Compile with g++; `source` is where the kernels' files lie."""

    def row(entry: Entry) -> tuple[str, int]:
        maps = map(map_at, range(maps_of(entry)))
        return f"{entry.name}({', '.join([*maps, 'p'])})", entry.threads

    text = '#include "backward/instructions.cuh"\n' + "".join(entry.source for entry in entries)
    text += table("BackwardParams", map(row, entries))
    program = compiled(text, "backward90", 900, folder, source=source, races=races)
    return Backward90(program, tuple(entries))


def around(kernels: Iterable[HopperBackwardKernel]) -> list[Entry]:
    """What is launched before and after these kernels, each once."""
    found: list[Entry] = []
    for kernel in kernels:
        found += [
            PrepareKernel(kernel.dtype, kernel.head_dim, True, True),
            PrepareKernel(kernel.dtype, kernel.head_dim, True, True, keeps_sums=True),
            ConvertKernel(kernel.dtype, kernel.head_dim, kernel.order is not Order.ANY, kernel.window),
        ]
    return list(dict.fromkeys(found))


def maps_of(entry: Entry) -> int:
    """Tensor maps that a kernel, or a copy of it with a mistake, is given."""
    kernel = getattr(entry, "kernel", entry)
    if isinstance(kernel, FewBackwardKernel):
        return len(MAPS)
    return 0 if isinstance(kernel, PrepareKernel | ConvertKernel | AmpereConvertKernel) else 4


def run_few(
    program: Backward90, posed: Posed, rows: int, scratch: Path, schedule: Schedule, *, entry: Entry | None = None
) -> Three:
    """The gradients by the one launch, which is given no memory but theirs; NaN where nothing was written; `entry` is
    launched in the kernel's place. Needs the stub of libcuda in place."""
    gradients, buffers = posed.gradients(), HostBuffers()
    machine = Machine(HOPPER, 132, 1 << 20, hopper=True)
    problem = posed.problem(gradients)
    assert few_refusal(problem, machine) is None
    steps = FewBackward(machine, rows).steps(problem, buffers)  # type: ignore[arg-type]
    assert not buffers.memory
    if entry is not None:
        steps = [dataclasses.replace(steps[0], entry=entry)]
    program.run(steps, posed.touched(gradients, buffers), scratch, schedule)
    return gradients


def run_backward90(
    program: Backward90,
    posed: Posed,
    scratch: Path,
    schedule: Schedule,
    *,
    blocks: int = 2,
    entry: Entry | None = None,
) -> Three:
    """The gradients, NaN where nothing was written; `entry` is launched in the kernel's place.

    Asserts that counters are zero again. Needs the stub of libcuda in place.
    """
    return run_with_sums(program, posed, scratch, schedule, blocks=blocks, entry=entry)[0]


def run_with_sums(
    program: Backward90,
    posed: Posed,
    scratch: Path,
    schedule: Schedule,
    *,
    blocks: int = 2,
    entry: Entry | None = None,
    convert: Entry | None = None,
    order: Order = Order.ANY,
    parts: int | None = None,
    section: int | None = None,
) -> tuple[Three, torch.Tensor]:
    """The same, and the bytes of dQ's sums in float32 before they are rounded; made in an `order`. `convert` is launched
    in place of the kernel that converts them. The heads of a group are taken in so many `parts`, and
    the heads of K in sections of `section`."""
    gradients, buffers = posed.gradients(), HostBuffers()
    machine = Machine(HOPPER, blocks, 1 << 20, hopper=True)
    problem = posed.problem(gradients)
    assert hopper_refusal(problem, machine) is None
    steps = HopperBackward(machine, section, order, parts).steps(problem, buffers)  # type: ignore[arg-type]
    for place, one in ((1, entry), (2, convert)):
        if one is not None:
            steps[place] = dataclasses.replace(steps[place], entry=one)
    program.run(steps, posed.touched(gradients, buffers), scratch, schedule)
    given = steps[1].arguments[-1]
    zero, sums = (
        next(one for one in buffers.memory if one.data_ptr() == address) for address in (given.counter, given.sums)
    )
    assert not bool(zero.any()), "a counter is not zero after the launch"
    return gradients, sums
