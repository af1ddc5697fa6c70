"""The workflow that others copy: it parses, its commands are ours as they are now, and it holds no secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
import yaml

from orchestrator.cli.app import app
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import load_chosen_config

NotUnderstood: type[Exception] = typer.BadParameter.__mro__[1]
"""Every complaint about a command line, whether Typer brings its own Click or not."""
ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "docs" / "ci" / "bench.yml"
TEXT = WORKFLOW.read_text(encoding="utf-8")


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(TEXT)
    return found


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow()["jobs"]["bench"]["steps"]
    return found


def commands(script: str) -> Iterator[list[str]]:
    """The words of every `bench` command in a shell script, its variables replaced by something of their kind."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"\$\(.*?\)|\"?\$\{?(\w+)\}?\"?", r"\1", line.split(" > ")[0]))
        if words and words[0] == "bench":
            yield [{"RUN": "20261121-040506-l4-7f3a", "GPU": "l4"}.get(word, word) for word in words[1:]]


IN_WORKFLOW = [words for step in steps() for words in commands(step.get("run", ""))]
IN_PROSE = [
    words
    for quoted in re.findall(r"`(bench [^`]+)`", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"))
    for words in commands(quoted)
    if quoted != "bench compare"
]


def parsed(words: list[str]) -> typer.Context:
    """The words as the real command line understands them. Raises `NotUnderstood`."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("bench", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    found: typer.Context = context
    return found


@pytest.mark.parametrize("words", [*IN_WORKFLOW, *IN_PROSE], ids=" ".join)
def test_every_command_of_the_workflow_and_its_page_is_one_that_we_have(words: list[str]) -> None:
    assert parsed(words).command_path.startswith("bench ")


def test_a_command_that_we_do_not_have_would_be_found_out() -> None:
    for wrong in (["compare", "a", "--againts", "main"], ["baseline", "put", "main"], ["nothing"], ["compare"]):
        with pytest.raises(NotUnderstood):
            parsed(wrong)


def test_the_commands_do_the_whole_way_from_launch_to_baseline() -> None:
    said = [" ".join(words[:2]) for words in IN_WORKFLOW]
    assert said[0] == "launch --gpu"
    assert [words[0] for words in IN_WORKFLOW] == ["launch", "launch", "stop", "report", "compare", "baseline"]
    compare = parsed(IN_WORKFLOW[4]).params
    assert (compare["against"], compare["fail_on"], compare["missing_ok"]) == ("main", "regression", True)


def test_what_it_sets_is_a_configuration_with_a_cap(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_HOME", str(home))
    overrides = parsed(IN_WORKFLOW[0]).params["set_"]
    settings, _ = load_chosen_config(LaunchOptions("l4", None, tuple(overrides)))
    assert settings.budget.per_run_usd is not None
    assert settings.budget.per_run_usd <= 1
    assert settings.payload.root == "."


def test_it_runs_for_the_label_and_for_main_and_never_for_a_fork() -> None:
    # YAML 1.1 reads the key `on` as true.
    when = workflow()[True]
    assert when == {"pull_request": {"types": ["labeled"]}, "push": {"branches": ["main"]}}
    condition = workflow()["jobs"]["bench"]["if"]
    assert "github.event.label.name == 'bench'" in condition
    assert "head.repo.full_name == github.repository" in condition
    assert workflow()["jobs"]["bench"]["timeout-minutes"] <= 60


def test_it_holds_no_secret_and_asks_for_no_right_that_it_does_not_need() -> None:
    assert workflow()["permissions"] == {"contents": "read", "id-token": "write", "pull-requests": "write"}
    assert not re.search(r"secrets\.|credentials_json|PRIVATE KEY|AIza|ghp_|password", TEXT)
    auth = next(step["with"] for step in steps() if step.get("uses", "").startswith("google-github-actions/auth"))
    assert set(auth) == {"project_id", "workload_identity_provider", "service_account"}


def test_what_others_write_reaches_no_shell() -> None:
    """A title or a branch name of a pull request may hold a command; values come in as variables of the environment."""
    for step in steps():
        assert "${{" not in step.get("run", ""), step


WORKFLOWS = [WORKFLOW, *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_and_a_checkout_leaves_no_credentials(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for job in yaml.safe_load(text)["jobs"].values():
        for step in job["steps"]:
            if uses := step.get("uses"):
                assert re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40}", uses), uses
                assert re.search(re.escape(uses) + r" # v\d+\.\d+\.\d+\n", text), f"{uses}: say which version it is"
                assert not uses.startswith("actions/checkout@") or step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", ""), step


def test_the_job_that_signs_a_release_runs_the_build_alone_with_tools_by_hash() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    able = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert (able, jobs["build"]["needs"], jobs["publish"]["needs"]) == ({"build", "publish"}, "test", "build")
    install, build = (step["run"] for step in jobs["build"]["steps"] if "run" in step)
    assert "--require-hashes --only-binary :all: -r bootstrap.lock" in install
    assert build == "python -m build --no-isolation --outdir dist"
    assert not [step for step in jobs["publish"]["steps"] if "run" in step]


@pytest.mark.parametrize("name", ["bootstrap.lock", "mkdocs.lock", "requirements.lock"])
def test_every_line_of_a_lock_is_a_version_with_hashes(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    pinned = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert pinned
    for line in pinned:
        assert re.match(r"[a-z0-9._-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"--require-hashes -r {name}" in make or f"--require-hashes --only-binary :all: -r {name}" in make
