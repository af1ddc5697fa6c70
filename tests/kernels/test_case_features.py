"""Cases with a V of another width, a window or sinks: right in float64, judged, and refused with a reason by who has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from kernels.attention import reference
from kernels.attention.case import Case, Shape
from kernels.attention.correctness import stepwise_output
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients
from kernels.attention.cuda.backward.ways import backward_ways
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import Shaping, problem_of
from kernels.attention.cuda.plan.variants import CHIPS
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.gradient_gate import stepwise_gradients
from kernels.attention.implementations import Baseline, bundled_kernel
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.attention.reference import Terms
from kernels.attention.workload import WORKLOAD
from kernels.harness.reading import BadSpec
from kernels.harness.workload import Site
from orchestrator.core.config.model import harness_shapes, resolve_grid
from tests.kernels.harness_process import ROOT, HarnessProcess, named, shape, spec

GRIDS = yaml.safe_load((ROOT / "configs" / "grids.yaml").read_text(encoding="utf-8"))
WINDOWED = Shape(1, 4, 2, 40, 40, 16, True, window=7, sinks=True)
WIDE = Shape(1, 4, 2, 33, 40, 24, True, value_dim=16)


def made(of: Shape, direction: str = "forward") -> tuple[Case, Inputs]:
    case = Case(of, "bfloat16", direction)
    return case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1))


class Attention(torch.autograd.Function):
    """The reference with a window and sinks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v, sinks)
        return reference.attention(q, k, v, causal=True, chunk_elements=20, terms=Terms(3, sinks)).out

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        q, k, v, sinks = ctx.saved_tensors
        terms = Terms(3, sinks)
        found = reference.attention_backward(q, k, v, *slopes, causal=True, chunk_elements=20, terms=terms)
        return found.dq, found.dk, found.dv, found.dsinks


def test_the_reference_gradients_with_a_window_and_sinks_are_those_of_differences() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)

    given = draw(1, 4, 7, 3), draw(1, 2, 8, 3), draw(1, 2, 8, 5), draw(4)
    assert torch.autograd.gradcheck(Attention.apply, given)  # type: ignore[no-untyped-call]


def test_a_window_and_sinks_are_what_a_masked_product_with_one_more_column_gives() -> None:
    case, given = made(WINDOWED)
    assert given.sinks is not None
    q, k, v = (x.double() for x in (given.q, given.k.repeat_interleave(2, 1), given.v.repeat_interleave(2, 1)))
    rows, keys = torch.arange(40)[:, None], torch.arange(40)[None]
    scores = (q @ k.mT / 4).masked_fill((keys > rows) | (rows - keys >= 7), float("-inf"))
    sink = given.sinks.double()[None, :, None, None].expand(1, 4, 40, 1)
    weights = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
    exact = reference.attention(given.q, given.k, given.v, causal=True, terms=Terms(7, given.sinks))
    assert torch.allclose(exact.out, weights @ v)
    assert torch.allclose(exact.lse, torch.logsumexp(torch.cat((scores, sink), -1), -1))
    assert case.id == "b1-h4-kv2-q40-k40-d16-causal-w7-sinks-bfloat16"


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("spoilt", [None, "window", "sinks"])
def test_an_answer_without_the_window_or_the_sinks_of_its_case_is_wrong(direction: str, spoilt: str | None) -> None:
    case, given = made(WINDOWED, direction)
    assert given.sinks is not None
    sinks = given.sinks - 9.0 if spoilt == "sinks" else given.sinks
    terms = Terms(40 if spoilt == "window" else 7, sinks)
    answer: Any = ()
    if direction != "backward":
        answer = stepwise_output(given.q, given.k, given.v, True, None, terms)
    if direction != "forward":
        steps = stepwise_gradients(given.q, given.k, given.v, given.slope, True, terms)
        answer = steps if direction == "backward" else (answer, *steps)
    verdict = AttentionProblem().yardstick(case, given, 0.02).judge(answer)
    assert verdict.passed == (spoilt is None), verdict.reason


def test_the_gradient_of_the_sinks_is_judged_too() -> None:
    case, given = made(WINDOWED, "backward")
    right = stepwise_gradients(given.q, given.k, given.v, given.slope, True, Terms(7, given.sinks))
    by = AttentionProblem().yardstick(case, given, 0.02)
    assert by.judge(right).passed
    spoils: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: x * 1.02,
        lambda x: x.bfloat16(),
        torch.zeros_like,
    ]
    for spoil in spoils:
        verdict = by.judge((*right[:3], spoil(right[3])))
        assert not verdict.passed
        assert verdict.reason.startswith("dsinks")
    assert "dsinks" in by.judge(right[:3]).reason


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_who_does_not_compute_a_feature_names_it_and_pytorch_takes_widths(direction: str, tmp_path: Path) -> None:
    site = Site(torch.device("cpu"), 1, tmp_path, tmp_path)
    case, given = made(WINDOWED, direction)
    with pytest.raises(Unavailable, match="is called here without a window and sinks, which this case has"):
        Baseline("math").bind(case, given)
    with pytest.raises(Unavailable, match="the bundled kernel of processors is called here without a window and sinks"):
        bundled_kernel("bench", site).bind(case, given)
    case, given = made(WIDE, direction)
    with pytest.raises(Unavailable, match="a width of V of its own"):
        bundled_kernel("bench", site).bind(case, given)
    with torch.inference_mode():
        call = Baseline("math").bind(case, given)
        verdict = AttentionProblem().yardstick(case, given, 0.02).judge(call.output(call.plan()))
    assert verdict.passed, verdict.reason


def test_the_harness_gives_each_implementation_that_lacks_a_feature_a_row_with_it(tmp_path: Path) -> None:
    widths, sinks = shape(9, value_dim=24), shape(9, causal=True, window=4, sinks=True)
    asked = spec(
        implementations=["bench", "sdpa:math"], measure={"shapes": [widths, sinks], "dtypes": ["float32"]}, repeats=2
    )
    with HarnessProcess("measure", asked, tmp_path) as harness:
        _, facts = harness.finish()
    first, second = named(facts, "case_finished")
    assert first["case_id"] == "b1-h2-kv2-q9-k9-d16-v24-full-float32"
    assert set(first["median_us"]) == {"sdpa:math"}
    assert "a width of V of its own" in first["skipped"]["bench"]
    assert not second["median_us"]
    assert all("a window and sinks" in second["skipped"][name] for name in ("bench", "sdpa:math"))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"window": 3}, "window is the last keys that a row sees of a causal shape"),
        ({"window": 0, "causal": True}, "window must be an integer >= 1, not 0"),
        ({"value_dim": True}, "value_dim must be an integer >= 1, not true"),
        ({"sinks": 1}, "sinks must be true or false, not 1"),
    ],
)
def test_a_shape_that_a_spec_cannot_have_is_refused_with_its_key(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(BadSpec, match=refusal):
        WORKLOAD.cases({"shapes": [shape(4, **changes)], "dtypes": ["float16"]}, "measure")


@pytest.mark.parametrize("name", ["llama3.1", "llama3.1-8b", "deepseek-v3", "gpt-oss", "gpt-oss-sinks"])
def test_the_cuda_kernels_have_a_way_for_every_case_of_a_preset(name: str) -> None:
    machine = Machine(next(chip for chip in CHIPS if chip.name == "hopper"), 132, 50 * 2**20, hopper=True)
    grid = resolve_grid(name, GRIDS)
    for case in WORKLOAD.cases({"shapes": harness_shapes(grid), "dtypes": list(grid.dtypes)}, "measure"):
        s = case.shape

        def meta(heads: int, seq: int, width: int, batch: int = s.batch) -> torch.Tensor:
            return torch.empty(batch, heads, seq, width, dtype=torch.bfloat16, device="meta")

        q, k, v = (
            meta(s.heads, s.seq_q, s.head_dim), meta(s.kv_heads, s.seq_k, s.head_dim), meta(s.kv_heads, s.seq_k, s.width)
        )  # fmt: skip
        out, window = meta(s.heads, s.seq_q, s.width), (s.window - 1, 0) if s.window else None
        sinks = torch.empty(s.heads, device="meta") if s.sinks else None
        problem = problem_of(
            q, k, v, out, causal=s.causal, alignment="top-left", window=window, shaping=Shaping(sinks=sinks)
        )
        assert choose_way(problem, machine)[0].name
        gradients = Gradients(problem.out, problem.q, problem.k, problem.v)
        backward = BackwardProblem(problem, gradients, 1.0, 0, 0)
        assert backward_ways(backward, machine)[0].name
