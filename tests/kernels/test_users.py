"""Where the harness is root, workers have users of their own: the system refuses what one may not do to another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.harness import users
from kernels.harness.answers import read_bytes
from kernels.harness.hands import files_within
from kernels.harness.processes import Answered
from kernels.harness.users import HOMES, ONE_USER, Users, claim_user, is_running, process_ids, why_no_users
from kernels.harness.view import closed_at
from tests.kernels.harness_process import ROOT, HarnessProcess, named
from tests.kernels.test_cheats import own
from tests.kernels.test_serving import HONEST, served
from tests.kernels.test_session import RIGHT, reasons, session
from tests.support.patience import PATIENCE_S

WHY_NOT = why_no_users(Path(__file__))
needs_users = pytest.mark.skipif(bool(WHY_NOT), reason=f"workers have no users of their own here: {WHY_NOT}")

ATTACKS = """
import hashlib, os, sys
from pathlib import Path
import torch
axes = {"n": [16]}
HOME = Path(os.environ["HOME"])
def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)
def reference(x):
    return x + x
def of_torch(folder):
    return folder.parent / hashlib.sha256(b"torch").hexdigest()[:8]
def answers():
    frame = sys._getframe()
    while "folder" not in frame.f_locals:
        frame = frame.f_back
    return Path(frame.f_locals["folder"])
def baseline_torch(x):
    return x * 2
def kernel_honest(x):
    assert os.getuid() and (HOME / "triton").is_dir()
    (HOME / "triton" / "mine").write_text("")
    return x + x
def kernel_writes_the_cache_of_a_baseline(x):
    (of_torch(HOME) / "triton" / "poison").write_text("")
def kernel_lists_the_homes(x):
    os.listdir(HOME.parent)
def kernel_reads_the_answer_of_another(x):
    return torch.from_file(str(of_torch(answers()) / "0.bin"), size=256).reshape(16, 16)
def kernel_lists_the_answers(x):
    os.listdir(answers().parent)
def kernel_writes_the_workload(x):
    Path(__file__).write_text("")
def kernel_adds_to_the_workload(x):
    (Path(__file__).parent / "torch.py").write_text("")
def kernel_writes_the_harness(x):
    Path(sys.modules["kernels.harness.judge"].__file__).open("a").close()
def kernel_reads_the_environment_of_the_harness(x):
    Path(f"/proc/{os.getppid()}/environ").read_bytes()
def kernel_opens_the_memory_of_the_harness(x):
    open(f"/proc/{os.getppid()}/mem", "r+b")
def kernel_ends_the_harness(x):
    os.kill(os.getppid(), 9)
def kernel_becomes_root_again(x):
    os.setuid(0)
def kernel_mounts(x):
    import ctypes
    if ctypes.CDLL(None).umount2(b"/proc", 2):
        raise PermissionError("umount")
"""


def running() -> set[int]:
    """The users of all processes that have not ended."""
    return {user for pid, user in process_ids().items() if is_running(pid)}


@needs_users
def test_what_one_may_not_do_to_another_is_refused_by_the_system(tmp_path: Path) -> None:
    (tmp_path / "attacks.py").write_text(ATTACKS)
    asked = own(tmp_path / "attacks.py", implementations=["*"], repeats=3)
    with HarnessProcess("measure", asked, tmp_path) as harness:
        _, facts = harness.finish()
    (case,) = named(facts, "case_finished")
    assert set(case["median_us"]) == {"torch", "honest"}, case["skipped"]
    attacks = set(re.findall(r"def kernel_(\w+)", ATTACKS)) - {"honest"}
    refused = re.compile(r"raised PermissionError|raised RuntimeError: unable to open file .*Permission denied")
    assert {name for name, reason in case["skipped"].items() if refused.search(reason)} == attacks, case["skipped"]
    assert (tmp_path / "attacks.py").read_text() == ATTACKS


@needs_users
def test_no_candidate_has_the_user_or_finds_the_files_of_an_earlier_one(tmp_path: Path, open_folder: Path) -> None:
    left = f"bench-test-{os.getpid()}"
    leaving = f"""
import os, pathlib, subprocess
for folder in ("/tmp", "/dev/shm", os.environ["HOME"]):
    (pathlib.Path(folder) / "{left}").touch(mode=0o666)
subprocess.Popen(["sleep", "3600"], start_new_session=True, preexec_fn=lambda: os.fork() and os._exit(0))
open("{open_folder}/users", "a").write(f"{{os.getuid()}}\\n")
os.chmod("{open_folder}/users", 0o666) if os.stat("{open_folder}/users").st_uid == os.getuid() else None
"""
    with session(tmp_path) as judge:
        assert not reasons(judge.judge(RIGHT + leaving)), judge.log()
        first = {int(number) for number in (open_folder / "users").read_text().split()}
        assert len(first) == 1, "its process imports it and runs it"
        assert not first & running(), "nothing of them runs"
        places = [Path(folder) / left for folder in ("/tmp", "/dev/shm")]
        assert not [place for place in places if place.exists()]
        assert not reasons(judge.judge(RIGHT + leaving)), judge.log()
        both = [int(number) for number in (open_folder / "users").read_text().split()]
        assert len({*both}) == 2, both


@needs_users
def test_a_cache_is_there_in_the_next_step_and_its_home_is_gone_with_the_run(tmp_path: Path) -> None:
    counting = """
import os, pathlib
cache = pathlib.Path(os.environ["TRITON_CACHE_DIR"]) / "count"
cache.write_text(cache.read_text() + "x" if cache.exists() else "x")
print("COUNTED", os.environ["HOME"], cache.read_text(), flush=True)
"""
    with served(tmp_path, HONEST + counting) as harness:
        harness.until("preloaded")
        for _ in range(2):
            code, facts = harness.step("measure")
            assert code == 0, harness.log()
            assert len(named(facts, "case_finished")) == 2
        counted = re.findall(r"COUNTED (\S+) (x+)", harness.log())
        assert len({home for home, _ in counted}) == 3, "the judge, the baseline and the kernel"
        times = {home: max(len(count) for of, count in counted if of == home) for home, _ in counted}
        assert min(times.values()) == 2, times
        harness.hang_up()
        harness.process.wait(600)
    assert not [home for home in times if Path(home).exists()]


@pytest.mark.parametrize("why", [ONE_USER, "readable"])
def test_where_there_can_be_no_users_the_record_says_why_and_all_is_measured(tmp_path: Path, why: str) -> None:
    if why != ONE_USER and WHY_NOT:
        pytest.skip(f"workers have no users of their own here: {WHY_NOT}")
    (tmp_path / "mine.py").write_text(HONEST)
    if why != ONE_USER:
        (tmp_path / "mine.py").chmod(0o600)
    environ = {ONE_USER: "1"} if why == ONE_USER else {}
    for step in ("environment", "measure"):
        with HarnessProcess(step, own(tmp_path / "mine.py", repeats=2), tmp_path, environ=environ) as harness:
            code, facts = harness.finish()
        assert code == 0, harness.log()
    recorded = json.loads((harness.out / "environment.json").read_text())
    assert recorded["worker_users"] is False
    assert why in recorded["why_no_worker_users"] or os.geteuid(), recorded["why_no_worker_users"]
    assert set(named(facts, "case_finished")[0]["median_us"]) == {"torch", "mine", "torch:aa"}


@needs_users
@pytest.mark.skipif(shutil.which("capsh") is None, reason="no capsh")
@pytest.mark.parametrize(
    ("right", "words"), [("cap_kill", "root lacks a right"), ("cap_sys_admin", "other users may not enter /")]
)
def test_root_with_fewer_rights_has_no_users_for_its_workers(tmp_path: Path, right: str, words: str) -> None:
    tmp_path.chmod(0o700)
    assert closed_at(tmp_path)
    code = f"import pathlib, kernels.harness.users as users; print(users.why_no_users(pathlib.Path('{tmp_path}')))"
    command = ["capsh", f"--drop={right}", "--", "-c", f'exec {sys.executable} -c "{code}"']
    reason = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert words in reason.stdout, reason


@needs_users
def test_two_runs_on_one_machine_share_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "CLAIMS", tmp_path / "claims")
    monkeypatch.setattr(users, "process_ids", lambda: {1: users.FIRST + 2})  # others measure on this machine too
    monkeypatch.setattr(users, "has_name", lambda uid: uid == users.FIRST + 1)  # and a directory has people
    one, two = (Users(tmp_path / name) for name in ("one", "two"))
    for made in (one, two):
        made.folder.mkdir()
    given = [made.of(name, Path(__file__)).uid for name in ("", "a", "b") for made in (one, two)]
    assert len({*given}) == 6
    assert users.FIRST + 2 not in given
    assert users.FIRST + 1 not in given
    assert one.of("a", Path(__file__)).uid == Users(one.folder).of("a", Path(__file__)).uid == given[2]
    one.release("a")
    assert one.of("a", Path(__file__)).uid > max(given), "it is not given again at once"
    monkeypatch.setattr(users, "LAST", max(given) + 1)
    one.folder.rename(tmp_path / "gone")
    assert claim_user(two.folder, users.LAST) == given[0], "one whose run is gone is given again"


def test_a_number_of_a_person_or_a_service_has_a_name() -> None:
    assert users.has_name(0)
    assert not users.has_name(users.LAST)


@needs_users
def test_a_new_home_has_the_libraries_that_the_judge_compiled_and_no_kernels(tmp_path: Path) -> None:
    made = Users(tmp_path)
    judge = made.of("", Path(__file__)).home / "triton"
    for name in ("helper/utils.so", "helper/utils.json", "kernel/mine.cubin"):
        (judge / name).parent.mkdir(exist_ok=True)
        (judge / name).write_text("")
    (judge / "helper" / "link").symlink_to("/etc/passwd")
    home = made.of("mine", Path(__file__)).home
    copied = {
        path.relative_to(home / "triton").as_posix(): path.lstat().st_uid for path in (home / "triton").rglob("*")
    }
    assert copied == dict.fromkeys(
        ("helper", "helper/utils.so", "helper/utils.json", "helper/link"), home.stat().st_uid
    )
    assert Path("/etc/passwd").stat().st_uid == 0
    for name in ("", "mine"):
        made.release(name)


@needs_users
def test_what_a_user_has_left_running_ends_with_it(tmp_path: Path) -> None:
    made = Users(tmp_path)
    user = made.of("a", Path(__file__))
    code = f"import os, time; os.setresgid(*[{user.uid}] * 3); os.setresuid(*[{user.uid}] * 3); print(1, flush=True)"
    command = [sys.executable, "-c", f"{code}; os.fork(); time.sleep(3600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None
        process.stdout.readline()
        while list(process_ids().values()).count(user.uid) < 2:
            time.sleep(0.01)
        made.release("a")
        assert process.wait(PATIENCE_S) == -9
    assert user.uid not in running()
    assert not user.home.exists()


@needs_users
def test_a_folder_below_a_closed_one_is_shown_and_nothing_else_there(tmp_path: Path) -> None:
    for name in ("closed/needed/inner", "closed/secret"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("read me")
    (tmp_path / "closed/needed/link").symlink_to("inner/file")
    for name in ("closed", "closed/needed"):
        (tmp_path / name).chmod(0o700)
    needed = tmp_path / "closed" / "needed"
    assert closed_at(needed) is not None
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from kernels.harness.view import show_folders
from kernels.harness.users import drop_rights
show_folders([Path({str(needed)!r})])
drop_rights(60578)
print(os.listdir({str(needed.parent)!r}), Path({str(needed)!r}, "link").read_text(), os.access({str(needed)!r}, os.W_OK))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == "['needed'] read me False", shown.stderr
    assert (tmp_path / "closed" / "secret" / "file").exists(), "elsewhere all is as it was"


def test_an_answer_lies_in_files_of_the_implementation_own_folder(tmp_path: Path) -> None:
    answer = {"files": [["/other/0.bin", "float32", [1]], [["ab", 0], "float32", [1]], ["/x/..", "float32", [1]]]}
    assert [one[0] for one in files_within(str(tmp_path), answer)] == [f"{tmp_path}/0.bin", ["ab", 0], f"{tmp_path}/.."]
    for nonsense in ({}, {"files": 3}, {"files": [3]}, {"files": [[None, "float32", [1]]]}):
        with pytest.raises(Answered, match="not an answer"):
            files_within(str(tmp_path), nonsense)
    (tmp_path / "0.bin").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("0.bin")
    os.mkfifo(tmp_path / "pipe")
    assert torch.equal(read_bytes(str(tmp_path / "0.bin"), 4), torch.tensor([49, 50, 51, 52], dtype=torch.uint8))
    for name, size in (("link", 4), ("pipe", 4), ("..", 4), ("0.bin", 5)):
        with pytest.raises((OSError, ValueError)):
            read_bytes(str(tmp_path / name), size)


def test_a_decision_about_users_holds_for_what_is_started_within(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(users.WHY_NOT, "decided")
    with users.users_for_run(Path(__file__)):
        assert users.worker_users() == {"worker_users": False, "why_no_worker_users": "decided"}
        assert users.open_users() is None
    assert HOMES not in os.environ


def no_gpu(*_: object, **__: object) -> None:
    raise RuntimeError("CUDA error: no permission")


@pytest.mark.parametrize(
    ("loaded", "nodes", "reason"),
    [
        (None, True, ""),
        (SimpleNamespace(version=SimpleNamespace(cuda=None)), True, ""),
        (SimpleNamespace(version=SimpleNamespace(cuda="13.0"), zeros=no_gpu), False, ""),
        (SimpleNamespace(version=SimpleNamespace(cuda="13.0"), zeros=no_gpu), True, "no permission"),
        (SimpleNamespace(version=SimpleNamespace(cuda="13.0"), zeros=lambda *_, **__: torch.zeros(1)), True, ""),
    ],
)
def test_workers_have_no_users_where_the_gpu_answers_root_alone(
    monkeypatch: pytest.MonkeyPatch, loaded: Any, nodes: bool, reason: str
) -> None:
    monkeypatch.setattr(users, "gpu_nodes", lambda: [Path("/dev/nvidia0")] if nodes else [])
    why = users.why_no_cuda(loaded)
    assert reason in why
    assert bool(why) == bool(reason)
