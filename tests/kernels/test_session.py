"""Candidates of a session: each is judged by the session's own reference, and costs at most its own verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kernels.harness_process import HarnessProcess, read_csv, spec

BASE = """
import torch
axes = {"n": [8, 16]}
def inputs(n, device, generator):
    return (torch.randn(n, n, device=device, generator=generator),)
def reference(x):
    return x + x
def baseline_torch(x):
    return x * 2
"""
RIGHT = BASE + "def kernel_mine(x):\n    return x + x\n"
WRONG = BASE + "def kernel_mine(x):\n    return x * 2.5\n"
HANGING = BASE + "import time\ndef kernel_mine(x):\n    time.sleep(3600)\n"
CHEATING = BASE + "def kernel_mine(x):\n    x.zero_()\n    return x + x\n"
NOTING = (
    BASE
    + """
from pathlib import Path
def kernel_mine(x):
    with Path(__file__).with_name("notes").open("a") as file:
        print(float(x.sum()), file=file)
    return x + x
"""
)
OTHER_REFERENCE = RIGHT.replace("return x + x", "return x - x")
TAMPERING = """
import pathlib
(pathlib.Path(__file__).resolve().parents[1] / "base" / "mine.py").write_text("def reference(x): return x")
"""
TAMPERING_REFUSED = "Error when it is imported" if os.geteuid() == 0 else "it changed files of the session: mine.py"
"""Where the harness is root, the files of the session are another user's."""


class Session(HarnessProcess):
    """A session that judges texts."""

    number = 0

    def file(self, number: int, text: str) -> Path:
        """The file of a version, beside which its processes may write notes."""
        file = self.out.parent / f"version{number}" / "mine.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        notes = file.with_name("notes")
        notes.touch()
        notes.chmod(0o666)
        return file

    def notes(self, number: int) -> list[list[str]]:
        """What the processes of a version have noted, in words."""
        file = self.out.parent / f"version{number}" / "notes"
        return [line.split() for line in file.read_text().splitlines()]

    def judge(self, text: str, ahead: str = "") -> dict[str, Any]:
        """The verdict on a version of the workload, and a foreseen one after it."""
        self.until("ready")
        self.number += 1
        candidate = {"number": self.number, "path": str(self.file(self.number, text))}
        candidate |= {"ahead": str(self.file(self.number + 1, ahead))} if ahead else {}
        self.write(json.dumps({"candidate": candidate}))
        fact = self.until("candidate_judged")
        self.acknowledge(fact)
        verdict: dict[str, Any] = json.loads((self.out / fact["path"]).read_text())
        return verdict


Judging = TypeVar("Judging", bound=Session)


@contextmanager
def session(tmp_path: Path, text: str = BASE, kind: type[Judging] = Session, **changes: Any) -> Iterator[Judging]:
    """A session over a workload."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "mine.py").write_text(text)
    own = {"implementations": ["*"], "measure": {}, "correctness": {}, "answer_limit_s": 5.0, "session": {}}
    workload = {"form": "file", "path": str(base / "mine.py")}
    with kind("session", spec(**own, workload=workload, **changes), tmp_path) as made:
        yield made


def reasons(verdict: dict[str, Any]) -> str:
    return verdict["reason"] + "".join(case["skipped"].get("mine", "") for case in verdict["cases"])


def test_a_right_candidate_is_timed_beside_the_baselines_in_every_case(tmp_path: Path) -> None:
    with session(tmp_path) as judge:
        verdict = judge.judge(RIGHT)
        assert verdict["kernels"] == ["mine"], judge.log()
        assert [set(case["median_us"]) for case in verdict["cases"]] == [{"torch", "mine"}] * 2
        rows = read_csv(judge.out / "candidates" / "000001" / verdict["cases"][0]["file"])
        assert {row["implementation"]: row["role"] for row in rows} == {"torch": "baseline", "mine": "kernel"}
        assert judge.judge(RIGHT)["seed"] != verdict["seed"], "no candidate is timed on inputs that another saw"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WRONG, "max abs error"),
        (HANGING, "hung: no answer within 5 s"),
        (CHEATING, "untrusted: it changed its inputs"),
        ("def kernel_mine(x:\n", "mine.py:1: syntax error"),
        (RIGHT + "\nraise KeyError('k')\n", "mine.py:13"),
        (BASE, "it has no kernel"),
        (RIGHT.replace("kernel_mine", "kernel_torch").replace("baseline_torch", "baseline_b"), "name of a baseline"),
        (RIGHT.replace("x + x", "x.exit()"), "AttributeError"),
        (RIGHT + TAMPERING, TAMPERING_REFUSED),
    ],
)
def test_a_bad_candidate_gets_its_reason_and_the_next_one_is_judged(tmp_path: Path, text: str, words: str) -> None:
    with session(tmp_path) as judge:
        assert words in reasons(judge.judge(text)), judge.log()
        assert not reasons(judge.judge(RIGHT)), judge.log()


def test_a_candidate_that_changes_the_reference_is_judged_by_the_session_own(tmp_path: Path) -> None:
    with session(tmp_path) as judge:
        assert "error" in reasons(judge.judge(OTHER_REFERENCE)), judge.log()


def test_a_session_ends_when_no_candidate_is_named(tmp_path: Path) -> None:
    with session(tmp_path) as judge:
        judge.until("ready")
        judge.write(json.dumps({"candidate": None}))
        assert judge.finish()[0] == 0


def test_no_candidate_sees_inputs_that_an_earlier_one_has_seen(tmp_path: Path) -> None:
    one_case = BASE.replace("[8, 16]", "[8]")
    with session(tmp_path, one_case) as judge:
        verdicts = [judge.judge(NOTING), judge.judge(NOTING)]
        assert not "".join(map(reasons, verdicts)), judge.log()
        first, second = ({total for (total,) in judge.notes(number)} for number in (1, 2))
        assert first
        assert second
        assert not first & second
