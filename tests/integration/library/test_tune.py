"""`bench tune` on this machine, of a file or its folder: the winner is applied and remembered, and the bucket cannot write anything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.cli.documents import SHAPES
from orchestrator.core.naming import TUNED_PREFIX
from orchestrator.embedded.client import stop_cloud
from orchestrator.wiring import wire
from tests.integration.library.test_library import WORKLOAD

TUNED = """

tune = {"work": [40, 1], "extra": [0, 1]}


def valid(work, extra):
    return extra == 0


def kernel_mine(x, *, work, extra):
    for _ in range(work):
        out = x + x
    return out
"""
QUICK = ("measure.repeats=12", "measure.warmup=1", "measure.cache=warm", f"host.python={sys.executable}")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "twice" / "twice.py"
    path.parent.mkdir()
    path.write_text(WORKLOAD.partition("def kernel_sum")[0].rstrip() + TUNED)
    monkeypatch.setenv("BENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # the lock of this machine as a host is there
    monkeypatch.chdir(tmp_path)
    yield path
    stop_cloud(tmp_path / "home" / "cloud")


def tune(file: Path, *options: str) -> tuple[int, Any]:
    settings = [word for one in QUICK for word in ("--set", one)]
    ran = CliRunner().invoke(app, ["tune", str(file), "--host", "local", *settings, *options, "--json"])
    return ran.exit_code, json.loads(ran.stdout)


def test_a_winner_is_applied_and_remembered_and_other_values_are_refused(file: Path) -> None:
    before = file.read_text()
    code, document = tune(file.parent, "--strategy", "exhaustive", "--apply")  # the file of the folder's name
    TypeAdapter(SHAPES["tune"]).validate_python(document)
    assert (code, document["tried"], document["left_out"]) == (0, 4, 2)
    assert document["winner"]["values"] == document["applied"] == {"work": 1, "extra": 0}
    assert document["winner"]["published"]["ratio"]["mid"] > 0
    assert "best = {'work': 1, 'extra': 0}" in file.read_text()

    file.write_text(before)
    code, document = tune(file, "--remembered", "--apply")
    assert (code, document["applied"], document["tried"]) == (0, {"work": 1, "extra": 0}, 0)
    assert "best = {'work': 1, 'extra': 0}" in file.read_text()

    file.write_text(before)
    bucket = wire().bucket
    (entry,) = bucket.list(TUNED_PREFIX)
    for values in ({"work": "__import__('os')", "extra": 0}, {"work": 2, "extra": 0}, {"work": 1}, 3):
        bucket.replace(entry.name, json.dumps({"schema": 1, "values": values}).encode(), generation=None)
        code, document = tune(file, "--remembered", "--apply")
        assert (code, document["error"]["kind"]) == (2, "ConfigError")
    assert file.read_text() == before
