"""Kernels that cheat have no timing, each for a reason that says how; honest ones are never accused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.harness_process import ROOT, HarnessProcess, named

OWN = Path(__file__).parent / "own"
HONEST = ("torch", "honest_in_parts", "honest_transposed", "honest_in_double", "honest_einsum", "torch:aa")
CHEATS = {
    "old_memory": "max abs error|or never written",  # what is left behind may be a NaN
    "changes_inputs": "it changed its inputs",
    "by_address": "max abs error",
    "by_shape": "max abs error",
    "by_value": "times as fast on inputs that it has seen before",
    "public_seed": "max abs error",
    "lazy": "its output is a Lazy, not a plain tensor",
    "later": "max abs error|its output changed after the call had returned",
    "low_precision": "(64 roundings of float32)",
    "half_of_the_rows": "max abs error",
    "all_but_one_element": "max abs error",
    "patched_clock": "time.perf_counter_ns was replaced",
    "patched_clock_for_a_while": "ms passed",
    "patched_comparison": "torch.equal",
    "patched_timer": "CpuTimer.__call__ was replaced",
    "prints_a_result": "ended its process with exit code 0",
    "writes_to_every_pipe": "",
    "of_another_type": "output is (256, 256) torch.float16, not (256, 256) torch.float32",
    "of_another_shape": "output is (255, 256)",
    "nothing": "its output is a NoneType, not a plain tensor",
    "never_written": "NaN or infinite, or never written",
    "wrong_now_and_then": "wrong in one of|max abs error|never written",
    "wrong_once_in_a_hundred": "wrong in one of|max abs error",
}

HONEST_CORPORA = ("torch", "honest_workspace", "honest_fallback")
CORPORA = {
    **dict.fromkeys(
        ("zeros", "copy_of_input", "mean", "half_precision", "signs_only"), "max abs error|root mean square"
    ),
    **dict.fromkeys(("replay_from_file", "answer_to_the_last_inputs"), "max abs error"),
    "right_while_it_warms_up": "max abs error",
    **dict.fromkeys(("from_the_garbage", "from_the_frames", "tells_the_frames"), "max abs error|untrusted"),
    **dict.fromkeys(("nan", "infinity"), "NaN or infinite"),
    **dict.fromkeys(("ends_the_harness", "ends_everybody", "traces_others"), "raised PermissionError"),
    "reads_the_memory_of_others": "raised PermissionError",
    "patched_event": "Event.elapsed_time was replaced",
    "patched_event_class": "Event",
    "patched_synchronize": "torch.cuda.synchronize was replaced",
    "no_answer_until_asked": "its output is a Promise, not a plain tensor",
    "thread_that_writes": "max abs error|closed its pipe|not an answer|hung|raised|ended",
    "rewrites_a_module": "criterion.judged was replaced",
}
"""Kinds that pygpubench's exploits, KernelGuard's rules and KernelBench's adversarial tests have."""


def own(path: Path, **changes: Any) -> dict[str, Any]:
    """A small spec for a workload in a file."""
    asked: dict[str, Any] = {
        "workload": {"form": "file", "path": str(path)},
        "implementations": ["*", "*:aa"], "measure": {}, "correctness": {}, "repeats": 6, "warmup": 1,
        "regime": "burst", "cache": "cold", "seed": 7, "threads": 1, "answer_limit_s": 600,
    }  # fmt: skip
    return asked | changes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """One run of all of them together, as the agent would see it."""
    folder = tmp_path_factory.mktemp("cheats")
    with HarnessProcess("measure", own(OWN / "cheats.py"), folder, environ={"PYTHONPATH": str(ROOT)}) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    rows = {row["implementation"]: row for row in harness.rows(case["case_id"])}
    assert set(rows) == {*HONEST, *CHEATS}
    torch_rows = [row for row in harness.rows(case["case_id"]) if row["implementation"] == "torch"]
    return {**case, "rows_of": {"torch": torch_rows}}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_is_timed(finished: Mapping[str, Any], name: str) -> None:
    assert name in finished["median_us"], finished["skipped"].get(name)


def test_a_row_says_how_many_calls_were_judged_and_what_that_would_show(finished: Mapping[str, Any]) -> None:
    for row in finished["rows_of"]["torch"]:
        assert int(row["judged_calls"]) > 10
        assert float(row["rare_fault_seen"]) == pytest.approx(1 - 0.99 ** int(row["judged_calls"]), abs=1e-4)


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_has_no_timing_and_the_reason_says_how(finished: Mapping[str, Any], name: str) -> None:
    assert name not in finished["median_us"]
    assert any(words in finished["skipped"][name] for words in CHEATS[name].split("|")), finished["skipped"][name]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    folder = tmp_path_factory.mktemp("corpora")
    asked = own(OWN / "corpora.py", implementations=["*"], repeats=4)
    with HarnessProcess("measure", asked, folder, environ={"PYTHONPATH": str(ROOT)}) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    return {"timed": set(case["median_us"]), **case}


def test_of_the_public_kinds_only_honest_kernels_are_timed(corpora: Mapping[str, Any]) -> None:
    assert corpora["timed"] == {*HONEST_CORPORA}, corpora["skipped"]
    assert set(corpora["skipped"]) == set(CORPORA)


@pytest.mark.parametrize("name", CORPORA)
def test_a_public_kind_is_refused_for_what_it_does(corpora: Mapping[str, Any], name: str) -> None:
    assert any(words in corpora["skipped"][name] for words in CORPORA[name].split("|")), corpora["skipped"][name]


def test_speed_beyond_the_roof_is_implausible(tmp_path: Path) -> None:
    boast = "import torch\naxes = {'n': [64]}\ndef inputs(n, device, generator):\n    return torch.ones(n, n)\n"
    boast += "def reference(x):\n    return x @ x\ndef baseline_torch(x):\n    return x @ x\n"
    (tmp_path / "boast.py").write_text(boast + "def flops(n):\n    return 1e15\n")
    with HarnessProcess("measure", own(tmp_path / "boast.py"), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    assert "implausible: " in case["skipped"]["torch"]
    assert "GFLOP/s" in case["skipped"]["torch"]


@pytest.mark.parametrize("n", [16, 48])
def test_a_memo_of_a_small_product_is_found_too(tmp_path: Path, n: int) -> None:
    text = (OWN / "cheats.py").read_text(encoding="utf-8").replace('"n": [256]', f'"n": [{n}]')
    (tmp_path / "small.py").write_text(text)
    asked = own(tmp_path / "small.py", implementations=["torch", "by_value", "honest_einsum"])
    with HarnessProcess("measure", asked, tmp_path, environ={"PYTHONPATH": str(ROOT)}) as harness:
        _, facts = harness.finish()
    (case,) = named(facts, "case_finished")
    assert set(case["median_us"]) >= {"torch", "honest_einsum"}, case["skipped"]
