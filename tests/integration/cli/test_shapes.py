"""What scripts and readers are promised: a schema for each command's document, and a manual page of the help's words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from orchestrator.cli.app import COMMANDS
from orchestrator.cli.documents import SHAPES
from orchestrator.core.errors import exit_codes
from scripts.docs_site import is_inside, on_page_content, on_page_markdown
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_start_up import ROOT, fill
from tests.integration.documents.test_commands import NOT_YET, leaves, typer_app
from tests.unit.report.written import csv_text, folder, records

EVERY = {" ".join(path) for path, _ in leaves(typer_app())}


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    lacking = {name for name in EVERY if name.split()[0] not in NOT_YET} - set(SHAPES)
    assert lacking == set()
    assert set(SHAPES) - {"error"} <= EVERY


def holds(name: str, document: Any) -> None:
    """Raises where a document is not what its schema says."""
    TypeAdapter(SHAPES[name]).validate_python(document)


def test_what_commands_print_is_what_their_schemas_say(bench: Bench, tmp_path: Path) -> None:
    from orchestrator.wiring import wire

    fill(wire().index, 2)
    run = "20261001-000000-l4-0000"
    here = [str(folder(tmp_path / name, csv_text(records(seed=seed)))) for seed, name in enumerate(("a", "b"))]
    calls = {
        "status": [], "plan": ["--gpu", "l4"], "prices": [], "costs": [], "budget": [], "reap": [], "doctor": [],
        "cases": [run], "config list": [], "config show": ["l4"], "config keys": [], "schema": ["status"], "man": [], "docs": ["judge"],
        "cloud status": [], "cloud bill": [], "cloud weather": [], "cloud start": [], "new": ["norm"],
        "baseline list": [], "budget set": ["--day", "4"], "costs add": ["0.5", "--category", "ai"],
        "report": [here[0]], "compare": [*here], "init": ["--embedded", "--print", "gcloud"],
        "budget rebuild": [], "fleet ls": [], "fleet plan": ["--gpu", "l4,t4"], "cloud stop": [],
    }  # fmt: skip
    for name, arguments in calls.items():
        ran = bench(*name.split(), *arguments, "--json", code=None)
        holds(name, ran.document)
    holds("error", bench("plan", "--gpu", "nosuch", "--json", code=2).document)


def test_a_document_with_a_missing_key_or_another_type_is_not_accepted(bench: Bench) -> None:
    with pytest.raises(ValueError, match="runs"):
        holds("costs", {"schema": 1})
    with pytest.raises(ValueError, match="schema"):
        holds("cases", {"schema": 2, "run_id": "a", "cases": []})
    assert bench("schema", "status", "--json").document["title"] == "bench status --json"
    assert "schema not found: 'nosuch'" in bench("schema", "nosuch", code=2).err
    assert "costs add" in bench("schema").out.splitlines()


def test_the_manual_page_has_every_command_option_and_exit_code(bench: Bench) -> None:
    page = bench("man").out
    for name in COMMANDS:
        assert f".SS bench {name}\n" in page
    assert r".B \-g, \-\-gpu TEXT" in page
    for code, about in exit_codes().items():
        assert f".B {code}\n" in page
        assert about.split(";")[0].split(":")[0].replace("-", r"\-") in page
    assert set(exit_codes()) >= {0, 2, 3, 12, 16, 130}
    if shutil.which("groff") is not None:
        told = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8"], input=page, capture_output=True, text=True)
        assert told.stderr == ""


def test_pages_of_the_site_link_to_pages_of_the_site_alone() -> None:
    page = ROOT / "docs" / "index.md"
    assert is_inside(page, "gce.md")
    assert not is_inside(page, "../README.md")
    named = type("Page", (), {"file": type("File", (), {"src_uri": "index.md"})})
    assert on_page_markdown("[a](../README.md) [b](gce.md) [c](https://example.com)", page=named) == (
        "a (`README.md`) [b](gce.md) [c](https://example.com)"
    )


def test_a_release_is_built_once_signed_and_published_without_a_token() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    release = yaml.safe_load(text)
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert release["jobs"]["publish"]["environment"] == "release"
    assert "attest-build-provenance" in text
    assert "secrets." not in text
    for job in release["jobs"].values():
        assert all("${{" not in step.get("run", "") for step in job["steps"])


def test_on_macos_a_client_works_and_says_what_does_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The platform is played: nobody has tried it on a Mac."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = bench("status", code=11)
    assert "/proc" in ran.err
    assert "BENCH_PROJECT" in ran.err
    here = folder(tmp_path / "run", csv_text(records(lengths=(128,))))
    bench("report", str(here))
    bench("prices")
    bench("config", "show", "l4")
    bench("init", "--project", "my-project", "--print", "terraform")
    monkeypatch.setenv("BENCH_PROJECT", "my-project")
    monkeypatch.setenv("BENCH_BUCKET", "my-bucket")
    said = bench("reap", "--install-timer")
    assert "crontab" in said.err
    assert "reap --yes" in said.out
    assert os.environ["BENCH_PROJECT"] in said.out


def test_code_and_tables_of_the_documents_can_be_scrolled_by_keyboard() -> None:
    html = '<div><pre><code class="x">a</code></pre></div><table>\n</table><p>b</p>'
    assert on_page_content(html) == html.replace("<pre>", '<pre tabindex="0">').replace(
        "<table>", '<table tabindex="0">'
    )
