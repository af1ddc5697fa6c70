"""What a remembered backward pass launches, checked launch by launch against a libcuda of our own, and who gets it."""

from __future__ import annotations

import math
import random
import weakref
from typing import Any

import pytest
import torch

from kernels.attention.cuda.backward.kernels import POINTERS, BackwardParameters
from kernels.attention.cuda.calls import gradients, registered
from kernels.attention.cuda.calls.backward import bind_backward
from kernels.attention.cuda.calls.backward_quick import QuickBackward, Three
from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.direct import differentiable_by
from kernels.attention.cuda.calls.quick import Options, Quick
from kernels.attention.cuda.errors import Unsupported
from tests.kernels.cuda.counted import Watching
from tests.kernels.cuda.stub_driver import WITH_STUB, Launch, Map, OnCpu, Stub
from tests.kernels.cuda.test_gradients import Recorded, double, forward

pytestmark = WITH_STUB

OWN = ("dq", "dk", "dv", "shift", "delta", "sums", "progress", "counter")
"""Pointers that each pass has of its own."""


class Counted:
    """`bind_backward`, and how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *given: Any, **more: Any) -> Any:
        self.count += 1
        return bind_backward(*given, **more)


@pytest.fixture(params=[False, True], ids=["pair", "hopper"])
def engine(request: pytest.FixtureRequest, stub: Stub) -> OnCpu:
    return OnCpu(hopper=request.param)


@pytest.fixture
def bound() -> Counted:
    return Counted()


@pytest.fixture
def quick_backward(engine: OnCpu, bound: Counted) -> QuickBackward:
    return QuickBackward(lambda device: engine, bound)


def draw(batch: int, heads: int, kv_heads: int, seq: int, head_dim: int, *, dlse: bool = False) -> tuple[Any, ...]:
    """q, k, v, out, lse, dout and, if wanted, dlse."""
    sizes = [(batch, count, seq, head_dim) for count in (heads, kv_heads, kv_heads, heads, heads)]
    q, k, v, out, dout = (torch.randn(size).bfloat16() for size in sizes)
    lse = torch.randn(batch, heads, seq)
    return (q, k, v, out, lse, dout, *([torch.randn(batch, heads, seq)] if dlse else []))


def parameters(launch: Launch) -> BackwardParameters:
    found: BackwardParameters = launch.argument(launch.count - 1, BackwardParameters)
    return found


def assert_is_of(launch: Launch, given: tuple[torch.Tensor, ...], made: Three) -> None:
    """Every address of the launch is one of the pass's own tensors, or of its workspace."""
    found = parameters(launch)
    want = dict(zip(("q", "k", "v", "out", "lse", "dout", "dlse"), given, strict=False))
    want |= dict(zip(("dq", "dk", "dv"), made, strict=True))
    for name in POINTERS:
        if name not in OWN[3:]:
            assert (getattr(found, name) or 0) == (want[name].data_ptr() if name in want else 0), name
    for number, name in enumerate(("q", "k", "v", "dout", "out")[: launch.count - 1]):
        assert launch.argument(number, Map).address == want[name].data_ptr()


def like(launch: Launch) -> tuple[object, ...]:
    """A launch without its addresses."""
    found = parameters(launch)
    for name in POINTERS:
        setattr(found, name, bool(getattr(found, name)))
    attributes = launch.dependent, launch.cooperative
    return launch.name, tuple(launch.grid), launch.shared, attributes, launch.stream, bytes(found)


def test_a_remembered_pass_launches_what_a_fresh_one_would(
    stub: Stub, engine: OnCpu, quick_backward: QuickBackward, bound: Counted
) -> None:
    chance = random.Random(3)
    shapes = [(2, 4, 2, 64, 64), (1, 2, 2, 600, 128), (3, 24, 24, 300, 64), (1, 4, 1, 33, 40), (1, 1, 1, 20, 200)]
    for _ in range(60):
        given = draw(*chance.choice(shapes), dlse=chance.random() < 0.3)
        options = Options(chance.random() < 0.5, chance.choice((None, 0.25)), return_lse=True)
        before = stub.launches
        made = quick_backward.compute(given, options)
        launches = [stub.launch(n) for n in range(before, stub.launches)]
        for launch in launches:
            assert_is_of(launch, given, made)
        sums = [parameters(one) for one in launches]
        assert len({(one.shift, one.delta, one.sums, one.progress) for one in sums}) == 1
        workspace = {one for one in (sums[0].shift, sums[0].delta, sums[0].sums, sums[0].progress) if one}
        assert len(workspace) == (0 if len(launches) == 1 else 2 + bool(sums[0].sums) + bool(sums[0].progress))
        middle, known = stub.launches, bound.count
        tensors = dict(zip("qkv", given, strict=False))
        dlse = given[6] if len(given) > 6 else None
        bind_backward(tensors, given[3], given[4], given[5], made, options, dlse=dlse, engine=engine)()
        assert [like(one) for one in launches] == [like(stub.launch(n)) for n in range(middle, stub.launches)]
        assert bound.count == known
    assert bound.count <= len(shapes) * 2 * 2 * 2


def test_a_pass_like_the_one_before_is_not_bound_again_and_keeps_nothing_of_it(
    quick_backward: QuickBackward, bound: Counted
) -> None:
    first = draw(1, 2, 2, 64, 64)
    quick_backward.compute(first, Options(return_lse=True))
    gone = [weakref.ref(x) for x in first]
    del first
    assert not any(one() is not None for one in gone)
    for wants in (False, False, True, True):
        given = draw(1, 2, 2, 64, 64)
        for x in given[:3]:
            x.requires_grad_(wants)
        with torch.no_grad():
            quick_backward.compute(given, Options(return_lse=True))
    assert bound.count == 2  # one for tensors that want gradients, one for those that do not


def test_the_gradient_that_autograd_makes_of_a_sum_is_copied_and_computed(
    stub: Stub, quick_backward: QuickBackward, bound: Counted
) -> None:
    for _ in range(2):
        given = draw(1, 2, 2, 64, 64)
        given = (*given[:5], torch.ones(1).bfloat16().expand_as(given[0]))
        quick_backward.compute(given, Options(return_lse=True))
        assert parameters(stub.launch()).dout not in (None, given[5].data_ptr())
    assert bound.count == 1


def test_a_tensor_that_misses_its_boundary_gets_a_plan_that_says_so(stub: Stub, quick_backward: QuickBackward) -> None:
    given = draw(1, 2, 2, 64, 64)
    quick_backward.compute(given, Options(return_lse=True))
    crooked = torch.empty(given[0].numel() + 1).bfloat16()[1:].view_as(given[0])
    quick_backward.compute((crooked, *given[1:]), Options(return_lse=True))
    assert b"scalar" in stub.launch().name


def test_streams_and_captures_have_counters_of_their_own(stub: Stub, bound: Counted) -> None:
    engine = OnCpu(hopper=True)
    quick_backward = QuickBackward(lambda device: engine, bound)

    def counter() -> int:
        quick_backward.compute(draw(1, 40, 40, 600, 64), Options(return_lse=True))
        return int(parameters(stub.launch(stub.launches - 2)).counter)

    first, again = counter(), counter()
    engine.host.stream = 0x2000
    other = counter()
    with stub.capture(engine.host):
        captured = [counter() for _ in range(3)]
    assert first == again
    assert len({first, other, *captured}) == 5
    engine.host.stream = 0x1000
    assert counter() == first
    assert bound.count == 2 + len(captured)


def test_a_pass_over_few_keys_is_one_stateless_launch_on_any_stream_or_capture(
    stub: Stub, engine: OnCpu, quick_backward: QuickBackward, bound: Counted
) -> None:
    def launched() -> None:
        given, before = draw(2, 8, 8, 128, 64), stub.launches
        made = quick_backward.compute(given, Options(True, return_lse=True))
        assert stub.launches - before == 1
        launch = stub.launch()
        assert launch.name.startswith(b"backward_small_bf16_d64_")
        assert launch.stream == engine.host.stream
        assert_is_of(launch, given, made)
        found = parameters(launch)
        assert not any((found.shift, found.delta, found.sums, found.counter))

    for stream in (0x1000, 0x2000):
        engine.host.stream = stream
        launched()
        launched()
    assert bound.count == 2
    with stub.capture(engine.host):
        for _ in range(3):
            launched()
    launched()
    assert bound.count == 2


def test_the_deterministic_mode_is_a_plan_of_its_own(stub: Stub, bound: Counted) -> None:
    engine = OnCpu(hopper=True)
    quick_backward = QuickBackward(lambda device: engine, bound)
    given = draw(2, 8, 8, 1024, 64)
    quick_backward.compute(given, Options(return_lse=True))
    assert not stub.launch(stub.launches - 2).name.endswith(b"_cyclic")
    torch.use_deterministic_algorithms(True)
    try:
        quick_backward.compute(given, Options(return_lse=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert stub.launch(stub.launches - 2).name.endswith(b"_cyclic")


# ---- the way there, computed by the reference


def launch(tensors: tuple[torch.Tensor, ...], options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, *mask = tensors
    scale = 1.0 / math.sqrt(q.shape[-1]) if options.scale is None else options.scale
    rest = (*registered.window_sides(options.window), mask[0] if mask else None)
    return forward(q, k, v, options.causal, scale, options.alignment, *rest)


def compute(given: tuple[torch.Tensor, ...], options: Options) -> Three:
    tensors = dict(zip(options.names, given, strict=False))
    out, lse, dout, *dlse = given[len(tensors) :]
    scale = 1.0 / math.sqrt(given[0].shape[-1]) if options.scale is None else options.scale
    return Recorded()(tensors, out, lse, dout, options._replace(scale=scale), dlse=dlse[0] if dlse else None)


class Reference:
    """Launches by the reference, and remembers nothing."""

    def launch(self, tensors: tuple[torch.Tensor, ...], options: Options) -> tuple[torch.Tensor, torch.Tensor]:
        return launch(tensors, options)

    def remembered(self, tensors: tuple[torch.Tensor, ...], options: Options) -> None:
        return None


def direct(tensors: tuple[torch.Tensor, ...], options: Options) -> Any:
    return differentiable_by(Reference(), compute)(tensors, options)(*tensors)


@pytest.mark.parametrize(
    "options",
    [Options(), Options(True, alignment="bottom-right"), Options(True, 0.3), Options(return_lse=True)],
    ids=["plain", "causal", "scale", "lse"],
)
def test_gradients_without_the_dispatcher_are_those_that_differences_show(options: Options) -> None:
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    assert torch.autograd.gradcheck(lambda *qkv: direct(qkv, options), (q, k, v))


def test_a_mask_has_no_gradient_and_is_part_of_the_others() -> None:
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    mask = double(1, 2, 4, 5, seed=4).detach()
    options = Options(names=("q", "k", "v", "mask"))
    assert torch.autograd.gradcheck(lambda *qkv: direct((*qkv, mask), options), (q, k, v))


def test_a_scale_that_float32_does_not_hold_is_zero(stub: Stub) -> None:
    engine = OnCpu(hopper=True)
    q, k, v, out, dout = (torch.randn(1, 2, 600, 64).bfloat16() for _ in range(5))
    tensors, made = {"q": q, "k": k, "v": v}, (q.clone(), k.clone(), v.clone())

    def way(scale: float) -> str:
        lse = torch.zeros(1, 2, 600)
        return bind_backward(tensors, out, lse, dout, made, Options(True, scale), engine=engine).way

    assert way(1e-60) == way(0.0) != way(1e-30)


@pytest.fixture
def operators() -> Any:
    """The operators have kernels for the CPU."""
    library = torch.library.Library("spotbench", "IMPL")
    library.impl("attention", forward, "CPU")
    for name, kernel in gradients.kernels_of(Recorded()).items():
        library.impl(name, kernel, "CPU")
    yield library
    library._destroy()


def test_a_mode_that_comes_for_the_backward_pass_sees_its_operator(operators: Any) -> None:
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    out = direct((q, k, v), Options())
    unseen = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    with Watching() as mode:
        seen = torch.autograd.grad(out.sum(), (q, k, v))
    assert "spotbench.attention_backward.default" in mode.seen
    assert all(torch.allclose(a, b) for a, b in zip(seen, unseen, strict=True))


def test_a_second_derivative_is_refused(operators: Any) -> None:
    q, k, v = double(1, 2, 4, 3, seed=1), double(1, 1, 5, 3, seed=2), double(1, 1, 5, 3, seed=3)
    out = direct((q, k, v), Options())
    with pytest.raises(Unsupported, match="no derivative of their own"):
        torch.autograd.grad(out.sum(), (q, k, v), create_graph=True)


def test_a_call_that_wants_gradients_goes_straight_unless_somebody_watches(stub: Stub, operators: Any) -> None:
    engine = OnCpu(hopper=True)
    slow: list[str] = []

    def by_operator(tensors: dict[str, torch.Tensor], options: Options) -> Any:
        slow.append("operator")
        return registered.as_operator(tensors, options)

    quick = Quick(bind_call, lambda device: engine, by_operator)
    quick_backward = QuickBackward(lambda device: engine)
    quick.differentiate = differentiable_by(quick, quick_backward.compute)
    q, k, v = (torch.randn(1, 2, 64, 64).bfloat16().requires_grad_() for _ in range(3))
    before = stub.launches
    out = quick.attention(q, k, v, True, None, "top-left", False)
    assert isinstance(out, torch.Tensor)
    out.sum().backward()
    assert (slow, stub.launches - before) == ([], 2)
    assert all(x.grad is not None and x.grad.shape == x.shape for x in (q, k, v))
    with Watching():
        quick.attention(q, k, v, True, None, "top-left", False)
    assert slow == ["operator"]
