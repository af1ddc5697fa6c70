"""What can only be seen on a GPU: clocks, caches, timers, memory and the names of backends."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from kernels.attention.baseline import Sdpa, chosen_backend, dispatched_backend
from kernels.attention.case import Case, Shape
from kernels.attention.implementations import Baseline
from kernels.attention.interface import Plan, Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.harness.clocks import device_clocks, open_nvml
from kernels.harness.device_clock import in_kernel_clock
from kernels.harness.input_sets import cache_bytes, free_bytes
from kernels.harness.memory import peak_bytes
from kernels.harness.timers import timer_for, timer_overhead_us
from kernels.harness.turns import Contender, Turns
from tests.kernels.harness_process import HarnessProcess, named, read_csv, shape, spec
from tests.kernels.subjects import AS_THE_HARNESS_DOES

pytestmark = AS_THE_HARNESS_DOES
DEV = torch.device("cuda", 0)


def busy() -> None:
    """A few milliseconds of work, so that the clocks are those of a chip at work."""
    a = torch.randn(4096, 4096, device=DEV, dtype=torch.float16)
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()


def test_the_kernels_clock_agrees_with_nvml() -> None:
    clock, sensors = in_kernel_clock(DEV), open_nvml(DEV)
    busy()
    pairs = []
    for _ in range(11):
        told = sensors.read().sm_clock_mhz if sensors is not None else None
        seen = clock.mhz()
        assert seen is not None, clock.why
        assert 200 < seen < 4000
        if told is not None:
            pairs.append(seen / told)
    if pairs:
        assert 0.93 < statistics.median(pairs) < 1.07
    assert device_clocks(DEV).read().sm_clock_mhz is not None


def test_an_empty_pair_of_events_takes_a_few_microseconds_at_most() -> None:
    assert 0 < timer_overhead_us(DEV) < 20


def copying(megabytes: int, sets: int) -> Contender:
    """Adds up a tensor; one for each input set."""
    tensors = [torch.randn(megabytes << 18, device=DEV) for _ in range(sets)]
    return Contender("sum", tuple(tensor.sum for tensor in tensors), nullcontext)


def test_a_rotation_over_more_than_the_cache_is_slower_than_one_set() -> None:
    cache = cache_bytes(DEV)
    assert cache is not None
    size = max(1, (cache >> 20) // 4)
    sets = 1 + 2 * 4
    assert sets * size << 20 < free_bytes(DEV)
    medians = []
    for many in (1, sets):
        contender = copying(size, many)
        timer, turns = timer_for(DEV, "burst")(contender), Turns(many)
        times = [timer(turns.take(contender, 1)).latency_us for _ in range(40)]
        medians.append(statistics.median(times[10:]))
    warm, cold = medians
    assert cold > 1.1 * warm


@pytest.mark.parametrize("regime", ["burst", "sustained", "graph"])
def test_every_regime_times_the_same_work_alike(regime: str) -> None:
    contender = copying(64, 3)
    timer = timer_for(DEV, regime)(contender)
    turns = Turns(3)
    times = [timer(turns.take(contender, timer.calls_made)).latency_us for _ in range(10)]
    # 64 MB at anything between 100 GB/s and 20 TB/s.
    assert 3 < statistics.median(times) < 700
    assert 0 < timer.overhead_us < 20
    assert (timer.rest_s(100.0) > 0) == (regime == "burst")


def test_what_cannot_be_captured_is_unavailable_in_graphs_and_the_device_lives_on() -> None:
    tensor = torch.randn(1000, device=DEV)

    def waits() -> torch.Tensor:
        torch.cuda.synchronize()
        return tensor.sum()

    stream = torch.cuda.current_stream()
    for _ in range(2):
        with pytest.raises(Unavailable, match="cannot be captured"):
            timer_for(DEV, "graph")(Contender("waits", (waits,), nullcontext))
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.ones(8, device=DEV).sum().item() == 8
        drawn = torch.randn(1000, device=DEV)
        assert drawn.isfinite().all().item()
        assert not torch.equal(drawn, torch.randn(1000, device=DEV)), "the generator goes on"
        torch.cuda.synchronize()
    timer = timer_for(DEV, "graph")(Contender("sum", (tensor.sum,), nullcontext))
    assert timer([tensor.sum] * timer.calls_made).latency_us > 0, "what can be captured still is"


def test_the_peak_of_a_call_is_its_output_and_workspace() -> None:
    q = torch.randn(1, 8, 1024, 64, device=DEV, dtype=torch.float16)

    def peak(name: str) -> int | None:
        baseline = Sdpa(name)

        def prepare() -> tuple[Plan, Callable[[], AbstractContextManager[object]]]:
            return baseline.prepare(q, q, q, False), baseline.scope

        return peak_bytes(DEV, prepare)

    plain, fused = peak("math"), peak("efficient")
    output = q.numel() * q.element_size()
    assert fused is not None
    assert plain is not None
    assert output <= fused < 16 * output
    assert plain >= 8 * 1024 * 1024 * 2, "the whole matrix of scores"


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn", "math"])
def test_the_backend_that_ran_is_named(name: str) -> None:
    q = torch.randn(2, 8, 512, 64, device=DEV, dtype=torch.float16)
    baseline = Sdpa(name)
    try:
        baseline.prepare(q, q, q, False)
    except Unavailable as exc:
        pytest.skip(str(exc))
    with baseline.scope():
        assert dispatched_backend(lambda: baseline.prepare(q, q, q, False)) == name


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_default_is_named_after_the_backend_that_it_equals_bit_for_bit(head_dim: int) -> None:
    generator = torch.Generator(DEV).manual_seed(1)
    q, k, v = (torch.randn(2, 8, 1024, head_dim, device=DEV, generator=generator).half() for _ in range(3))
    named_as = Sdpa("default").resolved(q, k, v, False).removeprefix("default:")
    assert (
        named_as
        == dispatched_backend(lambda: Sdpa("default").prepare(q, k, v, False))
        == chosen_backend(q, k, v, False, None)
    )
    baseline = Sdpa(named_as)
    with baseline.scope():
        pinned = baseline.prepare(q, k, v, False)()
    assert torch.equal(pinned, Sdpa("default").prepare(q, k, v, False)())


def test_the_default_backward_pass_is_its_backends_own_and_can_be_captured() -> None:
    case = Case(Shape(2, 8, 8, 512, 512, 64, True), "bfloat16", "backward")
    drawn = AttentionProblem().inputs(case, torch.Generator().manual_seed(1))
    inputs = Inputs(*(x.to(DEV) for x in (drawn.q, drawn.k, drawn.v, drawn.slope)))
    with torch.inference_mode():
        call = Baseline("default").bind(case, inputs)
        assert call.backend.startswith("default:")
        contender = Contender("sdpa:default", (call.plan,), call.scope)
        with call.scope():
            assert timer_for(DEV, "graph")(contender)([call.plan]).latency_us > 0


def test_a_case_in_both_regimes_is_one_file_with_every_column_that_a_gpu_can_fill(tmp_path: Path) -> None:
    asked = spec(
        implementations=["bench", "sdpa:default", "sdpa:flash", "bench:aa"],
        measure={"shapes": [shape(64, head_dim=64), shape(4096, head_dim=128, heads=16, kv_heads=16)], "dtypes": ["float16"]},
        regime="both", cache="cold", warmup="steady", repeats=6,
    )  # fmt: skip
    with HarnessProcess("environment", asked, tmp_path) as harness:
        code, _ = harness.finish()
        assert code == 0, harness.log()
    environment = json.loads((harness.out / "environment.json").read_text())
    assert environment["sm_clock_in_kernel_mhz"] > 100, environment["sm_clock_in_kernel_failure"]
    assert environment["last_level_cache_bytes"] > 0
    assert environment["timer_overhead_us"] > 0
    with HarnessProcess("measure", asked, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    small, large = named(facts, "case_finished")
    assert list(small["stopped"]) == ["burst", "graph"]
    assert list(large["stopped"]) == ["burst", "graph", "sustained"]
    for finished in (small, large):
        table = [row for row in harness.rows(finished["case_id"]) if not row["skipped"]]
        for regime in finished["stopped"]:
            own = [row for row in table if row["regime"] == regime]
            assert sorted(int(row["block"]) for row in own if row["implementation"] == "bench") == [1, 2, 3, 4, 5, 6]
        for column in ("backend", "cache", "input_sets", "warmup_calls", "warmed", "stopped", "timer_overhead_us"):
            assert all(row[column] for row in table), column
        assert all(row["peak_memory_bytes"] for row in table)
        assert all(row["hidden"] == "true" and row["cover"] == "gate" for row in table if row["regime"] != "sustained")
        assert all(float(row["host_us"]) > 0 for row in table)
        assert all(bool(row["cover_us"]) == bool(row["cover"]) for row in table)
        controls = {row["implementation"] for row in table if row["implementation"].endswith(":aa")}
        assert len(controls - {"bench:aa"}) <= 1
        assert all(row["sm_clock_mhz"] for row in table)
        assert {row["cache"] for row in table} <= {"cold", "mixed"}
    assert {row["cache"] for row in harness.rows(large["case_id"])} == {"cold"}
    clock = read_csv(harness.out / "cupti.csv")
    assert {row["case_id"] for row in clock} == {small["case_id"], large["case_id"]}
    assert {row["implementation"] for row in clock} == {"bench", "sdpa:default", "sdpa:flash"}
    asked_in = [(row["case_id"], row["implementation"], row["regime"]) for row in clock]
    assert len(set(asked_in)) == len(asked_in) == 3 * (2 + 3)
    for row in clock:
        assert row["skipped"] == ""
        watched_us, unwatched_us, cupti_us = (float(row[name]) for name in ("watched_us", "unwatched_us", "cupti_us"))
        theirs = float(row["cupti_covered_us"] or cupti_us)
        assert abs(watched_us - theirs) < max(0.5, 0.03 * theirs)
        assert abs(watched_us / unwatched_us - 1) < 0.5
        assert bool(row["cupti_covered_us"]) == (row["regime"] == "burst")
    assert all(row["kernels"] == row["backend"] for row in clock if row["implementation"] == "bench")
