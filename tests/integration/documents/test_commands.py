"""Every command line that a page shows does what the page says: it is run, or parsed by the program's own parser."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from orchestrator.cli.app import COMMANDS, app
from orchestrator.cli.lazy import load
from tests.integration.cli.conftest import Bench, at_home
from tests.integration.documents.written_commands import ROOT, Written, commands_of, pages, said_by_the_program
from tests.support.torch_forks import TorchForks

EVERY = [one for path in pages() for one in commands_of(path)]
OURS = sorted({one.text: one for one in (*said_by_the_program(), *EVERY) if one.words[0] == "bench"}.items())
IN_PAGES = sorted({one.text: one for one in EVERY if one.words[0] == "bench"}.items())
OTHERS = sorted({one.text: one for one in EVERY if one.words[0] != "bench"}.items())


NOT_YET: set[str] = set()
"""Commands whose parts are there before they are."""


def typer_app() -> Any:
    """The whole program as the parser has it."""
    return typer.main.get_command(app)


def parsed(words: tuple[str, ...]) -> Any:
    """The command that the real parser finds, its options checked; nothing is run. Raises its usage errors."""
    command = typer_app()
    context = command.make_context("bench", list(words), resilient_parsing=not words)
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            break
        name, command, rest = command.resolve_command(context, rest)
        # The name of a command alone, in a sentence, is no call of it.
        context = command.make_context(name, rest, parent=context, resilient_parsing=not rest)
    return command


@pytest.mark.parametrize("one", [one for _, one in OURS], ids=[text for text, _ in OURS])
def test_every_command_that_a_page_or_a_message_names_is_understood(one: Written) -> None:
    if one.words[1:2] and one.words[1] in NOT_YET - set(COMMANDS):
        return
    assert "--install-completion" not in one.words, "it changes the home of whoever parses it"
    names_an_option = not one.block and one.words[-1].startswith("--")
    try:
        parsed(one.words[1:])
    except typer.Exit:
        pass  # --help and --version answer at once
    except TyperException:
        if not names_an_option:
            raise
        parsed((*one.words[1:], "1"))  # a sentence may name an option without its value


# --- what is run ----------------------------------------------------------------------------------------------------

NOT_RUN = {
    r"^bench watch": "it goes on until Ctrl-C: tests/integration/library measures versions in a session",
    r"^bench tune": "it measures for minutes: tests/unit/analysis/test_tuning.py plays searches",
    r"^bench mcp": "it serves until its client leaves: tests/integration/library/test_agents.py drives it",
    r"--host\b": "it needs a machine of the reader's own: tests/integration/hosts runs it against a real sshd",
    r"^bench init --project(?!.*--print)": "it needs a project at Google: tests/integration/cli/test_init.py runs it on the "
    "embedded cloud",
    r"^bench launch --resume|^bench launch --keep": "the runs it needs are those of tests/integration/stories and tests/integration/cli",
    r"^bench demo|^make demo": "it is timed: tests/integration/cli/test_demo.py runs it",
    r"^bench (reap --install-timer)$": "it changes the user's own systemd: tests/integration/cli/test_reap.py runs it",
    r"^bench launch (FILE|NAME\.py|swish/|level1/|my\.yaml|vectoradd_py/|saxpy\.yaml)": "it stands for a file of the reader's",
    r"^bench (launch|report)\b.*(TRACE_SET|flashinfer-trace)/": "it stands for a "
    "trace set of the reader's: tests/unit/core/test_gpumode.py reads one",
    r"^bench report results/FOLDER": "FOLDER stands for one of results/: tests/integration/report/test_published.py runs it",
    r"^bench history --case": "it stands for a case of the reader's: tests/integration/cli/test_history.py runs it",
    r"^bench cloud weather (FILE|storm\.yaml)": "the file is a block of the same page: run below",
    r"^bench (fleet|image build)\b|^bench profile .*--case": "its own tests run it: it rents, or needs a scheduler",
    r"^bench site --serve": "it serves until it is interrupted: tests/integration/cli/test_site.py runs it",
}
"""Commands that are parsed and not run here, and why."""

CODES = {
    r"^bench image (rm|validate) IMAGE": (10,),  # nobody has built one here
    r"^bench profile": (10,),  # the run has profiled nothing
    r"^bench ssh": (2, 11),  # the run is over, or the program that reaches a machine is not there
    r"^bench compare": (0, 10, 14),  # a host that is busy decides nothing; there may be no such baseline
    r"^bench baseline (rm|show)": (0, 10),
    r"^bench doctor": (0, 2, 3, 4, 6, 11),  # its exit code is what it found on this machine
    r"^bench budget rebuild": (0,),
    r"^bench$": (0,),
}
"""The exit codes of those that need not end with 0."""

SETTLED = "--set measure.repeats=10 --set measure.threads=1 --set workload.axes.rows=[128]"
FIRST = ("bench new norm", "bench new rmsnorm", "bench cloud start")


def reason_not_to_run(text: str) -> str:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, text)), "")


def to_run(text: str) -> tuple[str, ...]:
    """The words to run: a launch is planned instead, with the same choices, and names stand for what is there."""
    text = re.sub(r"^bench launch", "bench plan", text).replace(" --detach", "")
    names = {"RUN": "last", "A": "last", "B": "last", "NAME": "other", "P": "my-project"}
    return tuple(names.get(word, word) for word in shlex.split(text, comments=True)[1:])


def readme_kernel() -> str:
    """The workload of the README."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    return str(block)


def test_the_kernel_of_the_readme_is_launched_as_it_stands_there(measured: Bench) -> None:
    few = "--set measure.repeats=3 --set measure.threads=1 --set workload.axes.rows=[64]"
    run = json.loads(measured(*f"launch softmax.py {few} --json".split()).out)
    assert (run["state"], run["cases_done"]) == ("succeeded", 2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A home in which the session of the front page has been played, command by command."""
    home = tmp_path_factory.mktemp("reader")
    with at_home(home, XDG_CONFIG_HOME=str(home / "config")):
        bench = Bench(home)
        bench("new", "norm")
        bench("new", "rmsnorm")
        (home / "softmax.py").write_text(readme_kernel(), encoding="utf-8")
        for _ in range(3):  # on a busy machine one may find what it timed too odd to be trusted
            if bench(*f"launch norm.py {SETTLED} --json".split(), code=None).code == 0:
                break
        yield bench


RUNNABLE = [text for text, _ in IN_PAGES if not reason_not_to_run(text) and text not in FIRST]


def test_every_command_line_of_the_pages_ends_with_the_code_that_is_stated(measured: Bench) -> None:
    """In the order in which a reader can type them: what stops the cloud, or forgets a baseline, comes last."""
    commands = dict(IN_PAGES)
    late = sorted(RUNNABLE, key=lambda text: ("cloud stop" in text, " rm" in text, "baseline set" not in text))
    wrong = []
    for text in late:
        words = to_run(text)
        expected = next((codes for pattern, codes in CODES.items() if re.search(pattern, text)), (0,))
        ran = measured(*(words if words else ("--help",)), code=None)
        named_alone = (
            ran.code == 2 and not commands[text].block and all(word.isalpha() and word.islower() for word in words)
        )
        if ran.code not in expected and not named_alone:
            wrong.append(f"{text} -> {ran.code}: {ran.err.strip()[-200:]}")
    assert not wrong, "\n".join(wrong)


def test_the_weather_of_the_embedded_cloud_is_made_as_its_page_says(measured: Bench) -> None:
    text = (ROOT / "docs" / "embedded-cloud.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        Path("storm.yaml").write_text(block)
        ran = measured("cloud", "weather", "storm.yaml")
        assert len(ran.out.splitlines()) == len(re.findall("fault:", block)) + 1
    (measured.home / "calm.yaml").write_text("faults: []\n")
    assert measured("cloud", "weather", "calm.yaml").out == "0 faults\n"


def test_the_embedded_cloud_answers_the_curl_of_its_page(measured: Bench) -> None:
    (line,) = [one.text for _, one in OTHERS if one.words[0] == "curl" and one.page == "docs/embedded-cloud.md"]
    compute = json.loads((measured.home / "cloud" / "cloud.json").read_text())["compute"]
    environment = {**os.environ, "COMPUTE": compute}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "compute#zoneList"


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


SHOWN = [one for _, one in OTHERS]


@pytest.mark.parametrize("one", SHOWN, ids=[one.text[:60] for one in SHOWN])
def test_every_other_command_line_is_one_that_a_shell_and_its_program_take(one: Written) -> None:
    """gcloud, git and uv are not run: they change a project, need a network, or are not there. Their syntax is read."""
    done = subprocess.run(["bash", "-n", "-c", one.text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [word for word in one.words if not re.match(r"[A-Z_]+=", word)]
    if words[0] == "make":
        assert set(words[1:]) <= targets()
    if words[0].startswith("python") and words[1:2] == ["-m"] and words[2] not in ("venv", "pip"):
        assert (ROOT / words[2].replace(".", "/")).is_dir() or (ROOT / f"{words[2].replace('.', '/')}.py").is_file()


def test_no_page_and_no_message_installs_what_nobody_has_published() -> None:
    """Until a release is on an index, whoever takes its name there would be run by everybody who follows us."""
    texts = [*pages(), *(ROOT / "docs").rglob("*.yml"), *(ROOT / "orchestrator").rglob("*.py")]
    shown = [path for path in texts if "_bundle" not in path.parts]
    wrong = [path.name for path in shown if re.search(r"install ['\"]?spotbench\b", path.read_text(encoding="utf-8"))]
    assert wrong == []


FORKED = """#!{python}
import os, socket, sys, types
sys.path.insert(0, "{root}")
from tests.support.torch_forks import Fork
server = types.SimpleNamespace(control=socket.socket(fileno={control}))
assert sys.argv[1] == "-m"
fork = Fork(server, sys.argv[2], sys.argv[3:], dict(cwd=os.getcwd(), environ=dict(os.environ)), sys.stderr)
sys.stdout.write(fork.stdout.read())
sys.exit(fork.wait())
"""
"""A `python3` whose `-m MODULE` is a fork."""


def test_the_harness_runs_by_hand_as_its_page_says(tmp_path: Path) -> None:
    text = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```bash\n(.*?)```", text, re.S)
    for long, short in (('"repeats": 50', '"repeats": 5'), ('"warmup": "steady"', '"warmup": 1, "threads": 1')):
        assert long in block
        block = block.replace(long, short)
    forks = TorchForks()  # each step is a process of its own, and would import torch
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(FORKED.format(python=sys.executable, root=ROOT, control=forks.control.fileno()))
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with forks.control as control:
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env=environment, capture_output=True, text=True,
            pass_fds=[control.fileno()],
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert list(tmp_path.glob("out/cases/*.csv")) or list(tmp_path.glob("out/*.csv"))


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be called, with the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    if getattr(command, "invoke_without_command", False) and path:
        yield path, command
    for name in command.commands:
        yield from leaves(load(name) if not path else command.commands[name], (*path, name))


def test_every_command_takes_json() -> None:
    every = dict(leaves(typer_app()))
    assert len(every) > 30
    lacking = [path for path, one in every.items() if "--json" not in {o for p in one.params for o in p.opts}]
    assert lacking == []
