"""A workload in one file is read, or refused with the file, the line and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.forms.cuda_entry import with_macros
from kernels.forms.definition import BadWorkload, Definition, in_double
from kernels.forms.expressions import evaluate
from kernels.forms.one_file import load
from kernels.harness.own import OwnWorkload, case_id
from kernels.harness.reading import BadSpec

GOOD = """import torch
axes = {"rows": [2, 3], "dtype": ["float32", "bfloat16"]}
def inputs(rows, dtype, device, generator):
    return torch.randn(rows, 4, device=device, dtype=dtype, generator=generator), torch.ones(4, dtype=torch.int64)
def reference(x, n):
    return x * 2 + n
def baseline_torch(x, n):
    return x * 2 + n
"""


pytestmark = pytest.mark.usefixtures("own_imports")


def read(folder: Path, text: str, **files: str) -> Definition:
    (folder / "mine.py").write_text(text)
    for name, content in files.items():
        (folder / name.replace("_dot_", ".")).write_text(content)
    return load(folder / "mine.py")


def test_cases_are_every_combination_and_a_dtype_arrives_as_one(tmp_path: Path) -> None:
    workload = read(tmp_path, GOOD)
    assert [case_id(case) for case in workload.cases] == [
        "rows2-float32", "rows2-bfloat16", "rows3-float32", "rows3-bfloat16",
    ]  # fmt: skip
    made = workload.inputs(workload.cases[1], torch.device("cpu"), torch.Generator().manual_seed(1))
    assert made.args[0].dtype == torch.bfloat16
    exact = workload.reference(made.mapped(in_double))
    assert exact.dtype == torch.float64
    assert torch.equal(exact, made.args[0].double() * 2 + 1)


def test_baselines_come_first_and_know_that_they_are(tmp_path: Path) -> None:
    text = GOOD.replace("def baseline_torch", "def kernel_a(x, n):\n    return x\ndef baseline_torch")
    workload = read(tmp_path, text)
    assert list(workload.implementations) == ["torch", "a"]
    assert workload.baselines == ("torch",)


def test_a_folder_brings_its_siblings_along(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "helper.py").write_text("def twice(x):\n    return x * 2\n")
    text = GOOD.replace("import torch\n", "import torch\nfrom helper import twice\n", 1)
    (folder / "thing.py").write_text(text)
    assert load(folder).name == "thing"


def test_cases_may_be_listed_and_skipped_with_a_reason(tmp_path: Path) -> None:
    text = GOOD.replace('axes = {"rows": [2, 3], "dtype": ["float32", "bfloat16"]}',
                        'cases = [{"rows": 1, "dtype": "float32"}, {"rows": 9, "dtype": "float32"}]')  # fmt: skip
    workload = read(tmp_path, text + "def skip(rows):\n    return 'too many rows' if rows > 5 else None\n")
    assert workload.skip is not None
    assert [workload.skip(case, torch.device("cpu")) for case in workload.cases] == ["", "too many rows"]


REFUSED = {
    "no implementation": (GOOD.split("def baseline")[0], "mine.py:1: there is no implementation"),
    "axis no list": (GOOD.replace("[2, 3]", "2"), "mine.py:2: axis rows must be a list with at least one value, not 2"),
    "axes no mapping": (GOOD.replace('{"rows": [2, 3], "dtype": ["float32", "bfloat16"]}', "[1]"), "mine.py:2: axes must be"),
    "unknown dtype": (GOOD.replace("bfloat16", "float12"), "mine.py:2: axis dtype: 'float12' is not one of"),
    "syntax": (GOOD + "def broken(:\n", "mine.py:9: syntax error"),
    "import": ("import no_such_package\n" + GOOD, 'mine.py:1: needs the package no_such_package, which is not installed: requirements = ["no_such'),
    "raises at import": (GOOD + "1 / 0\n", "mine.py:9: it raises ZeroDivisionError when it is imported"),
    "twice": (GOOD + "def kernel_torch(x, n):\n    return x\n", "mine.py:9: two implementations are called torch"),
    "defined twice": (GOOD + "def baseline_torch(x, n):\n    return x\n", "mine.py:9: two implementations are called torch"),
    "no reference": (GOOD.replace("def reference", "def wrong"), "mine.py:1: there is no function reference"),
    "no inputs": (GOOD.replace("def inputs", "def wrong"), "mine.py:1: there is no function inputs"),
    "a number for a kernel": (GOOD + "kernel_x = 3\n", "mine.py:9: kernel_x must be a function"),
    "a case twice": (GOOD.replace("[2, 3]", "[2, 2]"), "mine.py:2: a case is given twice"),
    "tolerance": (GOOD + "tolerance = 'low'\n", "mine.py:9: tolerance must be a number"),
    "requirements": (GOOD + "requirements = 'triton'\n", "mine.py:9: requirements must be a list of strings"),
    "cuda keys": (GOOD + "kernel_c = {'cuda': 'k.cu', 'entry': 'f'}\n", "mine.py:9: a CUDA implementation lacks grid, block, args"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(BadWorkload) as told:
        read(tmp_path, text)
    assert words in str(told.value)


def test_a_cuda_file_without_its_entry_is_refused_with_what_it_has(tmp_path: Path) -> None:
    described = "kernel_c = {'cuda': 'k.cu', 'entry': 'f', 'grid': 'rows', 'block': 32, 'args': ['out', 'x']}\n"
    source = 'extern "C" __global__ void __launch_bounds__(32) g(float* out) {}\n'
    with pytest.raises(BadWorkload, match=r"mine.py:9: k.cu has no __global__ function f; it has"):
        read(tmp_path, GOOD + described, k_dot_cu=source)
    with pytest.raises(BadWorkload, match="must be declared extern"):
        read(tmp_path, GOOD + described, k_dot_cu="__global__ void f(float* out) {}\n")
    (tmp_path / "k.cu").unlink()
    with pytest.raises(BadWorkload, match=r"k.cu cannot be read"):
        read(tmp_path, GOOD + described)
    assert "c" in read(tmp_path, GOOD + described, k_dot_cu=source.replace(" g(", " f(")).implementations


@pytest.mark.parametrize(
    ("text", "made"), [("rows", 12), ("cdiv(rows, 5)", 3), ("max(rows, 2 * 8) - 1", 15), ("1 << 4", 16), (7, 7)]
)
def test_expressions_are_arithmetic_over_the_axes(text: object, made: int) -> None:
    assert evaluate(text, {"rows": 12}) == made


@pytest.mark.parametrize(
    "text", ["__import__('os')", "rows.real", "cols", "(lambda: 1)()", "rows if 1 else 2", "1 / 0", None]
)
def test_nothing_else_is_an_expression(text: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        evaluate(text, {"rows": 12})


def test_a_grid_chooses_among_the_axes_and_names_what_it_does_not_know() -> None:
    told = {"name": "mine", "file": "mine.py", "axes": ["rows", "dtype"], "implementations": ["torch"],
            "cases": [{"rows": 2, "dtype": "float32"}, {"rows": 3, "dtype": "float32"}],
            "skip": ["", ""], "flops": [None, 6.0], "bytes": [None, None]}  # fmt: skip
    workload = OwnWorkload("file", "mine.py", description=told)
    assert [case.id for case in workload.cases({"axes": {"rows": ["3"]}}, "measure")] == ["rows3-float32"]
    assert workload.cases({}, "measure")[1].axes == {"axis:rows": "3", "dtype": "float32"}
    with pytest.raises(BadSpec, match=r"mine\.py has no axis cols; it has rows, dtype"):
        workload.cases({"axes": {"cols": [1]}}, "measure")
    with pytest.raises(BadSpec, match="leave no case"):
        workload.cases({"axes": {"rows": [7]}}, "measure")


def test_case_ids_are_names_of_files_whatever_the_values_are() -> None:
    strange = [{"mode": value} for value in ("a/b", "a_b", "../x", "a-b", "", "x" * 400, True, 1e-05, -3)]
    ids = [case_id(case) for case in strange]
    assert len(set(ids)) == len(ids)
    assert all(OwnWorkload("file", "").is_case(one) for one in ids)


TUNED = """
import torch
tune = {"block": [16, 64], "stages": [2, 3]}
BEST
def valid(block, stages):
    return block * stages >= LEAST
def inputs(device, generator):
    return (torch.zeros(2),)
def reference(x):
    return x
def baseline_torch(x):
    return x
def kernel_mine(x, *, block, stages):
    return block, stages
def kernel_other(x, *, stages):
    return stages
"""


def tuned(folder: Path, best: str = "", least: int = 0) -> Definition:
    file = folder / "tuned.py"
    file.write_text(TUNED.replace("BEST", best).replace("LEAST", str(least)))
    return load(file)


@pytest.mark.parametrize(
    ("best", "least", "values"),
    [("best = {'block': 64, 'stages': 3}", 0, (64, 3)), ("", 0, (16, 2)), ("", 100, (64, 2)), ("", 130, (64, 3))],
)
def test_a_kernel_has_the_best_values_or_the_first_that_are_valid(
    tmp_path: Path, best: str, least: int, values: tuple[int, int]
) -> None:
    made = tuned(tmp_path, best, least).implementations
    assert (made["mine"](None), made["other"](None)) == (values, values[1])


def test_values_that_valid_leaves_out_are_refused_with_that_reason(tmp_path: Path) -> None:
    made = tuned(tmp_path, "best = {'block': 16, 'stages': 2}", 100).implementations
    assert "leaves out these values" in made["mine"].refusal({})


@pytest.mark.parametrize("best", ["best = {'block': 17}", "best = {'depth': 1}"])
def test_a_best_value_that_tune_does_not_list_is_a_mistake(tmp_path: Path, best: str) -> None:
    with pytest.raises(BadWorkload, match="which tune does not list"):
        tuned(tmp_path, best)


MACROS = """
import torch
tune = {"BLOCK": [64, 128], "FAST": [True, False], "unroll": [1, 2]}
best = {"BLOCK": 128, "FAST": FAST, "unroll": 2}
def valid(BLOCK, FAST):
    return FAST
def inputs(device, generator):
    return (torch.zeros(2),)
def reference(x):
    return x
def baseline_torch(x):
    return x
kernel_c = {"cuda": "k.cu", "entry": "f", "grid": "cdiv(2, BLOCK)", "block": "BLOCK", "args": ["out", "x"],
            "macros": ["BLOCK", "FAST"]}
"""


def test_a_cuda_entry_has_its_parameters_as_macros_and_in_its_expressions(tmp_path: Path) -> None:
    source = 'extern "C" __global__ void f(float* out, const float* x) {}\n'
    entry = read(tmp_path, MACROS.replace(": FAST,", ": True,"), k_dot_cu=source).implementations["c"]
    assert entry["defines"] == {"BLOCK": 128, "FAST": True}
    assert evaluate(entry["block"], entry["defines"]) == 128
    assert with_macros(source, entry["defines"]) == f"#define BLOCK 128\n#define FAST 1\n#line 1\n{source}"
    assert with_macros(source, {}) == source
    refused = read(tmp_path, MACROS.replace(": FAST,", ": False,"), k_dot_cu=source).implementations["c"]
    assert "leaves out these values" in refused.refusal({})
    with pytest.raises(BadWorkload, match="macros must list names that tune declares, not DEPTH"):
        read(tmp_path, MACROS.replace(": FAST,", ": True,").replace('["BLOCK", "FAST"]', '["DEPTH"]'), k_dot_cu=source)
