"""The operators that PyTorch's compiler, modes and subclasses see: spotbench::attention, and those for packed sequences
and paged caches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from kernels.attention.cuda.calls.quick import PAGED, QKV, Answer, Options, empty_sums
from kernels.attention.cuda.plan import inputs
from kernels.attention.cuda.plan.posing import check_rank, check_shapes, output_like
from kernels.attention.cuda.plan.posing_paged import check_paged_shapes

Pair = tuple[torch.Tensor, torch.Tensor]
Compute = Callable[[tuple[torch.Tensor, ...], Options], Answer]
"""Launches now: `Quick.launch`."""

# define and impl rather than torch.library.custom_op, whose wrapper costs about three times as much a call.
library = torch.library.Library("spotbench", "FRAGMENT")
library.define(
    "attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, str alignment, "
    "int left, int right, Tensor? mask) -> (Tensor, Tensor)"
)
SHAPED = (*QKV, "q_starts", "k_starts", "mask", "slopes", "sinks", "q_scale", "k_scale", "v_scale", "seed")
"""The tensors of `attention_shaped`, which computes padded and packed calls with shaped scores, dropout or
elements of eight bits; all but the first three may be missing."""
SHAPED_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? q_starts, Tensor? k_starts, Tensor? mask, Tensor? slopes, Tensor? sinks, "
    "Tensor? q_scale, Tensor? k_scale, Tensor? v_scale, Tensor? seed, "
    "int longest_q, int longest_k, bool causal, float scale, str alignment, int left, int right, float softcap, "
    "bool invariant, float dropout"
)
library.define(f"attention_shaped({SHAPED_ARGUMENTS}) -> (Tensor, Tensor)")
library.define(
    "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor q_starts, Tensor k_starts, int longest_q, int longest_k, "
    "bool causal, float scale, str alignment, int left, int right) -> (Tensor, Tensor)"
)
library.define(
    "attention_paged(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seqused_k, "
    "Tensor? cu_seqlens_q, int longest_q, int longest_k, bool causal, float scale, str alignment, int left, int right, "
    "float softcap=0.0, Tensor? slopes=None, Tensor? sinks=None, bool invariant=False, Tensor? k_scale=None, "
    "Tensor? v_scale=None, Tensor? q_scale=None) -> (Tensor, Tensor)"
)


def window_sides(window: tuple[int | None, int | None] | None) -> tuple[int, int]:
    """A window as the operators take it: a side that is -1 has no limit."""
    left, right = (-1 if side is None else side for side in window or (None, None))
    return left, right


def sides_window(left: int, right: int) -> tuple[int, int] | None:
    """The window from the two sides: the reverse of `sides`."""
    return None if left == right == -1 else (left, right)


def as_operator(tensors: dict[str, torch.Tensor], options: Options) -> Answer:
    """A call that PyTorch's compiler, modes and subclasses can see."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    if torch._C._get_tracing_state() is None and options.paged:
        check_paged_shapes(q, k, v, "q_starts" in tensors)
    elif torch._C._get_tracing_state() is None:
        check_rank(q, k, v, 4 if options.longest is None else 3)
        check_shapes(q, k, v, (0,) if options.longest is None else ())
    name, given = operator_arguments(tensors, options)
    result, sums = getattr(torch.ops.spotbench, name)(*given)
    return (result, sums) if options.return_lse else result


def operator_arguments(tensors: dict[str, torch.Tensor], options: Options) -> tuple[str, tuple[Any, ...]]:
    """The name of the operator for a call, and the operator's arguments."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    scale = 1.0 / math.sqrt(q.shape[-1]) if options.scale is None else options.scale
    option_values = (options.causal, scale, options.alignment, *window_sides(options.window))
    if options.paged:
        pages = tensors["block_table"], tensors["k_lengths"], tensors.get("q_starts")
        sums, scales = map(tensors.get, ("slopes", "sinks")), map(tensors.get, ("k_scale", "v_scale", "q_scale"))
        shaping = options.softcap, *sums, options.invariant, *scales
        return "attention_paged", (q, k, v, *pages, *(options.longest or (-1, -1)), *option_values, *shaping)
    if options.softcap or options.invariant or any(name in tensors for name in SHAPED[6:]):
        lengths, last = options.longest or (-1, -1), (options.softcap, options.invariant, options.dropout)
        given = (*map(tensors.get, SHAPED), *lengths, *option_values, *last)
        return "attention_shaped", given
    if options.longest is None:
        return "attention", (q, k, v, *option_values, tensors.get("mask"))
    return "attention_varlen", (q, k, v, tensors["q_starts"], tensors["k_starts"], *options.longest, *option_values)


def kernels_of(compute: Compute) -> dict[str, Callable[..., Pair]]:
    """The operators' kernels by the operators' names, each called with the operator's arguments in their order."""

    def run(tensors: tuple[torch.Tensor, ...], options: Options) -> Pair:
        answer = compute(tuple(inputs.plain_tensor(x) for x in tensors), options)
        assert isinstance(answer, tuple)
        return answer

    def attention(*given: Any) -> Pair:
        *qkv, causal, scale, alignment, left, right, mask = given
        tensors = tuple(qkv) if mask is None else (*qkv, mask)
        names = QKV if mask is None else (*QKV, "mask")
        return run(tensors, Options(causal, scale, alignment, True, sides_window(left, right), names))

    def attention_varlen(*given: Any) -> Pair:
        *tensors, longest_q, longest_k, causal, scale, alignment, left, right = given
        names, longest = (*QKV, "q_starts", "k_starts"), (longest_q, longest_k)
        return run(tuple(tensors), Options(causal, scale, alignment, True, sides_window(left, right), names, longest))

    def attention_paged(*given: Any) -> Pair:
        shaping: tuple[Any, ...] = (0.0, None, None, False, None, None, None)
        pages, (starts, *longest), terms = given[:5], given[5:8], given[8:13]
        causal, scale, alignment, left, right = terms
        softcap, slopes, sinks, invariant, k_scale, v_scale, q_scale = (*given[13:], *shaping[len(given[13:]) :])
        named = {**dict(zip(PAGED, pages, strict=True)), "q_starts": starts, "slopes": slopes, "sinks": sinks}
        named |= {"k_scale": k_scale, "v_scale": v_scale, "q_scale": q_scale}
        tensors = {name: x for name, x in named.items() if x is not None}
        options = Options(causal, scale, alignment, True, sides_window(left, right), tuple(tensors))
        options = options._replace(longest=tuple(longest), softcap=softcap, invariant=invariant)
        return run(tuple(tensors.values()), options)

    def attention_shaped(*given: Any) -> Pair:
        tensors, options = split_shaped(given)
        return run(tuple(tensors.values()), options)

    return {
        "attention": attention,
        "attention_varlen": attention_varlen,
        "attention_paged": attention_paged,
        "attention_shaped": attention_shaped,
    }


def split_shaped(given: tuple[Any, ...]) -> tuple[dict[str, torch.Tensor], Options]:
    """The tensors by name, and the options, of the arguments of `attention_shaped`."""
    tensors = {name: x for name, x in zip(SHAPED, given[: len(SHAPED)], strict=True) if x is not None}
    longest_q, longest_k, causal, scale, alignment, left, right, *last = given[len(SHAPED) :]
    longest = (longest_q, longest_k) if "q_starts" in tensors else None
    options = Options(causal, scale, alignment, True, sides_window(left, right), tuple(tensors), longest, *last)
    return tensors, options


def without_gradient(*given: Any) -> Pair:
    """The function that is registered with autograd for `attention_paged`: it refuses a result that would need a
    gradient."""
    names = ("q", "k_cache", "v_cache")
    wanting = dict(zip(names, given, strict=False))
    wanting |= {name: x for name, x in zip(("slopes", "sinks"), given[14:16], strict=False) if x is not None}
    inputs.refuse_derivatives(wanting)
    with torch._C._AutoDispatchBelowAutograd():
        pair: Pair = torch.ops.spotbench.attention_paged.default(*given)
    return pair


def register_operators(compute: Compute) -> None:
    """Registers the kernels of the operators and what the compiler's tracing needs; `gradients.register` registers the
    rest."""
    for name, kernel in kernels_of(compute).items():
        library.impl(name, kernel, "CUDA")
        torch.library.register_fake(f"spotbench::{name}", output_shapes(name == "attention_paged"), lib=library)
    library.impl("attention_paged", without_gradient, "Autograd")


def output_shapes(paged: bool) -> Callable[..., Pair]:
    """Empty tensors like those that an operator returns, for the compiler's tracing and for meta tensors."""

    def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Pair:
        del k, rest
        return output_like(q, v), empty_sums(q, paged=paged)

    return fake
