"""An implementation of a workload of ours that never returns, crashes or breaks the device costs itself, not the step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kernels.harness.calls import AGAIN, PAST, Calls, Failure, busy_page, read_page
from kernels.harness.facts import CRASHED
from kernels.harness.watched import LOOK_S, Watch, is_watched, run
from tests.kernels.harness_process import ENDED, ROOT, HarnessProcess, shape, spec
from tests.support.patience import PATIENCE_S

PLANTED = """
import os, signal, time
from kernels.harness.workload import Call

class Planted:
    def build(self, site): ...
    def bind(self, case, inputs):
        def plan():
            if "-q8-" in case.id:
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(3600)
        return Call("planted", plan)

def planted(name, site):
    return Planted()
"""
LIMIT_S = 5.0


def payload(folder: Path, source: str = PLANTED) -> Path:
    """The kernels with one more implementation of attention: it crashes on 8 queries, and hangs on any others."""
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("*.pyc.*", "results"))
    attention = folder / "kernels" / "attention"
    (attention / "planted.py").write_text(source)
    with (attention / "registry.py").open("a") as registry:
        registry.write('REGISTRY.add(Entry("planted", "kernels.attention.planted:planted"))\n')
    return folder


def test_an_implementation_that_crashes_and_hangs_gets_rows_that_say_so_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    wanted = spec(
        implementations=["planted", "planted:aa", "sdpa:math"],
        measure={"shapes": [shape(8), shape(9), shape(10)], "dtypes": ["float32"]},
        answer_limit_s=LIMIT_S,
    )
    facts: list[Mapping[str, Any]] = []
    with HarnessProcess(
        "measure", wanted, tmp_path, root=payload(tmp_path / "payload"), options=("--watched",)
    ) as harness:
        while (fact := harness.next()) is not ENDED:
            harness.acknowledge(fact)
            facts.append(fact)
        assert harness.process.wait() == 10, harness.log()
    assert [fact["fact"] for fact in facts].count("planned") == 1
    ended = [fact for fact in facts if fact["fact"] == "case_finished"]
    assert [fact["index"] for fact in ended] == [1, 2, 3]
    assert all(list(fact["median_us"]) == ["sdpa:math"] for fact in ended)
    hung = "hung: no answer within 5 s while it was called"
    again = "not tried again: it hung in a case before"
    for fact, reason in zip(ended, ("crashed (SIGSEGV) while it was called", hung, again), strict=True):
        assert fact["skipped"] == {"planted": reason, "planted:aa": reason}


# ---- the process that watches


def step(folder: Path, body: str) -> list[str]:
    """A step of these lines, which may use `calls`, the calls of its process, and count its starts by `start`."""
    program = folder / "step.py"
    program.write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\nfrom kernels.harness.calls import PAGE, PAST, Calls\n"
        "calls = Calls()\ncalls.join(Path(os.environ[PAGE]), Path(os.environ[PAST]))\n"
        f"starts = Path({str(folder / 'starts')!r})\nstart = len(starts.read_text()) if starts.exists() else 0\n"
        f"starts.write_text('.' * (start + 1))\n{body}\n"
    )
    return [sys.executable, str(program)]


@pytest.fixture
def finding_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.usefixtures("finding_kernels")
def test_a_step_that_fails_in_nobodys_call_is_not_started_again(tmp_path: Path) -> None:
    assert run(step(tmp_path, "sys.exit(7)"), 60.0) == 7
    assert (tmp_path / "starts").read_text() == "."


@pytest.mark.usefixtures("finding_kernels")
def test_a_step_that_asks_for_another_start_without_a_reason_does_not_get_one(tmp_path: Path) -> None:
    assert run(step(tmp_path, f"sys.exit({AGAIN})"), 60.0) == CRASHED
    assert (tmp_path / "starts").read_text() == "."


@pytest.mark.usefixtures("finding_kernels")
def test_what_one_process_finished_or_failed_at_is_known_to_the_next(tmp_path: Path) -> None:
    body = (
        "if start == 0:\n"
        "    calls.finished('c1', wrong=True, medians={'burst': {'a': 2.0}})\n"
        "    with calls.of('b', 'c2'): os.kill(os.getpid(), signal.SIGABRT)\n"
        "assert calls.measured == {'c1': {'wrong': True, 'medians': {'burst': {'a': 2.0}}}}\n"
        "assert calls.before('b', 'c2') == ('crashed (SIGABRT) while it was called', True)\n"
        "assert calls.before('b', 'c3') is None\n"
    )
    assert run(step(tmp_path, body), 60.0) == 0
    assert (tmp_path / "starts").read_text() == ".."


@pytest.mark.usefixtures("finding_kernels")
def test_a_step_ends_with_the_process_that_watches_it(tmp_path: Path) -> None:
    body = "from kernels.harness.ending import end_with_parent\nend_with_parent()\nprint('ready', flush=True)\ntime.sleep(3600)"
    watching = f"import sys\nfrom kernels.harness.watched import run\nsys.exit(run({step(tmp_path, body)!r}, 3600.0))"
    with subprocess.Popen([sys.executable, "-c", watching], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout.read() == "", "its end of the pipe is closed, so it has ended"


@pytest.mark.usefixtures("finding_kernels")
def test_a_signal_that_ends_the_step_outside_of_calls_ends_the_process_that_watches_it(tmp_path: Path) -> None:
    watching = (
        "import sys\nfrom kernels.harness.watched import run\n"
        f"sys.exit(run({step(tmp_path, 'os.kill(os.getpid(), signal.SIGKILL)')!r}, 60.0))"
    )
    assert subprocess.run([sys.executable, "-c", watching], check=False).returncode == -signal.SIGKILL


def test_only_time_of_one_and_the_same_call_counts() -> None:
    watch = Watch(4 * LOOK_S)
    for serial in range(1, 20):  # many calls, each shorter than the limit
        assert watch.look(busy_page(serial, "a", "c1"), LOOK_S) is None
    assert watch.look(busy_page(20), 3600.0) is None, "nobody is called"
    assert watch.look(busy_page(21, "a", "c1"), LOOK_S) is None
    assert watch.look(busy_page(21, "a", "c1"), 3600.0) is None, "this process was suspended"
    assert watch.look(b"[21, ", LOOK_S) is None, "the page was being written"
    assert watch.look(busy_page(21, "a", "c1"), LOOK_S) is None
    failure = watch.look(busy_page(21, "a", "c1"), LOOK_S)
    assert failure == Failure("a", "c1", "hung: no answer within 2 s while it was called", True)


@pytest.mark.parametrize("case_id", ["b1-h2", "é" * 3000])
def test_a_page_has_one_size_and_says_what_was_written(case_id: str) -> None:
    page = busy_page(7, "bench", case_id)
    assert len(page) == len(busy_page(0))
    assert read_page(page) in ((7, "bench", case_id), None)


@pytest.mark.parametrize(
    ("name", "document", "wanted"),
    [
        ("measure", {}, True),
        ("correctness", {"workload": "attention"}, True),
        ("build", {}, False),
        ("measure", {"workload": {"form": "file", "path": "a.py"}}, False),
        ("measure", [], False),
    ],
)
def test_steps_of_our_own_workloads_are_watched_where_there_is_a_gpu(
    name: str, document: Any, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(document))
    assert is_watched(name, file, device=tmp_path) is wanted
    assert not is_watched(name, file, device=tmp_path / "none")
    assert not is_watched(name, tmp_path / "absent", device=tmp_path)
    monkeypatch.setenv(PAST, "a file")
    assert not is_watched(name, file, device=tmp_path), "it is watched already"


# ---- the process that is watched


class Left(Exception):
    """The process would have ended."""


def joined(folder: Path, *, is_broken: bool) -> Calls:
    def leave(code: int) -> NoReturn:
        raise Left(code)

    page, past = folder / "page", folder / "past"
    page.write_bytes(busy_page(0))
    past.touch()
    calls = Calls(is_broken=lambda: is_broken, leave=leave)
    calls.join(page, past)
    return calls


def test_an_implementation_that_breaks_the_device_ends_the_process_and_is_left_out_of_that_case(tmp_path: Path) -> None:
    calls = joined(tmp_path, is_broken=True)
    with pytest.raises(Left, match=str(AGAIN)), calls.of("a", "c1"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    after = joined_again(tmp_path)
    assert after.before("a", "c1") == (
        "raised RuntimeError: CUDA error: an illegal memory access was encountered", True
    )  # fmt: skip
    assert after.before("a", "c2") is None
    assert after.before("b", "c1") is None


def joined_again(folder: Path) -> Calls:
    calls = Calls()
    calls.join(folder / "page", folder / "past")
    return calls


def test_an_error_that_leaves_the_device_as_it_is_is_raised_on(tmp_path: Path) -> None:
    calls = joined(tmp_path, is_broken=False)
    with pytest.raises(RuntimeError, match="not supported"), calls.of("a", "c1"):
        raise RuntimeError("not supported")
    assert joined_again(tmp_path).failures == []


def test_the_page_names_whom_the_process_calls_and_nobody_afterwards(tmp_path: Path) -> None:
    calls = joined(tmp_path, is_broken=False)
    seen = []
    with calls.of("a", "c1"):
        seen.append(read_page((tmp_path / "page").read_bytes()))
    seen.append(read_page((tmp_path / "page").read_bytes()))
    assert seen == [(1, "a", "c1"), (2, "", "")]


def test_a_process_that_nobody_watches_tells_nobody() -> None:
    assert PAST not in os.environ
    calls = Calls(is_broken=lambda: True)
    with pytest.raises(RuntimeError, match="broken"), calls.of("a", "c1"):
        raise RuntimeError("broken")
    calls.finished("c1", wrong=False)
    assert calls.before("a", "c1") is None
