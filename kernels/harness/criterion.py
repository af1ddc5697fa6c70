"""Whether an answer is right: by its type, its size, how the problem amplifies rounding, and the baseline.

A fixed tolerance would reject honest kernels or accept dishonest ones. Here an error passes when it is no larger than
one of four things: a few roundings of the answer's own type; the change of the answer when each input changes by one
rounding (a sum of cancelling terms changes much); three times the error of the reference's own formula in float32;
three times the baseline's own error on the same inputs.
The largest error and the root mean square are judged separately: the first finds a single wrong element, the second
finds answers that are a little wrong everywhere. The verdict says which of them decided.

No limit passes an answer that proves nothing: zeros, the mean, a copy of an input, the answer to other inputs. A
tolerance that would (1e-4 for answers of 4e-6) is replaced by a quarter of the least distance of these from the right
answer (by less where the answer is only a few numbers), and no limit is more than nine tenths of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.harness.workload import Check

FEW = {torch.float64: 256.0, torch.float32: 64.0, torch.float16: 4.0, torch.bfloat16: 4.0}
"""The largest error that is accepted as rounding, in eps of the type. Long float32 sums have some tens of roundings (a
dot product of a million squares: 19); an output in a half type is rounded once or twice at its end."""
FLOAT8 = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name))
"""Types in which PyTorch stores and does not compute. They are compared in float32, which holds each value exactly."""
FEW |= dict.fromkeys(FLOAT8, 2.0)
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
QUARTER, MOST_OF_TRIVIAL = 0.25, 0.9
"""Of the least distance of a trivial answer, what a tolerance that would pass it is lowered to, and the most that any
limit may be."""
FEW_NUMBERS = 8
"""Answers of fewer numbers than this differ from those to other inputs by hardly anything now and then, by chance."""
TIMES_SINGLE = 16.0
"""A trivial answer that is no further away than this many times what the reference's formula loses in float32 is right
within rounding."""
PIECE = 1 << 26
"""How many elements are compared at once. So answers of gigabytes are compared with little extra memory."""


class ReferenceRaised(Exception):
    """The workload's reference raised `__cause__`."""


@dataclass(frozen=True, slots=True)
class Trivial:
    """An answer that proves nothing, and its largest and root mean square difference from the right one."""

    name: str
    most: float
    mean: float


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
    trivial: tuple[tuple[Trivial, ...], ...] = ()
    """For each leaf, the answers that prove nothing."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest error and the root mean square of each leaf."""

    leaves: tuple[tuple[float, float], ...]

    def widest(self, other: Errors | None) -> Errors:
        """The larger errors of the two, leaf by leaf."""
        if other is None or len(other.leaves) != len(self.leaves):
            return self
        return Errors(tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(self.leaves, other.leaves, strict=True)))


def flatten_output(value: Any, at: str = "") -> tuple[Any, list[tuple[str, torch.Tensor]]]:
    """The structure of an output, and its tensors with their places. A number counts as a tensor without dimensions.
    Raises `TypeError` for anything else."""
    if isinstance(value, torch.Tensor):
        return "*", [(at, value)]
    if isinstance(value, (bool, int, float)):
        return "*", [(at, torch.tensor(value))]
    if isinstance(value, Mapping):
        parts = {str(key): flatten_output(one, f"{at}[{key!r}]") for key, one in value.items()}
        return {key: tree for key, (tree, _) in parts.items()}, [leaf for _, found in parts.values() for leaf in found]
    if isinstance(value, (tuple, list)):
        listed = [flatten_output(one, f"{at}[{n}]") for n, one in enumerate(value)]
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
    input first. Raises `ValueError` if the reference returns NaN or, called `twice`, returns different answers, and
    `ReferenceRaised` if it raises."""
    ask = guard_reference(reference)
    arguments = inputs.mapped(to_double)
    floating = [one for one in inputs.tensors() if one.is_floating_point()]
    count = sum(one.numel() for one in floating)
    tree, leaves = flatten_output(ask(arguments))
    tensors = tuple(comparable_leaf(leaf, arguments) for _, leaf in leaves)
    places = [at for at, _ in leaves]
    del leaves
    if twice:
        again_tree, again = flatten_output(ask(arguments))
        for at, one, (_, two) in zip(places, tensors, again, strict=True):
            if again_tree != tree or one.shape != as_real(two).shape or not close_enough(one, as_real(two)):
                raise ValueError(f"the reference is not deterministic: two calls on the same inputs differ{at}")
        del again
    for at, one in zip(places, tensors, strict=True):
        strange = count_nan(one)
        if strange:
            raise ValueError(f"the reference answers with NaN in {strange} of {one.numel()} elements{at}")
    trivial = tuple(trivial_answers(one, arguments.tensors()) for one in tensors)
    if generator is None:
        return Exact(tree, tensors, tuple((0.0, 0.0) for _ in tensors), (), count, trivial)
    eps = max((torch.finfo(one.dtype).eps for one in floating if one.dtype not in FLOAT8), default=0.0)

    def shaken(one: torch.Tensor) -> torch.Tensor:
        if not one.is_floating_point():
            return one
        noise = torch.rand(one.shape, generator=generator, device=one.device, dtype=torch.float64)
        return one.double() * (1 + eps * (noise - 0.5))

    _, other = flatten_output(ask(arguments.mapped(shaken)))
    moved = tuple(
        error_distance(as_real(leaf), one) if as_real(leaf).shape == one.shape else (0.0, 0.0)
        for (_, leaf), one in zip(other, tensors, strict=False)
    )
    single = in_single(reference, inputs, tree, tensors)
    return Exact(tree, tensors, moved, single, count, trivial)


def count_nan(one: torch.Tensor) -> int:
    """The number of elements that are NaN."""
    return (
        sum(int(torch.isnan(part).sum().item()) for (part,) in matching_pieces(one)) if one.is_floating_point() else 0
    )


def guard_reference(reference: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`reference`, whose errors are raised as `ReferenceRaised`, but for lack of memory."""

    def ask(given: Any) -> Any:
        try:
            return reference(given)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            raise ReferenceRaised from exc

    return ask


def trivial_answers(right: torch.Tensor, inputs: Sequence[torch.Tensor]) -> tuple[Trivial, ...]:
    """Zeros, the mean, and each input of the same shape, with their differences from the right answer."""
    if not right.numel():
        return ()

    def constant(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float64, device=right.device).expand(right.shape)

    total = sum(float(part.double().sum().item()) for (part,) in matching_pieces(right))
    answers = [("zeros", constant(0.0)), ("their mean", constant(total / right.numel()))]
    answers += [("a copy of an input", as_real(one)) for one in inputs if as_real(one).shape == right.shape]
    return tuple(Trivial(name, *error_distance(one.to(right.device), right)) for name, one in answers)


def with_stale(exact: Exact, other: Exact) -> Exact:
    """`exact`, whose trivial answers include those to the inputs of another seed."""
    if other.tree != exact.tree or any(a.shape != b.shape for a, b in zip(other.leaves, exact.leaves, strict=True)):
        return exact
    pairs = zip(exact.trivial, other.leaves, exact.leaves, strict=True)
    trivial = tuple((*listed, Trivial("the answer to other inputs", *error_distance(a, b))) for listed, a, b in pairs)
    return replace(exact, trivial=trivial)


def is_vacuous(exact: Exact, tolerance: Mapping[str, float]) -> bool:
    """Whether this tolerance would pass an answer that proves nothing."""
    sizes = [error_distance(one, torch.zeros((), device=one.device).expand(one.shape))[0] for one in exact.leaves]
    return any(
        tolerance["atol"] + tolerance["rtol"] * size > part_of_trivial(one) * answer.most
        for one, size, listed in zip(exact.leaves, sizes, exact.trivial, strict=True)
        for answer in listed
    )


def part_of_trivial(right: torch.Tensor) -> float:
    """What a limit may be, of the distance of a trivial answer. The largest of n differences between answers to
    unlike inputs is below a part p of their usual size with a chance of about p to the power of n."""
    return float(QUARTER ** max(1.0, FEW_NUMBERS / max(right.numel(), 1)))


def matching_pieces(*tensors: torch.Tensor, most: int = PIECE) -> Iterator[tuple[torch.Tensor, ...]]:
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
        yield from matching_pieces(*(one.narrow(dim, start, length) for one in tensors), most=most)


def in_single(
    reference: Callable[[Any], Any], inputs: Any, tree: Any, exact: tuple[torch.Tensor, ...]
) -> tuple[tuple[float, float], ...]:
    """The error of the reference's own formula in float32, for each leaf; empty where the inputs are of another type.
    Half types are left out, as the formula would round after each step and its error would allow too much."""
    kinds = {one.dtype for one in inputs.tensors() if one.is_floating_point()}
    if kinds != {torch.float32}:
        return ()
    try:
        other, leaves = flatten_output(reference(inputs))
    except (RuntimeError, TypeError):
        return ()
    if other != tree or any(as_real(leaf).shape != one.shape for (_, leaf), one in zip(leaves, exact, strict=True)):
        return ()
    return tuple(error_distance(as_real(leaf), one) for (_, leaf), one in zip(leaves, exact, strict=True))


def as_real(one: torch.Tensor) -> torch.Tensor:
    """A tensor that can be compared: a complex one as its two parts, float8 in float32, any other as it is."""
    if one.dtype in FLOAT8:
        return one.float()
    return torch.view_as_real(one) if one.is_complex() else one


def comparable_leaf(leaf: torch.Tensor, inputs: Any) -> torch.Tensor:
    """A leaf for a comparison: real, and in its own memory unless that would take gigabytes."""
    leaf = as_real(leaf).detach()
    input_storages = {other.untyped_storage().data_ptr() for other in inputs.tensors()}
    kept = leaf.numel() <= PIECE or leaf.untyped_storage().data_ptr() in input_storages
    return leaf.clone() if kept else leaf


def close_enough(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two runs of a float64 reference agree, up to the rounding of parallel sums."""
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    rtol, atol = (1e-9, 1e-12) if one.dtype is torch.float64 else (1e-5, 1e-6)
    return all(torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True) for a, b in matching_pieces(one, two))


def error_distance(out: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """The largest and the root mean square difference, over the elements that are finite in both."""
    if out.numel() == 0:
        return 0.0, 0.0
    most = total = 0.0
    for a, b in matching_pieces(out, exact):
        difference = (a.double() - b.double()).abs()
        difference = torch.where(torch.isfinite(difference), difference, torch.zeros_like(difference))
        most = max(most, float(difference.max().item()))
        total += float(difference.square().sum().item())
    return most, math.sqrt(total / out.numel())


def largest_difference(output: Any, other: Any) -> float:
    """The largest difference between two outputs; NaN where they are of different structures or shapes."""
    try:
        (tree, leaves), (other_tree, other_leaves) = flatten_output(output), flatten_output(other)
    except TypeError:
        return math.nan
    if tree != other_tree or any(a.shape != b.shape for (_, a), (_, b) in zip(leaves, other_leaves, strict=True)):
        return math.nan
    pairs = ((as_real(a), as_real(b)) for (_, a), (_, b) in zip(leaves, other_leaves, strict=True))
    return max((error_distance(a, b)[0] for a, b in pairs), default=0.0)


def not_numbers(output: torch.Tensor, right: torch.Tensor) -> int:
    """How many elements are NaN, or infinite where the reference is not."""
    non_finite = ((torch.isnan(a) | (torch.isinf(a) & (a.double() != b))) for a, b in matching_pieces(output, right))
    return sum(int(one.sum().item()) for one in non_finite)


def judge_output(
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

    def fault(error_text: str, error: float = math.nan, limit: float = math.nan) -> tuple[Check, Errors | None]:
        return Check(False, error, limit, error_text), None

    try:
        tree, leaves = flatten_output(output)
    except TypeError as exc:
        return fault(str(exc))
    if tree != exact.tree:
        return fault(f"the output is {shape_of(tree)}, and the reference's is {shape_of(exact.tree)}")
    errors, worst, limit = [], 0.0, math.inf
    for n, ((at, leaf), right) in enumerate(zip(leaves, exact.leaves, strict=True)):
        out = leaf.to(right.device)
        real = as_real(out)
        wanted = dtypes[n] if dtypes is not None and n < len(dtypes) else None
        if real.shape != right.shape or (wanted is not None and out.dtype != wanted):
            must = f"{tuple(right.shape)}" + (f" {wanted}" if wanted is not None else "")
            return fault(f"output{at} is {tuple(real.shape)} {out.dtype}, not {must}")
        is_exact = not real.is_floating_point() or not right.is_floating_point()
        if is_exact and (tolerance is None or torch.bool in (real.dtype, right.dtype)):
            different = int((real != right).sum().item())
            errors.append((float(different), float(different)))
            if different:
                return fault(f"output{at}: {different} of {right.numel()} elements are different", different, 0.0)
            continue
        strange = 0 if is_exact else not_numbers(real, right)
        if strange:
            return fault(f"output{at}: {strange} of {real.numel()} elements are NaN or infinite, or never written")
        most, mean = error_distance(real, right)
        errors.append((most, mean))
        dtype = out.dtype if out.dtype in FLOAT8 else real.dtype
        allowed, which = allowed_errors(right, dtype, exact, n, baseline, tolerance, tf32)
        worst, limit = max(worst, most), min(limit, allowed[0])
        kinds = ("max abs error", "root mean square error")
        for kind_of_error, error, bound, reason in zip(kinds, (most, mean), allowed, which, strict=True):
            if not error <= bound:
                error_text = f"{kind_of_error} {error:.3g} is over {bound:.3g} ({reason})"
                return fault(f"output{at}: {error_text}" if at else error_text, most, allowed[0])
    return Check(True, worst, 0.0 if math.isinf(limit) else limit, ""), Errors(tuple(errors))


def allowed_errors(
    right: torch.Tensor,
    dtype: torch.dtype,
    exact: Exact,
    leaf: int,
    baseline: Errors | None,
    tolerance: Mapping[str, float] | None,
    tf32: bool,
) -> tuple[tuple[float, float], tuple[str, str]]:
    """The largest error and the root mean square that pass, and the reason for each limit in words."""
    size, mean_size = error_distance(right, torch.zeros((), dtype=right.dtype, device=right.device).expand(right.shape))
    # Under a stated tolerance nothing is allowed for long sums but what reference and baseline lose in them themselves.
    measured_exact = exact if tolerance is None else replace(exact, inputs=0)
    ways, means, rounding = justify_errors(right, dtype, measured_exact, leaf, baseline, tf32, (size, mean_size))
    (most_which, most), (mean_which, mean) = (max(each, key=lambda way: way[1]) for each in (ways, means))
    listed = exact.trivial[leaf] if leaf < len(exact.trivial) else ()
    # An answer within the rounding of the right one is no less right for being simple.
    near = rounding if dtype is not torch.float32 else near_right(rounding, exact, leaf, baseline)
    empty = [one for one in listed if one.most > near[0] and one.mean > near[1]]
    if tolerance is not None:
        stated, which = stated_limit(size, dtype, baseline, leaf, tolerance, tf32)
        allowed, justified = (most, mean), most_which
        (most, most_which), (mean, mean_which) = (stated, which), (stated, which)
        if empty:
            least = min(empty, key=lambda one: one.most)
            part = part_of_trivial(right)
            why = f"a quarter of what {least.name} would be off by" if part == QUARTER else justified
            reason = f"{why}; {which} of {stated:.3g} would pass {'them' if part == QUARTER else least.name}"
            if most > part * least.most:
                most, most_which = min(most, max(part * least.most, allowed[0])), reason
            if mean > (lowest := part * min(one.mean for one in empty)):
                mean, mean_which = min(mean, max(lowest, allowed[1])), reason
    if empty:
        ceiling = MOST_OF_TRIVIAL * min(one.most for one in empty)
        mean_ceiling = MOST_OF_TRIVIAL * min(one.mean for one in empty)
        reason = "as far as an answer that proves nothing"
        most, most_which = min((most, most_which), (ceiling, reason))
        mean, mean_which = min((mean, mean_which), (mean_ceiling, reason))
    return (most, mean), (most_which, mean_which)


def near_right(rounding: tuple[float, float], exact: Exact, leaf: int, baseline: Errors | None) -> tuple[float, float]:
    """How far away an answer in float32 is right within rounding: by the usual number of roundings, or by what the
    formula and the baseline were seen to lose where that is known and less."""
    if not exact.single:
        return rounding
    seen = [tuple(TIMES_SINGLE * error for error in exact.single[leaf])]
    if baseline is not None and leaf < len(baseline.leaves):
        seen.append(tuple(TIMES_BASELINE * error for error in baseline.leaves[leaf]))
    most, mean = (min(usual, max(errors)) for usual, errors in zip(rounding, zip(*seen, strict=True), strict=True))
    return most, mean


def stated_limit(
    size: float,
    dtype: torch.dtype,
    baseline: Errors | None,
    leaf: int,
    tolerance: Mapping[str, float],
    tf32: bool,
) -> tuple[float, str]:
    """The largest error that the workload's own tolerance passes, and the reason in words."""
    most, which = tolerance["atol"] + tolerance["rtol"] * size, "the workload's own tolerance"
    times = tolerance.get("baselines", 0.0)
    if times and tf32 and dtype is torch.float32 and 4 * TF32_EPS * size > most:
        return 4 * TF32_EPS * size, "4 roundings of tf32"
    if times and baseline is not None and leaf < len(baseline.leaves):
        relative = times * baseline.leaves[leaf][0]
        return max((most, which), (relative, f"{times:g} times the baseline's own error"))
    return most, which


Ways = list[tuple[str, float]]


def justify_errors(
    right: torch.Tensor,
    dtype: torch.dtype,
    exact: Exact,
    leaf: int,
    baseline: Errors | None,
    tf32: bool,
    sizes: tuple[float, float],
) -> tuple[Ways, Ways, tuple[float, float]]:
    """What justifies a largest error, what justifies a root mean square, and how much of both is rounding alone."""
    if not dtype.is_floating_point:
        return [("equal integers", 0.0)], [("equal integers", 0.0)], (0.0, 0.0)
    few, few_mean = FEW.get(dtype, 4.0), FEW_MEAN.get(dtype, 1.0)
    eps = torch.finfo(dtype).eps
    if dtype in LONG_SUMS and right.numel():
        long = LONG_SUM * math.sqrt(exact.inputs / right.numel())
        few, few_mean = max(few, long), max(few_mean, long)
    if tf32 and dtype is torch.float32:
        eps, few, few_mean = TF32_EPS, 4.0, 1.0
    finite = torch.where(torch.isfinite(right), right, torch.zeros_like(right))
    stored = error_distance(as_real(finite.to(dtype)), finite)
    rounding = (few * eps * sizes[0] + 2 * stored[0], few_mean * eps * sizes[1] + 2 * stored[1])
    ways = [(f"{few:g} roundings of {name_of(dtype)}", rounding[0])]
    means = [(f"{few_mean:g} roundings of {name_of(dtype)}", rounding[1])]
    reasons = [("the problem's own sensitivity to rounding", SHAKEN.get(dtype, 2.0), exact.moved[leaf])]
    if exact.single:
        reasons.append(("three times what the reference loses in float32", TIMES_BASELINE, exact.single[leaf]))
    if baseline is not None and leaf < len(baseline.leaves):
        reasons.append(("three times the baseline's own error", TIMES_BASELINE, baseline.leaves[leaf]))
    for words, times, error in reasons:
        ways.append((words, times * error[0]))
        means.append((words, times * error[1]))
    return ways, means, rounding


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_of(tree: Any) -> str:
    """The structure of an output in words."""
    if isinstance(tree, dict):
        return f"a mapping of {', '.join(tree)}"
    return f"{len(tree)} outputs" if isinstance(tree, list) else "one tensor"
