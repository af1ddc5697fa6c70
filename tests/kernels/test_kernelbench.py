"""A pair in KernelBench's form is read as it is: the same parameters for all, inputs from the seed, right in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels.forms.definition import BadWorkload, in_double
from kernels.forms.kernelbench import load
from orchestrator.core.errors import ConfigError
from orchestrator.core.forms.kernelbench import suite as read_suite

MODEL = """import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope, self.scale = slope, nn.Parameter(torch.randn(8))
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.drop(torch.where(x > 0, x, x * self.slope) * self.scale)
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [0.1]
"""
NEW = MODEL.replace("class Model(", "class ModelNew(").split("def get_inputs")[0]


pytestmark = pytest.mark.usefixtures("own_imports")


def test_the_model_and_every_candidate_have_the_same_parameters(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(MODEL)
    (tmp_path / "leaky_new.py").write_text(NEW)
    (tmp_path / "leaky_wrong.py").write_text(NEW.replace("x * self.slope", "x"))
    workload = load(tmp_path)
    assert list(workload.implementations) == ["eager", "compiled", "leaky_new", "leaky_wrong"]
    assert workload.baselines == ("eager", "compiled")
    cpu = torch.device("cpu")
    one, same, other = (workload.inputs({}, cpu, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(one.args[0], same.args[0])
    assert not torch.equal(one.args[0], other.args[0])
    exact = workload.reference(one.mapped(in_double))
    assert exact.dtype == torch.float64
    answers = {
        name: workload.implementations[name].bound({}, (), one)() for name in ("eager", "leaky_new", "leaky_wrong")
    }
    for name in ("eager", "leaky_new"):
        assert torch.allclose(answers[name].double(), exact, atol=1e-6), "eval mode: nothing is dropped"
    assert not torch.allclose(answers["leaky_wrong"].double(), exact, atol=1e-2)


def test_a_folder_with_no_model_or_with_a_candidate_of_nobody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text(NEW)
    with pytest.raises(BadWorkload, match="no file has a class Model"):
        load(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(MODEL)
    with pytest.raises(BadWorkload, match=r"new.py: there are 2 problems, and it is not clear which one"):
        load(tmp_path)
    (tmp_path / "b.py").write_text("def (\n")
    with pytest.raises(BadWorkload, match=r"b.py:1: syntax error"):
        load(tmp_path)


def test_several_problems_are_a_case_each_and_candidates_go_by_file_names(tmp_path: Path) -> None:
    for number, name in enumerate(("1_leaky", "2_leakier", "10_leakiest")):
        (tmp_path / f"{name}.py").write_text(MODEL.replace("0.1", f"0.{number + 1}"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1_leaky.py").write_text(NEW)
    (tmp_path / "mine" / "level_1_problem_10_sample_0_kernel.py").write_text(NEW)
    (tmp_path / "mine" / "level_1_problem_10_sample_1_kernel.py").write_text(NEW)
    suite = load(tmp_path)
    assert [case["problem"] for case in suite.cases] == ["1_leaky", "2_leakier", "10_leakiest"]
    told = read_suite({one.relative_to(tmp_path).as_posix(): one.read_text() for one in tmp_path.rglob("*.py")})
    assert told.cases == suite.cases, "the client says the same by the text alone"
    assert list(suite.implementations) == ["eager", "compiled", "mine", "mine_sample1"]
    mine = suite.implementations["mine"]
    assert [mine.refusal(case) for case in suite.cases] == ["", "it has no file for 2_leakier", ""]
    for case in (suite.cases[0], suite.cases[2]):
        given = suite.inputs(case, torch.device("cpu"), torch.Generator().manual_seed(5))
        exact = suite.reference(given.mapped(in_double))
        answers = [suite.implementations[name].bound(case, (), given)() for name in ("eager", "mine")]
        assert all(torch.allclose(one.double(), exact, atol=1e-6) for one in answers)
        mine.leave()
    (tmp_path / "mine" / "3_unknown.py").write_text(NEW)
    with pytest.raises(BadWorkload, match=r"mine/3_unknown.py: no problem of the suite has that name"):
        load(tmp_path)


def test_models_are_called_in_training_mode_unless_the_model_drops_out(tmp_path: Path) -> None:
    batch_norm = "self.drop = nn.BatchNorm1d(8)"
    for rate, expected in (("nn.Dropout(0.5)", False), ("nn.Dropout(0.0)", True), (batch_norm[12:], True)):
        folder = tmp_path / rate  # within a second Python takes files of one size and place for the same
        folder.mkdir()
        (folder / "leaky.py").write_text(MODEL.replace("nn.Dropout(0.5)", rate))
        workload = load(folder)
        given = workload.inputs({}, torch.device("cpu"), torch.Generator().manual_seed(5))
        eager = workload.implementations["eager"]
        answer = eager.bound({}, (), given)()
        assert eager.made[1].training is expected, rate
        assert torch.allclose(answer.double(), workload.reference(given.mapped(in_double)), atol=1e-5)
        sys.modules.pop("leaky")


def test_a_model_with_parameters_of_its_own_is_told_that_and_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(MODEL)
    (tmp_path / "leaky_wrong.py").write_text(NEW.replace("x * self.slope", "x"))
    (tmp_path / "leaky_other.py").write_text(NEW.replace("torch.randn(8)", "torch.rand(8)"))
    (tmp_path / "leaky_more.py").write_text(
        NEW.replace("self.drop =", "self.more = nn.Parameter(torch.ones(1)); self.drop =")
    )
    workload = load(tmp_path)
    given = workload.inputs({}, torch.device("cpu"), torch.Generator().manual_seed(5))
    remarks = {}
    for name in ("leaky_wrong", "leaky_other", "leaky_more"):
        workload.implementations[name].bound({}, (), given)()
        remarks[name] = workload.implementations[name].remark()
    assert remarks["leaky_wrong"] == ""
    assert remarks["leaky_other"].startswith("its parameters differ from Model's: they are the same only if")
    assert remarks["leaky_more"].startswith("its parameters differ from Model's in number or size")


def test_two_files_of_a_kernel_for_one_problem_and_a_candidate_too_deep_are_named(tmp_path: Path) -> None:
    sources = {"1_a.py": MODEL, "2_b.py": MODEL, "mine/1_a.py": NEW, "mine/deep/2_b.py": NEW, "helpers.py": "x = 1\n"}
    read = read_suite(sources)
    assert read.problems == ("1_a", "2_b")
    assert read.notes == (
        "not measured: mine/deep/2_b.py: ModelNew is looked for in the folders of the suite, and not below these",
    )
    twice = sources | {"mine/level_1_problem_1_sample_0_kernel.py": NEW}
    with pytest.raises(ConfigError, match=r"mine/level_1_.*: mine/1_a.py is for the same problem, 1_a"):
        read_suite(twice)
    with pytest.raises(ConfigError, match=r"mine/3_c.py: no problem of the suite has that name"):
        read_suite(sources | {"mine/3_c.py": NEW})
    with pytest.raises(ConfigError, match=r"new.py: there are 2 problems, and it is not clear"):
        read_suite(sources | {"new.py": NEW})
    with pytest.raises(ConfigError, match=r"2_b.py:1: it has a class Model, and there is no get_init_inputs"):
        read_suite(sources | {"2_b.py": MODEL.split("def get_init_inputs")[0]})
    assert read_suite({"1_a.py": MODEL, "x/new.py": NEW}).notes[0].endswith("looked for beside the problem")
    for path in twice:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(twice[path])
    with pytest.raises(BadWorkload, match="is for the same problem"):
        load(tmp_path)


def test_inputs_of_a_problem_are_made_on_the_device(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(MODEL.replace("torch.randn(4, 8)", "torch.rand(1 << 40)"))
    workload = load(tmp_path)
    made = workload.inputs({}, torch.device("meta"), torch.Generator().manual_seed(5))
    assert made.tensors()[0].device.type == "meta", "no terabytes were drawn on the host"


SMALL_ANSWERS = {
    "softmax": ("torch.softmax(x, dim=1)", ""),
    "norm": ("x / torch.norm(x, p='fro')", ""),
    "mean": ("x.mean(dim=1) * 1e-5", ""),
    "constant": ("x * 0 + 3", "mean other_inputs"),
    "nearly_constant": ("2 + 5e-5 * x ** 30", ""),
    "one_number": ("x.mean()", "mean"),
    "one_number_of_squares": ("x.square().mean() * 3", "mean"),
    "three_numbers": ("x[:3].mean(dim=1)", ""),
    "tensors_of_its_own": ("torch.nn.functional.linear(x[:, :64], torch.rand(8, 64) * 0 + 1)", ""),
}


@pytest.mark.parametrize("name", SMALL_ANSWERS)
def test_no_answer_that_proves_nothing_is_accepted_but_where_it_is_right(tmp_path: Path, name: str) -> None:
    from scripts.trivial_answers import row_of

    formula, right = SMALL_ANSWERS[name]
    problem = tmp_path / f"{name}.py"
    problem.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {formula}\nrows, cols = 4, 0\ncols = 65536\n"
        "def get_inputs():\n    return [torch.rand(rows, cols)]\ndef get_init_inputs():\n    return []\n"
    )
    row = row_of(problem, 4, torch.device("cpu"))
    assert (row["accepted"], row["right"], row["skipped"]) == ("", right, "")
    assert "zeros" in row["refused"]
