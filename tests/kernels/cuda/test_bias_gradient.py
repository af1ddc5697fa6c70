"""The gradient of a mask that is added to the scores, on the CPU: the kernel's own source and plan, against float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import Shaping, problem_of, tensor_layout
from kernels.attention.cuda.plan.variants import CHIPS
from tests.kernels.cuda.backward_runner import compile_backward
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import limits, seen_keys
from tests.kernels.cuda.shaped import relative
from tests.kernels.cuda.simt_ways import HostBuffers, Program

pytestmark = WITH_COMPILER

MACHINE = Machine(next(chip for chip in CHIPS if chip.name == "hopper"), 132, 50 << 20)
WAY = PairBackward(MACHINE)
B, H, H_KV, ROWS, KEYS, WIDTH = 2, 4, 2, 70, 90, 64
Tensors = dict[str, torch.Tensor]


def draw(mask: tuple[int, ...]) -> Tensors:
    generator = torch.Generator().manual_seed(len(mask))
    shapes = {"q": (B, ROWS, H), "k": (B, KEYS, H_KV), "v": (B, KEYS, H_KV), "dout": (B, ROWS, H)}
    made = {
        name: torch.randn(*shape, WIDTH, generator=generator).half().transpose(1, 2) for name, shape in shapes.items()
    }
    return {**made, "mask": torch.randn(*mask, generator=generator)}


def exact(given: Tensors, softcap: float, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, log-sum-exp, and the gradient of the mask in its full shape."""
    q, k, v, dout = (given[name].double() for name in ("q", "k", "v", "dout"))
    bias = given["mask"].double().expand(B, H, ROWS, KEYS).clone().requires_grad_()
    scores = q @ k.repeat_interleave(H // H_KV, 1).mT / math.sqrt(WIDTH)
    scores = (softcap * torch.tanh(scores / softcap) if softcap else scores) + bias
    scores = scores.masked_fill(~seen_keys(q, k, *limits(q, k, causal=causal, alignment="bottom-right")), -math.inf)
    out = torch.softmax(scores, -1) @ v.repeat_interleave(H // H_KV, 1)
    [gradient] = torch.autograd.grad(out, bias, dout)
    return out.detach(), torch.logsumexp(scores, -1).detach(), gradient


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    entries = [PrepareKernel("float16", WIDTH, True, False)]
    for softcap in (0.0, 2.0):
        steps, _ = plan(draw((ROWS, KEYS)), softcap, causal=False)
        entries.append(steps[1].entry)  # type: ignore[arg-type]
    return compile_backward(entries, 800, tmp_path_factory.mktemp("bias"))


def plan(given: Tensors, softcap: float, *, causal: bool) -> tuple[list, list[torch.Tensor]]:  # type: ignore[type-arg]
    """The launches, and all tensors that they use; the first of them is the gradient, poisoned."""
    want, sums, _ = exact(given, softcap, causal=causal)
    out, lse, mask = want.half(), sums.float().contiguous(), given["mask"]
    sizes = (*(1,) * (4 - mask.dim()), *mask.shape)
    made = torch.full((*sizes[:2], ROWS, KEYS), math.nan)
    posed = problem_of(
        *(given[name] for name in "qkv"), out, causal=causal, alignment="bottom-right", mask=mask, shaping=Shaping(softcap)
    )  # fmt: skip
    places = Gradients(*(tensor_layout(given[name], name) for name in ("dout", "q", "k", "v")))
    problem = BackwardProblem(posed, places, 1 / math.sqrt(WIDTH), lse.data_ptr())
    buffers = HostBuffers(0)
    steps = WAY.bias_steps(problem, tensor_layout(made, "made"), buffers)  # type: ignore[arg-type]
    return steps, [made, *given.values(), out, lse, *buffers.memory]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", [(B, H, ROWS, KEYS), (H, ROWS, KEYS), (B, 1, ROWS, KEYS), (ROWS, KEYS), (1, KEYS)])
def test_a_mask_that_is_added_has_the_exact_gradient_in_every_broadcast_form(
    program: Program, tmp_path: Path, mask: tuple[int, ...], softcap: float, causal: bool
) -> None:
    given = draw(mask)
    steps, tensors = plan(given, softcap, causal=causal)
    program.run(steps, tensors, tmp_path, eager=causal, reverse=causal)
    made, (*_, want) = tensors[0], exact(given, softcap, causal=causal)
    assert bool(made.isfinite().all()), "an element was not written, or is not a number"
    assert relative(made, want.sum_to_size(made.shape)) < 1.2e-3
