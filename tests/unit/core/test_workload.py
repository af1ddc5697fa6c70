"""What a workload's text tells without being run, and that the harness, which runs it, says the same."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.forms import definition, one_file
from kernels.harness import own as harness_side
from orchestrator.adapters.workload_files import gather_files, own_workload, read_workload
from orchestrator.core import workload as client
from orchestrator.core.config.model import Workload
from orchestrator.core.errors import ConfigError
from orchestrator.core.workload import case_id, sketch_workload
from orchestrator.runs.planning import LaunchOptions, load_config
from orchestrator.wiring import configs_folder

GOOD = """axes = {"rows": [1 << 4, 3], "dtype": ["float32"]}
def inputs(rows, dtype, device, generator): ...
def reference(x): ...
def kernel_mine(x): ...
def baseline_torch(x): ...
requirements = ["triton>=3"]
"""
VALUES = st.one_of(
    st.integers(), st.text(max_size=300), st.booleans(), st.floats(allow_nan=False), st.none(), st.lists(st.integers())
)
NAMES = st.sampled_from(["rows", "cols", "dtype", "mode"])


@given(st.dictionaries(NAMES, VALUES))
def test_a_case_is_called_the_same_here_and_by_the_harness(values: dict[str, object]) -> None:
    assert case_id(values) == harness_side.case_id(values)
    assert harness_side.SAFE.fullmatch(case_id(values))


def test_cases_and_names_are_read_off_the_text() -> None:
    told = sketch_workload(GOOD, "mine.py")
    assert told.cases == ("rows16-float32", "rows3-float32")
    assert (told.implementations, told.baselines) == (("torch", "mine"), ("torch",))
    assert told.needs.pip == ("triton>=3",)


def test_what_is_refused_here_is_what_the_harness_refuses() -> None:
    assert set(definition.DTYPES) <= set(client.DTYPES)
    assert one_file.CUDA_KEYS == client.CUDA_KEYS
    assert one_file.NAME.pattern == client.NAME.pattern


def test_what_only_running_the_file_would_tell_is_left_open() -> None:
    assert sketch_workload(GOOD.replace("[1 << 4, 3]", "list(range(3))"), "mine.py").cases == ()
    assert sketch_workload(GOOD.replace("1 << 4", "1 << (1 << 40)"), "mine.py").cases == (), "and costs nothing"


def test_a_workloads_needs_are_in_the_payload_and_absent_where_it_has_none(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    plain = GOOD.replace('requirements = ["triton>=3"]\n', "")
    file.write_text(plain)
    assert set(gather_files(file)) == {"own/mine.py"}
    file.write_text(plain + 'requirements = ["mine-1.0-py3-none-any.whl", "einops"]\napt = ["libnuma-dev"]\n')
    with pytest.raises(ConfigError, match=r"there is no mine-1.0-py3-none-any.whl beside mine"):
        gather_files(file)
    (tmp_path / "mine-1.0-py3-none-any.whl").write_bytes(b"a wheel")
    sent = gather_files(file)
    assert sent["own/mine-1.0-py3-none-any.whl"] == b"a wheel"
    told = json.loads(sent["own.requirements.json"])
    assert (told["pip"], told["apt"]) == (["mine-1.0-py3-none-any.whl", "einops"], ["libnuma-dev"])


REFUSED = {
    "axes and cases": (GOOD + "cases = [{'n': 1}]\naxes = {'n': [1]}\n", "there are both axes and cases"),
    "axis": (GOOD.replace("[1 << 4, 3]", "7"), "mine.py:1: axis rows must be a list with at least one value, not 7"),
    "axes": ("axes = [1]\n" + GOOD.split("\n", 1)[1], "mine.py:1: axes must be a mapping"),
    "none": (GOOD.replace("kernel_", "k_").replace("baseline_", "b_"), "mine.py:1: there is no implementation"),
    "twice": (GOOD + "def kernel_torch(x): ...\n", "mine.py:7: two implementations are called torch: baseline_torch is at line 5"),
    "reference": (GOOD.replace("reference", "refer"), "mine.py:1: there is no function reference"),
    "syntax": (GOOD + "def (\n", "mine.py:7: syntax error"),
    "an option of pip": (GOOD.replace("triton>=3", "--index-url=x"), "mine.py:6: requirements: '--index-url=x' must be"),
    "apt": (GOOD + 'apt = ["a b"]\n', "mine.py:7: apt: 'a b' is not the name of a package"),
    "build": (GOOD + "build = 7\n", "mine.py:7: build must be a line for /bin/sh, not 7"),
    "limit": (GOOD + "build_limit_s = 0\n", "mine.py:7: build_limit_s must be a number of seconds"),
    "a wrong key": (GOOD.replace("axes =", "axis ="), "mine.py:2: inputs has an argument rows, which nothing provides; provided: device, generator"),
    "an axis of another name": (
        GOOD.replace("inputs(rows", "inputs(cols"),
        "mine.py:2: inputs has an argument cols, which nothing provides; provided: rows, dtype, device, generator",
    ),
    "flops of a device": (GOOD + "def flops(rows, device): ...\n", "mine.py:7: flops has an argument device, which nothing provides; provided: rows, dtype"),
    "a list for a value": (GOOD.replace("3]", "[3]]"), "mine.py:1: axis rows: [3] must be a number, a string, or true or false"),
    "a type": (GOOD.replace("float32", "float33"), "mine.py:1: axis dtype: 'float33' is not one of float64, float32"),
    "a case twice": (GOOD.replace("1 << 4", "3"), "mine.py:1: a case is given twice"),
    "other axes": ("cases = [{'rows': 1}, {'cols': 2}]\n" + GOOD.split("\n", 1)[1], "mine.py:1: every case must have the same axes"),
    "no name": (GOOD.replace('"rows": [', '"2 rows": ['), "mine.py:1: '2 rows' is not a valid name for an axis"),
    "tolerance": (GOOD + 'tolerance = "tight"\n', "mine.py:7: tolerance must be a number >= 0, or"),
    "tolerances": (GOOD + "tolerance = {'rel': 1}\n", "mine.py:7: tolerance must be a number >= 0, or"),
    "no function": (GOOD.replace("def reference(x): ...", "reference = 3"), "mine.py:3: reference must be a function, not int"),
    "no kernel": (
        GOOD.replace("def kernel_mine(x): ...", "kernel_mine = 'k.cu'"),
        "mine.py:4: kernel_mine must be a function, or a mapping that names a CUDA entry, not str",
    ),
    "CUDA keys": (
        GOOD.replace("def kernel_mine(x): ...", "kernel_mine = {'cuda': 'k.cu', 'entri': 'x', 'grid': 1, 'block': 1, 'args': []}"),
        "mine.py:4: kernel_mine, a CUDA implementation, lacks entry and has entri, unknown; keys: cuda, entry,",
    ),
    "a typing error": (GOOD.replace("reference", "refrence"), "mine.py:1: there is no function reference(…); line 3 has refrence"),
    "two references": (GOOD + "def reference(x): ...\n", "mine.py:7: two functions are called reference: the other one is at line 3"),
    "arity": (GOOD.replace("kernel_mine(x)", "kernel_mine(x, y)"), "mine.py:4: kernel_mine takes 2 arguments; reference takes 1"),
    "arity of the reference": (
        GOOD.replace("generator): ...", "generator): return 1, 2"), "mine.py:3: reference takes 1 argument; inputs returns 2"),
    "arity with outputs": (
        GOOD + "def outputs(x): return torch.empty_like(x)\n",
        "mine.py:4: kernel_mine takes 1 argument; reference takes 1 and outputs 1",
    ),
    "inplace": (GOOD + "inplace = ['y']\n", "mine.py:7: inplace: reference has no argument y; it has x"),
    "no list": (GOOD + "inplace = 'x'\n", "mine.py:7: inplace must be a list of names of inputs"),
    "several GPUs": (GOOD + "gpus = 2\n", "mine.py:7: gpus = 2: a case has one GPU; a program may use several"),
    "requirements": (GOOD.replace('["triton>=3"]', '"triton"'), "mine.py:6: requirements must be a list of strings"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_told_before_anything_is_paid_for(name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(ConfigError) as told:
        sketch_workload(text, "mine.py")
    assert words in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("kernel_mine(x)", "kernel_mine(x, eps=1e-6)"),
        GOOD.replace("kernel_mine(x)", "kernel_mine(*xs)"),
        GOOD.replace("kernel_mine(x)", "kernel_mine(**named)"),
        GOOD.replace("generator): ...", "generator): return made(device)"),
        GOOD.replace("generator): ...", "generator): return (*made(device), 1)"),
        GOOD.replace("def kernel_mine", "@wrapped\ndef kernel_mine").replace("mine(x)", "mine(x, y)"),
        GOOD + "inplace = ['x']\n",
    ],
)
def test_arguments_that_fit_or_that_the_text_does_not_show_are_accepted(text: str) -> None:
    assert sketch_workload(text, "mine.py").implementations == ("torch", "mine")


def test_a_file_takes_along_what_it_names_and_a_folder_its_sources(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "thing.py").write_text(GOOD + "x = {'cuda': 'k.cu'}\n")
    for name in ("k.cu", "other.cu", "helper.py", "notes.bin", "__pycache__/x.py"):
        (folder / name).write_text("// here\n")
    needs = "own.requirements.json"
    assert set(gather_files(folder)) == {"own/thing.py", "own/k.cu", "own/other.cu", "own/helper.py", needs}
    assert set(gather_files(folder / "thing.py")) == {"own/thing.py", "own/k.cu", needs}
    assert read_workload(folder).name == "thing"


@pytest.mark.parametrize(
    ("name", "content"),
    [(".env", "A=1"), ("service.key", "x"), ("credentials.json", "{}"), ("id_ed25519", "x"),
     ("notes.md", "-----BEGIN RSA PRIVATE KEY-----"), ("c.json", '{"private_key": "x"}')],
)  # fmt: skip
def test_nothing_that_looks_like_a_secret_leaves_the_machine(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "thing.py").write_text(GOOD)
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=r"secret, so nothing is sent"):
        gather_files(folder)


def test_a_folder_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "thing.py").write_text(GOOD)
    with (folder / "data.csv").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(ConfigError, match=r"more than 20 MB"):
        gather_files(folder)
    with pytest.raises(ConfigError, match=r"there is no file"):
        gather_files(tmp_path / "none.py")
    (tmp_path / "empty").mkdir()


UNKNOWN = {
    "nothing": ({}, r"it has no thing.py, task.yml or YAML$"),
    "another name": ({"norm.py": "x = 1\n"}, r"name one of its files: norm.py$"),
    "a package of Hugging Face": ({"build.toml": "", "torch-ext/x.cpp": ""}, r"kernel package for Hugging Face's"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_folder_of_no_form_is_told_which_forms_there_are(tmp_path: Path, name: str) -> None:
    files, words = UNKNOWN[name]
    for path, text in {"thing/.keep": "", **{f"thing/{path}": text for path, text in files.items()}}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    with pytest.raises(ConfigError, match=words) as refused:
        gather_files(tmp_path / "thing")
    assert all(form in str(refused.value.hint) for form in ("task.yml", "ModelNew", "FlashInfer-Bench", "NAME.py"))


def test_a_file_that_hides_a_module_and_a_kernelbench_file_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(GOOD)
    with pytest.raises(ConfigError, match=r"torch.py would be imported in the place of the module torch"):
        read_workload(tmp_path / "torch.py")
    (tmp_path / "swish.py").write_text("class Model: ...\ndef get_inputs(): ...\n")
    with pytest.raises(ConfigError, match=r"is a file of KernelBench's form, whose folder is measured") as refused:
        read_workload(tmp_path / "swish.py")
    assert refused.value.hint == f"bench launch {tmp_path}/"


def test_what_a_file_names_travels_or_is_named_in_the_plan(tmp_path: Path) -> None:
    entry = '{"cuda": "csrc/k.cu", "entry": "k", "grid": 1, "block": 1, "args": []}'
    file = tmp_path / "mine.py"
    named = f'w = open("weights.npz")\nh = ["helper.h", "csrc/x.cpp", "secrets.json", "../up.h", "gone.h", "{tmp_path}/x.h"]\n'
    named += 'code = """#include "inner.h"\n#include "other.cu" """\nd = "my helper.h", "my data.bin"\n'
    file.write_text(GOOD.replace("def kernel_mine(x): ...", f"kernel_mine = {entry}") + named)
    (tmp_path / "csrc").mkdir()
    sources = ("csrc/k.cu", "csrc/k.cuh", "helper.h", "csrc/x.cpp", "inner.h", "csrc/other.cu", "my helper.h")
    for name in (*sources, "weights.npz", "my data.bin", "secrets.json", "unnamed.h"):
        (tmp_path / name).write_text('extern "C" __global__ void k(float* x) {}\n')
    (tmp_path / "x.h").write_text("// here")
    (tmp_path.parent / "up.h").write_text("// not here")
    own = own_workload(file)
    assert set(gather_files(file)) == {"own.requirements.json", *(f"own/{name}" for name in ("mine.py", *sources))}
    unsent = f"weights.npz, secrets.json, ../up.h, {tmp_path}/x.h, my data.bin"
    assert own.notes == (f"not sent, though the file names them: {unsent}",)
    file.write_text(file.read_text().replace("csrc/k.cu", "../k.cu"))
    (tmp_path.parent / "k.cu").write_text('extern "C" __global__ void k(float* x) {}\n')
    with pytest.raises(ConfigError, match=r"mine.py:4: there is no ../k.cu in its folder"):
        own_workload(file)


def test_a_folder_of_two_forms_is_told_as_which_it_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "thing.py").write_text(GOOD)
    (folder / "task.yml").write_text("lang: py\n")
    note = own_workload(folder).notes[0]
    assert (
        note == "the folder has a file of the folder's name and a GPU MODE problem: it is measured as the first of them"
    )


def test_a_file_takes_along_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD + "import helpers\nfrom more.deep import x\n")
    (tmp_path / "helpers.py").write_text("def later():\n    import more, torch\n")
    for name in ("more", "unused"):
        (tmp_path / f"{name}.py").write_text("import helpers\n")
    assert {"mine.py", "helpers.py", "more.py"} == set(read_workload(tmp_path / "mine.py").files)


def test_an_entry_missing_from_its_source_is_named_by_line_before_any_payment(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    cuda = 'kernel_mine = {"cuda": "k.cu", "entry": "gone", "grid": 1, "block": 1, "args": []}'
    file.write_text(GOOD.replace("def kernel_mine(x): ...", cuda))
    with pytest.raises(ConfigError, match=r"mine.py:4: there is no k.cu in its folder"):
        own_workload(file)
    (tmp_path / "k.cu").write_text('extern "C" __global__ void __launch_bounds__(64) there(float* out) {}\n')
    with pytest.raises(ConfigError, match=r"mine.py:4: k.cu has no __global__ function gone"):
        own_workload(file)
    file.write_text(file.read_text().replace("gone", "there"))
    assert own_workload(file).name == "mine"


def test_an_axis_that_the_file_does_not_have_is_refused_before_anything_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(GOOD)

    def chosen(axes: str) -> Workload | None:
        options = LaunchOptions(gpu="", path=file, overrides=(f"workload.axes.{axes}",))
        return load_config(options, configs=configs_folder(), defaults={}, workload=own_workload)[0].workload

    with pytest.raises(ConfigError, match=r"workload.axes.row: mine has no such axis; did you mean 'rows'"):
        chosen("row=[16]")
    there = chosen("rows=[16]")
    assert there.axes == {"rows": (16,)}
    assert there.cases == ("rows16-float32",), "and a plan counts no more"
    with pytest.raises(ConfigError, match=r"workload.axes.rows: mine has no case with 12345; .*valid: 16, 3$"):
        chosen("rows=[16, 12345]")
    with pytest.raises(ConfigError, match=r"workload.axes.rows: no value, so no case is left; valid: 16, 3$"):
        chosen("rows=[]")
    file.write_text(GOOD.replace("[1 << 4, 3]", "[*range(1)]"))
    with pytest.raises(ConfigError, match=r"workload.axes.rows: no value, so no case is left$"):
        chosen("rows=[]")
    cases = "cases = [{'rows': 1, 'dtype': 'int8'}, {'rows': 2, 'dtype': 'bool'}]"
    file.write_text(GOOD.replace('axes = {"rows": [1 << 4, 3], "dtype": ["float32"]}', cases))
    options = LaunchOptions(gpu="", path=file, overrides=("workload.axes.rows=[1]", "workload.axes.dtype=[bool]"))
    with pytest.raises(
        ConfigError, match=r"workload.axes: mine has no case with these values together; valid: rows1-int8, rows2-bool"
    ):
        load_config(options, configs=configs_folder(), defaults={}, workload=own_workload)
    file.write_text(GOOD.replace('{"rows": [1 << 4, 3],', '{"rows": [' + ", ".join(map(str, range(50))) + "],"))
    with pytest.raises(ConfigError, match=r"valid: 0, 1, .*, 19 and 30 more$"):
        chosen("rows=[99]")
    file.write_text(GOOD.replace("[1 << 4, 3]", "list(range(3))"))
    assert chosen("row=[16]") is not None, "what the text does not tell is for the machine to say"


def test_a_folder_of_two_gigabytes_is_refused_by_a_plan_already(tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "big.py").write_text(GOOD)
    with (folder / "data.csv").open("wb") as data:
        data.truncate(2 << 30)
    with pytest.raises(ConfigError, match=r"more than 20 MB and 500 files \(at data.csv\)"):
        own_workload(folder)


@pytest.mark.parametrize("name", ["kernl_mine", "kernels_mine", "baselin_mine"])
def test_a_function_is_no_misspelt_kernel_where_something_uses_it(name: str) -> None:
    text = "axes = {'n': [8]}\ndef inputs(n): return n\ndef reference(x): return x\n"
    helper, kernel = f"def {name}(x): return x\n", "def kernel_right(x): return {}(x)\n"
    with pytest.raises(ConfigError, match=rf"own.py:4: nothing uses {name}; did you mean (kernel|baseline)_mine\?"):
        sketch_workload(text + helper + kernel.format("abs"), "own.py")
    assert sketch_workload(text + helper + kernel.format(name), "own.py").implementations == ("right",)


PLAIN = GOOD.replace('requirements = ["triton>=3"]\n', "")


def planned(folder: Path, text: str, *, brings_modules: bool = False) -> Workload:
    file = folder / "mine.py"
    file.write_text(text)
    return own_workload(file, brings_modules)


@pytest.mark.parametrize(
    "imports",
    [
        "import torch, math, triton.language as tl",
        "try:\n    import flash_nothing\nexcept ImportError:\n    flash_nothing = None",
        "def helper():\n    import flash_nothing",
        "if __name__ == '__main__':\n    import flash_nothing",
        "import sys\nsys.path.append('/opt/x')\nimport flash_nothing",
        "import flash_nothing\nrequirements = ['flash-nothing==2']",
        "import flash_nothing\nrequirements = ['flash_nothing-1.0-py3-none-any.whl']",
        "import flash_nothing\nrequirements = ['a-package-of-another-name']",
        "import flash_nothing\nbuild = 'make'",
        "from . import flash_nothing",
        "import beside",
    ],
)
def test_an_import_that_may_succeed_is_planned_without_a_word(tmp_path: Path, imports: str) -> None:
    (tmp_path / "beside.py").write_text("import os\n")
    (tmp_path / "flash_nothing-1.0-py3-none-any.whl").write_bytes(b"")
    assert not [note for note in planned(tmp_path, f"{imports}\n{PLAIN}").notes if "imports" in note]


def test_a_module_missing_for_a_helper_is_named_with_the_helpers_line(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\n\nimport flash_nothing\n")
    with pytest.raises(ConfigError, match=r"^beside\.py:3: imports flash_nothing, but there is no flash_nothing\.py"):
        planned(tmp_path, "import beside\n" + PLAIN)


def test_a_requirement_that_another_import_uses_provides_no_other_module(tmp_path: Path) -> None:
    text = "import numpy, triton, flash_nothing\nrequirements = ['triton>=3']\n"
    with pytest.raises(ConfigError, match=r"mine\.py:1: imports flash_nothing"):
        planned(tmp_path, text + PLAIN)


def test_a_package_beside_a_file_alone_is_not_sent_and_a_folders_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "__init__.py").write_text("")
    with pytest.raises(ConfigError, match="imports lib, a folder beside the file") as refused:
        planned(folder, "from lib import x\n" + PLAIN)
    assert refused.value.hint == f"`bench launch {folder}` sends the folder, if the file in it has the folder's name"
    assert own_workload(folder).notes == ()


def test_a_module_that_only_this_computer_may_have_is_a_note(tmp_path: Path) -> None:
    there = "mine.py:1: imports pytest, which another machine has only if requirements name it"
    assert planned(tmp_path, "import pytest\n" + PLAIN).notes == (there,)
    on_host = planned(tmp_path, "import flash_nothing\n" + PLAIN, brings_modules=True)
    assert on_host.notes == (there.replace("pytest", "flash_nothing"),)


@pytest.mark.parametrize(
    ("axes", "cases"),
    [
        ("{'a': list(range(10**7))}", "10,000,000"),
        ("{'a': range(5), 'b': tuple(sorted(range(0, 10**5, 3)))}", "166,670"),
        ("{'a': NAMES, 'b': NAMES}\nNAMES = [str(k) for k in range(101)]", "10,201"),
        ("{'a': [1] + list(range(10**4)), 'b': unknown()}", "10,001"),
    ],
)
def test_more_cases_than_are_measured_are_refused_without_making_them(axes: str, cases: str) -> None:
    text = PLAIN.replace('{"rows": [1 << 4, 3], "dtype": ["float32"]}', axes)
    with pytest.raises(ConfigError, match=f"mine.py:1: {cases} cases are more than 10,000"):
        sketch_workload(text, "mine.py")


@pytest.mark.parametrize(
    "values", ["range(10**4)", "[k for k in range(10**9) if k < 3]", "(x := range(10**9))", "X\nX = X"]
)
def test_a_grid_whose_size_the_text_does_not_show_is_left_open(values: str) -> None:
    text = PLAIN.replace('{"rows": [1 << 4, 3], "dtype": ["float32"]}', f"{{'a': {values.partition(chr(10))[0]}}}")
    assert sketch_workload(text + values.partition("\n")[2], "mine.py").cases == ()


def test_the_harness_refuses_a_huge_grid_before_it_makes_the_cases() -> None:
    axes = {name: list(range(1000)) for name in "abcd"}
    with pytest.raises(ValueError, match="1,000,000,000,000 cases are more than 10,000"):
        one_file.cases_of({"axes": axes}, lambda words, _: ValueError(words))


@pytest.mark.parametrize(
    ("overrides", "is_refused"),
    [
        ((), True),
        (("machine.image_project=ubuntu-os-cloud", "machine.image_family=ubuntu-2404"), True),
        (("machine.image_project=my-team-images", "machine.image_family=with-apex"), False),
        ((f"machine.container=ghcr.io/ada/bench@sha256:{'4f' * 32}",), False),
        (("host.targets=[gpu-box]",), False),
    ],
)
def test_what_a_machine_of_the_users_own_has_is_not_known_to_be_missing(
    tmp_path: Path, overrides: tuple[str, ...], is_refused: bool
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import flash_nothing\n" + PLAIN)
    options = LaunchOptions(gpu="l4", path=file, overrides=overrides)
    with pytest.raises(ConfigError, match="flash_nothing") if is_refused else nullcontext():
        config, _ = load_config(options, configs=configs_folder(), defaults={}, workload=own_workload)
        assert config.workload is not None
        assert [note for note in config.workload.notes if "flash_nothing" in note]
