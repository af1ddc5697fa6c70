"""Steps that are forks of one process: nothing is imported twice, and nothing of one step reaches the next."""

from __future__ import annotations

import importlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kernels.harness.ending import list_descendants
from kernels.harness.processes import worker_modules
from tests.kernels.harness_process import Served, named, spec
from tests.support.patience import await_truth

COUNTED = """
import importlib.abc, os, sys
class Counted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            with open(os.environ["IMPORTS"], "a") as file:
                file.write(str(os.getpid()) + "\\n")
sys.meta_path.insert(0, Counted())
"""
HONEST = """
import torch
axes = {"n": [8, 16]}
def inputs(n, device, generator):
    return (torch.randn(n, n, device=device, generator=generator),)
def reference(x):
    return x + x
def baseline_torch(x):
    return x * 2
def kernel_mine(x):
    return x + x
"""


def served(tmp_path: Path, text: str, **options: Any) -> Served:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "mine.py").write_text(text)
    own = {"implementations": ["*"], "measure": {}, "correctness": {}}
    workload = {"form": "file", "path": str(folder / "mine.py")}
    return Served("serve", spec(**own, workload=workload), tmp_path, **options)


def test_all_steps_and_workers_of_a_run_import_torch_once(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(COUNTED)
    imports = tmp_path / "imports"
    environ = {"PYTHONPATH": str(site), "IMPORTS": str(imports)}
    with served(tmp_path, HONEST, fresh=True, environ=environ) as harness:
        assert harness.until("preloaded")["error"] == ""
        assert [harness.step(name)[0] for name in ("environment", "build", "correctness")] == [0, 0, 0]
        code, facts = harness.step("measure")
        assert code == 0, harness.log()
        assert len(named(facts, "case_finished")) == 2
    assert len(imports.read_text().split()) == 1


def test_the_steps_of_a_run_read_its_workload_once_until_a_file_changes(tmp_path: Path, open_folder: Path) -> None:
    note = open_folder / "reads"
    text = HONEST + f"\nwith open({str(note)!r}, 'a') as file:\n    file.write('read ')\n"
    note.touch()
    note.chmod(0o666)
    counts = []
    with served(tmp_path, text) as harness:
        harness.until("preloaded")
        for step in ("environment", "build", "measure", "measure"):
            before = len(note.read_text().split())
            if len(counts) == 3:
                (tmp_path / "w" / "mine.py").write_text(text + "# changed\n")
            assert harness.step(step)[0] == 0, harness.log()
            counts.append(len(note.read_text().split()) - before)
    assert counts == [1, 0, 3, 4], (
        "the process that describes it, while the environment is looked at; then the judge and two implementations"
    )


def test_what_cannot_be_read_beside_the_environment_is_read_when_it_is_needed(tmp_path: Path) -> None:
    with served(tmp_path, "import installed_later\n" + HONEST) as harness:
        harness.until("preloaded")
        code, facts = harness.step("environment")
        assert (code, named(facts, "problem")) == (0, []), harness.log()
        assert harness.step("build")[0] != 0
        (tmp_path / "w" / "installed_later.py").touch()
        assert harness.step("build")[0] == 0, harness.log()


def test_a_process_that_only_describes_a_workload_imports_no_compiler(tmp_path: Path, open_folder: Path) -> None:
    note = open_folder / "imported"
    text = HONEST.replace("def kernel_mine", '@getattr(torch, "comp" + "ile")(dynamic=True)\ndef kernel_mine')
    text += f"""
import sys
with open({str(note)!r}, "w") as file:
    file.write(str(sorted({{"torch._dynamo", "torch._inductor"}} & set(sys.modules)))
               + str(kernel_mine(torch.ones(1)).item()))
"""
    with served(tmp_path, text) as harness:  # the server would import what the text names
        harness.until("preloaded")
        assert harness.step("environment")[0] == 0, harness.log()
        assert note.read_text() == "[]2.0"
        assert harness.step("build")[0] == 0


def test_a_file_that_needs_the_compiler_to_be_read_is_read_with_it(tmp_path: Path, open_folder: Path) -> None:
    note = open_folder / "compilers"
    note.touch()
    note.chmod(0o666)
    text = f"""
import torch
compiler = getattr(torch, "comp" + "ile").__module__
with open({str(note)!r}, "a") as file:
    file.write(compiler + " ")
if compiler != "torch":
    raise AttributeError("_orig_mod")
"""
    with served(tmp_path, text + HONEST) as harness:
        harness.until("preloaded")
        assert harness.step("environment")[0] == 0, harness.log()
        assert note.read_text().split() == ["kernels.harness.worker", "torch"]
        assert harness.step("build")[0] == 0, harness.log()
        assert note.read_text().split() == ["kernels.harness.worker", "torch"], "it is known from the first step"


def test_what_a_kernel_writes_to_any_handle_is_never_a_fact(tmp_path: Path) -> None:
    forged = json.dumps({"fact": "case_finished", "forged": True})
    text = (
        HONEST
        + f"""
import os
for handle in range(1, 64):
    try:
        os.write(handle, {forged!r}.encode() + b"\\n")
    except OSError:
        pass
print({forged!r}, flush=True)
"""
    )
    with served(tmp_path, text) as harness:
        harness.until("preloaded")
        harness.step("build")
        _, facts = harness.step("measure")
        assert facts
        assert not [fact for fact in facts if "forged" in fact]
        assert "forged" in harness.log(), "the kernel did write"


def test_a_process_that_a_step_leaves_behind_ends_with_the_step(tmp_path: Path, open_folder: Path) -> None:
    note = open_folder / "pid"
    text = (
        HONEST
        + f"""
import pathlib, subprocess
pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(["sleep", "3600"], start_new_session=True).pid))
"""
    )
    with served(tmp_path, text) as harness:
        harness.until("preloaded")
        assert harness.step("build")[0] == 0
        pid = int(note.read_text())
        await_truth(lambda: not Path(f"/proc/{pid}").exists())


def test_a_step_that_is_killed_has_its_signal_and_the_next_one_works(tmp_path: Path, open_folder: Path) -> None:
    note = open_folder / "reached"
    text = HONEST + f"\nimport pathlib, time\npathlib.Path({str(note)!r}).touch()\ntime.sleep(3600)\n"
    with served(tmp_path, text) as harness:
        harness.until("preloaded")
        before = list_descendants(harness.process.pid)
        harness.write(json.dumps({"step": "build"}))
        await_truth(note.exists)
        step = next(pid for pid in list_descendants(harness.process.pid) if pid not in before)
        os.kill(step, signal.SIGKILL)
        assert harness.until("step_ended")["code"] == -signal.SIGKILL
        assert harness.step("correctness")[0] == 0


def test_where_torch_cannot_be_imported_the_environment_step_says_why(tmp_path: Path) -> None:
    site = tmp_path / "site" / "torch"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("raise ImportError('libtorch is not there')\n")
    with Served("serve", spec(), tmp_path, fresh=True, environ={"PYTHONPATH": str(site.parent)}) as harness:
        assert "libtorch is not there" in harness.until("preloaded")["error"]
        code, facts = harness.step("environment")
    (gate,) = named(facts, "gate")
    assert code == 21
    assert "libtorch is not there" in gate["detail"]


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("import triton", "kernels.harness.triton_modules"),
        ("f = torch.compile(f)", "torch._dynamo"),
        ("class Model(nn.Module): ...", "torch._dynamo"),
        ("import torch", ""),
    ],
)
def test_what_a_workload_takes_long_to_import_is_imported_before_workers_fork(
    tmp_path: Path, text: str, module: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    rare = {"kernels.harness.triton_modules", "torch._dynamo"}
    assert set(worker_modules(tmp_path / "mine.py")) & rare == {module} - {""}
    assert importlib.import_module("kernels.harness.triton_modules"), "without a Triton it does nothing"
