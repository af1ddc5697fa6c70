"""What a page of profiles says: figures as ncu gave them, side by side, and PyTorch's table called by its name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.profiles import kernels_of
from orchestrator.report.profile import NOT_ROWS, profile_page, profile_roofline, read_profiles, side_by_side
from tests.kernels.fake_ncu import KERNEL, METRICS, raw, rules

AXES = {
    "dtype": "float16", "batch": "4", "heads": "32", "kv_heads": "32", "seq_q": "4096", "seq_k": "4096",
    "head_dim": "128", "causal": "false",
}  # fmt: skip


def row(name: str, **changes: Any) -> dict[str, Any]:
    files = [f"profile/a--{name}.metrics.csv", f"profile/a--{name}.rules.csv"]
    return {
        "case_id": "a",
        "implementation": name,
        "tool": "ncu",
        "files": files,
        "axes": AXES,
        "flops": None,
    } | changes


def test_the_figures_are_those_that_ncu_printed() -> None:
    (kernel,) = kernels_of(raw(), rules())
    assert kernel.name == KERNEL
    assert (kernel.time_us, kernel.tensor, kernel.dram, kernel.l2) == (1490.0, 54.8, 5.6, 31.2)
    assert kernel.dram_bytes == 268_435_456 + 134_217_728
    assert (kernel.registers, kernel.shared_bytes) == (255, 1024 + 66_560)
    assert (kernel.occupancy, kernel.possible, kernel.limiter) == (12.3, 12.5, "registers")
    assert [reason for reason, _ in kernel.stalls] == ["long scoreboard", "math pipe throttle", "barrier"]
    assert kernel.stalls[0][1] == pytest.approx(50)
    assert [(hint.rule, hint.speedup) for hint in kernel.hints] == [("CPIStall", 41.7), ("Theoretical Occupancy", 20.5)]


def test_an_h200s_own_report_has_every_figure_and_a_point_under_the_roof() -> None:
    folder = Path(__file__).parent / "data"
    metrics, said = ((folder / f"h200.{page}.csv").read_text() for page in ("metrics", "rules"))
    (kernel,) = kernels_of(metrics, said)
    assert kernel.name == "fa90_bf16_d64_full_256x64s4p"
    assert (kernel.time_us, kernel.tensor, kernel.dram, kernel.l2) == (150.56, 51.86, 8.14, 16.64)
    assert kernel.dram_bytes == pytest.approx(59.0e6, rel=0.01)
    assert (kernel.registers, kernel.limiter, len(kernel.stalls)) == (96, "registers", 3)
    axes = AXES | {"heads": "16", "kv_heads": "16", "seq_q": "2048", "seq_k": "2048", "head_dim": "64"}
    files = {"profile/a--bench.metrics.csv": metrics, "profile/a--bench.rules.csv": said}
    one = row("bench", axes=axes | {"dtype": "bfloat16"})
    found = read_profiles("run", {"device": "NVIDIA H200", "profiles": [one]}, files, {})
    assert found.profiles[0].tflops == pytest.approx(456, rel=0.01)
    assert found.profiles[0].intensity == pytest.approx(1165, rel=0.02)
    assert "bench" in profile_page(found)
    assert profile_roofline(found.profiles, found.device) is not None


@given(st.sampled_from(sorted(METRICS)))
def test_a_metric_that_a_chip_does_not_have_is_unknown_and_hides_no_other(gone: str) -> None:
    (kernel,) = kernels_of(raw().replace(f'"{gone}"', '"something__else"'))
    known = [kernel.time_us, kernel.tensor, kernel.dram, kernel.l2, kernel.registers, kernel.occupancy]
    assert sum(map(math.isnan, known)) <= 1


@given(st.text(max_size=300))
def test_what_is_no_page_of_ncu_is_nothing_and_never_an_error(text: str) -> None:
    assert isinstance(kernels_of(text, text), tuple)
    cut = raw()[: len(text) * 7]
    assert len(kernels_of(cut)) <= 1


def both() -> Any:
    texts = {f"profile/a--{name}.metrics.csv": raw() for name in ("bench", "sdpa-flash")}
    texts |= {f"profile/a--{name}.rules.csv": rules() for name in ("bench", "sdpa-flash")}
    rows = [row("bench"), row("sdpa-flash", implementation="sdpa:flash")]
    return read_profiles(
        "20261121-040506-h100-0001", {"device": "NVIDIA H200", "set": "roofline", "profiles": rows}, texts, {}
    )


def test_implementations_stand_side_by_side_and_under_the_roof() -> None:
    found = both()
    heads, lines = side_by_side(found.of("a"))
    assert heads == ["", "bench", "sdpa:flash"]
    assert {line[0]: line[1] for line in lines}["tensor pipe, % of peak"] == "54.8"
    one = found.profiles[0]
    assert one.intensity == pytest.approx(4 * 4 * 32 * 4096**2 * 128 / 402_653_184)
    board = profile_roofline(found.of("a"), found.device)
    assert board is not None
    assert "989" in board.svg()
    text = profile_page(found)
    assert text.count("Warps wait for loads.") == 2
    assert NOT_ROWS in text
    assert "<script" not in text


def test_pytorchs_table_is_called_that_and_the_reason_is_told() -> None:
    why = "there is no ncu on this machine"
    torch = row("bench", tool="torch.profiler", why_not_ncu=why, files=["profile/a--bench.table.json"])
    table = {"calls": 5, "rows": [{"name": "aten::<matmul>", "count": 5, "cpu_us": 12.5, "device_us": 0.0}]}
    found = read_profiles("r", {"profiles": [torch]}, {}, {"profile/a--bench.table.json": table})
    text = profile_page(found)
    assert "by PyTorch&#39;s profiler, which has times but no counters" in text
    assert f"No counters: {why}" in text
    assert "aten::&lt;matmul&gt;" in text
    assert side_by_side(found.of("a")) == ([], [])


@pytest.mark.parametrize(
    "summary", [{}, {"profiles": 3}, {"profiles": [3, {}]}, {"profiles": [{"files": 3, "axes": 3, "flops": "x"}]}]
)
def test_a_summary_that_is_damaged_makes_a_page_all_the_same(summary: dict[str, Any]) -> None:
    assert "</html>" in profile_page(read_profiles("r", summary, {}, {}))
