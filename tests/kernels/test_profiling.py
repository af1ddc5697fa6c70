"""Profiles: by PyTorch for real on this processor, by a stand-in for ncu that speaks its format, and never a row."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.harness import profiling
from kernels.harness.profiling import (
    REMEDY,
    Machine,
    Tool,
    by_ncu,
    find_tool,
    is_restricted,
    profile_all,
    recorded_machine,
    write_pages,
)
from kernels.harness.reading import BadSpec
from kernels.harness.spec import Profile, parse_spec
from tests.kernels.harness_process import HarnessProcess, run_forked, shape, spec

CASE, MISSING = "b1-h2-kv2-q8-k8-d16-full-float32", "b9-h2-kv2-q8-k8-d16-full-float32"
SMALL = {"measure": {"shapes": [shape(8)], "dtypes": ["float32"]}, "implementations": ["sdpa:math"]}
ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_ncu.py")


def profiled(directory: Path, **asked: Any) -> dict[str, Any]:
    wanted = spec(**SMALL, profile={"cases": [CASE], **asked})
    with HarnessProcess("profile", wanted, directory, options=("--no-ack",)) as harness:
        code, facts = harness.finish()
    assert code == 0
    assert {fact["fact"] for fact in facts} == {"profiled"}
    assert facts[-1]["path"] == "profile/summary.json"
    found: dict[str, Any] = json.loads((directory / "out" / "profile" / "summary.json").read_text())
    return found


def test_without_a_gpu_a_profile_is_pytorchs_and_says_so_and_its_trace_opens(tmp_path: Path) -> None:
    (one,) = profiled(tmp_path)["profiles"]
    assert (one["tool"], one["reason"]) == ("torch.profiler", "")
    assert "this is a processor" in one["why_not_ncu"]
    table = json.loads((tmp_path / f"out/profile/{CASE}--sdpa-math.table.json").read_text())
    assert any(row["name"].startswith("aten::") and row["cpu_us"] > 0 for row in table["rows"])
    with gzip.open(tmp_path / f"out/profile/{CASE}--sdpa-math.trace.json.gz") as packed:
        events = json.load(packed)["traceEvents"]
    assert sum(event.get("name", "").startswith("sdpa:math call") for event in events) >= table["calls"]
    assert not (tmp_path / "out" / "cases").exists(), "a profiled call is no row"


def test_a_profile_writes_nothing_of_a_name_that_others_can_foresee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of that name in the folder that all users share would be followed."""
    shared, theirs = tmp_path / "tmp", tmp_path / "theirs"
    shared.mkdir()
    theirs.write_text("as it was")
    (shared / "build-cpu.log").symlink_to(theirs)
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'c++ 13' && exit 0\nexit 1\n")
    compiler.chmod(0o755)
    (tmp_path / "spec.json").write_text(json.dumps(spec(**SMALL | {"implementations": ["bench"]})))
    environment = os.environ | {"TMPDIR": str(shared), "CXX": str(compiler), "BENCH_KERNEL_CACHE": str(tmp_path / "k")}
    arguments = ("--spec", str(tmp_path / "spec.json"), "--case", CASE, "--implementation", "bench")
    ran = run_forked("kernels.harness.profiled", *arguments, "--out", str(tmp_path / "stem"), environ=environment)
    assert "c++ 13 exited with 1" in ran.stderr, ran.stderr
    assert theirs.read_text() == "as it was"
    assert [path.name for path in shared.iterdir()] == ["build-cpu.log"]


def test_a_case_that_the_run_does_not_have_is_a_line_with_its_reason(tmp_path: Path) -> None:
    (one,) = profiled(tmp_path, cases=[MISSING], implementations=["sdpa:math"])["profiles"]
    assert (one["reason"], one["files"]) == ("there is no such case in this run", [])


def fake(tmp_path: Path) -> str:
    path = tmp_path / "bin" / "ncu"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_ncu_replays_what_lies_between_start_and_stop_and_leaves_its_pages(tmp_path: Path) -> None:
    child = [sys.executable, "-c", "pass"]
    stem = tmp_path / "case--bench"
    ncu = fake(tmp_path)
    assert by_ncu(ncu, "roofline", child, stem) == ""
    write_pages(ncu, stem)
    asked = json.loads(Path(f"{stem}.ncu-rep.asked").read_text())
    assert asked[asked.index("--clock-control") + 1] == "none"
    assert asked[asked.index("--profile-from-start") + 1] == "off"
    assert "SpeedOfLight_RooflineChart" in asked
    assert gzip.decompress(Path(f"{stem}.ncu-rep.gz").read_bytes()).startswith(b"NVR")
    assert not Path(f"{stem}.ncu-rep").exists()
    assert "gpu__time_duration.sum" in Path(f"{stem}.metrics.csv").read_text()
    assert "CPIStall" in Path(f"{stem}.rules.csv").read_text()
    assert "Speed Of Light" in Path(f"{stem}.details.txt").read_text()


class Heard:
    """Takes the place of `Facts`: what was told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def send(self, fact: str, **values: Any) -> None:
        assert fact == "profiled"
        self.told.append(values["path"])


IN_STEP = """#!/bin/sh
cd "$(dirname "$0")"
wait_for() { until [ -e "$1" ]; do sleep 0.02; done; }
if [ "$1" = --import ]; then touch writing; wait_for second; echo text; exit; fi
if [ -e first ]; then wait_for writing; touch second; fi
touch first
printf NVR > "$3"
"""
"""An ncu whose second profile waits for the first one's texts to be begun, and those for the second profile."""


def test_while_one_is_profiled_the_texts_of_the_one_before_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu = tmp_path / "bin" / "ncu"
    ncu.parent.mkdir()
    ncu.write_text(IN_STEP)
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ncu.parent}:{os.environ['PATH']}")
    heard: Any = Heard()
    both = {**SMALL, "implementations": ["sdpa:math", "bench"]}
    asked = parse_spec(json.dumps(spec(**both, profile={"cases": [CASE]})), None)
    assert profile_all(asked, tmp_path, heard, Machine("cuda", "a GPU")) == 0
    assert heard.told[-1] == "profile/summary.json"
    rows = json.loads((tmp_path / "profile/summary.json").read_text())["profiles"]
    assert [(row["implementation"], row["tool"], row["reason"]) for row in rows] == [
        ("sdpa:math", "ncu", ""), ("bench", "ncu", "")
    ]  # fmt: skip
    assert all(row["seconds"] > 0 for row in rows)
    assert heard.told[:-1] == [path for row in rows for path in row["files"]]
    assert len(heard.told) == 9, "a packed report and three texts of each"


def test_what_the_environment_step_wrote_down_is_not_asked_of_pytorch_again(tmp_path: Path) -> None:
    assert recorded_machine(tmp_path) is None
    (tmp_path / "environment.json").write_text('{"device": "NVIDIA H200", "device_kind": "cuda", "torch": "2"}')
    assert recorded_machine(tmp_path) == Machine("cuda", "NVIDIA H200")
    for spoilt in ("[]", "{", '{"device": "x"}'):
        (tmp_path / "environment.json").write_text(spoilt)
        assert recorded_machine(tmp_path) is None
    program = (
        "import json, sys; from pathlib import Path; from kernels.harness.__main__ import main;"
        "code = main(sys.argv[1:]); print('torch' in sys.modules, code, file=sys.stderr)"
    )
    out, wanted = tmp_path / "out", tmp_path / "spec.json"
    out.mkdir()
    (out / "environment.json").write_text('{"device": "here", "device_kind": "cpu"}')
    wanted.write_text(json.dumps(spec(**SMALL, profile={"cases": [MISSING]})))
    done = subprocess.run(
        [sys.executable, "-c", program, "profile", "--spec", str(wanted), "--out", str(out), "--no-ack"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "False 0"
    assert json.loads((out / "profile/summary.json").read_text())["device"] == "here"


@pytest.mark.parametrize(("asked", "flag"), [({"profile": {"cases": [MISSING]}}, True), ({}, False)])
def test_what_is_profiled_is_what_was_built_and_nothing_is_compiled_for_it(
    tmp_path: Path, asked: dict[str, Any], flag: bool
) -> None:
    """Kernels are cached under their flags, so each step of a run has to have the same ones, whatever it then finds."""
    (tmp_path / "with_its_flags.py").write_text(
        "import sys; from kernels.harness.__main__ import main; from kernels.attention.cuda.compile.compiler import compiler_flags;"
        "print(main(sys.argv[1:]), '-lineinfo' in compiler_flags(), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out, wanted = tmp_path / "out", tmp_path / "spec.json"
    out.mkdir()
    (out / "environment.json").write_text('{"device": "here", "device_kind": "cpu"}')
    wanted.write_text(json.dumps(spec(**SMALL, **asked)))
    for step in ("build", "profile") if flag else ("build",):
        arguments = (step, "--spec", str(wanted), "--out", str(out), "--no-ack")
        done = run_forked("with_its_flags", *arguments, environ=environment)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == f"0 {flag}"


def test_a_program_that_fails_under_ncu_has_no_report_and_a_reason(tmp_path: Path) -> None:
    child = [sys.executable, "-c", "raise SystemExit('no such kernel')"]
    assert "no such kernel" in by_ncu(fake(tmp_path), "full", child, tmp_path / "x")


def test_counters_that_the_driver_refuses_are_told_with_the_administrators_line(tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'\nexit 1\n")
    ncu.chmod(0o755)
    said = by_ncu(str(ncu), "full", [sys.executable, "-c", ""], tmp_path / "x")
    assert "ERR_NVGPUCTRPERM" in said
    assert "options nvidia NVreg_RestrictProfilingToAdminUsers=0" in said


def test_the_tool_is_ncu_only_where_it_is_there_and_may_read_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, open_ = tmp_path / "closed", tmp_path / "open"
    closed.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    open_.write_text("RmProfilingAdminOnly: 0\n")
    assert (is_restricted(closed), is_restricted(open_), is_restricted(tmp_path / "none")) == (True, False, False)
    there = {"PATH": str(Path(fake(tmp_path)).parent)}
    assert find_tool("cuda", "roofline", there, open_) == Tool(f"{there['PATH']}/ncu")
    assert "processor" in find_tool("cpu", "roofline", there, open_).why_not
    assert "trace" in find_tool("cuda", "trace", there, open_).why_not
    monkeypatch.setattr(profiling, "NCU_PLACES", ())
    assert "no ncu" in find_tool("cuda", "roofline", {"PATH": str(tmp_path)}, open_).why_not
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert REMEDY in find_tool("cuda", "full", there, closed).why_not


@pytest.mark.parametrize(
    "wrong", [3, {}, {"cases": "all"}, {"cases": [3]}, {"cases": [], "set": "most"}, {"cases": [], "x": 1}]
)
def test_what_cannot_be_meant_is_refused(wrong: object) -> None:
    with pytest.raises(BadSpec):
        parse_spec(json.dumps(spec(profile=wrong)))
    assert parse_spec(json.dumps(spec())).profile is None
    assert parse_spec(json.dumps(spec(profile={"cases": [CASE], "set": "full"}))).profile == Profile(
        (CASE,), (), "full"
    )
