"""What a call does with tensors that are out of the ordinary: the answer PyTorch gives, or a refusal that says why."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from kernels.attention.cuda.calls.quick import Options, Quick
from kernels.attention.cuda.calls.registered import kernels_of
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import attention, bind_attention
from kernels.attention.cuda.plan.inputs import may_share, overlaps_itself, strides_nest
from kernels.attention.cuda.plan.parameters import Parameters
from kernels.attention.cuda.varlen import attention_varlen, bind_varlen
from tests.kernels.cuda.stub_driver import WITH_STUB, OnCpu, Stub

pytestmark = WITH_STUB

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def registered(quick: Quick) -> Iterator[Quick]:
    """The operators have kernels for the CPU: what `quick` launches on its stub."""
    library = torch.library.Library("spotbench", "IMPL")
    for name, kernel in kernels_of(quick.launch).items():
        library.impl(name, kernel, "CPU")
    yield quick
    library._destroy()


def qkv(*, seq: int = 64, head_dim: int = 64) -> Tensors:
    return {name: torch.randn(1, 2, seq, head_dim).bfloat16() for name in "qkv"}


def packed() -> Tensors:
    starts = torch.tensor([0, 30, 64], dtype=torch.int32)
    tensors = {name: torch.randn(64, 2, 64).bfloat16() for name in "qkv"}
    return {**tensors, "q_starts": starts, "k_starts": starts.clone()}


def made(kind: str) -> tuple[Tensors, Options]:
    """A call of a kind."""
    mask = torch.zeros(64, 64)
    kinds: dict[str, tuple[Tensors, Options]] = {
        "plain": (qkv(), Options()),
        "window": (qkv(), Options(window=(5, 5))),
        "mask": ({**qkv(), "mask": mask}, Options()),
        "out": ({**qkv(), "out": torch.empty(1, 2, 64, 64).bfloat16()}, Options()),
        "varlen": (packed(), Options(longest=(34, 34))),
    }
    tensors, options = kinds[kind]
    return tensors, options._replace(names=tuple(tensors))


KINDS = ("plain", "window", "mask", "out", "varlen")


def run(quick: Quick, tensors: Tensors, options: Options) -> Any:
    return quick.call(tuple(tensors.values()), options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_reaches_its_tensor_or_is_refused_with_and_without_a_plan(registered: Quick, kind: str) -> None:
    tensors, options = made(kind)
    for _ in range(2):
        for name in [name for name in tensors if tensors[name].is_floating_point()]:
            asks = {**tensors, name: tensors[name].detach().requires_grad_()}
            if kind == "out":
                with pytest.raises(Unsupported, match="backward pass"):
                    run(registered, asks, options)
            else:
                assert run(registered, asks, options).requires_grad
            with torch.no_grad():
                assert run(registered, asks, options).requires_grad == (name == "out")
        assert not run(registered, tensors, options).requires_grad


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch's own, in make_dual
@pytest.mark.parametrize("kind", KINDS)
def test_dual_tensors_are_refused_before_and_after_a_plan_is_known(quick: Quick, kind: str) -> None:
    tensors, options = made(kind)
    for _ in range(2):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(tensors["k"], torch.ones_like(tensors["k"]))
            with pytest.raises(Unsupported, match="forward-mode"):
                run(quick, {**tensors, "k": dual}, options)
            run(quick, tensors, options)
        run(quick, tensors, options)


def test_the_public_functions_and_the_bound_calls_refuse_gradients_too(engine: OnCpu) -> None:
    q, k, v = qkv().values()
    wants = q.clone().requires_grad_()
    mask = torch.zeros(64, 64, requires_grad=True)
    for options in ({}, {"window": (5, 5)}, {"out": torch.empty_like(q)}, {"return_lse": True}):
        with pytest.raises(Unsupported, match="backward pass"):
            attention(wants, k, v, engine=engine, **options)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="no gradient of mask"):
        attention(q, k, v, attn_mask=mask, engine=engine)
    with pytest.raises(Unsupported, match="backward pass"):
        bind_attention(q, k, wants, torch.empty_like(q), engine=engine)
    starts = torch.tensor([0, 64], dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1) for x in (wants, k, v))
    with pytest.raises(Unsupported, match="backward pass"):
        attention_varlen(q, k, v, starts, starts, 64, 64, engine=engine)
    with pytest.raises(Unsupported, match="backward pass"):
        bind_varlen(q, k, v, torch.empty(64, 2, 64).bfloat16(), starts, starts, 64, 64, engine=engine)


# The other backend begins with all that "eager" does.
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("plain", "eager"), *((kind, "aot_eager") for kind in ("plain", "window", "mask", "varlen"))],
)
def test_gradients_reach_their_tensors_under_the_compiler(registered: Quick, kind: str, backend: str) -> None:
    tensors, options = made(kind)

    def function(*given: torch.Tensor) -> Any:
        if kind == "varlen":
            return attention_varlen(*given, 34, 34) * 2  # type: ignore[call-arg, operator, misc, arg-type]
        mask = given[3] if kind == "mask" else None
        return attention(*given[:3], window=options.window, attn_mask=mask) * 2  # type: ignore[misc, operator]

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    compiled(*tensors.values())
    for name in [name for name in tensors if tensors[name].is_floating_point()]:
        torch._dynamo.reset()  # a function is compiled for eight kinds of call at most
        asks = {**tensors, name: tensors[name].detach().requires_grad_()}
        assert compiled(*asks.values()).requires_grad
        with torch.no_grad():
            assert not compiled(*asks.values()).requires_grad


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_gets_the_operator_and_keeps_its_class(stub: Stub, registered: Quick, kind: str) -> None:
    tensors, options = made(kind)
    before = stub.launches
    given = {name: x.as_subclass(Sub) for name, x in tensors.items()}
    answer = run(registered, given, options)
    assert stub.launches == before + 1
    assert type(answer) is Sub
    assert answer.shape == tensors["q"].shape


def test_a_mode_that_calls_the_operator_itself_is_not_asked_for_ever(stub: Stub, registered: Quick) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        depth = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Passing.depth += "spotbench" in str(func)
            assert Passing.depth < 5
            return func(*args, **(kwargs or {}))

    for kind in KINDS:
        tensors, options = made(kind)
        Passing.depth, before = 0, stub.launches
        with Passing(), Passing():
            run(registered, tensors, options)
        assert (Passing.depth, stub.launches) == (2, before + 1)


def test_traced_calls_are_in_the_trace(registered: Quick) -> None:
    tensors, options = made("plain")
    run(registered, tensors, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about sizes
        traced = torch.jit.trace(
            lambda q, k, v: run(registered, {"q": q, "k": k, "v": v}, options), (*tensors.values(),), check_trace=False
        )
    assert "spotbench::attention" in str(traced.graph)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (1, 0, 5, 5), (1, 2, 0, 5), (1, 2, 5, 0)])
def test_nothing_to_compute_is_zeros_of_the_right_shape(stub: Stub, quick: Quick, shape: tuple[int, ...]) -> None:
    batch, heads, seq_q, seq_k = shape
    q = torch.randn(batch, heads, seq_q, 64).bfloat16()
    k, v = (torch.randn(batch, heads, seq_k, 64).bfloat16() for _ in range(2))
    before = stub.launches
    for causal in (False, True):
        for _ in range(2):
            out, lse = quick.attention(q, k, v, causal, None, "top-left", True)
            theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            assert torch.equal(out, theirs)
            assert torch.equal(lse, torch.full((batch, heads, seq_q), -math.inf))
    given = torch.full_like(q, math.nan)
    run(quick, {"q": q, "k": k, "v": v, "out": given}, Options(names=("q", "k", "v", "out")))
    assert torch.equal(given, torch.zeros_like(q))
    assert stub.launches == before


@pytest.mark.parametrize(("total_q", "total_k"), [(0, 7), (7, 0), (0, 0)])
def test_packed_tensors_without_rows_are_zeros_too(quick: Quick, total_q: int, total_k: int) -> None:
    q, k = (torch.randn(total, 2, 64).bfloat16() for total in (total_q, total_k))
    starts = (torch.tensor([0, total], dtype=torch.int32) for total in (total_q, total_k))
    names = ("q", "k", "v", "q_starts", "k_starts")
    out, lse = quick.call((q, k, k.clone(), *starts), Options(return_lse=True, names=names, longest=(7, 7)))
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((2, total_q), -math.inf))


@pytest.mark.parametrize("kind", KINDS)
def test_meta_tensors_have_shapes_and_no_launch(stub: Stub, quick: Quick, kind: str) -> None:
    tensors, options = made(kind)
    before = stub.launches
    given = {name: x.to("meta") for name, x in tensors.items()}
    out, lse = run(quick, given, options._replace(return_lse=True))
    assert (out.device.type, out.shape, out.dtype) == ("meta", tensors["q"].shape, torch.bfloat16)
    assert tuple(lse.shape) == ((2, 64) if kind == "varlen" else (1, 2, 64))
    assert stub.launches == before
    with pytest.raises(ValueError, match="do not fit"):
        run(quick, {**given, "k": given["k"][:, :1]}, options)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x: x[..., :0], Unsupported, "head dimension must be 1 to 576, not 0"),
        (lambda x: x.to_sparse(), Unsupported, "q must be a dense tensor, not a sparse_coo one"),
        (lambda x: torch._neg_view(x), Unsupported, "resolve_neg"),
        (lambda x: x.numpy(force=True) if x.dtype == torch.float32 else [1], TypeError, "must be tensors"),
        (lambda x: x.transpose(2, 3), Unsupported, "last dimension of q must be contiguous"),
        (lambda x: x[0], ValueError, "dimensions"),
        (lambda x: x.repeat(1, 1, 1, 10), Unsupported, "head dimensions 1 to 576, not 640"),
    ],
)  # fmt: skip
def test_what_no_kernel_reads_is_refused_by_name(
    quick: Quick, change: Callable[[torch.Tensor], Any], error: type[Exception], words: str
) -> None:
    tensors = qkv()
    for _ in range(2):
        changed = change(tensors["q"])
        same = isinstance(changed, torch.Tensor) and changed.dim() == 4 and changed.layout == torch.strided
        rest = {name: change(tensors[name]) if same and not changed.is_neg() else tensors[name] for name in "kv"}
        with pytest.raises(error, match=words):
            run(quick, {"q": changed, **rest}, Options())
        run(quick, tensors, Options())


def test_the_output_is_as_wide_as_the_values(quick: Quick) -> None:
    q, k, v = qkv().values()
    for _ in range(3):
        out = run(quick, {"q": q, "k": k, "v": v[..., :32].contiguous()}, Options())
        assert isinstance(out, torch.Tensor)
        assert out.shape == (*q.shape[:3], 32)


def test_transforms_of_functions_are_refused_by_name(quick: Quick) -> None:
    q, k, v = (torch.stack([x, x]) for x in qkv().values())
    for _ in range(2):
        with pytest.raises(Unsupported, match="vmap"):
            torch.func.vmap(lambda a, b, c: quick.attention(a, b, c, False, None, "top-left", False))(q, k, v)
        with pytest.raises(Unsupported, match="vmap, grad or jvp"):
            torch.func.grad(lambda a: quick.attention(a, k[0], v[0], False, None, "top-left", False).sum())(q[0])  # type: ignore[union-attr]
        quick.attention(q[0], k[0], v[0], False, None, "top-left", False)


def test_options_of_the_wrong_kind_are_type_errors_with_the_right_one(engine: OnCpu) -> None:
    q, k, v = qkv().values()
    for wrong in (5, (1,), (1, 2, 3), ("a", 1), (1.5, 2)):
        with pytest.raises(TypeError, match=r"window must be \(left, right\)"):
            attention(q, k, v, window=wrong, engine=engine)  # type: ignore[arg-type]
    attention(q, k, v, window=[1, 2], engine=engine)  # type: ignore[arg-type]
    tensors = packed()
    with pytest.raises(TypeError, match="max_seqlen_k must be an int, not a Tensor"):
        attention_varlen(*tensors.values(), 34, torch.tensor(34), engine=engine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_seqlen_q must not be negative"):
        attention_varlen(*tensors.values(), -1, 34, engine=engine)


def test_an_output_that_shares_memory_is_refused_before_and_after_a_plan_is_known(quick: Quick) -> None:
    options = Options(names=("q", "k", "v", "out"))
    tensors = qkv()
    buffer = torch.zeros(4 * 2 * 64 * 64).bfloat16()
    for _ in range(2):
        run(quick, {**tensors, "out": torch.empty_like(tensors["q"])}, options)
        for name in "qkv":
            with pytest.raises(Unsupported, match=f"out and {name} share memory"):
                run(quick, {**tensors, "out": tensors[name]}, options)
        partly = {**tensors, "v": buffer[: 2 * 64 * 64].view(1, 2, 64, 64)}
        for shift, shares in ((64, True), (2 * 64 * 64 - 8, True), (2 * 64 * 64, False)):
            out = buffer[shift : shift + 2 * 64 * 64].view(1, 2, 64, 64)
            if shares:
                with pytest.raises(Unsupported, match="out and v share memory"):
                    run(quick, {**partly, "out": out}, options)
            else:
                assert run(quick, {**partly, "out": out}, options) is out
        with pytest.raises(Unsupported, match="elements of out share memory"):
            run(quick, {**tensors, "out": torch.empty(1, 1, 1, 64).bfloat16().expand(1, 2, 64, 64)}, options)


def test_views_into_one_packed_tensor_do_not_share(stub: Stub, quick: Quick) -> None:
    whole = torch.randn(2, 50, 4, 3, 64).bfloat16()  # batch, sequence, (q, k, v, out), head
    q, k, v, out = (whole[:, :, number].transpose(1, 2) for number in range(4))
    for _ in range(3):
        before = stub.launches
        assert run(quick, {"q": q, "k": k, "v": v, "out": out}, Options(names=("q", "k", "v", "out"))) is out
        assert stub.launches == before + 1


def test_sharing_is_told_as_enumeration_tells_it() -> None:
    generator = torch.Generator().manual_seed(3)

    def number(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=generator))

    shared = apart = exact = 0
    for _ in range(3000):
        sizes, strides, reach = [], [], 0
        for _ in range(3):
            size, stride = number(4), reach + number(3)
            sizes.append(size)
            strides.append(stride)
            reach += stride * (size - 1)
        whole = torch.zeros(2000)
        a = whole.as_strided(sizes, strides)
        b = whole.as_strided([number(4) for _ in range(3)], strides, number(40) - 1)
        places = [set((x.as_strided(x.shape, x.stride()).storage_offset() + index_of(x)).tolist()) for x in (a, b)]
        assert not overlaps_itself(a)
        truth = bool(places[0] & places[1])
        shared, apart = shared + truth, apart + (not truth)
        assert may_share(a, b) >= truth, (a.shape, b.shape, strides, b.storage_offset())
        exact += strides_nest([max(pair) for pair in zip(a.shape, b.shape, strict=True)], strides)
        if truth != may_share(a, b):
            assert not strides_nest([max(pair) for pair in zip(a.shape, b.shape, strict=True)], strides)
    assert exact > 500
    assert min(shared, apart) > 300


def index_of(x: torch.Tensor) -> torch.Tensor:
    """The offsets of a tensor's elements from its first."""
    total = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        total = (total[:, None] + torch.arange(size)[None] * stride).flatten()
    return total


@pytest.mark.parametrize(
    ("scale", "keep", "flip"), [(-0.5, 0xFFFFFFFF, 0x80008000), (0.0, 0, 0), (0, 0, 0), (1e-60, 0, 0)]
)
def test_scales_that_are_not_positive_change_the_bits_of_q_as_it_is_read(
    stub: Stub, quick: Quick, scale: float, keep: int, flip: int
) -> None:
    for tensors, options in (made("plain"), made("mask"), made("varlen")):
        for _ in range(2):
            run(quick, tensors, options._replace(scale=scale))
            given = stub.launch().argument(0, Parameters)
            assert stub.launch().name.startswith(b"general")
            assert (given.q_keep, given.q_flip) == (keep, flip)
            assert given.scale_log2 > 0.0
            run(quick, tensors, options)
