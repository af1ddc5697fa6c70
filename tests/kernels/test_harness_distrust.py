"""Wrong, broken or missing parts: no timing of what was wrong, no silence about what was missing, no stop for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernels.cuda.compiled import hasty
from tests.kernels.harness_process import HarnessProcess, named, read_csv, shape, spec
from tests.kernels.payloads import payload

WRONGS = {
    "a scale that is off": ("a.scale * kLog2E", "a.scale * 1.5f"),
    "a mask that sees one key too many": ("std::min(a.seq_k, at.position + 1)", "std::min(a.seq_k, at.position + 2)"),
    "a last row that is never written": ("for (int r = 0; r < rows; ++r) {\n    const RowAddress at = address(w, kv, first + r);\n    const int64_t where",
                                         "for (int r = 0; r < rows - 1; ++r) {\n    const RowAddress at = address(w, kv, first + r);\n    const int64_t where"),
    "a sum that forgets to rescale": ("running_sum = running_sum * rescale +", "running_sum = running_sum +"),
}  # fmt: skip


def spoil(root: Path, old: str, new: str) -> None:
    source = root / "kernels" / "attention" / "cpu" / "attention.cpp"
    text = source.read_text()
    assert text.count(old) == 1, f"the source no longer has {old!r} once"
    source.write_text(text.replace(old, new))


@pytest.fixture
def quickly(tmp_path: Path) -> dict[str, str]:
    """An environment with a hasty compiler: a kernel that is wrong is wrong however slow."""
    (tmp_path / "compiler").mkdir()
    return {"CXX": str(hasty(tmp_path / "compiler"))}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return payload(tmp_path)


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_wrong_kernel_is_never_timed_and_the_others_still_are(
    root: Path, tmp_path: Path, quickly: dict[str, str], wrong: str
) -> None:
    spoil(root, *WRONGS[wrong])
    # Longer than a block of keys, so that rescaling matters; causal, so that the mask does.
    asked = spec(measure={"shapes": [shape(300, causal=True)], "dtypes": ["float32"]})
    with HarnessProcess("measure", asked, tmp_path, root=root, environ=quickly) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    assert set(case["median_us"]) == {"sdpa:default", "sdpa:math"}
    (row,) = [row for row in harness.rows(case["case_id"]) if row["implementation"] == "bench"]
    assert row["latency_us"] == row["repeat"] == ""
    assert row["skipped"] == case["skipped"]["bench"] != ""
    (verdict,) = [fact for fact in named(facts, "checked") if fact["implementation"] == "bench"]
    assert not verdict["passed"]
    assert verdict["reason"] == row["skipped"]


def test_a_kernel_that_is_wrong_on_one_copy_of_its_inputs_only_has_no_timings(
    root: Path, tmp_path: Path, quickly: dict[str, str]
) -> None:
    spoil(root, "a.scale * kLog2E", "a.scale * (reinterpret_cast<uintptr_t>(a.q) % 8192 < 512 ? 1.5f : kLog2E)")
    asked = spec(cache="cold", skip_cases=["b1-h2-kv2-q9-k9-d16-causal-float32"])
    with HarnessProcess("measure", asked, tmp_path, root=root, environ=quickly) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (case,) = named(facts, "case_finished")
    (row,) = [row for row in harness.rows(case["case_id"]) if row["implementation"] == "bench"]
    assert row["latency_us"] == ""
    assert row["skipped"] == case["skipped"]["bench"]
    assert "max abs error" in row["skipped"]


def test_a_wrong_kernel_fails_the_smoke_test_and_the_correctness_step(
    root: Path, tmp_path: Path, quickly: dict[str, str]
) -> None:
    spoil(root, *WRONGS["a scale that is off"])
    for implementations, expected in ((["bench"], 21), (["bench", "sdpa:math"], 10)):
        with HarnessProcess(
            "build", spec(implementations=implementations), tmp_path, root=root, environ=quickly
        ) as harness:
            code, facts = harness.finish()
        assert code == expected
        assert [fact["passed"] for fact in named(facts, "gate")] == [True, False]
        assert named(facts, "problem")[0]["cause"] == "kernel_wrong"
    with HarnessProcess("correctness", spec(), tmp_path, root=root, environ=quickly) as harness:
        code, facts = harness.finish()
    assert code == 10
    assert facts[-1]["failed"] == 2
    table = read_csv(harness.out / "correctness.csv")
    assert [row["passed"] for row in table if row["implementation"] == "bench"] == ["false", "false"]


def test_a_kernel_that_does_not_compile_is_a_skip_row_with_the_compilers_words(root: Path, tmp_path: Path) -> None:
    spoil(root, "void task(const Work& w, int64_t index) {", "void task(const Work& w, int64_t index) { nonsense;")
    with HarnessProcess("build", spec(), tmp_path, root=root) as harness:
        code, facts = harness.finish()
    assert code == 20
    problem = facts[-1]
    assert problem["cause"] == "build_failed"
    assert "nonsense" in problem["detail"]
    assert not (harness.out / "build.json").exists()
    with HarnessProcess("measure", spec(), tmp_path, root=root) as harness:
        code, facts = harness.finish()
    assert code == 10
    for case in named(facts, "case_finished"):
        assert set(case["median_us"]) == {"sdpa:default", "sdpa:math"}
        assert case["skipped"]["bench"].startswith("build_failed: ")
        assert "nonsense" in case["skipped"]["bench"]


def test_without_a_compiler_the_diagnosis_is_no_compiler(tmp_path: Path) -> None:
    with HarnessProcess("build", spec(), tmp_path, environ={"CXX": "no-such-compiler"}) as harness:
        code, facts = harness.finish()
    assert code == 20
    assert [fact["fact"] for fact in facts] == ["gate", "problem"]
    assert facts[1]["cause"] == "no_compiler"
    assert "apt-get install g++" in facts[1]["detail"]


@pytest.mark.parametrize(
    ("module", "fault", "gate", "cause"),
    [
        ("torch", "OSError('libtorch.so: cannot open shared object file')", "torch_imports", "torch_missing"),
        ("numpy", "ImportError('built for another ABI')", "torch_imports", "numpy_mismatch"),
        ("numpy", "ModuleNotFoundError('No module named numpy')", "numpy_matches", "numpy_mismatch"),
    ],
)
def test_a_library_that_does_not_import_is_a_failed_gate_with_its_cause(
    root: Path, tmp_path: Path, module: str, fault: str, gate: str, cause: str
) -> None:
    (root / f"{module}.py").write_text(f"raise {fault}")
    with HarnessProcess("environment", spec(), tmp_path, root=root, fresh=True) as harness:
        code, facts = harness.finish()
    assert code == 21
    failed = named(facts, "gate")[-1]
    assert (failed["name"], failed["passed"]) == (gate, False)
    assert facts[-1]["fact"] == "problem"
    assert facts[-1]["cause"] == cause


def test_the_payloads_manifest_says_which_commit_was_measured(root: Path, tmp_path: Path) -> None:
    said = {"git_commit": "0123abcd", "git_dirty": False, "payload_sha256": "ff" * 32}
    (root / "manifest.json").write_text(json.dumps(said))
    with HarnessProcess("environment", spec(), tmp_path, root=root) as harness:
        code, _ = harness.finish()
    assert code == 0
    recorded = json.loads((harness.out / "environment.json").read_text())
    assert {key: recorded[key] for key in said} == said


def test_a_crash_is_told_before_the_process_ends(root: Path, tmp_path: Path) -> None:
    broken = root / "kernels" / "harness" / "axes.py"
    broken.write_text(broken.read_text().replace("generator.manual_seed(", "generator.no_such_method("))
    with HarnessProcess("measure", spec(implementations=["sdpa:math"]), tmp_path, root=root) as harness:
        code, facts = harness.finish()
    assert code == 1
    assert facts[-1]["cause"] == "harness_crashed"
    assert "no_such_method" in facts[-1]["detail"]
    assert "Traceback" in harness.log()
