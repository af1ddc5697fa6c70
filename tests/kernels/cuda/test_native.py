"""The function of autograd in C++: how it is built and kept, who sees it, and what it does when a launch is refused."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention.cuda import compile_gradients
from kernels.attention.cuda.calls import gradients, native
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unsupported
from tests.kernels.cuda.counted import LONG, SMALL, Counted, Watching, draw
from tests.kernels.cuda.stub_driver import WITH_STUB, Stub
from tests.kernels.cuda.test_direct import draw_of

pytestmark = WITH_STUB


@pytest.fixture
def operators(compiled: Counted) -> Any:
    """The backward operators have kernels for the CPU, which launch what they would."""
    ours = torch.library.Library("spotbench", "IMPL")
    for name, kernel in gradients.kernels_of(compiled.backward).items():
        ours.impl(name, kernel, "CPU")
    yield ours
    ours._destroy()


def passes(ours: Counted, count: int = 3) -> list[torch.Tensor]:
    """As many passes, and the tensors of another one."""
    for _ in range(count):
        tensors = draw()
        torch.autograd.grad(ours(*tensors), tensors, torch.randn(SMALL).bfloat16())
    return draw()


def test_a_mode_that_comes_for_the_backward_pass_sees_its_operator(compiled: Counted, operators: Any) -> None:
    tensors = passes(compiled)
    out = compiled(*tensors)
    with Watching() as mode:
        made = torch.autograd.grad(out, tensors, torch.randn(SMALL).bfloat16())
    assert "spotbench.attention_backward.default" in mode.seen
    assert [x.shape for x in made] == [x.shape for x in tensors]


@pytest.mark.parametrize(("kind", "name"), [("boolean", "attention"), ("packed", "attention_varlen")])
def test_so_it_does_of_masks_and_packed_sequences(compiled: Counted, operators: Any, kind: str, name: str) -> None:
    for _ in range(2):
        tensors, options = draw_of(kind)
        out = compiled.quick.call(tuple(tensors), options)
        assert isinstance(out, torch.Tensor)
        with Watching() as mode:
            made = torch.autograd.grad(out, tensors[:3], torch.randn(out.shape).bfloat16())
        assert f"spotbench.{name}_backward.default" in mode.seen
        assert [x.shape for x in made] == [x.shape for x in tensors[:3]]


def test_a_second_derivative_is_refused(compiled: Counted, operators: Any) -> None:
    tensors = passes(compiled)
    with pytest.raises(Unsupported, match="no derivative of their own"):
        torch.autograd.grad(compiled(*tensors).sum(), tensors, create_graph=True)


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_refused_launch_is_made_again_by_python_which_says_what_is_wrong(
    stub: Stub, compiled: Counted, when: str
) -> None:
    tensors, slope = passes(compiled), torch.randn(SMALL).bfloat16()
    if when == "forward":
        stub.library.stub_fail_launches(701)
        with pytest.raises(CudaError, match="too many resources"):
            compiled(*tensors)
    stub.library.stub_fail_launches(0)
    out = compiled(*tensors)
    if when == "backward":
        stub.library.stub_fail_launches(701)
        with pytest.raises(CudaError, match="too many resources"):
            torch.autograd.grad(out, tensors, slope, retain_graph=True)
        stub.library.stub_fail_launches(0)
    before = compiled.passes
    assert len(torch.autograd.grad(out, tensors, slope)) == 3
    assert compiled.passes == before


def test_the_deterministic_mode_and_another_slope_are_python_s_until_learned(compiled: Counted) -> None:
    def passes_of(slope: torch.Tensor) -> int:
        before, tensors = compiled.passes, draw()
        torch.autograd.grad(compiled(*tensors), tensors, slope)
        return compiled.passes - before

    straight = torch.randn(SMALL).bfloat16()
    turned = straight.transpose(1, 2).contiguous().transpose(1, 2)
    assert [passes_of(straight) for _ in range(3)] == [1, 0, 0]
    assert [passes_of(turned) for _ in range(3)] == [1, 0, 0]
    torch.use_deterministic_algorithms(True)
    try:
        assert [passes_of(turned) for _ in range(3)] == [1, 0, 0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert passes_of(turned) == 1


def test_blocks_that_must_run_together_do_so_in_both_languages(stub: Stub, compiled: Counted) -> None:
    def launches() -> list[tuple[bytes, tuple[int, ...], int, int]]:
        tensors = draw(LONG)
        out = compiled.quick.attention(*tensors, False, None, "top-left", False)  # type: ignore[call-arg]
        before = stub.launches
        torch.autograd.grad(out, tensors, torch.randn(LONG).bfloat16())
        made = [stub.launch(n) for n in range(before, stub.launches)]
        return [(one.name, tuple(one.grid), one.dependent, one.cooperative) for one in made]

    torch.use_deterministic_algorithms(True)
    try:
        found = [launches() for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert compiled.passes == 1, "the later ones were Python's too"
    assert found[0] == found[1] == found[2]
    assert [cooperative for *_, cooperative in found[0]] == [0, 1, 0]
    assert found[0][1][:3] == (b"backward90_bf16_d64_full_128x128_cyclic", (128, 1, 1), 0)


def test_a_library_is_kept_and_one_that_was_touched_is_built_again(tmp_path: Path) -> None:
    fake = tmp_path / "compiler"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho built >> "$2"\necho once >> "$0.log"\n')
    fake.chmod(0o755)
    folder = tmp_path / "kept"
    first = native.build_native(folder, str(fake))
    assert native.is_sealed(first)
    assert native.build_native(folder, str(fake)) == first == native.path_in(folder)
    first.write_text("another")
    assert not native.is_sealed(first)
    native.build_native(folder, str(fake))
    assert native.is_sealed(first)
    assert Path(f"{fake}.log").read_text() == "once\nonce\n"


def test_what_cannot_be_built_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with pytest.raises(BuildFailed, match="could not be compiled"):
        native.build_native(folder, str(tmp_path / "no-compiler"))
    false = shutil.which("false")
    assert false is not None
    with pytest.raises(BuildFailed, match="does not compile"):
        native.build_native(folder, false)
    assert not list(folder.iterdir())


def test_the_command_says_where_the_library_is_or_why_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = native.path_in(tmp_path)
    kept.write_text("built")
    kept.with_suffix(".sha256").write_text(hashlib.sha256(b"built").hexdigest())
    for one in (kept, kept.with_suffix(".sha256")):
        one.chmod(0o600)
    assert compile_gradients.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{kept}\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_gradients.main([str(tmp_path / "empty")]) == 1
    assert "could not be compiled" in capsys.readouterr().err
