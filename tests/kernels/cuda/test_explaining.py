"""What is computed how can be asked beforehand, also for a chip that is not here."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.cuda.explaining import (
    CHIPS,
    Candidate,
    Explanation,
    Launched,
    explain_problem,
    machine_named,
    main,
)
from kernels.attention.cuda.plan.planning import Problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.ways import dispatch, tuned
from tests.kernels.harness_process import run_forked


def posed(
    *shape: int, kv_heads: int = 0, keys: int = 0, causal: bool = False, window: tuple[int, int] | None = None
) -> Problem:
    batch, heads, queries, head_dim = shape
    q = torch.empty(shape, dtype=torch.float16, device="meta")
    k = torch.empty((batch, kv_heads or heads, keys or queries, head_dim), dtype=torch.float16, device="meta")
    return problem_of(q, k, k, q, causal=causal, alignment="top-left", window=window)


@pytest.mark.parametrize("chip", sorted(CHIPS))
@pytest.mark.parametrize("shape", [(4, 16, 1024, 128), (2, 8, 64, 64), (1, 2, 100, 20), (1, 1, 300, 256)])
def test_the_explanation_is_what_dispatch_does(chip: str, shape: tuple[int, ...]) -> None:
    problem, machine = posed(*shape), machine_named(chip)
    found = explain_problem(problem, machine, chip)
    way, why = dispatch.choose_way(problem, machine)
    assert (found.way, found.why) == (way.name, why)
    assert {one.name for one in found.candidates} == {one.name for one in dispatch.list_ways(problem, machine)}
    assert found.launches == ()


def test_families_that_do_not_compute_it_say_why() -> None:
    found = explain_problem(posed(4, 16, 1024, 128), machine_named("t4"), "T4")
    assert "wgmma" in found.cannot["fa90"]
    assert "more than 128" in found.cannot["decode"]
    found = explain_problem(posed(4, 64, 1, 128, kv_heads=8, keys=8192), machine_named("h200"), "H200")
    assert found.cannot.keys() == {"small"}
    assert found.way.startswith("decode")


def test_k_and_v_of_two_widths_are_explained_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "1,16,8192,192", "--value-dim", "128", "--causal", "--chip", "h100"]) == 0
    text = capsys.readouterr().out
    assert "8192 keys, D = 192 and 128 on H100" in text
    assert "way   fa90-128x128s2p-v128\n" in text
    assert "not decode: decoding does not shape scores" in text
    assert "not fa90" not in text
    assert main(["--shape", "1,16,8192,192", "--value-dim", "128", "--causal", "--chip", "a100"]) == 0
    assert "way   general-" in capsys.readouterr().out


def test_what_the_table_knows_is_told_the_fastest_first() -> None:
    table = tuned.table_for("hopper", 132)
    problem = posed(4, 16, 1024, 128, causal=True)
    near = table.nearest(dispatch.key_of(problem))[:1] if table else []
    found = explain_problem(problem, machine_named("h200"), "H200")
    if near:
        known = [one.behind for one in found.candidates if one.behind is not None]
        assert known == sorted(known)
        assert found.measured_at == near[0][1].key.words
    else:
        assert found.measured_at == ""
        assert all(one.behind is None for one in found.candidates)


def test_a_window_was_never_measured() -> None:
    found = explain_problem(posed(4, 16, 1024, 128, window=(128, 0)), machine_named("h200"), "H200")
    assert found.measured_at == ""
    assert "window" in found.problem


def test_the_lines_show_the_choice_the_launch_and_a_spill() -> None:
    launched = Launched("fa90_x", (132, 1, 1), 384, 1000, 168, 8)
    ways = (Candidate("fa90-a", 0.0), Candidate("fa2-b", 0.25), Candidate("new", None))
    text = Explanation("p", "H200", "fa90-a", "measured", ways, {"small": "no"}, "64 heads", (launched,)).text()
    assert "> fa90-a  fastest" in text
    assert "+25.0%" in text
    assert "grid 132x1x1, 384 threads, 168 registers" in text
    assert "SPILLED" in text
    assert "not small: no" in text


def test_the_command_explains_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "4,16,1024,128", "--causal", "--chip", "h200"]) == 0
    assert "causal, batch 4, 16 heads, 1024 queries, 1024 keys, D = 128 on H200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "1,1,8,700", "--chip", "h200"], "head dimensions"),
        (["--shape", "1,1,8,64", "--dtype", "bf16", "--chip", "t4"], "bfloat16"),
        (["--shape", "1,3,8,64", "--kv-heads", "2", "--chip", "h200"], "share"),
    ],
)
def test_what_nothing_computes_is_an_error_with_the_reason(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_and_a_chip_the_command_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "1,1,8,64"]) == 2
    assert "--chip" in capsys.readouterr().err


def test_the_module_is_a_command() -> None:
    done = run_forked("kernels.attention.cuda.explain", "--shape", "1,1,8", "--chip", "h200")
    assert done.returncode == 2
    assert "batch,heads,queries,head_dim" in done.stderr
    assert "Warning" not in done.stderr
