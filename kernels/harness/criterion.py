"""Whether an answer is right: by its type, its size, how the problem amplifies rounding, and the baseline.

A fixed tolerance accuses honest kernels or lets dishonest ones through. Here an error passes when it is no larger than
what one of four things explains: a few roundings of the answer's own type; what the answer moves by when each input is
moved by one rounding (a sum of cancelling terms moves far); three times what the reference's own formula loses in
float32; three times the baseline's own error on the same inputs.
The largest error and the root mean square are judged each by itself: the first finds one wrong element, the second what
is a little wrong everywhere. The verdict says which of them decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.harness.workload import Check

FEW = {torch.float64: 256.0, torch.float32: 64.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""Roundings, in eps of the type, that the largest error may be: long float32 sums have some tens (a dot product of a
million squares: 19), an output in a half type is rounded once or twice at its end."""
FEW_MEAN = {torch.float64: 256.0, torch.float32: 64.0, torch.float16: 0.75, torch.bfloat16: 0.75}
"""The same of the root mean square. One rounding is 0.2 eps; an answer computed in bfloat16 and stored in float16 is
off by 1.7 eps of float16, one computed in TF32 by some thousand eps of float32."""
LONG_SUMS, LONG_SUM = (torch.float32, torch.float64), 0.5
"""In these types an answer that sums many inputs may be off by half as many roundings as the square root of how many
there are for each of its elements: one thread of MKL adds a million squares with up to 83 roundings of float32."""
SHAKEN = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 2.0, torch.bfloat16: 2.0}
"""How many times the answer's own movement under rounded inputs."""
TIMES_BASELINE = 3.0
TF32_EPS = 2.0**-10


@dataclass(frozen=True, slots=True)
class Exact:
    """The right answer: its leaves (float64, or integers) with their places, and per leaf how far it moves when its
    inputs are rounded once more (largest and root mean square)."""

    tree: Any
    leaves: tuple[torch.Tensor, ...]
    moved: tuple[tuple[float, float], ...]
    single: tuple[tuple[float, float], ...] = ()
    """How far off the reference's own formula is in float32, where that is its inputs' type."""
    inputs: int = 0
    """So many floating elements went into the answer."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest error and the root mean square of each leaf."""

    leaves: tuple[tuple[float, float], ...]

    def widest(self, other: Errors | None) -> Errors:
        """Leaf by leaf the larger of two."""
        if other is None or len(other.leaves) != len(self.leaves):
            return self
        return Errors(tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(self.leaves, other.leaves, strict=True)))


def flattened(value: Any, at: str = "") -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """The structure of an output, with where each tensor stands, and the tensors. A number is a tensor of no dimension.
    Raises `TypeError` for anything else."""
    if isinstance(value, torch.Tensor):
        return "*", [(at, value)]
    if isinstance(value, (bool, int, float)):
        return "*", [(at, torch.tensor(value))]
    if isinstance(value, Mapping):
        parts = {str(key): flattened(one, f"{at}[{key!r}]") for key, one in value.items()}
        return {key: tree for key, (tree, _) in parts.items()}, [leaf for _, found in parts.values() for leaf in found]
    if isinstance(value, (tuple, list)):
        listed = [flattened(one, f"{at}[{n}]") for n, one in enumerate(value)]
        return [tree for tree, _ in listed], [leaf for _, found in listed for leaf in found]
    raise TypeError(f"an output{at} is a {type(value).__name__}, not a tensor")


def exact_of(
    reference: Callable[[Any], Any], given: Any, generator: torch.Generator, to_double: Callable[[Any], Any]
) -> Exact:
    """The right answer to what is `given`, and how it moves when every floating input is moved by up to half an eps.
    `to_double` is applied to each input first. Raises `ValueError` for a reference that answers with NaN or not the
    same twice, and whatever it raises."""
    arguments = given.mapped(to_double)
    floating = [one for one in given.tensors() if one.is_floating_point()]
    eps = max((torch.finfo(one.dtype).eps for one in floating), default=0.0)
    tree, leaves = flattened(reference(arguments))
    again_tree, again = flattened(reference(arguments))
    tensors = tuple(settled(leaf) for _, leaf in leaves)
    for (at, one), (_, two) in zip(leaves, again, strict=True):
        if again_tree != tree or one.shape != two.shape or not close_enough(settled(one), settled(two)):
            raise ValueError(f"the reference is not deterministic: two calls on the same inputs differ{at}")
    for (at, _), one in zip(leaves, tensors, strict=True):
        strange = int(torch.isnan(one).sum().item()) if one.is_floating_point() else 0
        if strange:
            raise ValueError(f"the reference answers with NaN in {strange} of {one.numel()} elements{at}")

    def shaken(one: torch.Tensor) -> torch.Tensor:
        if not one.is_floating_point():
            return one
        noise = torch.rand(one.shape, generator=generator, device=one.device, dtype=torch.float64)
        return one.double() * (1 + eps * (noise - 0.5))

    _, other = flattened(reference(arguments.mapped(shaken)))
    moved = tuple(
        distance(settled(leaf), one) if leaf.shape == one.shape else (0.0, 0.0)
        for (_, leaf), one in zip(other, tensors, strict=False)
    )
    single = in_single(reference, given, tree, tensors)
    return Exact(tree, tensors, moved, single, sum(one.numel() for one in floating))


def in_single(
    reference: Callable[[Any], Any], given: Any, tree: Any, exact: tuple[torch.Tensor, ...]
) -> tuple[tuple[float, float], ...]:
    """What the reference's own formula loses in float32; nothing where its inputs are of another type. In a half type
    it rounds after each of its steps, which excuses nobody."""
    kinds = {one.dtype for one in given.tensors() if one.is_floating_point()}
    if kinds != {torch.float32}:
        return ()
    try:
        other, leaves = flattened(reference(given))
    except (RuntimeError, TypeError):
        return ()
    if other != tree or any(leaf.shape != one.shape for (_, leaf), one in zip(leaves, exact, strict=True)):
        return ()
    return tuple(distance(settled(leaf), one) for (_, leaf), one in zip(leaves, exact, strict=True))


def settled(one: torch.Tensor) -> torch.Tensor:
    """A leaf to compare: real, float64 or integral, no alias of an input."""
    if one.is_complex():
        one = torch.view_as_real(one)
    return one.detach().double().clone() if one.is_floating_point() else one.detach().clone()


def close_enough(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two runs of a float64 reference agree, parallel sums aside."""
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    agree: bool = torch.allclose(one, two, rtol=1e-9, atol=1e-12, equal_nan=True)
    return agree


def distance(out: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Largest and root mean square difference, over the elements that are finite in both."""
    if out.numel() == 0:
        return 0.0, 0.0
    difference = (out.double() - exact.double()).abs()
    difference = torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference))
    return float(difference.max().item()), float(difference.square().mean().sqrt().item())


def apart(output: Any, other: Any) -> float:
    """The largest difference between two outputs; NaN where they are of different structures or shapes."""
    try:
        (tree, one), (other_tree, two) = flattened(output), flattened(other)
    except TypeError:
        return math.nan
    if tree != other_tree or any(a.shape != b.shape for (_, a), (_, b) in zip(one, two, strict=True)):
        return math.nan
    pairs = ((settled(a), settled(b)) for (_, a), (_, b) in zip(one, two, strict=True))
    return max((distance(a, b)[0] for a, b in pairs), default=0.0)


def judged(
    output: Any,
    exact: Exact,
    dtypes: Sequence[torch.dtype] | None,
    baseline: Errors | None,
    tolerance: Mapping[str, float] | None = None,
    *,
    tf32: bool = False,
) -> tuple[Check, Errors | None]:
    """The verdict on one output, and its errors. `dtypes` are those that the leaves must have, if that is known;
    `baseline` is how wrong the baseline is on inputs of this case; `tf32` is for a baseline that may multiply so."""

    def fault(words: str, error: float = math.nan, limit: float = math.nan) -> tuple[Check, Errors | None]:
        return Check(False, error, limit, words), None

    try:
        tree, leaves = flattened(output)
    except TypeError as exc:
        return fault(str(exc))
    if tree != exact.tree:
        return fault(f"the output is {shape_of(tree)}, and the reference's is {shape_of(exact.tree)}")
    errors, worst, limit = [], 0.0, math.inf
    for n, ((at, leaf), right) in enumerate(zip(leaves, exact.leaves, strict=True)):
        out = leaf.to(right.device)
        real = torch.view_as_real(out) if out.is_complex() else out
        wanted = dtypes[n] if dtypes is not None and n < len(dtypes) else None
        if real.shape != right.shape or (wanted is not None and out.dtype != wanted):
            must = f"{tuple(right.shape)}" + (f" {wanted}" if wanted is not None else "")
            return fault(f"output{at} is {tuple(real.shape)} {out.dtype}, not {must}")
        if not real.is_floating_point() or not right.is_floating_point():
            other = int((real.to(right.device) != right).sum().item())
            errors.append((float(other), float(other)))
            if other:
                return fault(f"output{at}: {other} of {right.numel()} elements are others", float(other), 0.0)
            continue
        strange = int((torch.isnan(real) | (torch.isinf(real) & (real.double() != right))).sum().item())
        if strange:
            return fault(f"output{at}: {strange} of {real.numel()} elements are NaN or infinite, or never written")
        most, mean = distance(real, right)
        errors.append((most, mean))
        allowed, which = allowance(right, real.dtype, exact, n, baseline, tolerance, tf32)
        worst, limit = max(worst, most), min(limit, allowed[0])
        if not most <= allowed[0]:
            words = f"max abs error {most:.3g} is over {allowed[0]:.3g} ({which[0]})"
            return fault(f"output{at}: {words}" if at else words, most, allowed[0])
        if not mean <= allowed[1]:
            words = f"root mean square error {mean:.3g} is over {allowed[1]:.3g} ({which[1]})"
            return fault(f"output{at}: {words}" if at else words, most, allowed[0])
    return Check(True, worst, 0.0 if math.isinf(limit) else limit, ""), Errors(tuple(errors))


def allowance(
    right: torch.Tensor,
    dtype: torch.dtype,
    exact: Exact,
    leaf: int,
    baseline: Errors | None,
    tolerance: Mapping[str, float] | None,
    tf32: bool,
) -> tuple[tuple[float, float], tuple[str, str]]:
    """The largest and the root mean square error that pass, and what each follows from."""
    finite = torch.where(torch.isfinite(right), right, torch.zeros_like(right))
    size = float(finite.abs().max().item()) if right.numel() else 0.0
    mean_size = float(finite.square().mean().sqrt().item()) if right.numel() else 0.0
    if tolerance is not None:
        most = tolerance["atol"] + tolerance["rtol"] * size
        return (most, most), ("the workload's own tolerance", "the workload's own tolerance")
    few, few_mean = FEW.get(dtype, 4.0), FEW_MEAN.get(dtype, 1.0)
    eps = torch.finfo(dtype).eps
    if dtype in LONG_SUMS and right.numel():
        long = LONG_SUM * math.sqrt(exact.inputs / right.numel())
        few, few_mean = max(few, long), max(few_mean, long)
    if tf32 and dtype is torch.float32:
        eps, few, few_mean = TF32_EPS, 4.0, 1.0
    rounding = distance(finite.to(dtype), finite)
    times = SHAKEN.get(dtype, 2.0)
    ways = [
        (f"{few:g} roundings of {name_of(dtype)}", few * eps * size + 2 * rounding[0]),
        ("the problem's own sensitivity to rounding", times * exact.moved[leaf][0]),
    ]
    means = [
        (f"{few_mean:g} roundings of {name_of(dtype)}", few_mean * eps * mean_size + 2 * rounding[1]),
        ("the problem's own sensitivity to rounding", times * exact.moved[leaf][1]),
    ]
    if exact.single:
        ways.append(("three times what the reference loses in float32", TIMES_BASELINE * exact.single[leaf][0]))
        means.append(("three times what the reference loses in float32", TIMES_BASELINE * exact.single[leaf][1]))
    if baseline is not None and leaf < len(baseline.leaves):
        ways.append(("three times the baseline's own error", TIMES_BASELINE * baseline.leaves[leaf][0]))
        means.append(("three times the baseline's own error", TIMES_BASELINE * baseline.leaves[leaf][1]))
    most_which, most_allowed = max(ways, key=lambda way: way[1])
    mean_which, mean_allowed = max(means, key=lambda way: way[1])
    return (most_allowed, mean_allowed), (most_which, mean_which)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_of(tree: Any) -> str:
    """The structure of an output in words."""
    if isinstance(tree, dict):
        return f"a mapping of {', '.join(tree)}"
    return f"{len(tree)} outputs" if isinstance(tree, list) else "one tensor"
