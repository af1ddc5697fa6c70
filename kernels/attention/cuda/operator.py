"""Scaled dot-product attention on a CUDA device, by our own kernels.

    out = attention(q, k, v, causal=True)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    run = bind(q, k, v, out, causal=True); run(); run()

Shapes are [B, H, S, D]; K and V may have fewer heads than Q. Whatever is not supported raises `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch

from kernels.attention.cuda.calls import native
from kernels.attention.cuda.calls.backward import bias_gradient, sinks_gradient
from kernels.attention.cuda.calls.backward_quick import QuickBackward
from kernels.attention.cuda.calls.binding import bind_attention, bind_call
from kernels.attention.cuda.calls.direct import differentiable_by
from kernels.attention.cuda.calls.gradients import register_gradients as register_gradients
from kernels.attention.cuda.calls.native_plans import Native
from kernels.attention.cuda.calls.quick import Answer, Options, Quick, empty_sums
from kernels.attention.cuda.calls.registered import as_operator, register_operators
from kernels.attention.cuda.plan import inputs
from kernels.attention.cuda.plan.posing import NEEDS_SEED, Window, dropout_of, output_like, softcap_of, window_of
from kernels.attention.cuda.run.engine import Engine, default_cache, engine_of, engines
from kernels.attention.cuda.run.launching import Buffers
from kernels.attention.dropout import least_word

__all__ = ["attention", "bind_attention", "call_engine", "quick"]

quick = Quick(bind_call, engine_of, as_operator)
register_operators(quick.launch)
quick_backward = QuickBackward(engine_of)
register_gradients(quick_backward, sinks_gradient, bias_gradient)


@cache
def compiled_operator() -> Native | None:
    """The compiled function for autograd, if it was compiled for this PyTorch."""
    library = native.path_in(default_cache())
    current_stream = native.stream_function() if native.is_sealed(library) else None
    if current_stream is None:
        return None
    try:
        native.load_native(library)
    except (OSError, RuntimeError):  # it cannot be loaded here, so Python does its work
        return None
    return Native(engine_of, quick_backward.compute, current_stream)


def by_compiled(
    tensors: tuple[torch.Tensor, ...], options: Options, by_python: Callable[..., Answer]
) -> Callable[..., Answer] | None:
    """The function that computes calls that want gradients, if it is compiled."""
    compiled_answer = compiled_operator()
    return None if compiled_answer is None else compiled_answer.call(tensors, options, by_python)


quick.differentiate = differentiable_by(quick, quick_backward.compute, by_compiled)


def attention(  # noqa: PLR0913 - as PyTorch has them
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
    window: Window | None = None,
    attn_mask: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    batch_invariant: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> Answer:
    """softmax(scale Q K^T + mask) V, accumulated in float32.

    q is [B, H, S_q, D], k [B, H_kv, S_k, D] and v [B, H_kv, S_k, D_v], float16 or bfloat16, D and D_v at most 512 (on
    Hopper 576 without a gradient), any strides but a contiguous last dimension; head h of Q reads head h // (H / H_kv)
    of K and V. `scale` is any finite number, by default 1/sqrt(D). `causal` hides key j from query i when j > i (`top-
    left`, as in PyTorch) or j > i + S_k - S_q (`bottom-right`); `window` (left, right) hides it when j < i - left or j
    > i + right, aligned likewise; None and -1 hide nothing. `softcap` c > 0 makes a scaled score x c tanh(x / c) before
    anything is added. `alibi_slopes`, float32 [H] or [B, H], lower it by slope |i - j|, with i + S_k - S_q for i if
    aligned `bottom-right`. `attn_mask` broadcasts to [B, H, S_q, S_k]: boolean, True where a key is seen, or added to
    scaled scores, float32 or like q. `sinks`, float32 [H], are a score of each head's rows, with no value. A row that
    sees no key, or whose mask adds -inf to each, is zero, with log-sum-exp -inf, or its sink. With `batch_invariant` a
    row's bits depend on nothing but the row, its keys and the kernel, chosen without regard to the batch; its
    gradients' on its sequence. `q_scale`, `k_scale` and `v_scale` are for float8_e4m3fn, as in `attention_paged`.
    Weights are dropped with probability `dropout_p`: a function of `dropout_seed` (int64 [2] on the device, a seed and
    an offset), batch, head, query and key. `out`, like q but as wide as v, shares no memory with inputs.

    Returns the output, and with `return_lse` log(sum(exp(scores))), float32 [B, H, S_q]. Both have gradients for q, k,
    v, sinks and an added mask, once, without `out` and `engine`. Raises `Unsupported`, ValueError or TypeError.
    """
    more = {"slopes": alibi_slopes, "sinks": sinks, "q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    shaped = softcap != 0.0 or any(x is not None for x in more.values()) or batch_invariant or dropout_p != 0.0
    plain = window is None and attn_mask is None and out is None and engine is None and not shaped
    if plain and not torch.compiler.is_compiling():
        return quick.attention(q, k, v, causal, scale, causal_alignment, return_lse)
    options = Options(causal, scale, causal_alignment, return_lse, window_of(window), softcap=softcap)
    given = {"q": q, "k": k, "v": v, "mask": attn_mask, **more, "seed": dropout_seed, "out": out}
    return call_given(given, options._replace(invariant=batch_invariant, dropout=dropout_p), engine)


def call_given(given: Mapping[str, torch.Tensor | None], options: Options, engine: Engine | None) -> Answer:
    """Computes a call of the tensors that are not None. With sinks the log-sum-exps are computed in any case. A call
    that drops nothing is one without dropout."""
    tensors = {name: x for name, x in given.items() if x is not None}
    wants_sums = options.return_lse
    if not least_word(dropout_of(options.dropout)):
        tensors.pop("seed", None)
        options = options._replace(dropout=0.0)
    elif "seed" not in tensors:
        raise ValueError(NEEDS_SEED)
    options = options._replace(names=tuple(tensors), softcap=softcap_of(options.softcap))
    options = options._replace(return_lse=wants_sums or "sinks" in tensors)
    answer = call_engine(tuple(tensors.values()), options, engine)
    return answer[0] if isinstance(answer, tuple) and not wants_sums else answer


def call_engine(tensors: tuple[torch.Tensor, ...], options: Options, engine: Engine | None) -> Answer:
    """Computes any call with any engine; `tensors` are in the order of the options' names."""
    if torch.compiler.is_compiling() and "out" not in options.names and engine is None:
        return as_operator(dict(zip(options.names, tensors, strict=True)), options)
    if engine is None or engine is engines.get(engine.device.index):
        return quick.call(tensors, options)
    given = dict(zip(options.names, tensors, strict=True))
    inputs.refuse_tensors(given)
    q, out = given["q"], given.pop("out", None)
    if out is None:
        out = output_like(q, given["v"])
    lse = empty_sums(q, paged=options.paged) if options.return_lse else None
    bind_call(given, out, lse, options, Buffers.now(engine))()
    return out if lse is None else (out, lse)
