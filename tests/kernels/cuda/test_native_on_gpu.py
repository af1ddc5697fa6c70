"""The compiled function of autograd on a GPU: the bits of Python's way, on any stream, in graphs, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from kernels.attention.cuda import native, operator
from kernels.attention.cuda.engine import default_cache, engine_of
from kernels.attention.cuda.native_plans import Native
from tests.kernels.cuda.on_gpu import DEV, ON_GPU
from tests.kernels.cuda.test_on_gpu import randn

pytestmark = ON_GPU

SHAPES = ((2, 8, 128, 64), (1, 4, 1000, 64), (2, 4, 600, 128), (1, 2, 333, 96))
Pass = Callable[..., list[torch.Tensor]]


@pytest.fixture(scope="module")
def ways() -> Iterator[tuple[Pass, Pass]]:
    """Forward and backward by Python, and by the compiled function; both deterministic but for dQ's last bits."""
    stream = native.stream_function()
    if stream is None:
        pytest.skip("this PyTorch does not say its stream in C")
    found = operator.compiled()
    if found is None:
        native.load(native.build(default_cache()))
        found = Native(engine_of, operator.quick_backward.compute, stream)
    yield partial(passed, None), partial(passed, found)


def passed(compiled: Native | None, causal: bool, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients."""
    before, own = operator.quick.differentiate, operator.quick.plans
    by = compiled and compiled.call
    operator.quick.differentiate = operator.differentiable_by(operator.quick, operator.quick_backward.compute, by)
    own.wanting.clear()
    own.young.clear()
    try:
        *qkv, slope = tensors
        for _ in range(3):
            out = operator.attention(*qkv, causal=causal)
            made = [out, *torch.autograd.grad(out, qkv, slope)]
        return made
    finally:
        operator.quick.differentiate = before


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
def test_compiled_passes_give_the_bits_of_python_s(ways: tuple[Pass, Pass], causal: bool) -> None:
    for number, shape in enumerate(SHAPES):
        tensors = draw(shape, number)
        assert_same(ways[1](causal, *tensors), ways[0](causal, *tensors))


def test_streams_and_threads_do_not_disturb_each_other(ways: tuple[Pass, Pass]) -> None:
    wrong: list[str] = []
    wanted = [ways[0](True, *draw(shape, number)) for number, shape in enumerate(SHAPES)]
    operator.quick.differentiate = operator.differentiable_by(
        operator.quick, operator.quick_backward.compute, operator.by_compiled
    )

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


def test_a_captured_training_step_gives_the_same_again_and_again(ways: tuple[Pass, Pass]) -> None:
    for number, shape in enumerate(SHAPES):
        *qkv, slope = tensors = draw(shape, number)
        wanted = ways[1](True, *tensors)
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
    assert DEV == "cuda"
