"""A program that measures itself is built and run within limits; its rows are marked as its own word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.harness.columns import correctness_columns
from kernels.harness.programs import visible_gpus
from tests.kernels.harness_process import HarnessProcess, named

PRINTS = """import json
listed = [{"name": "copy/%d" % n, "repetition_index": t, "real_time": t, "time_unit": "us"}
          for n in (8, 16) for t in (n, n + 2)]
print(json.dumps({"benchmarks": listed}))
"""


def asked(folder: Path, source: str = PRINTS, **changes: object) -> dict[str, object]:
    own = folder / "own"
    own.mkdir()
    (own / "source.py").write_text(source)
    told = {
        "schema": 1, "name": "mine", "command": "python3 built.py", "build": "cp source.py built.py",
        "format": "google-benchmark", "output": "", "build_limit_s": 600, "limit_s": 600,
    } | changes  # fmt: skip
    (folder / "own.json").write_text(json.dumps(told))
    return {
        "workload": {"form": "program", "path": str(own)},
        "implementations": ["*"], "measure": {}, "correctness": {},
        "repeats": 2, "warmup": 1, "regime": "burst", "seed": 7, "threads": 1,
    }  # fmt: skip


def test_a_program_is_built_and_run_and_every_case_is_stored_as_its_own_word(tmp_path: Path) -> None:
    spec = asked(tmp_path)
    for step in ("build", "correctness"):
        with HarnessProcess(step, spec, tmp_path) as harness:
            assert harness.finish()[0] == 0, harness.log()
    header = ",".join(correctness_columns(())) + "\n"
    assert (tmp_path / "out" / "correctness.csv").read_text() == header, "nothing is judged"
    with HarnessProcess("measure", {**spec, "skip_cases": ["copy-16"]}, tmp_path) as harness:
        code, facts = harness.finish()
        assert code == 0, harness.log()
        (planned,) = named(facts, "planned")
        assert (planned["cases"], planned["total"]) == (["copy-8"], 2), "what is done already is not stored again"
        (case,) = named(facts, "case_finished")
        assert case["median_us"] == {"mine": 9.0}
        rows = harness.rows("copy-8")
    assert [row["latency_us"] for row in rows] == ["8", "10"]
    assert {(row["regime"], row["backend"], row["axis:benchmark"]) for row in rows} == {
        ("program", "program:google-benchmark", "copy/8")
    }


def test_a_program_that_needs_more_gpus_than_there_are_is_not_begun(tmp_path: Path) -> None:
    with HarnessProcess("build", asked(tmp_path, gpus=64), tmp_path) as harness:
        code, facts = harness.finish()
    (problem,) = named(facts, "problem")
    assert (code, problem["cause"]) == (21, "no_cuda")
    assert "mine needs 64 GPUs" in problem["detail"]
    assert not (tmp_path / "own" / "built.py").exists()


@pytest.mark.parametrize(
    ("listed", "wanted", "seen"), [("", 1, "0"), ("", 2, "0,1"), ("GPU-b,GPU-a,2,3", 2, "GPU-b,GPU-a"), ("3", 1, "3")]
)
def test_a_program_sees_as_many_gpus_as_it_needs_of_those_that_it_may_use(listed: str, wanted: int, seen: str) -> None:
    assert visible_gpus(listed, 4, wanted) == seen


def test_a_build_that_fails_is_told_with_the_compiler_s_words(tmp_path: Path) -> None:
    spec = asked(tmp_path, build="echo 'mine.c:3: error: no such thing' >&2; exit 2")
    with HarnessProcess("build", spec, tmp_path) as harness:
        code, facts = harness.finish()
    (problem,) = named(facts, "problem")
    assert (code, problem["cause"]) == (21, "build_failed")
    assert "ended with exit code 2" in problem["detail"]
    assert "mine.c:3: error: no such thing" in problem["detail"]


def test_a_program_that_fails_hangs_or_prints_nonsense_is_named(tmp_path: Path) -> None:
    cases = {
        "fails": ({"command": "echo broken >&2; exit 3"}, "ended with exit code 3\nbroken"),
        "hangs": ({"command": "sleep 3600 & sleep 3600", "limit_s": 0.5}, "did not end within 0.5 s"),
        "nonsense": ({"command": "echo fast"}, "the output is not google-benchmark"),
        "nothing": ({"command": "true", "output": "out.json"}, "wrote no file out.json"),
    }
    for name, (changes, words) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        with HarnessProcess("measure", asked(folder, **changes), folder) as harness:
            code, facts = harness.finish()
        (problem,) = named(facts, "problem")
        assert (code, problem["cause"]) == (21, "program_failed"), name
        assert words in problem["detail"]
