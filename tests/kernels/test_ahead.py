"""The next candidate of a session is prepared while one is judged: that saves time, and changes nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.harness_process import read_csv
from tests.kernels.test_session import BASE, RIGHT, Session, reasons, session
from tests.kernels.test_users import needs_users
from tests.support.patience import await_truth, living

pytestmark = needs_users

NOTES = """
import os, subprocess, sys, time
from pathlib import Path
AHEAD = os.getpriority(os.PRIO_PROCESS, 0) == 19
def note(*words):
    with (Path(__file__).parent / "notes").open("a") as file:
        print(os.getpid(), *words, file=file)
def prepared():
    ticks = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if (fields[1], fields[16]) == (str(os.getppid()), "19") and fields[21] != "0":  # an ended one has no memory
            ticks.append(int(fields[11]) + int(fields[12]))
    return ticks
def is_timed(frame):
    return frame is not None and (frame.f_code.co_name == "sample" or is_timed(frame.f_back))
note("imported", "ahead" if AHEAD else "in turn")
"""
KERNEL = BASE + NOTES + "def kernel_mine(x):\n    return x + x\n"
AT_ITS_PRIORITY = BASE + NOTES + "def kernel_mine(x):\n    assert not os.nice(0)\n    return x + x\n"
WITH_CHILD = KERNEL + 'note("child", subprocess.Popen(["sleep", "3600"], start_new_session=True).pid)\n'
BUSY = KERNEL + "if AHEAD:\n    while True:\n        pass\n"
SLOW_TO_LOAD = KERNEL + "kernel_mine.ready = lambda: time.sleep(3600)\n"
HANGING, CRASHING = KERNEL + "time.sleep(3600)\n", KERNEL + "if AHEAD:\n    os._exit(3)\n"
LOOKING = KERNEL.replace(
    "def kernel_mine(x):\n",
    "def kernel_mine(x):\n    is_timed(sys._getframe()) and (time.sleep(0.02), note('ticks', sum(prepared())))\n",
)
NEEDING_MEMORY = (
    BASE
    + NOTES
    + """
SEEN = [line.split()[-1] for line in Path(__file__).with_name("notes").read_text().splitlines() if "saw" in line]
ALONE = not prepared()
def kernel_mine(x):
    if not SEEN:
        note("saw", float(x.sum()))
        raise MemoryError
    assert not SEEN or ALONE and str(float(x.sum())) not in SEEN
    return x + x
"""
)


NAMED_ANEW = (
    BASE
    + NOTES
    + """
def kernel_mine(x):
    note("lacks memory")
    raise MemoryError
if "lacks memory" in Path(__file__).with_name("notes").read_text():
    del kernel_mine
    kernel_other = lambda x: x + x
"""
)


class Foreseeing(Session):
    """A session whose versions note their processes' ids, and words."""

    def await_imports(self, number: int, notes: int = 1) -> None:
        """Returns when a version is imported, and has noted as much."""
        await_truth(lambda: len(self.notes(number)) >= notes, "the import of what was foreseen")

    def processes(self, number: int) -> list[int]:
        """The processes of a version that are alive."""
        pids = {int(words[0]) for words in self.notes(number)} | {
            int(words[2]) for words in self.notes(number) if words[1] == "child"
        }
        return [pid for pid in pids if living(pid)]


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Foreseeing]:
    with session(tmp_path, kind=Foreseeing) as made:
        yield made


def cells(judge: Session, number: int, verdict: dict[str, Any]) -> list[tuple[str, ...]]:
    """What of the rows of a version does not depend on times."""
    kept = ("implementation", "role", "case_id", "regime", "dtype", "axis:n", "definition", "passed", "skipped")
    folder = judge.out / "candidates" / f"{number:06d}"
    rows = [row for case in verdict["cases"] for row in read_csv(folder / case["file"])]
    return sorted({tuple(row.get(key, "") for key in kept) for row in rows})


def test_a_candidate_that_was_foreseen_is_imported_once_and_ahead(judge: Foreseeing) -> None:
    first = judge.judge(KERNEL, ahead=AT_ITS_PRIORITY)
    judge.await_imports(2)
    second = judge.judge(AT_ITS_PRIORITY, ahead=KERNEL)
    assert not reasons(first) + reasons(second), judge.log()
    assert [words[1:] for words in judge.notes(1)] == [["imported", "in", "turn"]]
    assert [words[1:] for words in judge.notes(2)] == [["imported", "ahead"]]
    assert cells(judge, 1, first) == cells(judge, 2, second)
    judge.await_imports(3)
    judge.until("ready")
    judge.write(json.dumps({"candidate": None}))
    assert judge.finish()[0] == 0
    assert not [pid for number in (1, 2, 3) for pid in judge.processes(number)]


def test_of_a_candidate_that_was_foreseen_wrongly_nothing_is_left(judge: Foreseeing) -> None:
    judge.judge(KERNEL, ahead=WITH_CHILD)
    judge.await_imports(2, notes=2)
    assert len(judge.processes(2)) == 2
    judge.file(9, KERNEL)
    judge.number = 8
    assert not reasons(judge.judge(KERNEL)), judge.log()
    assert not judge.processes(2)


@pytest.mark.parametrize("text", [HANGING, SLOW_TO_LOAD, CRASHING, BUSY])
def test_a_foreseen_candidate_that_fails_costs_no_other_its_verdict(judge: Foreseeing, text: str) -> None:
    """One that hangs is given its limit once, in its turn, and one that crashed is imported again."""
    assert not reasons(judge.judge(KERNEL, ahead=text)), judge.log()
    judge.await_imports(2)
    reason = reasons(judge.judge(text, ahead=KERNEL))
    assert not reason if text == CRASHING else reason.startswith("hung: no answer within 5 s")
    assert [words[-1] for words in judge.notes(2)] == (["ahead", "turn"] if text == CRASHING else ["ahead"])
    assert not reasons(judge.judge(KERNEL)), judge.log()


def test_what_is_foreseen_stands_still_while_times_are_measured(judge: Foreseeing) -> None:
    assert not reasons(judge.judge(LOOKING, ahead=BUSY)), judge.log()
    judge.await_imports(2)
    ticks = [int(words[2]) for words in judge.notes(1) if words[1] == "ticks"]
    used = sum(before != after for before, after in pairwise(ticks))
    assert used < len(ticks) / 4, "it runs before, between and after series of samples, and within none"


def test_a_candidate_that_lacks_memory_is_judged_again_alone_on_other_inputs(judge: Foreseeing) -> None:
    assert not reasons(judge.judge(NEEDING_MEMORY, ahead=KERNEL)), judge.log()
    assert "memory ran out" in judge.log()


def test_a_candidate_that_is_judged_again_has_the_kernels_of_that_time(judge: Foreseeing) -> None:
    verdict = judge.judge(NAMED_ANEW, ahead=KERNEL)
    assert verdict["kernels"] == ["other"], judge.log()
    assert all(set(case["median_us"]) == {"torch", "other"} for case in verdict["cases"])


def test_a_session_that_is_killed_leaves_nothing_that_it_prepared(judge: Foreseeing) -> None:
    judge.judge(RIGHT, ahead=HANGING)
    judge.await_imports(2)
    pids = judge.processes(2)
    assert pids
    os.kill(judge.process.pid, 9)
    await_truth(lambda: not judge.processes(2), "the end of what was prepared")
