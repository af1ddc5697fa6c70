"""Tells which way computes a problem, why, which others could, and what the measured table knows of them.

    print(explain(q, k, v, causal=True).text())
    python3 -m kernels.attention.cuda.explain --shape 4,16,1024,128 --causal [--chip h200]

With `--chip` no GPU is needed, and the kernels' resources, which only a compiler knows, are left out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from kernels.attention.cuda.errors import Unavailable
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import Window, output_like, problem_of
from kernels.attention.cuda.plan.variants import chip_of
from kernels.attention.cuda.run.engine import Engine, engine_of
from kernels.attention.cuda.run.launching import Buffers, Way
from kernels.attention.cuda.ways import decode, hopper
from kernels.attention.cuda.ways.dispatch import choose_way, key_of, list_ways
from kernels.attention.cuda.ways.tuned import table_for, way_stem

MIB = 2**20
CHIPS = {
    # compute capability, SMs, L2 cache
    "t4": (75, 40, 4 * MIB),
    "a100": (80, 108, 40 * MIB),
    "l4": (89, 58, 48 * MIB),
    "h100": (90, 132, 50 * MIB),
    "h200": (90, 132, 60 * MIB),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way that computes the problem. `behind` says how much longer than the fastest it took for problems near this
    one, if known."""

    name: str
    behind: float | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel of the chosen way as it is launched, with registers and spilled bytes per thread as the driver reports
    them."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    registers: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The chosen way for one problem. `cannot` has the families that do not compute it, each with the reason."""

    problem: str
    chip: str
    way: str
    why: str
    candidates: tuple[Candidate, ...]
    cannot: Mapping[str, str]
    measured_at: str
    launches: tuple[Launched, ...]

    def text(self) -> str:
        """The explanation as lines of text."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        yield f"{self.problem} on {self.chip}"
        yield f"  way   {self.way}"
        yield f"  why   {self.why}"
        for one in self.launches:
            spilled = f", {one.local_bytes} bytes SPILLED" if one.local_bytes else ""
            size = f"{one.threads} threads, {one.registers} registers, {one.shared_bytes} bytes of shared memory"
            yield f"  runs  {one.name}: grid {'x'.join(map(str, one.grid))}, {size}{spilled}"
        yield "  ways  " + (f"as measured at {self.measured_at}" if self.measured_at else "nothing measured near here")
        width = max(len(one.name) for one in self.candidates)
        for way in self.candidates:
            lead_text = "" if way.behind is None else "  fastest" if way.behind == 0.0 else f"  +{way.behind:.1%}"
            yield f"    {'>' if way.name == self.way else ' '} {way.name:<{width}}{lead_text}".rstrip()
        for name, why in self.cannot.items():
            yield f"  not {name}: {why}"


def explain(  # noqa: PLR0913 - the arguments of the call that it explains
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    causal_alignment: str = "top-left",
    window: Window | None = None,
    attn_mask: torch.Tensor | None = None,
    engine: Engine | None = None,
) -> Explanation:
    """How `attention` would compute this, without computing it; compiles the kernels of the way it would take.

    Arguments as for `attention`. Raises `Unsupported` where it would.
    """
    engine = engine or engine_of(q.device)
    out = output_like(q, v)
    problem = problem_of(q, k, v, out, causal=causal, alignment=causal_alignment, window=window, mask=attn_mask)
    return explain_problem(problem, engine.machine, torch.cuda.get_device_name(engine.device), engine)


def explain_problem(problem: Problem, machine: Machine, chip: str, engine: Engine | None = None) -> Explanation:
    """The choice for a problem on a machine; with an engine also what is launched. Raises `Unsupported`."""
    way, why = choose_way(problem, machine)
    candidates, measured_at = candidates_for(problem, machine)
    return Explanation(
        problem=problem_words(problem),
        chip=chip,
        way=way.name,
        why=why,
        candidates=candidates,
        cannot={name: reason for name, reason in family_refusals(problem, machine).items() if reason},
        measured_at=measured_at,
        launches=way_launches(problem, way, engine) if engine else (),
    )


def problem_words(problem: Problem) -> str:
    """The problem in one line of text."""
    heads = f"{problem.heads}" if problem.group == 1 else f"{problem.heads}:{problem.kv_heads}"
    mask = "causal" if problem.causal else "full"
    extra = [
        *(["window"] if problem.window_offset is not None else []),
        *(["mask"] if problem.mask is not None else []),
        *(["varying lengths"] if problem.lengths is not None else []),
        *([f"keys in pages of {problem.pages.size}"] if problem.pages is not None else []),
    ]
    widths = f"{problem.head_dim}" if problem.width == problem.head_dim else f"{problem.head_dim} and {problem.width}"
    sizes = f"batch {problem.batch}, {heads} heads, {problem.seq_q} queries, {problem.seq_k} keys, D = {widths}"
    return ", ".join((f"{problem.dtype} {mask}", sizes, *extra))


def candidates_for(problem: Problem, machine: Machine) -> tuple[tuple[Candidate, ...], str]:
    """Every way that computes the problem, the fastest for problems near this one first, and where that was
    measured."""
    names = [way.name for way in list_ways(problem, machine)]
    table = table_for(machine.chip.name, machine.sm_count) if problem.is_plain else None
    near = table.nearest(key_of(problem))[:1] if table else []
    behind = {way_stem(name): value for _, cell in near for name, value in {**cell.behind, cell.way: 0.0}.items()}
    candidates = [Candidate(name, behind.get(way_stem(name))) for name in names]
    candidates.sort(key=lambda one: math.inf if one.behind is None else one.behind)
    return tuple(candidates), near[0][1].key.words if near else ""


def family_refusals(problem: Problem, machine: Machine) -> dict[str, str | None]:
    """The families that do not suit every problem, with the reason where they do not suit this one."""
    refusal_by_family = {"fa90": hopper.hopper_refusal(problem, machine), "decode": decode.why_not(problem)}
    if not any(way.name.startswith("small") for way in list_ways(problem, machine)):
        refusal_by_family["small"] = (
            "no kernel of this chip for these sizes, or there is a mask, a window or varying lengths"
        )
    return refusal_by_family


def way_launches(problem: Problem, way: Way, engine: Engine) -> tuple[Launched, ...]:
    """The kernels of a way, compiled and loaded."""
    launch_list = []
    for step in way.steps(problem, problem.head_dim**-0.5, Buffers.now(engine)):
        function, entry = engine.function(step.entry), step.entry
        resources = (function.registers, function.local_bytes)
        launch_list.append(Launched(entry.name, step.grid, entry.threads, entry.shared_bytes, *resources))
    return tuple(launch_list)


def machine_named(name: str) -> Machine:
    """The sizes of a chip that we know."""
    capability, sm_count, l2_bytes = CHIPS[name]
    chip = chip_of(capability)
    assert chip is not None
    return Machine(chip, sm_count, l2_bytes, hopper=capability == 90)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Comma-separated sizes, all positive. Raises ValueError."""
    sizes = tuple(int(part) for part in text.split(","))
    if len(sizes) != 4 or min(sizes) < 1:
        raise ValueError(text)
    return sizes


parse_sizes.__name__ = "batch,heads,queries,head_dim"  # what argparse names in its error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0, or 2 where nothing computes the problem or there is neither a GPU nor a named
    chip."""
    parser = argparse.ArgumentParser(
        prog="python3 -m kernels.attention.cuda.explain", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--shape", type=parse_sizes, required=True, metavar="B,H,S,D", help="batch, heads, queries, head size"
    )
    parser.add_argument("--keys", type=int, help="the number of keys; by default that of queries")
    parser.add_argument("--kv-heads", type=int, help="the heads of K and V; by default as many as of Q")
    parser.add_argument("--value-dim", type=int, help="the head size of V; by default that of Q and K")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--bottom-right", action="store_true", help="the last query sees the last key")
    parser.add_argument("--chip", choices=sorted(CHIPS), help="a chip to explain for; no GPU is needed")
    asked = parser.parse_args(arguments)
    batch, heads, queries, head_dim = asked.shape
    device = "meta" if asked.chip else "cuda"
    alignment = "bottom-right" if asked.bottom_right else "top-left"
    try:
        if not asked.chip and not torch.cuda.is_available():
            raise Unavailable("there is no GPU here: name a chip, e.g. --chip h200")
        q = torch.empty((batch, heads, queries, head_dim), dtype=DTYPES[asked.dtype], device=device)
        k = torch.empty((batch, asked.kv_heads or heads, asked.keys or queries, head_dim), dtype=q.dtype, device=device)
        v = k.new_empty((*k.shape[:3], asked.value_dim)) if asked.value_dim else k
        if asked.chip:
            problem = problem_of(q, k, v, output_like(q, v), causal=asked.causal, alignment=alignment)
            explanation = explain_problem(problem, machine_named(asked.chip), asked.chip.upper())
        else:
            explanation = explain(q, k, v, causal=asked.causal, causal_alignment=alignment)
    except (Unavailable, ValueError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    sys.stdout.write(explanation.text() + "\n")
    return 0


__all__ = ["Candidate", "Explanation", "Launched", "explain", "explain_problem", "main"]
