"""Who takes part in a cell: a contender that cannot run, or is wrong, is absent and says why. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from kernels.attention.cuda.campaign import exact
from kernels.attention.cuda.campaign.cells import Cell, square
from kernels.attention.cuda.campaign.contenders import GpuStable, make_inputs, sdpa
from kernels.attention.cuda.planning import Machine
from kernels.attention.cuda.variants import chip_of

CPU = torch.device("cpu")
CELL = square("main", "bfloat16", 1, 2, 96, 64, True)
GROUPED = Cell("decode", "bfloat16", 1, 8, 1, 1, 300, 64, False)


def machine() -> Machine:
    chip = chip_of(90)
    assert chip is not None
    return Machine(chip, 132, 2**16)


@dataclass
class EngineWithoutKernels:
    """What the contenders ask of an engine, on the CPU, where our kernels refuse to run."""

    device: torch.device = CPU
    machine: Machine = field(default_factory=machine)


def stable(**changes: object) -> GpuStable:
    return GpuStable(EngineWithoutKernels(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("causal", [False, True])
def test_the_exact_answer_is_attention_in_float64(causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, h, 130, 64, generator=generator) for h in (4, 2, 2))
    out, sums = exact.attention(q, k, v, causal=causal)
    k64, v64 = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ k64.mT * 64**-0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(130, 130, dtype=torch.bool).tril(), float("-inf"))
    assert torch.allclose(out, torch.softmax(scores, -1) @ v64, rtol=0, atol=1e-13)
    assert torch.allclose(sums, torch.logsumexp(scores, -1), rtol=0, atol=1e-13)


def test_fewer_queries_than_keys_see_the_first_keys() -> None:
    q, k, v = (torch.randn(1, 1, s, 64) for s in (50, 130, 130))
    out, _ = exact.attention(q, k, v, causal=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert torch.allclose(out, wanted, rtol=0, atol=1e-13)


def test_difference_is_relative_to_the_answer() -> None:
    wanted = torch.full((2, 2), 2.0, dtype=torch.float64)
    assert exact.difference(wanted.float() * 1.5, wanted) == {"max_abs": 1.0, "relative": 0.5}


def test_inputs_are_the_same_at_every_visit() -> None:
    first, again = (make_inputs(CELL, 2, CPU) for _ in range(2))
    assert all(torch.equal(a, b) for x, y in zip(first, again, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(first[0][0], first[1][0])


def test_whoever_cannot_run_here_is_absent_with_the_reason_and_the_rest_is_judged() -> None:
    found = stable().prepare(CELL, check=True)
    assert found.absent["ours"]
    assert "does not import" in found.absent["fa4"]
    assert "flash" in [one.name for one in found.contenders]
    assert found.errors["flash"]["relative"] < 8e-3
    assert set(found.absent).isdisjoint(one.name for one in found.contenders)


def test_each_set_of_inputs_has_its_call_and_a_pin_is_entered_anew_each_time() -> None:
    found = stable(only=("flash",)).prepare(CELL, check=False)
    assert found.errors == {}
    flash = found.contenders[0]
    assert len(flash.calls) > 1
    results = []
    for call in flash.calls:
        with flash.pinned():
            results.append(call())
    assert not torch.equal(results[0], results[1])  # type: ignore[arg-type]


def test_grouped_heads_are_asked_for_as_such() -> None:
    inputs = make_inputs(GROUPED, 1, CPU)
    result = sdpa("flash", GROUPED, inputs).output()
    wanted, _ = exact.attention(*inputs[0], causal=False)
    assert exact.difference(result, wanted)["relative"] < 8e-3


def test_a_wrong_result_is_an_absence_with_its_error() -> None:
    class Wrong(GpuStable):
        def entrants(self, cell, inputs):  # type: ignore[no-untyped-def]
            from kernels.attention.cuda.campaign.contenders import outcome

            return {"flash": lambda: outcome([lambda: inputs[0][0] * 2])}

    found = Wrong(EngineWithoutKernels()).prepare(CELL, check=True)  # type: ignore[arg-type]
    assert found.contenders == []
    assert found.absent["flash"].startswith("wrong: relative error")


def test_flex_attention_stops_compiling_when_its_time_is_spent() -> None:
    cell = square("main", "bfloat16", 4, 16, 1024, 128, True)
    assert cell.with_flex
    assert "flex" not in stable().entrants(cell, [])
    entered = stable(flex_s=1.0)
    make = entered.entrants(cell, [])["flex"]
    entered.flex_s = 0.0
    with pytest.raises(Exception, match="is spent"):
        make()
