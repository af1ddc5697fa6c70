"""Whether an answer is right: by its type, its size, how the problem amplifies rounding, and the baseline.

A fixed tolerance would reject honest kernels or accept dishonest ones. Here an error passes when it is no larger than
one of four things: a few roundings of the answer's own type; the change of the answer when each input changes by one
rounding (a sum of cancelling terms changes much); three times the error of the reference's own formula in float32;
three times the baseline's own error on the same inputs.
The largest error and the root mean square are judged separately: the first finds a single wrong element, the second
finds answers that are a little wrong everywhere. The verdict says which of them decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.harness.workload import Check

FEW = {torch.float64: 256.0, torch.float32: 64.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""The largest error that is accepted as rounding, in eps of the type. Long float32 sums have some tens of roundings (a
dot product of a million squares: 19); an output in a half type is rounded once or twice at its end."""
FEW_MEAN = {torch.float64: 256.0, torch.float32: 64.0, torch.float16: 0.75, torch.bfloat16: 0.75}
"""The same limit for the root mean square. One rounding is 0.2 eps. An answer computed in bfloat16 and stored in
float16 is off by 1.7 eps of float16, and one computed in TF32 by some thousand eps of float32."""
LONG_SUMS, LONG_SUM = (torch.float32, torch.float64), 0.5
"""In these types an answer that sums many inputs may be off by more roundings: `LONG_SUM` times the square root of the
number of inputs for each of its elements. One thread of MKL adds a million squares with up to 83 roundings of
float32."""
SHAKEN = {torch.float64: 64.0, torch.float32: 64.0, torch.float16: 2.0, torch.bfloat16: 2.0}
"""The error may be this many times the change of the answer under rounded inputs."""
TIMES_BASELINE = 3.0
TF32_EPS = 2.0**-10
PIECE = 1 << 26
"""How many elements are compared at once. So answers of gigabytes are compared with little extra memory."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The right answer: its leaves (float64, or integers) with their places, and for each leaf how much it changes when
    the inputs are rounded once more (largest change and root mean square)."""

    tree: Any
    leaves: tuple[torch.Tensor, ...]
    moved: tuple[tuple[float, float], ...]
    single: tuple[tuple[float, float], ...] = ()
    """The error of the reference's own formula in float32 for each leaf, where the inputs are of that type."""
    inputs: int = 0
    """The number of floating-point elements of the inputs."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest error and the root mean square of each leaf."""

    leaves: tuple[tuple[float, float], ...]

    def widest(self, other: Errors | None) -> Errors:
        """The larger errors of the two, leaf by leaf."""
        if other is None or len(other.leaves) != len(self.leaves):
            return self
        return Errors(tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(self.leaves, other.leaves, strict=True)))


def flattened(value: Any, at: str = "") -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """The structure of an output, and its tensors with their places. A number counts as a tensor without dimensions.
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
    reference: Callable[[Any], Any],
    inputs: Any,
    generator: torch.Generator | None,
    to_double: Callable[[Any], Any],
    *,
    twice: bool = True,
) -> Exact:
    """The right answer for `inputs`, and how much it changes when every floating-point input changes by up to
    half an eps. These changes are drawn from `generator`; without one they are left out. `to_double` is applied to each
    input first. Raises `ValueError` if the reference returns NaN or, called `twice`, returns different answers; and
    whatever the reference raises."""
    arguments = inputs.mapped(to_double)
    floating = [one for one in inputs.tensors() if one.is_floating_point()]
    count = sum(one.numel() for one in floating)
    tree, leaves = flattened(reference(arguments))
    tensors = tuple(settled(leaf, arguments) for _, leaf in leaves)
    places = [at for at, _ in leaves]
    del leaves
    if twice:
        again_tree, again = flattened(reference(arguments))
        for at, one, (_, two) in zip(places, tensors, again, strict=True):
            if again_tree != tree or one.shape != as_real(two).shape or not close_enough(one, as_real(two)):
                raise ValueError(f"the reference is not deterministic: two calls on the same inputs differ{at}")
        del again
    for at, one in zip(places, tensors, strict=True):
        strange = sum(int(torch.isnan(part).sum().item()) for (part,) in pieces(one)) if one.is_floating_point() else 0
        if strange:
            raise ValueError(f"the reference answers with NaN in {strange} of {one.numel()} elements{at}")
    if generator is None:
        return Exact(tree, tensors, tuple((0.0, 0.0) for _ in tensors), (), count)
    eps = max((torch.finfo(one.dtype).eps for one in floating), default=0.0)

    def shaken(one: torch.Tensor) -> torch.Tensor:
        if not one.is_floating_point():
            return one
        noise = torch.rand(one.shape, generator=generator, device=one.device, dtype=torch.float64)
        return one.double() * (1 + eps * (noise - 0.5))

    _, other = flattened(reference(arguments.mapped(shaken)))
    moved = tuple(
        distance(as_real(leaf), one) if as_real(leaf).shape == one.shape else (0.0, 0.0)
        for (_, leaf), one in zip(other, tensors, strict=False)
    )
    single = in_single(reference, inputs, tree, tensors)
    return Exact(tree, tensors, moved, single, count)


def pieces(*tensors: torch.Tensor, most: int = PIECE) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of some tensors of one shape, part by part: each time the same part of each tensor, of up to `most`
    elements."""
    first = tensors[0]
    if first.numel() <= most:
        yield tensors
        return
    dim = max(range(first.dim()), key=lambda one: first.shape[one])
    step = max(1, first.shape[dim] * most // first.numel())
    for start in range(0, first.shape[dim], step):
        length = min(step, first.shape[dim] - start)
        yield from pieces(*(one.narrow(dim, start, length) for one in tensors), most=most)


def in_single(
    reference: Callable[[Any], Any], inputs: Any, tree: Any, exact: tuple[torch.Tensor, ...]
) -> tuple[tuple[float, float], ...]:
    """The error of the reference's own formula in float32, for each leaf; empty where the inputs are of another type.
    Half types are left out, as the formula would round after each step and its error would allow too much."""
    kinds = {one.dtype for one in inputs.tensors() if one.is_floating_point()}
    if kinds != {torch.float32}:
        return ()
    try:
        other, leaves = flattened(reference(inputs))
    except (RuntimeError, TypeError):
        return ()
    if other != tree or any(leaf.shape != one.shape for (_, leaf), one in zip(leaves, exact, strict=True)):
        return ()
    return tuple(distance(as_real(leaf), one) for (_, leaf), one in zip(leaves, exact, strict=True))


def as_real(one: torch.Tensor) -> torch.Tensor:
    """A complex tensor as its two parts; any other as it is."""
    return torch.view_as_real(one) if one.is_complex() else one


def settled(one: torch.Tensor, inputs: Any) -> torch.Tensor:
    """A leaf for a comparison: real, and in its own memory unless that would take gigabytes."""
    one = as_real(one).detach()
    input_storages = {other.untyped_storage().data_ptr() for other in inputs.tensors()}
    kept = one.numel() <= PIECE or one.untyped_storage().data_ptr() in input_storages
    return one.clone() if kept else one


def close_enough(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two runs of a float64 reference agree, up to the rounding of parallel sums."""
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    rtol, atol = (1e-9, 1e-12) if one.dtype is torch.float64 else (1e-5, 1e-6)
    return all(torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True) for a, b in pieces(one, two))


def distance(out: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """The largest and the root mean square difference, over the elements that are finite in both."""
    if out.numel() == 0:
        return 0.0, 0.0
    most = total = 0.0
    for a, b in pieces(out, exact):
        difference = (a.double() - b.double()).abs()
        difference = torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference))
        most = max(most, float(difference.max().item()))
        total += float(difference.square().sum().item())
    return most, math.sqrt(total / out.numel())


def apart(output: Any, other: Any) -> float:
    """The largest difference between two outputs; NaN where they are of different structures or shapes."""
    try:
        (tree, one), (other_tree, two) = flattened(output), flattened(other)
    except TypeError:
        return math.nan
    if tree != other_tree or any(a.shape != b.shape for (_, a), (_, b) in zip(one, two, strict=True)):
        return math.nan
    pairs = ((as_real(a), as_real(b)) for (_, a), (_, b) in zip(one, two, strict=True))
    return max((distance(a, b)[0] for a, b in pairs), default=0.0)


def not_numbers(output: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements are NaN, or infinite where the reference is not."""
    found = ((torch.isnan(a) | (torch.isinf(a) & (a.double() != b))) for a, b in pieces(output, right))
    return sum(int(one.sum().item()) for one in found)


def judged(
    output: Any,
    exact: Exact,
    dtypes: Sequence[torch.dtype] | None,
    baseline: Errors | None,
    tolerance: Mapping[str, float] | None = None,
    *,
    tf32: bool = False,
) -> tuple[Check, Errors | None]:
    """The verdict on one output, and its errors. `dtypes` are the types that the leaves must have, if they are known.
    `baseline` has the baseline's errors on inputs of this case. `tf32` says that the baseline may multiply in TF32."""

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
                return fault(f"output{at}: {other} of {right.numel()} elements are different", float(other), 0.0)
            continue
        strange = not_numbers(real, right)
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
    """The largest error and the root mean square that pass, and the reason for each limit in words."""
    size, mean_size = distance(right, torch.zeros((), dtype=right.dtype, device=right.device).expand(right.shape))
    if tolerance is not None:
        most, which = tolerance["atol"] + tolerance["rtol"] * size, "the workload's own tolerance"
        times = tolerance.get("baselines", 0.0)
        if times and tf32 and dtype is torch.float32 and 4 * TF32_EPS * size > most:
            most, which = 4 * TF32_EPS * size, "4 roundings of tf32"
        elif times and baseline is not None and leaf < len(baseline.leaves):
            relative = times * baseline.leaves[leaf][0]
            most, which = max((most, which), (relative, f"{times:g} times the baseline's own error"))
        return (most, most), (which, which)
    few, few_mean = FEW.get(dtype, 4.0), FEW_MEAN.get(dtype, 1.0)
    eps = torch.finfo(dtype).eps
    if dtype in LONG_SUMS and right.numel():
        long = LONG_SUM * math.sqrt(exact.inputs / right.numel())
        few, few_mean = max(few, long), max(few_mean, long)
    if tf32 and dtype is torch.float32:
        eps, few, few_mean = TF32_EPS, 4.0, 1.0
    finite = torch.where(torch.isfinite(right), right, torch.zeros_like(right))
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
