"""What a run says, from the files it left, whole or damaged."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.harness.columns import measurement_columns
from orchestrator.analysis.across import changes, quotient
from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.fingerprint import Level, comparability
from orchestrator.analysis.history import Reading, history
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import ROOFS, roof_of, work_of
from orchestrator.analysis.study import Study, false_verdicts
from orchestrator.analysis.verdicts import Noise, NoiseSource, Verdict
from orchestrator.core.bundled.names import AXES
from orchestrator.core.results import MEASURED, ORIGIN, ResultsUnreadable
from tests.report.written import BEGUN, both, csv_text, records, skip, studied

ROOT = Path(__file__).resolve().parents[2]


def test_a_run_says_what_the_kernel_is_against_each_baseline() -> None:
    found = studied(csv_text(records()))
    assert (found.subject, found.baselines, found.measurements) == ("bench", ("sdpa:default", "sdpa:math"), 400)
    assert [case.axes["seq_q"] for case in found.cases] == ["128", "1024"]
    assert {one.verdict for one in found.contrasts} == {Verdict.FASTER}
    for case in found.cases:
        by_name = {one.baseline: one for one in case.contrasts}
        assert by_name["sdpa:default"].paired.ratio.mid == pytest.approx(1.5, rel=0.01)
        assert by_name["sdpa:math"].paired.ratio.mid == pytest.approx(3.0, rel=0.01)
        assert case.best is by_name["sdpa:default"]
        assert case.best.noise is not None
        assert case.best.noise.source is NoiseSource.CONTROL
        assert case.best.order_shift == pytest.approx(1.0, abs=0.02)
    assert mean_ratio(found) == pytest.approx(1.5, rel=0.01)
    assert found.mean("sdpa:flash") is None
    assert false_verdicts(found.controls) == 0
    assert found.answers == 4
    assert (found.faults, found.notes) == ((), ())


def mean_ratio(part: Study) -> float:
    mean = part.mean("sdpa:default")
    assert mean is not None
    assert mean.ratio.excludes(1.0)
    return mean.ratio.mid


def test_a_rate_is_the_stated_arithmetic_over_the_median_and_its_share_of_the_data_sheets() -> None:
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


def test_gradients_take_five_products_and_both_passes_seven_of_which_the_cases_id_tells() -> None:
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
    assert studied(csv_text(rows[::-1])).contrasts == studied(csv_text(rows)).contrasts


def test_order_is_known_by_the_clock_where_no_place_was_written() -> None:
    rows = [row | {"position": "", "started_at": BEGUN.isoformat()} for row in records(lengths=(128,))]
    assert math.isnan(studied(csv_text(rows)).contrasts[0].order_shift)
    older = csv_text(records(lengths=(128,)), (*ORIGIN, *AXES, *MEASURED))
    assert studied(older).contrasts[0].order_shift == pytest.approx(1.0, abs=0.02)


# --- several regimes in one run --------------------------------------------------------------------------------------


def test_each_regime_has_verdicts_of_its_own_and_nothing_is_pooled() -> None:
    found = studied(csv_text(both()))
    assert [one.name for one in found.settings] == ["burst, cold", "sustained, cold"]
    assert found.regime == "burst and sustained"
    assert len(found.case_ids) == 2
    assert len(found.cases) == 4
    burst, sustained = found.parts()
    assert burst.measurements == sustained.measurements == 400
    assert mean_ratio(burst) == pytest.approx(1.5, rel=0.01)
    assert mean_ratio(sustained) == pytest.approx(0.9 / 0.8, rel=0.01)
    alone = studied(csv_text(row for row in both() if row["regime"] == "burst"))
    assert [one.median_us for one in burst.cases[0].timings] == [one.median_us for one in alone.cases[0].timings]
    assert [one.paired for one in burst.contrasts] == [one.paired for one in alone.contrasts]


def test_blocks_pair_within_their_regime_and_their_caches_only() -> None:
    """Block 1 of one regime is no neighbour of block 1 of another."""
    rows = [row | {"cache": "warm"} if row["regime"] == "sustained" else row for row in both(lengths=(128,))]
    rows = [row for row in rows if (row["implementation"] == "bench") == (row["regime"] == "burst")]
    found = studied(csv_text(rows))
    assert [case.setting for case in found.cases] == [Setting("burst", "cold"), Setting("sustained", "warm")]
    assert found.contrasts == ()


def test_all_questions_of_all_regimes_are_corrected_for_together() -> None:
    one, two = studied(csv_text(records())), studied(csv_text(both()))
    raw = [contrast.paired.test.p for contrast in two.contrasts]
    assert [contrast.p for contrast in two.contrasts] == list(holm(raw))
    assert len(raw) == 2 * len(one.contrasts)


def test_what_was_skipped_without_a_regime_is_skipped_in_every_one() -> None:
    wrong = skip("bench", "wrong on these inputs", regime="")
    found = studied(csv_text([*both(lengths=(128,)), wrong]))
    assert len(found.cases) == 2
    for case in found.cases:
        timing = case.timing("bench")
        assert timing is not None
        assert (timing.timed, timing.skipped) == (False, "wrong on these inputs")
    only = studied(csv_text([*both(lengths=(128,)), skip("sdpa:math", "no graph", regime="sustained")]))
    assert len(only.cases) == 2, "a skip that does not name its caches makes no setting of its own"
    kept = [timing.timed for case in only.cases if (timing := case.timing("sdpa:math")) is not None]
    assert kept == [True, False]


def test_a_case_that_ended_early_or_never_settled_is_told() -> None:
    rows = [row | {"stopped": "dollars", "warmed": "limit"} for row in records(lengths=(128,))]
    assert studied(csv_text(rows)).notes == (
        (
            "In 4 of 4 timings the warm-up ended before times and clocks had settled: these times may include some of "
            "the warm-up."
        ),
        "In 1 of 1 case the budget was spent before the last repeat.",
    )
    twice = [row | {"stopped": "dollars"} for row in both(lengths=(128, 1024))]
    assert studied(csv_text(twice)).notes == ("In 2 of 2 cases the budget was spent before the last repeat.",)


def test_where_the_timer_is_a_part_of_what_it_times_that_is_said() -> None:
    rows = list(records(lengths=(128, 2048), timer_overhead_us="0.5"))
    (note,) = studied(csv_text(rows)).notes
    assert note.startswith("In 4 of 8 timings the timer itself takes over 2% of the median (up to 9%)")


def test_the_most_memory_a_call_held_is_that_of_its_rows() -> None:
    rows = list(records(lengths=(128,), peak_memory_bytes="1048576"))
    rows[0]["peak_memory_bytes"] = ""
    peaks = {one.implementation: one.peak_bytes for one in studied(csv_text(rows)).cases[0].timings}
    assert set(peaks.values()) == {1048576.0}
    unknown = studied(csv_text(records(lengths=(128,)))).cases[0].timings[0]
    assert math.isnan(unknown.peak_bytes)


@pytest.mark.parametrize(("regime", "cache"), [("burst", "cold"), ("graph", "warm"), ("sustained", "mixed")])
def test_a_setting_says_in_one_sentence_what_it_means(regime: str, cache: str) -> None:
    setting = Setting(regime, cache)
    assert setting.meaning.count(".") == 1
    assert len(setting.meaning) > 40
    assert (setting.name, setting.slug) == (f"{regime}, {cache}", f"{regime}-{cache}")
    assert "does not know" in Setting("novel").meaning
    assert Setting("").meaning == Setting("").name == ""


# --- what may be wrong with a file ----------------------------------------------------------------------------------


def test_an_empty_run_says_so() -> None:
    found = studied(csv_text([]))
    assert (found.cases, found.contrasts, found.measurements, found.subject) == ((), (), 0, "")
    assert "has no rows" in found.notes[0]


@pytest.mark.parametrize("text", ["", "\n", "a,b,c\n1,2,3\n", "\x00\x01"])
def test_what_is_no_result_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(ResultsUnreadable, match=r"measurements\.csv"):
        studied(text)


def test_one_implementation_alone_is_timed_and_compared_with_nothing() -> None:
    found = studied(csv_text(records(speeds={"sdpa:math": 1.0})))
    assert found.contrasts == ()
    assert found.subject == "sdpa:math"
    assert "Only one implementation" in found.notes[0]
    assert all(case.timings[0].timed for case in found.cases)


def test_where_everything_was_skipped_the_reasons_are_kept() -> None:
    found = studied(csv_text([skip("bench", "no compiler"), skip("sdpa:cudnn", "needs CUDA")]))
    assert "Every implementation was skipped" in found.notes[0]
    assert [timing.skipped for timing in found.cases[0].timings] == ["no compiler", "needs CUDA"]


def test_rows_that_cannot_be_used_are_counted_and_the_rest_is_kept() -> None:
    rows = list(records(lengths=(128,)))
    rows[0]["latency_us"], rows[1]["latency_us"], rows[2]["latency_us"] = "nan", "-3", "soon"
    rows[3]["case_id"] = ""
    found = studied(csv_text(rows))
    assert found.measurements == 196
    assert found.faults == (
        "3 rows have no usable latency (first at measurements.csv:2)",
        "1 row names no case or no implementation (first at measurements.csv:5)",
    )


def test_a_repeated_row_counts_once() -> None:
    rows = list(records(lengths=(128,)))
    found = studied(csv_text(rows + rows[:3]))
    assert found.contrasts == studied(csv_text(rows)).contrasts
    (fault,) = found.faults
    assert fault.startswith("3 rows repeat a block that is already there (first at ")


def test_a_truncated_file_loses_its_last_row_only() -> None:
    text = csv_text(records(lengths=(128,)))
    found = studied(text[: len(text) - 60])
    assert found.measurements == 199
    assert "row is incomplete" in found.faults[0]


def test_files_of_several_schemas_and_runs_are_read_together() -> None:
    from orchestrator.analysis.samples import Reader
    from orchestrator.analysis.study import study

    reader = Reader()
    reader.read(csv_text(records(lengths=(128,)), (*ORIGIN, *AXES, *MEASURED)).splitlines(keepends=True), "old.csv")
    reader.read(
        csv_text(records(lengths=(1024,)), (*(*ORIGIN, *AXES, *MEASURED), "position", "novel")).splitlines(
            keepends=True
        ),
        "new.csv",
    )
    reader.read(csv_text(records(run_id="20261121-040506-l4-0000", blocks=9)).splitlines(keepends=True), "other.csv")
    found = study(reader.groups(), reader.told())
    assert len(found.cases) == 2
    assert "holds 2 runs" in found.notes[0]


def test_rows_of_an_older_schema_that_do_not_name_their_caches_stand_apart_and_that_is_said() -> None:
    old, new = records(lengths=(128,)), records(lengths=(256,), cache="cold")
    found = studied(csv_text([*old, *new]))
    assert [one.name for one in found.settings] == ["burst, cold", "burst"]
    assert (
        "Some rows of burst come from an older version and do not say whether their caches were warm or cold"
        in found.notes[0]
    )


def test_an_implementation_with_a_skip_row_has_no_timing_whatever_else_there_is() -> None:
    found = studied(csv_text([*records(lengths=(128,)), skip("bench", "wrong after timing")]))
    bench = found.cases[0].timing("bench")
    assert bench is not None
    assert (bench.timed, bench.skipped) == (False, "wrong after timing")
    assert found.contrasts == ()


@pytest.mark.slow
def test_two_hundred_thousand_rows_are_read_in_less_than_an_eighth_of_a_gigabyte() -> None:
    program = (
        "from itertools import chain, repeat\n"
        "from orchestrator.analysis.samples import Reader\n"
        "from orchestrator.analysis.study import study\n"
        "from tests.report.written import csv_text, records\n"
        "header, *rows = csv_text(records(lengths=(128,), blocks=1)).splitlines(keepends=True)\n"
        "cells = [row.split(',') for row in rows]\n"
        "def block(cells, n):\n    return ','.join([*cells[:15], str(n), str(n), *cells[17:]])\n"
        "regimes = ('burst', 'sustained')\n"
        "lines = chain([header], (block([*c[:14], regimes[n % 2], *c[15:]], n) for n in range(50_000) for c in cells))\n"
        "reader = Reader(); reader.read(lines, 'x'); found = study(reader.groups(), reader.told())\n"
        "assert (found.measurements, len(found.cases)) == (200_000, 2), found\n"
        # Not getrusage's: that starts at what the parent had, and the parent here has PyTorch loaded.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 125_000


# --- what is in doubt ----------------------------------------------------------------------------------------------


def regimes(burst: float, graph: float, length: int = 1024, **changes: str) -> str:
    """One case in burst and in graph; the baseline takes so many times as long in each as it should."""
    rows = []
    for regime, factor in (("burst", burst), ("graph", graph)):
        speeds = {"bench": 1.5, "sdpa:default": 1.0 / factor, "bench:aa": 1.5}
        rows += list(records(lengths=(length,), speeds=speeds, regime=regime, cache="cold", **changes))
    return csv_text(rows)


def test_where_burst_and_graph_disagree_nothing_is_decided_and_the_worst_is_named() -> None:
    found = studied(regimes(1.4, 1.0))
    assert {(one.verdict, one.doubt) for one in found.contrasts} == {(Verdict.INCONCLUSIVE, "regimes disagree")}
    assert "In 1 of 1 case burst and graph disagree about sdpa:default" in found.notes[0]
    assert found.contrasts[0].said == "inconclusive: regimes disagree"
    assert "sdpa:default takes 91" in found.notes[0]
    assert found.answers == 0
    assert {one.verdict for one in studied(regimes(1.2, 1.0)).contrasts} == {Verdict.FASTER}
    assert {one.verdict for one in studied(regimes(1.0, 1.4)).contrasts} == {Verdict.INCONCLUSIVE}


def test_times_below_twenty_microseconds_and_other_caches_and_regimes_raise_no_alarm() -> None:
    short = studied(regimes(1.4, 1.0, length=128))
    assert {one.verdict for one in short.contrasts} == {Verdict.FASTER}
    apart = studied(regimes(1.4, 1.0).replace(",graph,", ",sustained,"))
    assert {one.verdict for one in apart.contrasts} == {Verdict.FASTER}
    lines = regimes(1.4, 1.0).splitlines(keepends=True)
    warm = "".join(line.replace(",cold,", ",warm,") if ",graph," in line else line for line in lines)
    assert {one.verdict for one in studied(warm).contrasts} == {Verdict.FASTER}


def test_one_implementation_in_doubt_leaves_the_others_to_be_judged_and_the_subject_in_doubt_leaves_none() -> None:
    """A dozen kernels begin sooner in a graph than in a stream, which says nothing of two others that are one each."""

    def judged(**factors: float) -> dict[str, Verdict]:
        speeds = {"bench": 1.5, "sdpa:default": 1.0, "sdpa:math": 0.9, "bench:aa": 1.5}
        rows = []
        for regime in ("burst", "graph"):
            own = {name: speed / (factors.get(name, 1.0) if regime == "burst" else 1) for name, speed in speeds.items()}
            rows += list(records(lengths=(1024,), speeds=own, regime=regime, cache="cold"))
        found = studied(csv_text(rows)).contrasts
        assert len({one.verdict for one in found if one.baseline == "sdpa:default"}) == 1
        return {one.baseline: one.verdict for one in found}

    assert judged(**{"sdpa:math": 1.4}) == {"sdpa:default": Verdict.FASTER, "sdpa:math": Verdict.INCONCLUSIVE}
    assert judged(bench=1.4) == {"sdpa:default": Verdict.INCONCLUSIVE, "sdpa:math": Verdict.INCONCLUSIVE}
    assert judged(**{"bench:aa": 1.4}) == {"sdpa:default": Verdict.INCONCLUSIVE, "sdpa:math": Verdict.INCONCLUSIVE}


def test_what_the_timer_takes_itself_raises_no_alarm() -> None:
    def judged(overhead: str) -> set[Verdict]:
        rows = []
        for regime, factor, timer in (("burst", 1.31, overhead), ("graph", 1.0, "0")):
            speeds = {"bench": 1.5, "sdpa:default": 1.0 / factor, "bench:aa": 1.5}
            rows += records(lengths=(1024,), speeds=speeds, regime=regime, cache="cold", timer_overhead_us=timer)
        return {one.verdict for one in studied(csv_text(rows)).contrasts}

    assert judged("0") == {Verdict.INCONCLUSIVE}
    assert judged("3") == {Verdict.FASTER}


def test_the_alarm_of_one_case_leaves_the_other_cases_alone() -> None:
    good, bad = regimes(1.0, 1.0, length=2048), regimes(1.4, 1.0)
    found = studied(good + "".join(bad.splitlines(keepends=True)[1:]))
    assert {one.case_id.split("-")[3]: one.verdict for one in found.contrasts} == {
        "q1024": Verdict.INCONCLUSIVE, "q2048": Verdict.FASTER,
    }  # fmt: skip


def test_a_measurement_whose_launch_was_not_hidden_is_no_material_for_a_verdict() -> None:
    rows = [row | {"hidden": "true"} for row in records(lengths=(1024,))]
    columns = [*rows[0]]
    slow = [row | {"hidden": "false", "latency_us": "900"} if int(row["block"]) % 2 else row for row in rows]
    found, clean = studied(csv_text(slow, columns)), studied(csv_text(rows, columns))
    assert found.contrasts[0].paired.ratio.mid == pytest.approx(clean.contrasts[0].paired.ratio.mid, rel=0.01)
    assert found.contrasts[0].paired.blocks == 25
    assert "launch not hidden" in found.faults[0]
    open_ = [row | {"hidden": "false"} if row["implementation"] == "sdpa:math" else row for row in rows]
    judged = {one.baseline: one for one in studied(csv_text(open_, columns)).contrasts}
    assert judged["sdpa:math"].said == "inconclusive: launch not hidden"
    assert judged["sdpa:default"].verdict is Verdict.FASTER


def test_what_differs_by_less_than_the_timer_takes_is_not_decided() -> None:
    found = studied(csv_text(records(lengths=(128,), timer_overhead_us="3")))
    assert {one.baseline: one.said for one in found.contrasts} == {
        "sdpa:default": "inconclusive: below the timer's resolution",
        "sdpa:math": "inconclusive: below the timer's resolution",
    }
    fine = studied(csv_text(records(lengths=(1024,), timer_overhead_us="3")))
    assert {one.verdict for one in fine.contrasts} == {Verdict.FASTER}
    assert fine.cases[0].timings[0].timer_share == pytest.approx(3 / 43.7, rel=0.01)


def test_a_second_control_on_another_implementation_sets_the_noise_where_it_is_the_greater() -> None:
    rows = records(lengths=(1024,), speeds={"bench": 1.5, "sdpa:default": 1.0, "bench:aa": 1.5, "sdpa:default:aa": 0.9})
    found = studied(csv_text(rows))
    assert {one.implementation for one in found.controls} == {"bench", "sdpa:default"}
    assert found.baselines == ("sdpa:default",)
    noise = found.contrasts[0].noise
    assert noise is not None
    assert noise.floor > 0.1


def test_a_mean_is_within_its_interval_and_there_is_none_where_a_case_has_none() -> None:
    found = studied(csv_text(records(lengths=(128, 256, 1024))))
    mean = found.mean("sdpa:default")
    assert mean is not None
    ratios = [one.paired.ratio.mid for one in found.against("sdpa:default")]
    assert mean.ratio.mid == pytest.approx(math.prod(ratios) ** (1 / 3))
    assert mean.ratio.low < mean.ratio.mid < mean.ratio.high
    assert (mean.cases, mean.decided) == (3, 3)
    few = [*records(lengths=(128,)), *records(lengths=(256,), blocks=3)]
    assert studied(csv_text(few)).mean("sdpa:default") is None


def two_regimes(burst: float, graph: float) -> Study:
    """One case; the kernel's speed-up in each of the two regimes, a per cent of noise."""
    speeds = ({"bench": speed, "sdpa:default": 1.0, "bench:aa": speed} for speed in (burst, graph))
    rows = [
        row
        for regime, own in zip(("burst", "graph"), speeds, strict=True)
        for row in records(lengths=(1024,), speeds=own, regime=regime, cache="cold")
    ]
    return studied(csv_text(rows))


@pytest.mark.parametrize(("burst", "graph", "apart"), [(1.3, 1.3, False), (1.2, 1.3, True), (1.3, 1.2, True)])
def test_two_ratios_whose_intervals_do_not_meet_name_each_other(burst: float, graph: float, apart: bool) -> None:
    found = two_regimes(burst, graph)
    one, other = found.contrasts
    assert (one.setting.regime, other.setting.regime) == ("burst", "graph")
    if apart:
        assert (one.elsewhere, other.elsewhere) == (other.ratio.mid, one.ratio.mid)
        assert any("2 of 2 comparisons the intervals of burst and graph do not overlap" in n for n in found.notes)
    else:
        assert math.isnan(one.elsewhere)
        assert math.isnan(other.elsewhere)


# --- two runs and more ----------------------------------------------------------------------------------------------


def other(speed: float, seed: int, **more: Any) -> str:
    return csv_text(
        records(speeds={"bench": 1.5 * speed, "sdpa:default": 1.0, "bench:aa": 1.5 * speed}, seed=seed, **more)
    )


def test_a_change_between_runs_is_found_and_none_where_there_is_none() -> None:
    before = studied(other(1.0, 1))
    for relative_to in ("", "sdpa:default"):
        same = changes(before, studied(other(1.0, 2)), relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in same} <= {Verdict.SAME, Verdict.INCONCLUSIVE}
        slower = changes(before, studied(other(0.9, 3)), relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in slower} == {Verdict.SLOWER}
        assert slower[0].ratio.mid == pytest.approx(0.9, rel=0.02)
        faster = changes(studied(other(0.9, 3)), before, relative_to=relative_to, implementations=["bench"])
        assert {one.verdict for one in faster} == {Verdict.FASTER}


def test_a_change_within_the_tolerance_is_no_regression() -> None:
    before, after = studied(other(1.0, 1)), studied(other(0.96, 2))
    assert {one.verdict for one in changes(before, after, implementations=["bench"])} == {Verdict.SLOWER}
    assert {one.verdict for one in changes(before, after, implementations=["bench"], tolerance=0.1)} == {Verdict.SAME}


def test_only_what_both_runs_timed_is_compared_and_controls_are_not() -> None:
    before, after = studied(other(1.0, 1)), studied(other(1.0, 2, lengths=(1024, 2048)))
    found = changes(before, after)
    assert {one.case_id.split("-")[3] for one in found} == {"q1024"}
    assert {one.implementation for one in found} == {"bench", "sdpa:default"}


def test_a_regime_is_compared_with_itself_only() -> None:
    before, after = studied(csv_text(both())), studied(csv_text(both(noise=0.011)))
    found = changes(before, after, implementations=["bench"])
    assert [(one.case_id.split("-")[3], one.setting.regime) for one in found] == [
        ("q128", "burst"), ("q1024", "burst"), ("q128", "sustained"), ("q1024", "sustained"),
    ]  # fmt: skip
    burst = studied(csv_text(row for row in both() if row["regime"] == "burst"))
    assert {one.setting.regime for one in changes(before, burst)} == {"burst"}
    assert changes(studied(csv_text(records(regime="graph"))), before) == ()


def test_an_older_run_that_does_not_name_its_caches_is_compared_where_that_leaves_no_doubt() -> None:
    older, named = studied(csv_text(records())), studied(csv_text(records(cache="cold")))
    assert len(changes(older, named, implementations=["bench"])) == 2
    assert len(changes(named, older, implementations=["bench"])) == 2
    two = studied(csv_text([*records(cache="cold"), *records(cache="warm")]))
    assert changes(older, two) == changes(two, older) == ()
    assert changes(named, studied(csv_text(records(cache="warm")))) == ()


def test_a_slower_machine_cancels_out_of_speed_ups_and_is_no_regression_of_times_either() -> None:
    speeds = {"bench": 1.2, "sdpa:default": 0.8, "bench:aa": 1.2}
    before, after = studied(other(1.0, 1)), studied(csv_text(records(speeds=speeds, seed=4)))
    (relative, _) = changes(before, after, relative_to="sdpa:default", implementations=["bench"])
    (absolute, _) = changes(before, after, implementations=["bench"])
    assert relative.verdict in (Verdict.SAME, Verdict.INCONCLUSIVE)
    assert absolute.ratio.mid == pytest.approx(0.8, rel=0.02)
    assert (absolute.verdict, absolute.spread > 0.1) == (Verdict.INCONCLUSIVE, True), "the baseline slowed down as much"


def test_the_interval_of_a_quotient_covers_at_least_as_often_as_it_says() -> None:
    import numpy as np

    from orchestrator.analysis.bootstrap import median_interval

    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        top, bottom = (median_interval(100 * np.exp(0.02 * rng.standard_normal(50))) for _ in range(2))
        found = quotient(top, bottom)
        covered += found.low <= 1 <= found.high
    assert 940 <= covered <= 985


def test_a_history_marks_where_a_new_level_begins_and_nowhere_else() -> None:
    def at(value: float) -> Interval:
        return Interval(value * 0.995, value, value * 1.005)

    values = [100, 100.3, 99.9, 110, 110.2, 90, 90.1]
    noise = Noise(0.004, NoiseSource.CONTROL)
    readings = [Reading(str(n), {}, at(value), noise) for n, value in enumerate(values)]
    found = history(readings, relative=False, tolerance=0.02)
    marked = {point.reading.run_id: point.change for point in found if point.change in (Verdict.FASTER, Verdict.SLOWER)}
    assert marked == {"3": Verdict.SLOWER, "5": Verdict.FASTER}
    assert found[0].change is None


FIRST = {
    "device": "NVIDIA L4",
    "device_kind": "cuda",
    "regimes": ("burst",),
    "driver": "580",
    "payload_sha256": "a",
    "git_commit": "c0",
    "torch": "2.13",
    "threads": 4,
}


@pytest.mark.parametrize(
    ("change", "across", "level", "reason"),
    [
        ({}, False, Level.COMPARABLE, ""),
        ({"driver": "570"}, False, Level.CAVEAT, "driver differs: 580 and 570"),
        ({"device_uuid_sha256": "x"}, False, Level.CAVEAT, "known for one run only"),
        ({"git_dirty": True}, False, Level.CAVEAT, "the second run's kernels have uncommitted changes"),
        ({"threads": 2}, False, Level.CAVEAT, "threads differs"),
        ({"device": "Tesla T4"}, False, Level.REFUSED, "device differs: NVIDIA L4 and Tesla T4"),
        ({"device": "Tesla T4"}, True, Level.CAVEAT, "device differs"),
        ({"regimes": ("sustained",)}, True, Level.REFUSED, "no regime is in both: burst and sustained"),
        ({"regimes": ("burst", "graph")}, False, Level.CAVEAT, "only burst is in both"),
        ({"nvrtc": "13.1"}, False, Level.CAVEAT, "nvrtc differs: unknown and 13.1"),
        ({"power_limit_w": 300}, False, Level.CAVEAT, "power limit differs"),
        ({"ecc": False}, False, Level.CAVEAT, "ecc differs"),
        ({"payload_sha256": "b"}, False, Level.CAVEAT, "although the commit is the same"),
        ({"payload_sha256": "b", "git_commit": "c1"}, False, Level.COMPARABLE, ""),
        ({"image": None}, False, Level.COMPARABLE, ""),
    ],
)
def test_runs_are_comparable_with_a_caveat_or_not_at_all_and_the_reason_is_given(
    change: dict[str, Any], across: bool, level: Level, reason: str
) -> None:
    found = comparability(FIRST, FIRST | change, across_devices=across)
    assert found.level is level
    assert (reason in found.reasons[0]) if reason else found.reasons == ()


def test_on_a_processor_another_number_of_threads_is_another_machine() -> None:
    first = FIRST | {"device_kind": "cpu"}
    assert comparability(first, first | {"threads": 2}).level is Level.REFUSED
    chips = first | {"device_uuid_sha256": "a"}, first | {"device_uuid_sha256": "b"}
    assert comparability(*chips).reasons == ("another chip of the same kind",)
    kinds = (chips[0], chips[1] | {"device": "NVIDIA H100"})
    assert "another chip of the same kind" not in comparability(*kinds).reasons
    assert "another chip of the same kind" not in comparability(*kinds, across_devices=True).reasons
