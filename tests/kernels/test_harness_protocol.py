"""The harness as the agent meets it: a process that says facts, waits for acknowledgements, and leaves whole files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.attention.cpu.kernel import CpuAttention
from kernels.attention.workload import WORKLOAD
from kernels.harness.columns import correctness_columns, measurement_columns
from kernels.harness.environment import cpu_model
from tests.kernels.harness_process import ENDED, ROOT, HarnessProcess, forks, named, read_csv, shape, spec
from tests.support.patience import PATIENCE_S

FIRST = "b1-h2-kv2-q8-k8-d16-full-float32"
SECOND = "b1-h2-kv2-q9-k9-d16-causal-float32"
CONTRACT = ROOT / "docs" / "contracts.md"

pytestmark = pytest.mark.usefixtures("kernel")  # built once, so that the processes find it in the cache


def contract_columns(beginning: str) -> list[str]:
    """The columns as the contract lists them."""
    text = CONTRACT.read_text()
    listed = re.search(rf"{re.escape(beginning)}[a-z0-9_,\s]+", text)
    assert listed is not None
    return [column.strip() for column in listed.group().split(",")]


def test_a_measured_run_says_and_writes_what_the_contract_promises(tmp_path: Path, kernel_cache: Path) -> None:
    third = shape(10)
    asked = spec(skip_cases=[SECOND])
    asked["measure"]["shapes"].append(third)
    with HarnessProcess("measure", asked, tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    last = "b1-h2-kv2-q10-k10-d16-full-float32"
    (planned,) = named(facts, "planned")
    assert planned == {"fact": "planned", "cases": [FIRST, last], "total": 3, "measurements_per_implementation": 12}
    assert [(f["case_id"], f["index"], f["of"]) for f in named(facts, "case_started")] == [(FIRST, 1, 2), (last, 2, 2)]
    for finished in named(facts, "case_finished"):
        case_id = finished["case_id"]
        assert finished["path"] == f"cases/{case_id}.csv"
        table = harness.rows(case_id)
        assert finished["rows"] == len(table) == 3 * 4 + 1
        assert (
            list(table[0])
            == list(measurement_columns(WORKLOAD.columns))
            == contract_columns("run_id, vm, case_id, device,")
        )
        assert set(finished["median_us"]) == {"bench", "sdpa:default", "sdpa:math"}
        assert all(us > 0 for us in finished["median_us"].values())
        assert list(finished["skipped"]) == ["sdpa:cudnn"]
        judge_rows(table, case_id)
    assert not (harness.out / "cases" / f"{SECOND}.csv").exists()


def judge_rows(table: list[dict[str, str]], case_id: str) -> None:
    """One row a measurement, one for what was not measured, and nothing invented."""
    timed = [row for row in table if not row["skipped"]]
    skipped = [row for row in table if row["skipped"]]
    assert {row["device"] for row in table} == {cpu_model()}
    assert {row["case_id"] for row in table} == {case_id}
    assert {row["vm"] for row in table} == {"bench-20261121-040506-cpu-7f3a-1"}
    for implementation in ("bench", "sdpa:default", "sdpa:math"):
        own = [row for row in timed if row["implementation"] == implementation]
        assert sorted(int(row["repeat"]) for row in own) == [1, 2, 3, 4]
        assert all(float(row["latency_us"]) > 0 for row in own)
        assert all(float(row["max_abs_error"]) < 1e-5 for row in own)
    for block in range(1, 5):
        assert sorted(row["implementation"] for row in timed if row["block"] == str(block)) == [
            "bench", "sdpa:default", "sdpa:math",
        ]  # fmt: skip
    assert {row["backend"] for row in timed if row["implementation"] == "sdpa:default"} == {"default:flash"}
    unknown = ("sm_clock_mhz", "mem_clock_mhz", "power_w", "temperature_c", "throttle")
    assert {row[column] for row in table for column in unknown} == {""}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["started_at"]) for row in table)
    (absent,) = skipped
    assert absent["implementation"] == "sdpa:cudnn"
    assert absent["repeat"] == absent["latency_us"] == absent["block"] == ""
    assert "No viable backend" in absent["skipped"]


def test_a_control_is_the_same_kernel_measured_beside_it_under_another_name(tmp_path: Path, kernel_cache: Path) -> None:
    asked = spec(implementations=["bench", "sdpa:cudnn", "bench:aa", "sdpa:cudnn:aa"], skip_cases=[SECOND])
    with HarnessProcess("measure", asked, tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    (finished,) = named(facts, "case_finished")
    assert set(finished["median_us"]) == {"bench", "bench:aa"}
    assert set(finished["skipped"]) == {"sdpa:cudnn", "sdpa:cudnn:aa"}
    table = [row for row in harness.rows(FIRST) if not row["skipped"]]
    assert {(row["implementation"], row["backend"]) for row in table} == {
        (name, table[0]["backend"]) for name in ("bench", "bench:aa")
    }
    assert sorted(row["position"] for row in table) == ["1"] * 4 + ["2"] * 4
    assert {row["calls"] for row in table} == {"1"}
    assert all(0 <= float(row["steal_percent"]) <= 100 for row in table if row["steal_percent"])
    assert {row["joules_per_call"] for row in table} == {""}


def test_both_regimes_of_a_case_are_in_one_file_and_each_counts_its_own_blocks(
    tmp_path: Path, kernel_cache: Path
) -> None:
    asked = spec(implementations=["bench", "sdpa:cudnn", "bench:aa"], regime="both", skip_cases=[SECOND], repeats=3)
    with HarnessProcess("measure", asked, tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    assert named(facts, "planned")[0]["measurements_per_implementation"] == 2 * 2 * 3
    (finished,) = named(facts, "case_finished")
    assert finished["stopped"] == {"burst": "repeats", "sustained": "repeats"}
    table = harness.rows(FIRST)
    assert finished["rows"] == len(table) == 2 * (2 * 3 + 1)
    for regime in ("burst", "sustained"):
        own = [row for row in table if row["regime"] == regime]
        assert [row["block"] for row in own if row["implementation"] == "bench"] == ["1", "2", "3"]
        assert [row["skipped"] for row in own if row["implementation"] == "sdpa:cudnn"] == [
            finished["skipped"]["sdpa:cudnn"]
        ]
        calls = {int(row["calls"]) for row in own if not row["skipped"]}
        assert calls == {1} if regime == "burst" else min(calls) > 1
    burst = [float(row["latency_us"]) for row in table if row["regime"] == "burst" and row["implementation"] == "bench"]
    assert finished["median_us"]["bench"] == sorted(burst)[1]


def test_a_row_tells_of_the_cache_the_warm_up_the_end_and_the_timer(tmp_path: Path, kernel_cache: Path) -> None:
    long = shape(700)
    asked = spec(
        implementations=["bench", "sdpa:math"], measure={"shapes": [long], "dtypes": ["float32"]}, repeats=1000,
        cache="cold", warmup="steady", usd_per_hour=3600, case_budget_usd=1e-6,
    )  # fmt: skip
    with HarnessProcess("measure", asked, tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    (finished,) = named(facts, "case_finished")
    assert finished["stopped"] == {"burst": "dollars"}
    table = harness.rows(finished["case_id"])
    assert sorted(row["block"] for row in table) == ["1", "1", "2", "2"]
    assert {row["stopped"] for row in table} == {"dollars"}
    assert all(int(row["input_sets"]) > 1 and row["cache"] in ("cold", "mixed") for row in table)
    assert {row["warmed"] for row in table} <= {"steady", "limit"}
    assert all(int(row["warmup_calls"]) >= 8 for row in table)
    assert all(0 < float(row["timer_overhead_us"]) < 5 for row in table)
    assert {row["peak_memory_bytes"] for row in table} == {""}


def test_no_case_starts_before_the_one_before_it_is_acknowledged(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("measure", spec(), tmp_path, cache=kernel_cache) as harness:
        finished = harness.until("case_finished")
        assert finished["case_id"] == FIRST
        assert harness.rows(FIRST)
        for wrong in ("", "{}", "[]", "not json", '{"ack": "cases/another.csv"}', '{"ack": 1}'):
            harness.write(wrong)
        # The log tells when the last wrong line was read; still nothing more may have been said.
        while "not an acknowledgement: b'{\"ack\": 1}'" not in harness.log():
            assert harness.process.poll() is None
        assert harness.facts.empty()
        assert sorted(path.name for path in (harness.out / "cases").iterdir()) == [f"{FIRST}.csv"]
        harness.acknowledge(finished)
        code, facts = harness.finish()
    assert code == 0
    assert facts[0]["fact"] == "case_started"
    assert facts[0]["case_id"] == SECOND


def test_when_the_agent_hangs_up_the_harness_stops_at_once(tmp_path: Path, kernel_cache: Path) -> None:
    endless = spec(repeats=10_000_000)
    with HarnessProcess("measure", endless, tmp_path, cache=kernel_cache) as harness:
        harness.until("checked")
        harness.hang_up()
        assert harness.process.wait(600) == 1
        assert "the agent is gone" in harness.log()
    assert not list((harness.out / "cases").glob("*.csv"))


def test_a_killed_harness_leaves_only_whole_files(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("measure", spec(repeats=300), tmp_path, cache=kernel_cache) as harness:
        harness.acknowledge(harness.until("case_finished"))
        harness.until("case_started")
        harness.process.kill()
        harness.process.wait()
    for path in (harness.out / "cases").glob("*.csv"):
        table = read_csv(path)
        assert len(table) == 3 * 300 + 1
        assert all(None not in row.values() and None not in row for row in table)
    assert (harness.out / "cases" / f"{FIRST}.csv").exists()


def test_a_resumed_run_with_nothing_left_is_done(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("measure", spec(skip_cases=[FIRST, SECOND]), tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert (code, [fact["fact"] for fact in facts]) == (0, ["planned"])
    assert facts[0]["cases"] == []


def test_the_correctness_step_judges_every_implementation_on_every_case(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("correctness", spec(), tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 0
    assert facts[-1] == {"fact": "correctness", "path": "correctness.csv", "checked": 6, "failed": 0}
    assert len(named(facts, "checked")) == 6
    table = read_csv(harness.out / "correctness.csv")
    assert (
        list(table[0])
        == list(correctness_columns(WORKLOAD.columns))
        == contract_columns("implementation, case_id, dtype, batch,")
    )
    assert [row["passed"] for row in table] == ["true", "true", "", "true"] * 2
    assert [bool(row["reason"]) for row in table] == [False, False, True, False] * 2


def test_the_environment_step_passes_three_gates_and_leaves_a_fingerprint(tmp_path: Path) -> None:
    with HarnessProcess("environment", spec(), tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0
    gates = [(fact["name"], fact["passed"]) for fact in named(facts, "gate")]
    assert gates == [("torch_imports", True), ("numpy_matches", True), ("cuda_answers", True)]
    told = facts[-1]
    assert told["path"] == "environment.json"
    assert told["device_kind"] == "cpu"
    promised = re.search(r"`environment.json` has at least\s+`([^`]+)`", CONTRACT.read_text())
    assert promised is not None
    recorded: dict[str, Any] = json.loads((harness.out / "environment.json").read_text())
    assert set(promised.group(1).split(", ")) <= set(recorded)
    assert recorded["device"] == told["device"] == cpu_model()
    assert recorded["threads"] == 1
    assert recorded["timer_overhead_us"] > 0
    assert recorded["protocol"]["warmup"] == 1
    assert recorded["protocol"]["peak_memory"].startswith("unknown: ")
    assert recorded["zone"] is recorded["image"] is recorded["nvrtc"] is recorded["sm_clock_source"] is None
    assert recorded["driver"] is recorded["compute_capability"] is recorded["device_uuid_sha256"] is None


def test_by_hand_nothing_is_waited_for_and_input_may_be_empty(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("build", spec(), tmp_path, cache=kernel_cache, options=("--no-ack",)) as harness:
        harness.hang_up()
        facts = []
        while (fact := harness.next()) is not ENDED:
            facts += [fact] if fact["fact"] != "case_observed" else []  # a machine that is slow says where it is
        assert harness.process.wait(600) == 0
    assert [fact["fact"] for fact in facts] == ["built", "gate", "checked", "gate"]
    assert facts[0]["cached"] is True
    assert [(fact["name"], fact["passed"]) for fact in named(facts, "gate")] == [
        ("kernel_loads", True),
        ("smoke_test", True),
    ]


def test_without_the_kernel_among_the_implementations_nothing_is_built(tmp_path: Path) -> None:
    with HarnessProcess("build", spec(implementations=["sdpa:math"]), tmp_path, environ={"CXX": "none"}) as harness:
        code, facts = harness.finish()
    assert code == 0
    assert named(facts, "built") == []
    assert [fact["passed"] for fact in named(facts, "gate")] == [True, True]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"repeats": 1}', '{"implementations": 3}'], ids=["empty", "list", "incomplete", "wrong"]
)
def test_a_bad_spec_is_refused_before_anything_is_loaded(tmp_path: Path, text: str) -> None:
    with HarnessProcess("measure", text, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 22
    assert [fact["fact"] for fact in facts] == ["problem"]
    assert facts[0]["cause"] == "spec_refused"
    assert not harness.out.exists()


def test_a_graph_is_refused_where_there_is_no_cuda(tmp_path: Path, kernel_cache: Path) -> None:
    with HarnessProcess("measure", spec(regime="graph"), tmp_path, cache=kernel_cache) as harness:
        code, facts = harness.finish()
    assert code == 22
    assert "needs a CUDA device" in facts[-1]["detail"]


def test_nothing_but_facts_reaches_standard_output(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "from kernels.harness.facts import Facts\n"
        "facts = Facts(acknowledged=False)\n"
        "print('chatter'); sys.stdout.flush(); os.write(1, b'raw chatter\\n'); subprocess.run(['echo', 'child chatter'])\n"
        "facts.send('gate', name='x', passed=True, detail='é\\n')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.stdout.splitlines() == ['{"fact": "gate", "name": "x", "passed": true, "detail": "\\u00e9\\n"}']
    assert ran.stderr.splitlines() == ["chatter", "raw chatter", "child chatter"]


def test_when_nobody_reads_the_facts_the_harness_stops() -> None:
    code = (
        "from kernels.harness.facts import Facts\nfacts = Facts(acknowledged=False)\nwhile True: facts.send('problem')"
    )
    read, write = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.DEVNULL)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    assert process.wait(600) == 1


def test_the_kernel_of_the_tests_is_the_kernel_of_the_processes(kernel: CpuAttention) -> None:
    assert kernel.name.startswith("cpu-")


LOOKS = """
import sys, torch
from kernels.attention.baseline import dispatched_backend
from kernels.attention.correctness import poison_memory
q = torch.ones(1, 2, 8, 16)
with torch.inference_mode(), poison_memory(q, through_torch=True):
    assert torch.empty(4).isnan().all()
    named = dispatched_backend(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
assert torch.get_deterministic_debug_mode() == 0
print(named, "torch._dynamo" in sys.modules, "torch._inductor" in sys.modules)
"""


def test_nothing_that_judges_imports_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    with (tmp_path / "log").open("w") as log:
        process = forks().start("looks", cwd=tmp_path, environ=os.environ, log=log)
        with process.stdin, process.stdout:
            said = process.stdout.read()
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    assert said == "flash False False\n"
