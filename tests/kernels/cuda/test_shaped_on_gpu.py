"""Capped scores, slopes, sinks and wide heads on a GPU, by the public calls, with gradients, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.attention.cuda import attention, attention_paged, attention_varlen
from kernels.attention.cuda.errors import Unsupported
from tests.kernels.cuda.on_gpu import DEV, FROBENIUS, ON_GPU
from tests.kernels.cuda.shaped import CASES, Shaped, relative

pytestmark = ON_GPU

HEADS = (2, 8, 2, 500, 700)
LARGER = {
    "softcap": Shaped((*HEADS, 128, 128), softcap=2.0, causal=True, alignment="bottom-right", device=DEV),
    "alibi": Shaped((*HEADS, 64, 64), torch.float16, slopes=True, causal=True, device=DEV),
    "sinks-on-hoppers-kernel": Shaped((*HEADS, 128, 128), sinks=True, causal=True, device=DEV),
    "sinks-in-a-window": Shaped((*HEADS, 64, 64), sinks=True, causal=True, window=(100, None), device=DEV),
    "sinks-of-one-query": Shaped((3, 32, 4, 1, 3000, 128, 128), sinks=True, device=DEV),
    "192-and-128": Shaped((*HEADS, 192, 128), causal=True, device=DEV),
    "512": Shaped((1, 2, 1, 300, 400, 512, 512), causal=True, device=DEV),
    "absorbed": Shaped((2, 128, 1, 1, 3000, 576, 512), device=DEV),
}
EVERY = {**{f"small-{name}": replace(case, device=DEV) for name, case in CASES.items()}, **LARGER}


def called(case: Shaped, given: dict[str, torch.Tensor], **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = attention(**given, **case.options, return_lse=True, **more)
    return out, lse


@pytest.mark.parametrize("name", EVERY)
def test_outputs_and_gradients_agree_with_float64(name: str) -> None:
    case = EVERY[name]
    given = case.draw()
    dout = case.slope(given)
    differentiable = max(case.sizes[5:]) <= 512
    want, want_lse, exact = case.exact(given, dout)
    leaves = [x.requires_grad_() for key, x in given.items() if key in exact] if differentiable else []
    for _ in range(3):  # bound; from a plan; and again
        out, lse = called(case, given)
        assert relative(out, want) <= FROBENIUS[case.dtype]
        assert torch.equal(lse.isneginf(), want_lse.isneginf())
        assert (lse.double() - want_lse)[want_lse.isfinite()].abs().max() < 1e-3
        found = torch.autograd.grad(out, leaves, dout) if differentiable else ()
        for key, one in zip(exact, found, strict=False):
            assert relative(one, exact[key]) <= FROBENIUS[case.dtype], key


def test_a_gradient_of_the_sums_reaches_the_sinks() -> None:
    case = LARGER["sinks-on-hoppers-kernel"]
    given = case.draw()
    dout, dlse = case.slope(given), torch.randn(2, 8, 500, device=DEV)
    *_, exact = case.exact(given, dout, dlse)
    leaves = [given[key].requires_grad_() for key in exact]
    for key, one in zip(exact, torch.autograd.grad(called(case, given), leaves, (dout, dlse)), strict=True):
        assert relative(one, exact[key]) <= FROBENIUS[case.dtype], key


def test_packed_sequences_have_the_same_features_and_gradients() -> None:
    case = Shaped(
        (1, 4, 2, 300, 300, 96, 64),
        softcap=2.0,
        causal=True,
        alignment="bottom-right",
        slopes=True,
        sinks=True,
        device=DEV,
    )
    given = case.draw()
    lengths = (100, 0, 37, 163)
    starts = torch.tensor([0, 100, 100, 137, 300], dtype=torch.int32, device=DEV)
    packed = {key: x[0].transpose(0, 1).contiguous() if x.dim() == 4 else x for key, x in given.items()}
    packed["alibi_slopes"] = given["alibi_slopes"][0]
    leaves = [packed[key].requires_grad_() for key in ("q", "k", "v", "sinks")]
    q, k, v, sinks = leaves
    rest = {"softcap": case.softcap, "alibi_slopes": packed["alibi_slopes"], "sinks": sinks, "causal": True}
    out = attention_varlen(q, k, v, starts, starts, 163, 163, **rest)
    assert isinstance(out, torch.Tensor)
    dout = torch.randn(out.shape, device=DEV).to(out.dtype)
    dq, dk, dv, dsinks = torch.autograd.grad(out, leaves, dout)
    total, at = torch.zeros(4, dtype=torch.float64, device=DEV), 0
    for length in filter(None, lengths):
        own = slice(at, at + length)
        at += length
        one = {key: packed[key].detach()[own].transpose(0, 1)[None] for key in "qkv"}
        one |= {"alibi_slopes": given["alibi_slopes"], "sinks": given["sinks"].detach()}
        want, _, exact = case.exact(one, dout[own].transpose(0, 1)[None])
        for got, right in ((out, want), (dq, exact["q"]), (dk, exact["k"]), (dv, exact["v"])):
            assert relative(got[own].transpose(0, 1)[None], right) <= FROBENIUS[case.dtype]
        total += exact["sinks"]
    assert relative(dsinks, total) <= FROBENIUS[case.dtype]


@pytest.mark.parametrize(("queries", "width", "value_width"), [(1, 128, 128), (5, 576, 512), (200, 192, 128)])
def test_pages_have_the_same_features(queries: int, width: int, value_width: int) -> None:
    case = Shaped(
        (2, 16, 1, queries, 640, width, value_width),
        causal=True,
        alignment="bottom-right",
        softcap=3.0,
        sinks=True,
        device=DEV,
    )
    given = case.draw()
    table = torch.randperm(80, generator=torch.Generator().manual_seed(1)).to(DEV, torch.int32).view(2, 40)
    caches = []
    for key in "kv":
        cache = torch.zeros(80, 16, 1, given[key].shape[-1], dtype=case.dtype, device=DEV)
        cache[table.long()] = given[key].transpose(1, 2).reshape(2, 40, 16, 1, -1)
        caches.append(cache)
    used = torch.tensor([640, 640], dtype=torch.int32, device=DEV)
    q = given["q"].transpose(1, 2).contiguous()
    for _ in range(3):
        out = attention_paged(q, *caches, table, used, causal=True, softcap=3.0, sinks=given["sinks"])
        assert isinstance(out, torch.Tensor)
        assert relative(out.transpose(1, 2), case.exact(given)[0]) <= FROBENIUS[case.dtype]


def test_rows_of_a_problem_without_keys_have_their_sinks_for_sums() -> None:
    q, k = (torch.randn(1, 2, rows, 64, device=DEV, dtype=torch.float16) for rows in (5, 0))
    sinks = torch.tensor([1.0, -2.0], device=DEV)
    out, lse = attention(q, k, k, sinks=sinks, return_lse=True)
    assert not out.any()
    assert torch.equal(lse, sinks[None, :, None].expand(1, 2, 5))


def test_the_compiler_sees_one_operator_with_gradients() -> None:
    case = LARGER["sinks-on-hoppers-kernel"]
    given = case.draw()
    given["alibi_slopes"] = torch.rand(8, device=DEV)
    leaves = [given[key].requires_grad_() for key in ("q", "k", "v", "sinks")]
    plain = attention(**given, causal=True, softcap=5.0)
    compiled = torch.compile(
        lambda: attention(**given, causal=True, softcap=5.0), backend="aot_eager", fullgraph=True
    )()
    assert torch.equal(plain, compiled)
    dout = case.slope(given)
    for one, other in zip(*(torch.autograd.grad(x, leaves, dout) for x in (plain, compiled)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"softcap": -1.0}, "softcap must be positive"),
        ({"softcap": "1"}, "softcap must be a number"),
        ({"alibi_slopes": torch.zeros(3, device=DEV if torch.cuda.is_available() else "cpu")}, "alibi_slopes must be"),
        ({"sinks": torch.zeros(2).half()}, "sinks must be float32"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    q = torch.randn(1, 2, 8, 64, device=DEV, dtype=torch.float16)
    with pytest.raises((ValueError, TypeError, Unsupported), match=words):
        attention(q, q, q, **changes)


def test_no_gradient_of_the_widest_heads_or_of_slopes_is_promised() -> None:
    case = LARGER["absorbed"]
    given = case.draw()
    out, _ = called(case, {**given, "q": given["q"].requires_grad_()})
    with pytest.raises(Unsupported, match="gradients with head dimensions 576 of K and 512 of V"):
        out.sum().backward()
    q = torch.randn(1, 2, 8, 64, device=DEV, dtype=torch.float16)
    with pytest.raises(Unsupported, match="no gradient of slopes"):
        attention(q, q, q, alibi_slopes=torch.ones(2, device=DEV, requires_grad=True))
