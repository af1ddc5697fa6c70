"""How autograd sees attention: which gradients there are, what of, and what is refused. Computed by the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernels.attention.cuda.calls.gradients import kernels_of
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.calls.registered import as_operator
from kernels.attention.cuda.errors import Unsupported
from tests.kernels.cuda.backward_runner import Three, seen_of

Pair = tuple[torch.Tensor, torch.Tensor]


def weights_of(
    q: torch.Tensor, k: torch.Tensor, scale: float, options: Options, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and log-sum-exps."""
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale
    seen = seen_of(q.shape[2], k.shape[2], options)
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0), torch.logsumexp(scores, -1)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    alignment: str,
    left: int,
    right: int,
    mask: torch.Tensor | None,
) -> Pair:
    """The operator by the reference, in the type that it is given."""
    weights, lse = weights_of(q, k, scale, Options(causal, scale, alignment, window=(left, right)), mask)
    return weights @ v.repeat_interleave(q.shape[1] // k.shape[1], 1), lse


def bias(
    dout: torch.Tensor, dlse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor, *given: Any
) -> torch.Tensor:
    """The gradient of a mask by the reference."""
    del lse
    q, k, v, mask, _, causal, scale, alignment, left, right, *_ = given
    weights, _ = weights_of(q, k, scale, Options(causal, scale, alignment, window=(left, right)), mask)
    delta = (dout * out).sum(-1) - (0 if dlse is None else dlse)
    slopes: torch.Tensor = weights * (dout @ v.repeat_interleave(q.shape[1] // k.shape[1], 1).mT - delta[..., None])
    return slopes.sum_to_size(mask.shape)


class Recorded:
    """Computes gradients by the reference, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Options, torch.Tensor | None]] = []

    def __call__(
        self,
        tensors: dict[str, torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
        options: Options,
        dlse: torch.Tensor | None = None,
    ) -> Three:
        self.calls.append((options, dlse))
        assert not torch.is_grad_enabled()
        q, k, v = (tensors[name] for name in "qkv")
        assert options.scale is not None
        weights, _ = weights_of(q, k, options.scale, options, tensors.get("mask"))
        group = q.shape[1] // k.shape[1]
        delta = (dout * out).sum(-1) - (0 if dlse is None else dlse)
        slopes = weights * (dout @ v.repeat_interleave(group, 1).mT - delta[..., None])
        dk, dv = slopes.mT @ q * options.scale, weights.mT @ dout
        together = [x.unflatten(1, (k.shape[1], group)).sum(2) for x in (dk, dv)]
        return slopes @ k.repeat_interleave(group, 1) * options.scale, together[0], together[1]


@pytest.fixture
def computed() -> Iterator[Recorded]:
    """The operators have kernels for the CPU."""
    library, backward = torch.library.Library("spotbench", "IMPL"), Recorded()
    library.impl("attention", forward, "CPU")
    for name, kernel in kernels_of(backward).items():
        library.impl(name, kernel, "CPU")
    library.impl("attention_bias_backward", bias, "CPU")
    yield backward
    library._destroy()


def double(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def call(options: Options, **tensors: torch.Tensor) -> Any:
    return as_operator(tensors, options)


@pytest.mark.parametrize(
    "options",
    [
        Options(), Options(True, alignment="bottom-right"), Options(True, 0.3), Options(window=(2, 1)),
        Options(return_lse=True),
    ],
    ids=["plain", "causal", "scale", "window", "lse"],
)  # fmt: skip
def test_gradients_are_those_that_differences_show(computed: Recorded, options: Options) -> None:
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    assert torch.autograd.gradcheck(lambda q, k, v: call(options, q=q, k=k, v=v), (q, k, v))
    assert computed.calls


@pytest.mark.parametrize("boolean", [True, False])
def test_a_mask_is_part_of_the_gradients(computed: Recorded, boolean: bool) -> None:
    mask: torch.Tensor = double(1, 2, 4, 5, seed=4).detach()
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    mask = mask > -0.5 if boolean else mask
    assert torch.autograd.gradcheck(lambda q, k, v: call(Options(), q=q, k=k, v=v, mask=mask), (q, k, v))


def test_only_what_wants_a_gradient_gets_one(computed: Recorded) -> None:
    q, k, v = (double(1, 2, 4, 3, seed=seed) for seed in range(3))
    call(Options(), q=q.detach(), k=k, v=v.detach()).sum().backward()
    assert k.grad is not None
    assert q.grad is None
    assert len(computed.calls) == 1


def test_without_gradients_nothing_is_kept(computed: Recorded) -> None:
    q, k, v = (double(1, 2, 4, 3, seed=seed) for seed in range(3))
    with torch.no_grad():
        assert call(Options(), q=q, k=k, v=v).grad_fn is None
    assert call(Options(), q=q.detach(), k=k.detach(), v=v.detach()).grad_fn is None


def test_the_log_sum_exp_alone_has_a_gradient(computed: Recorded) -> None:
    q, k, v = (double(1, 2, 4, 3, seed=seed) for seed in range(3))
    _, lse = call(Options(return_lse=True), q=q, k=k, v=v)
    lse.sum().backward()
    weights = torch.softmax(q.detach() @ k.detach().mT / math.sqrt(3), -1)
    assert q.grad is not None
    assert torch.allclose(q.grad, weights @ k.detach() / math.sqrt(3))
    assert v.grad is not None
    assert not v.grad.any()


def test_heads_shared_by_expansion_get_the_sum(computed: Recorded) -> None:
    q, k, v = double(1, 4, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    call(Options(), q=q, k=k.expand(1, 4, 5, 3), v=v.expand(1, 4, 5, 3)).sum().backward()
    spread, k.grad = k.grad, None
    call(Options(), q=q, k=k, v=v).sum().backward()
    assert spread is not None
    assert k.grad is not None
    assert torch.allclose(spread, k.grad)


def test_a_second_derivative_is_refused(computed: Recorded) -> None:
    q, k, v = (double(1, 2, 4, 3, seed=seed) for seed in range(3))
    out = call(Options(), q=q, k=k, v=v)
    with pytest.raises(Unsupported, match="second backward pass"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 4, 5), (2, 4, 5), (4, 1)])
def test_a_mask_that_is_added_has_the_gradient_of_the_definition(
    computed: Recorded, shape: tuple[int, ...], compiled: bool
) -> None:
    sizes = ((2, 2, 4, 3), (2, 1, 5, 3), (2, 1, 5, 3), shape)
    wanted, found = ([double(*size, seed=seed) for seed, size in enumerate(sizes)] for _ in range(2))
    forward(*wanted[:3], True, 0.5, "bottom-right", -1, -1, wanted[3])[0].square().sum().backward()

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.spotbench.attention(q, k, v, True, 0.5, "bottom-right", -1, -1, mask)[0]
        return result

    torch._dynamo.reset()
    run = torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function
    run(*found).square().sum().backward()
    for one, other in zip(wanted, found, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_are_the_same_under_the_compiler(computed: Recorded, backend: str) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.spotbench.attention(q, k, v, True, 0.5, "top-left", -1, -1, None)[0] * 2
        return result

    torch._dynamo.reset()
    wanted, found = ([double(1, 2, 4, 3, seed=seed) for seed in range(3)] for _ in range(2))
    function(*wanted).square().sum().backward()
    compiled: Callable[..., torch.Tensor] = torch.compile(function, backend=backend, fullgraph=True)
    compiled(*found).square().sum().backward()
    for one, other in zip(wanted, found, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
