"""The compiled function of autograd on a GPU: the bits of Python's way, on any stream, in graphs, in threads."""

from __future__ import annotations

import threading

import pytest
import torch

from kernels.attention.cuda import operator
from kernels.attention.cuda.calls import native
from kernels.attention.cuda.calls.direct import differentiable_by
from kernels.attention.cuda.run.engine import default_cache
from tests.kernels.cuda.on_gpu import ON_GPU, randn

pytestmark = ON_GPU

SHAPES = ((2, 8, 128, 64), (1, 4, 1000, 64), (2, 4, 600, 128), (1, 2, 333, 96))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The compiled function is there for whoever computes gradients."""
    native.build_native(default_cache())
    if operator.compiled_operator() is None:  # it was not there when somebody asked before
        operator.compiled_operator.cache_clear()
    if operator.compiled_operator() is None:
        pytest.skip("this PyTorch does not say its stream in C")


def passed(causal: bool, *tensors: torch.Tensor, by_python: bool = False) -> list[torch.Tensor]:
    """The output and the gradients, of the third pass of its kind."""
    quick, before = operator.quick, operator.quick.differentiate
    compute = operator.quick_backward.compute
    quick.differentiate = differentiable_by(quick, compute, None if by_python else operator.by_compiled)
    quick.plans.wanting.clear()
    quick.plans.young.clear()
    *qkv, slope = tensors
    try:
        for _ in range(3):
            out = operator.attention(*qkv, causal=causal)
            made = [out, *torch.autograd.grad(out, qkv, slope)]
        return made
    finally:
        quick.differentiate = before


def draw(shape: tuple[int, ...], seed: int) -> list[torch.Tensor]:
    drawn = [randn(*shape, dtype=torch.bfloat16, seed=4 * seed + i) for i in range(4)]
    return [*(x.requires_grad_() for x in drawn[:3]), drawn[3]]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if number == 1:  # dQ: its sums are added in any order
            assert torch.allclose(one.float(), other.float(), atol=2e-2, rtol=2e-2)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_compiled_passes_give_the_bits_of_python_s(causal: bool) -> None:
    for number, shape in enumerate(SHAPES):
        tensors = draw(shape, number)
        assert_same(passed(causal, *tensors), passed(causal, *tensors, by_python=True))


def test_streams_and_threads_do_not_disturb_each_other() -> None:
    wrong: list[str] = []
    wanted = [passed(True, *draw(shape, number), by_python=True) for number, shape in enumerate(SHAPES)]

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            *qkv, slope = draw(SHAPES[number], number)
            for _ in range(30):
                out = operator.attention(*qkv, causal=True)
                made = [out, *torch.autograd.grad(out, qkv, slope)]
                torch.cuda.current_stream().synchronize()
                if not all(torch.equal(made[i], wanted[number][i]) for i in (0, 2, 3)):
                    wrong.append(f"thread {number}")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(SHAPES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_captured_training_step_gives_the_same_again_and_again() -> None:
    for number, shape in enumerate(SHAPES):
        *qkv, slope = tensors = draw(shape, number)
        # Detached: a graph that is kept holds nodes of the stream where it was made, and a capture must not wait for that.
        wanted = [x.detach() for x in passed(True, *tensors)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = operator.attention(*qkv, causal=True)
            made = [out, *torch.autograd.grad(out, qkv, slope)]
        for _ in range(3):
            for x in made:
                x.detach().zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert_same(made, wanted)
