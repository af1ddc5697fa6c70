"""An implementation of a workload of ours that never returns, crashes or breaks the device costs itself, not the step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kernels.harness.calls import AGAIN, BUILD, WATCHED, Calls, Failure, busy_page, files_of, read_page
from kernels.harness.facts import CRASHED
from kernels.harness.watched import LOOK_S, Watch, is_watched, run_watched
from kernels.harness.workload import Unavailable
from tests.kernels.harness_process import ROOT, HarnessProcess, named, read_csv, shape, spec
from tests.kernels.payloads import planted
from tests.support.patience import PATIENCE_S

CRASHES_OR_HANGS = """
if "-q8-" in case.id:
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(3600)
"""
SLOW = """
time.sleep(0.25)
return torch.nn.functional.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v)
"""
LIMIT_S = 5.0


def test_a_crashing_and_hanging_implementation_gets_rows_and_others_are_measured(
    tmp_path: Path,
) -> None:
    wanted = spec(
        implementations=["planted", "planted:aa", "sdpa:math"],
        measure={"shapes": [shape(8), shape(9), shape(10)], "dtypes": ["float32"]},
        answer_limit_s=LIMIT_S,
    )
    root = planted(tmp_path, CRASHES_OR_HANGS)
    with HarnessProcess("measure", wanted, tmp_path, root=root, options=("--watched",)) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    assert len(named(facts, "planned")) == 1
    ended = named(facts, "case_finished")
    assert [fact["index"] for fact in ended] == [1, 2, 3]
    lines = [line for line in harness.log().splitlines() if "starting the step again" in line]
    assert "planted crashed (SIGSEGV) while it was called (b1-h2-" in lines[0]
    assert len(lines) == 2
    assert all(list(fact["median_us"]) == ["sdpa:math"] for fact in ended)
    hung = "hung: no answer within 5 s while it was called"
    again = "not tried again: it hung in a case before"
    for fact, reason in zip(ended, ("crashed (SIGSEGV) while it was called", hung, again), strict=True):
        assert fact["skipped"] == {"planted": reason, "planted:aa": reason}


def test_the_answers_before_a_crash_are_not_judged_again(tmp_path: Path) -> None:
    wanted = spec(implementations=["sdpa:math", "planted"], answer_limit_s=LIMIT_S)
    wanted["correctness"]["shapes"] = [shape(7), shape(8), shape(10)]
    wanted["correctness"]["dtypes"] = ["float32"]
    root = planted(tmp_path, CRASHES_OR_HANGS.replace("time.sleep(3600)", "return inputs.q"))
    with HarnessProcess("correctness", wanted, tmp_path, root=root, options=("--watched",)) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    table = read_csv(harness.out / "correctness.csv")
    assert [row["passed"] for row in table] == ["true", "false"] * 3
    assert table[3]["reason"] == "crashed (SIGSEGV) while it was called"
    assert len([fact for fact in named(facts, "checked") if "-q7-" in fact["case_id"]]) == 2
    (end,) = named(facts, "correctness")
    assert (end["checked"], end["failed"]) == (6, 3)


def test_a_slow_implementation_may_take_so_long_for_each_call(tmp_path: Path) -> None:
    wanted = spec(
        implementations=["planted"],
        measure={"shapes": [shape(8)], "dtypes": ["float32"]},
        answer_limit_s=4,
        warmup=20,
        repeats=2,
    )
    root = planted(tmp_path, SLOW)
    with HarnessProcess("measure", wanted, tmp_path, root=root, options=("--watched",), fresh=True) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    assert list(named(facts, "case_finished")[0]["median_us"]) == ["planted"]


def test_an_implementation_that_crashes_while_it_is_built_is_in_no_row_but_its_own(tmp_path: Path) -> None:
    wanted = spec(implementations=["planted", "sdpa:math"], measure={"shapes": [shape(9)], "dtypes": ["float32"]})
    tells_command = "os.write(2, open('/proc/self/cmdline', 'rb').read())"
    root = planted(tmp_path, CRASHES_OR_HANGS, build=f"{tells_command}; os.kill(os.getpid(), signal.SIGSEGV)")
    with HarnessProcess("measure", wanted, tmp_path, root=root, options=("--watched",)) as harness:
        code, facts = harness.finish()
    assert code == 10, harness.log()
    (ended,) = named(facts, "case_finished")
    assert len(named(facts, "planned")) == 1
    assert ended["skipped"] == {"planted": "crashed (SIGSEGV) while it was built"}
    assert list(ended["median_us"]) == ["sdpa:math"]
    assert "torch_forks.py" in harness.log(), "a process that has torch is forked; a new one would import it again"


@pytest.mark.parametrize("document", ["[]", "{", "{}"])
def test_a_bad_spec_is_refused_as_without_a_watch(tmp_path: Path, document: str) -> None:
    with HarnessProcess("measure", document, tmp_path, options=("--watched",)) as harness:
        code, facts = harness.finish()
    assert (code, named(facts, "problem")[0]["cause"]) == (22, "spec_refused")


# ---- the process that watches


def step(folder: Path, body: str) -> list[str]:
    """A step of these lines, which may use `calls`, the calls of its process, and count its starts by `start`."""
    program = folder / "step.py"
    program.write_text(
        "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from kernels.harness.calls import Calls, files_of\ncalls = Calls()\ncalls.join(*files_of(os.environ))\n"
        f"starts = Path({str(folder / 'starts')!r})\nstart = len(starts.read_text()) if starts.exists() else 0\n"
        f"starts.write_text('.' * (start + 1))\n{body}\n"
    )
    return [sys.executable, str(program)]


def test_a_step_that_fails_in_nobodys_call_is_not_started_again(tmp_path: Path) -> None:
    assert run_watched(step(tmp_path, "sys.exit(7)"), 60.0) == 7
    assert (tmp_path / "starts").read_text() == "."


def test_a_step_that_asks_for_another_start_without_a_reason_does_not_get_one(tmp_path: Path) -> None:
    assert run_watched(step(tmp_path, f"calls.finished('c1')\nsys.exit({AGAIN})"), 60.0) == CRASHED
    assert (tmp_path / "starts").read_text() == "."


def test_what_one_process_finished_or_failed_at_is_known_to_the_next(tmp_path: Path) -> None:
    body = (
        "if start == 0:\n"
        "    calls.finished('c1', wrong=True, medians={'burst': {'a': 2.0}})\n"
        "    with calls.of('b', 'c2'): os.kill(os.getpid(), signal.SIGABRT)\n"
        "assert calls.known == {'c1': {'wrong': True, 'medians': {'burst': {'a': 2.0}}}}\n"
        "assert calls.before('b', 'c2') == ('crashed (SIGABRT) while it was called', True)\n"
        "assert calls.before('b', 'c3') is None\n"
    )
    assert run_watched(step(tmp_path, body), 60.0) == 0
    assert (tmp_path / "starts").read_text() == ".."


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("os._exit(0)", "ended its process with exit code 0"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "was killed (SIGKILL), as the operating system does when memory runs out,",
        ),
    ],
)
def test_a_process_that_ends_in_somebodys_call_is_blamed_on_them(tmp_path: Path, how: str, reason: str) -> None:
    body = (
        f"if start == 0:\n    with calls.of('b', 'c1'): {how}\n"
        f"assert calls.before('b', 'c1') == ({reason + ' while it was called'!r}, True)\n"
    )
    assert run_watched(step(tmp_path, body), 60.0) == 0
    assert (tmp_path / "starts").read_text() == ".."


@pytest.mark.parametrize("ends", ["calls.stop_telling(); os._exit(1)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_process_that_others_end_is_blamed_on_nobody(tmp_path: Path, ends: str) -> None:
    watching = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom kernels.harness.watched import run_watched\n"
        f"sys.exit(run_watched({step(tmp_path, f'with calls.of(chr(98), chr(99)): {ends}')!r}, 60.0))"
    )
    assert subprocess.run([sys.executable, "-c", watching], check=False).returncode in (1, -signal.SIGTERM)
    assert (tmp_path / "starts").read_text() == "."


def test_nothing_that_a_hung_implementation_started_is_left(tmp_path: Path) -> None:
    told = tmp_path / "grandchild"
    body = (
        "if start == 0:\n"
        f"    with calls.of('b', 'c1'), open({str(told)!r}, 'w') as file:\n"
        "        print(subprocess.Popen(['sleep', '3600']).pid, file=file, flush=True)\n"
        "        time.sleep(3600)\n"
    )
    assert run_watched(step(tmp_path, body), 2.0) == 0
    stat = Path("/proc", told.read_text().strip(), "stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_step_ends_with_the_process_that_watches_it(tmp_path: Path) -> None:
    body = "from kernels.harness.ending import end_with_parent\nend_with_parent()\nprint('ready', flush=True)\ntime.sleep(3600)"
    watching = f"import sys\nfrom kernels.harness.watched import run_watched\nsys.exit(run_watched({step(tmp_path, body)!r}, 3600.0))"
    with subprocess.Popen([sys.executable, "-c", watching], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout.read() == "", "its end of the pipe is closed, so it has ended"


def test_a_signal_that_ends_the_step_outside_calls_ends_its_watching_process(tmp_path: Path) -> None:
    watching = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom kernels.harness.watched import run_watched\n"
        f"sys.exit(run_watched({step(tmp_path, 'os.kill(os.getpid(), signal.SIGKILL)')!r}, 60.0))"
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
    name: str, document: Any, wanted: bool, tmp_path: Path
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(document))
    assert is_watched(name, file, device=tmp_path) is wanted
    assert not is_watched(name, file, device=tmp_path / "none")
    assert not is_watched(name, tmp_path / "absent", device=tmp_path)


@pytest.mark.parametrize("value", ["", "1", "a:b:c", "1:2:3"])
def test_a_variable_that_the_process_above_has_not_set_means_nothing(value: str) -> None:
    assert files_of({WATCHED: value}) is None
    assert files_of({WATCHED: f"{os.getppid()}:4:5"}) == (4, 5)


# ---- the process that is watched


class Left(Exception):
    """The process would have ended."""


def joined(folder: Path, *, is_broken: bool = False) -> Calls:
    def leave(code: int) -> NoReturn:
        raise Left(code)

    page, past = folder / "page", folder / "past"
    if not page.exists():
        page.write_bytes(busy_page(0))
    calls = Calls(is_broken=lambda _: is_broken, leave=leave)
    calls.join(os.open(page, os.O_RDWR), os.open(past, os.O_RDWR | os.O_CREAT))
    return calls


def test_an_implementation_that_breaks_the_device_ends_the_process_and_that_case(tmp_path: Path) -> None:
    calls = joined(tmp_path, is_broken=True)
    with pytest.raises(Left, match=str(AGAIN)), calls.of("a", "c1"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    after = joined(tmp_path)
    assert after.before("a", "c1") == (
        "raised RuntimeError: CUDA error: an illegal memory access was encountered", True
    )  # fmt: skip
    assert after.before("a", "c2") is None
    assert after.before("b", "c1") is None


def test_what_others_make_of_an_error_of_the_device_counts_too(tmp_path: Path) -> None:
    with pytest.raises(Left), joined(tmp_path, is_broken=True).of("a", "c1"):
        raise Unavailable("flash-attn-4: CUDA error: unspecified launch failure")
    reason = "flash-attn-4: CUDA error: unspecified launch failure"
    assert joined(tmp_path).before("a", "c1") == (reason, True)


def test_an_implementation_is_not_tried_after_a_hang_nor_after_two_other_failures() -> None:
    calls = Calls(failures=[Failure("a", "c1", "hung", True), Failure("b", "c1", "crashed", False)])
    assert calls.before("a", "c2") == ("not tried again: it hung in a case before", False)
    assert calls.before("b", "c2") is None
    calls.failures.append(Failure("b", "c2", "crashed", False))
    assert calls.before("b", "c3") == ("not tried again: it failed in two cases before", False)


def test_one_that_failed_while_it_was_built_is_in_no_case() -> None:
    calls = Calls(failures=[Failure("a", BUILD, "crashed", False)])
    assert calls.before("a", "c2") == ("crashed", True)


def test_an_error_that_leaves_the_device_as_it_is_is_raised_on(tmp_path: Path) -> None:
    calls = joined(tmp_path)
    with pytest.raises(RuntimeError, match="not supported"), calls.of("a", "c1"):
        raise RuntimeError("not supported")
    assert joined(tmp_path).failures == []


def test_the_page_names_whom_the_process_calls_and_nobody_afterwards(tmp_path: Path) -> None:
    calls = joined(tmp_path)
    seen = []

    def look() -> None:
        seen.append(read_page((tmp_path / "page").read_bytes()))

    with calls.of("a", "c1"):
        look()
        with calls.of("b", "c1"):
            look()
        look()
    look()
    assert seen == [(1, "a", "c1"), (2, "b", "c1"), (3, "a", "c1"), (4, "", "")]


def test_a_process_that_nobody_watches_tells_nobody() -> None:
    assert WATCHED not in os.environ
    calls = Calls(is_broken=lambda _: True)
    with pytest.raises(RuntimeError, match="broken"), calls.of("a", "c1"):
        raise RuntimeError("broken")
    calls.finished("c1", wrong=False)
    assert calls.before("a", "c1") is None
