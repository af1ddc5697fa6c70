"""Mistakes that people make: each is answered by one line that says where it is, and one that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.adapters.settings import default_home, load_settings
from orchestrator.cli.config import names
from orchestrator.cli.config_keys import to_yaml, walk
from orchestrator.core.config.model import Config
from tests.integration.cli.conftest import Bench

pytestmark = pytest.mark.usefixtures("cloud")

GOOD = """import torch
axes = {"n": [8]}
def inputs(n, device, generator):
    return (torch.randn(n, device=device, generator=generator),)
def reference(x):
    return x + x
def baseline_torch(x):
    return x + x
def kernel_mine(x):
    return x * 2
"""
NEW = "`bench new NAME` writes one that runs"
KEYS = "`bench config keys` explains every key"

MISTAKES = [
    ("launc", 2, "no such command: launc; did you mean 'launch'", "`bench --help`"),
    ("--foo", 2, "no such option: --foo", "`bench --help`"),
    ("fleet launc", 2, "no such command: launc; did you mean 'launch'", "`bench fleet --help`"),
    ("launch --gp l4", 2, "no such option: --gp; did you mean --gpu", "`bench launch --help`"),
    ("status --limit x", 2, "invalid value for '--limit' / '-n': expected a valid integer", "`bench status --help`"),
    ("stop", 2, "missing argument 'RUN'", "`bench stop --help`"),
    ("report last --table foo", 2, "'foo' is not one of 'cases', 'baselines', 'pr', 'paper'", "`bench report --help`"),
    ("report last --format svgg", 2, "--format svgg: expected svg, png or pdf", ""),
    ("compare a b --fail-on x", 2, "'x' is not one of 'regression', 'inconclusive', 'never'", "`bench compare --help`"),
    ("launch", 2, "no GPU and no configuration given", "`bench launch --gpu l4|"),
    ("launch --gpu l4 --set machine.type=n1-standard-4", 2, "machine.type: n1-standard-4 carries NVIDIA T4", KEYS),
    ("launch --set measure.repeat=5", 2, "measure.repeat: unknown key; did you mean 'repeats'?", KEYS),
    ("plan --gpu l4 --set machine.machine_types=x", 2, "did you mean 'type'?", KEYS),
    ("plan --gpu l4 --set measure.repeats=x", 2, "measure.repeats: expected a whole number, got 'x'", KEYS),
    ("plan --gpu l4 --set measure.repeats", 2, "expected key.path=value", KEYS),
    ("plan --gpu l5", 2, "unknown GPU 'l5'; did you mean 'l4'?", "--gpu"),
    ("plan --gpu l4 --gpu t4", 2, "--gpu was given 2 times", "`bench fleet --help`"),
    ("plan --gpu t4 --set measure.dtypes=[bfloat16]", 2, "t4 has no bfloat16 arithmetic", KEYS),
    ("plan --gpu l4 --set budget.per_run_usd=0.001", 3, "only $0.001 is left for one run", "raise budget.per_run_usd"),
    ("plan nosuch.py", 2, "there is no file", NEW),
    ("plan nosuch.yaml", 2, "cannot read nosuch.yaml: No such file", "`bench config show l4`"),
    ("plan bad.yaml", 2, "bad.yaml:3: measure.repeat: unknown key; did you mean 'repeats'?", KEYS),
    ("plan refrence.py", 2, "refrence.py:1: there is no function reference(…); line 5 has refrence", NEW),
    ("plan broken.py", 2, "broken.py:10: syntax error", NEW),
    ("plan arguments.py", 2, "arguments.py:5: reference takes 2 arguments; inputs returns 1", NEW),
    ("plan twice.py", 2, "twice.py:11: two functions are called reference: the other one is at line 5", NEW),
    ("plan axis.py", 2, "axis.py:3: inputs has an argument m, which nothing provides", NEW),
    ("plan empty.py", 2, "empty.py:2: axis n must be a list with at least one value", NEW),
    ("fetch nosuch", 10, "run not found: nosuch", "`bench status`"),
    ("config show l5", 2, "configuration not found: l5", "l4"),
    ("costs add x --category ai", 2, "not an amount in dollars: x", "1.50"),
    ("docs juge", 10, "page not found: juge; did you mean judge?", "`bench docs`"),
    ("new torch", 2, "torch is the name of a module", "bench new my_torch"),
    ("plan kernl.py", 2, "kernl.py:9: nothing uses kernl_mine; did you mean kernel_mine?", NEW),
    ("plan takes_two.py", 2, "takes_two.py:9: kernel_mine takes 2 arguments; inputs returns 1", NEW),
    ("plan number.py", 2, "number.py:2: axis n must be a list with at least one value, not 8", NEW),
    ("plan same.py", 2, "same.py:11: two implementations are called mine: kernel_mine is at line 9", NEW),
    ("plan good.py --set workload.axes.m=[1]", 2, "workload.axes.m: good has no such axis; valid: n", NEW),
    ("plan good.py --set measure.regime=brust", 2, "'brust' is not a choice; did you mean 'burst'?", KEYS),
    ("plan good.py --set measure.repeats=-1", 2, "measure.repeats: must be at least 1, not -1", KEYS),
    ("plan tab.yaml", 2, "tab.yaml:2: not YAML: found character '\\t'", KEYS),
    ("plan again.yaml", 2, "again.yaml:2: gpu: given twice, first on line 1", KEYS),
    ("plan --gpu l40s", 2, "unknown GPU 'l40s'; did you mean 'l4'?", "--gpu"),
    ("compare a", 2, "compare needs at least two runs", "`bench compare A B`"),
    ("watch nosuch.py", 2, "there is no file nosuch.py", "`bench new NAME` writes one"),
    ("tune good.py", 2, "good.py declares no parameters: tune = {", "`bench docs sessions` has an example"),
    ("site --out good.py", 11, "cannot read good.py/site.json: Not a directory", "--out"),
    ("baseline show nosuch", 10, "there is no baseline called nosuch", "`bench baseline list`"),
    ("cloud weather nosuch.yaml", 2, "cannot read nosuch.yaml: No such file", "`bench docs embedded-cloud`"),
    ("schema nosuch", 2, "schema not found: 'nosuch'", "`bench schema`"),
    ("launch cells.ipynb", 2, "cells.ipynb: a notebook is not measured; copy the functions into a .py file", NEW),
    ("watch cells.ipynb", 2, "bench watch needs a file of your own, not cells.ipynb", "`bench new NAME` writes one"),
    ("plan helper.py", 2, "helper.py:2: imports mylib, but there is no mylib.py beside", 'requirements = ["mylib"]'),
    ("launch helper.py --gpu l4", 2, "helper.py:2: imports mylib, but there is no mylib.py", "put mylib.py beside it"),
    ("plan grid.py", 2, "grid.py:2: 10,000,000 cases are more than 10,000", NEW),
    ("plan listed.py", 2, "listed.py:2: 100,000,000 cases are more than 10,000", NEW),
    ("plan only.cu", 2, "only.cu: CUDA source needs a Python file beside it", NEW),
    ("plan GOOD.PY", 2, "GOOD.PY: the name of a Python file must end with .py, in lower case", NEW),
    ("plan class.py", 2, "class.py:9: kernel_mine is a class; write `def kernel_mine(…)`", NEW),
    ("plan later.py", 2, "later.py:9: kernel_mine is an async function; write `def kernel_mine(…)`", NEW),
    ("plan tabs.py", 2, "tabs.py:11: syntax error: inconsistent use of tabs and spaces", NEW),
    ("plan wide.py", 2, "wide.py: not UTF-8 text", NEW),
    ("plan torch.py", 2, "torch.py would be imported in the place of the module torch", "rename the file"),
    ("plan home.yaml", 2, "there is no file HOME/kernels/good.py", NEW),
    ("plan several.yaml", 2, "several.yaml:1: gpu: expected one of l4, t4", KEYS),
    ("plan yes.yaml", 2, "yes.yaml:2: measure.regime: true is not a choice; valid: auto", KEYS),
    ("plan comma.yaml", 2, "comma.yaml:2: budget.per_run_usd: expected an amount of dollars, got '0,50'", KEYS),
    ("mcp nosuch.py", 2, "there is no file nosuch.py", "`bench new NAME` writes one"),
    ("tune nosuch.py", 2, "there is no file nosuch.py", "`bench new NAME` writes one"),
    ("mcp good.py --max-usd x", 2, "--max-usd x: not an amount in dollars", "for example: --max-usd 1.50"),
    ("tune good.py --max-usd 0", 2, "and more than 0", "for example: --max-usd 1.50"),
    ("launch good.py --gpu", 2, "option '--gpu' requires an argument", "`bench launch --help`"),
    ("run good.py", 2, "no such command: run; did you mean 'bench launch'?", "`bench --help`"),
    ("good.py", 2, "no such command: good.py; did you mean 'bench launch good.py'?", "`bench --help`"),
    ("help", 2, "no such command: help; did you mean 'bench --help'?", "`bench --help`"),
    ("baseline", 2, "bench baseline needs a command: set, list, show, rm", "`bench baseline --help`"),
]
FILES = {
    "bad.yaml": "gpu: l4\nmeasure:\n  repeat: 5\n",
    "refrence.py": GOOD.replace("def reference", "def refrence"),
    "broken.py": GOOD.replace("x * 2", "x *"),
    "arguments.py": GOOD.replace("reference(x)", "reference(x, y)"),
    "twice.py": GOOD + "def reference(x):\n    return x\n",
    "axis.py": GOOD.replace("inputs(n", "inputs(m"),
    "empty.py": GOOD.replace("[8]", "[]"),
    "good.py": GOOD,
    "kernl.py": GOOD.replace("kernel_mine", "kernl_mine"),
    "takes_two.py": GOOD.replace("kernel_mine(x)", "kernel_mine(x, y)"),
    "number.py": GOOD.replace("[8]", "8"),
    "same.py": GOOD + "def baseline_mine(x):\n    return x\n",
    "tab.yaml": "measure:\n\trepeats: 5\n",
    "again.yaml": "gpu: l4\ngpu: t4\n",
    "helper.py": GOOD.replace("\n", "\nfrom mylib import twice\n", 1),
    "grid.py": GOOD.replace("[8]}", 'list(range(1000)), "m": [1 << k for k in range(100)], "k": range(1, 201, 2)}'),
    "listed.py": GOOD.replace('axes = {"n": [8]}', 'cases = [{"n": n} for n in range(10**8)]'),
    "cells.ipynb": '{"cells": [], "metadata": {}, "nbformat": 4}',
    "only.cu": "__global__ void scale(float* x) {}\n",
    "GOOD.PY": GOOD,
    "class.py": GOOD.replace("def kernel_mine(x):", "class kernel_mine:\n    def forward(self, x):").replace(
        "  return x *", "      return x *"
    ),
    "later.py": GOOD.replace("def kernel_mine", "async def kernel_mine"),
    "tabs.py": GOOD + "\ty = 1\n",
    "wide.py": GOOD.encode("utf-16"),
    "torch.py": GOOD,
    "home.yaml": "gpu: cpu\nworkload:\n  path: ~/kernels/good.py\n",
    "several.yaml": "gpu: [l4, t4]\n",
    "yes.yaml": "measure:\n  regime: yes\ngpu: l4\n",
    "comma.yaml": "budget:\n  per_run_usd: 0,50\ngpu: l4\n",
}
ACCEPTED = {
    "with space.py": GOOD,
    "from_windows.py": "\ufeff" + GOOD.replace("\n", "\r\n"),
    "from_windows.yaml": "\ufeffgpu: cpu\r\nmeasure:\r\n  repeats: 5\r\n",
    "no_axes.py": GOOD.replace('{"n": [8]}', "{}").replace("inputs(n, ", "inputs(").replace("randn(n", "randn(8"),
}


@pytest.mark.parametrize(("command", "code", "message", "remedy"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_told_where_it_is_with_what_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, command: str, code: int, message: str, remedy: str
) -> None:
    monkeypatch.setenv("HOME", str(bench.home))
    message = message.replace("HOME", str(bench.home))
    for name, text in FILES.items():
        if name in command:
            Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = bench(*command.split(), code=code)
    assert (ran.out, bench.control("/control/bill")["rows"]) == ("", [])
    lines = ran.err.splitlines()
    assert len(lines) == (2 if remedy else 1), lines
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert not remedy or (lines[1].startswith("hint:  ") and remedy in lines[1])


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_no_mistake_is_planned(bench: Bench, name: str) -> None:
    """A space in a name, the line ends and byte order mark of Windows, and no axis at all."""
    Path(name).write_bytes(ACCEPTED[name].encode())
    assert bench("plan", name, "--json").document["cases"]


def test_every_key_of_a_configuration_has_a_sentence_and_a_value_in_yaml(bench: Bench) -> None:
    assert all(one.about.endswith(".") for one in walk(Config))
    assert [to_yaml(value) for value in (True, None, ("bench",), "", 1.5)][:2] == ["true", "null"]
    assert "run.keep\tfalse\tKeep the machine for the next launch." in bench("config", "keys").out


@pytest.mark.parametrize("name", names())
def test_all_attempts_of_a_shipped_configuration_are_paid_by_its_own_caps(bench: Bench, name: str) -> None:
    """From a fresh home, at the shipped prices."""
    plan = bench("plan", "--gpu", name, "--json").document
    asked = bench("config", "show", name, "--json").document["values"]
    assert plan["attempts"] == asked["run"]["attempts"]
    assert plan["ttl_s"] == 60 * asked["run"]["max_minutes"]
    assert float(plan["ceiling_usd"]) <= float(asked["budget"]["per_run_usd"])
    assert [notice for notice in plan["notices"] if "the budget pays for" in notice] == []


# A settings file that cannot be read is named, with what to do; nothing else is asked of it.


LEFT = {
    "cut off": (b"project", "not a mapping; valid keys are"),
    "NULs": (b"\0" * 64, "not YAML"),
    "no text": (b"\xff\xfe", "not UTF-8 text"),
    "nested": (b"[" * 60_000, "nested more than"),
    "of a newer version": (b"schema: 9\n", "schema; valid keys are"),
    "of 100 MB": (b"x" * 100_000_000, "it has more than 128 KB"),
}


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.parametrize("command", ["status", "costs"])
def test_a_broken_settings_file_is_named_with_what_to_do(bench: Bench, what: str, command: str) -> None:
    left, words = LEFT[what]
    (bench.home / "settings.yaml").write_bytes(left)
    said = bench(command, code=2, width=400).err
    assert f"{bench.home}/settings.yaml" in said
    assert words in said
    assert "correct the file, or move it away" in said


def test_an_empty_home_is_no_home_and_not_the_folder_one_is_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BENCH_HOME", "")
    monkeypatch.setenv("BENCH_WEATHER", "")
    found = load_settings()
    assert (found.home, found.weather) == (default_home(), None)


def test_a_home_that_is_a_file_is_told_from_settings_that_are_broken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.home / "file").write_text("")
    monkeypatch.setenv("BENCH_HOME", str(bench.home / "file"))
    said = bench("status", code=2, width=400).err
    assert "Not a directory" in said
    assert "hint:  export BENCH_HOME=/" in said
