"""What a run says of its kernels: rates, shares of the hardware, energy and noise."""

from __future__ import annotations

import math

import pytest

from kernels.harness.columns import measurement_columns
from orchestrator.analysis.roofs import ROOFS, roof_of, work_of
from orchestrator.analysis.study import false_verdicts
from orchestrator.analysis.verdicts import NoiseSource, Verdict
from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN
from tests.unit.analysis.studied import mean_ratio
from tests.unit.report.written import BEGUN, csv_text, records, studied


def test_a_run_says_what_the_kernel_is_against_each_baseline() -> None:
    found = studied(csv_text(records()))
    assert (found.subject, found.baselines, found.measurements) == ("bench", ("sdpa:default", "sdpa:math"), 400)
    assert [case.axes["seq_q"] for case in found.cases] == ["128", "1024"]
    assert {one.verdict for one in found.contrasts} == {Verdict.FASTER}
    for case in found.cases:
        by_name = {one.baseline: one for one in case.contrasts}
        assert by_name["sdpa:default"].paired.ratio.mid == pytest.approx(1.5, rel=0.01)
        assert by_name["sdpa:math"].paired.ratio.mid == pytest.approx(3.0, rel=0.01)
        (best,) = case.best
        assert best is by_name["sdpa:default"]
        assert best.noise is not None
        assert best.noise.source is NoiseSource.CONTROL
        assert best.order_shift == pytest.approx(1.0, abs=0.02)
    assert mean_ratio(found) == pytest.approx(1.5, rel=0.01)
    assert found.mean("sdpa:flash") is None
    assert false_verdicts(found.controls) == 0
    assert found.answers == 4
    assert (found.faults, found.notes) == ((), ())


def test_a_rate_is_the_stated_arithmetic_over_the_median_and_its_peak_share() -> None:
    timing = studied(csv_text(records())).cases[1].timing("bench")
    assert timing is not None
    flop = 4 * 2 * 8 * 1024 * 1024 * 64
    assert timing.tflops == pytest.approx(flop / timing.median_us.mid / 1e6)
    assert timing.roof_percent == pytest.approx(100 * timing.tflops / 121)
    assert timing.held_percent == pytest.approx(timing.roof_percent)
    assert (timing.throttled, timing.count, timing.clock_mhz) == (0.0, 50, 2040.0)


def test_a_causal_mask_halves_the_arithmetic_and_shared_heads_the_traffic() -> None:
    axes = {"batch": "1", "heads": "8", "kv_heads": "8", "seq_q": "64", "seq_k": "64", "head_dim": "64"}
    full = work_of(axes | {"causal": "false", "dtype": "float16"})
    causal = work_of(axes | {"causal": "true", "dtype": "float16"})
    shared = work_of(axes | {"kv_heads": "1", "causal": "false", "dtype": "float32"})
    assert full is not None
    assert causal is not None
    assert shared is not None
    assert causal.flop * 2 == full.flop == 4 * 8 * 64 * 64 * 64
    assert full.bytes == 4 * 8 * 64 * 64 * 2
    assert shared.bytes == (2 * 8 + 2) * 64 * 64 * 4
    assert work_of(axes | {"causal": "false", "dtype": "int8"}) is None
    assert work_of(axes | {"causal": "false", "dtype": "float16", "seq_q": "0"}) is None


def test_gradients_take_five_products_and_both_passes_seven_by_the_cases_id() -> None:
    forward = next(records(lengths=(128,)))["case_id"]
    works = []
    for suffix, direction in (("", None), ("-backward", "backward"), ("-both", "both")):
        (case,) = studied(csv_text(records(lengths=(128,), case_id=forward + suffix))).cases
        assert case.axes.get("pass") == direction
        assert case.work is not None
        works.append(case.work)
    assert [one.flop for one in works] == [flops * 2 * 8 * 128 * 128 * 64 for flops in (4, 10, 14)]
    assert [one.bytes / works[0].bytes for one in works] == [1, 2, 2]


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        ("Tesla T4", "float16", 65), ("Tesla T4", "bfloat16", None), ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "float16", None), ("NVIDIA A100-SXM4-40GB", "float16", 312), ("NVIDIA H200", "bfloat16", 989),
        ("NVIDIA H100 80GB HBM3", "float16", 989), ("NVIDIA H200", "float32", None), ("AMD EPYC", "float32", None),
    ],
)  # fmt: skip
def test_a_roof_is_that_of_the_device_that_names_itself(device: str, dtype: str, tflops: float | None) -> None:
    roof = roof_of(device, dtype)
    assert (roof.tflops if roof else None) == tflops
    assert all(one.source and one.ridge > 100 for one in ROOFS)


def test_energy_is_that_of_its_own_stretch_where_there_was_one() -> None:
    rows = list(
        records(lengths=(128,), speeds={"bench": 1.0}, regime="sustained", joules_per_call="0.25", energy_j="5")
    )
    timing = studied(csv_text(rows, (*measurement_columns(AXES), "energy_j"))).cases[0].timing("bench")
    assert timing is not None
    assert timing.joules == 0.25


def test_energy_of_older_files_is_summed_before_it_is_divided_by_calls() -> None:
    rows = list(records(lengths=(128,), speeds={"bench": 1.0}, regime="sustained", calls="10"))
    for place, row in enumerate(rows):
        row["energy_j"] = "0" if place % 5 else "5"
    timing = studied(csv_text(rows, (*measurement_columns(AXES), "energy_j"))).cases[0].timing("bench")
    assert timing is not None
    assert timing.joules == pytest.approx(0.1)


def test_without_a_control_the_noise_comes_from_halves_and_that_is_said() -> None:
    found = studied(csv_text(records(speeds={"bench": 1.5, "sdpa:default": 1.0})))
    assert {one.noise.source for one in found.contrasts if one.noise} == {NoiseSource.HALVES}
    assert "no A/A control" in found.notes[0]


def test_the_order_of_the_file_does_not_matter() -> None:
    rows = list(records())
    # As text: what is unknown is NaN, which equals nothing.
    assert repr(studied(csv_text(rows[::-1])).contrasts) == repr(studied(csv_text(rows)).contrasts)


def test_order_is_known_by_the_clock_where_no_place_was_written() -> None:
    rows = [row | {"position": "", "started_at": BEGUN.isoformat()} for row in records(lengths=(128,))]
    assert math.isnan(studied(csv_text(rows)).contrasts[0].order_shift)
    older = csv_text(records(lengths=(128,)), (*ORIGIN, *AXES, *MEASURED))
    assert studied(older).contrasts[0].order_shift == pytest.approx(1.0, abs=0.02)
