"""What each command prints: at 80 columns without colours, in a pipe, and as JSON. Nothing that carries meaning is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from syrupy.assertion import SnapshotAssertion

from orchestrator.cli.documents import SHAPES
from tests.integration.cli.a_busy_bucket import CASE, IMAGE, NOTE, fill
from tests.integration.cli.conftest import Bench, at_home
from tests.integration.documents.test_commands import leaves, typer_app

LOOKS = {
    "baseline list": "",
    "baseline show": "main",
    "budget": "",
    "cases": "NEWER",
    "cloud bill": "",
    "cloud status": "",
    "cloud weather": "",
    "compare": "OLDER NEWER",
    "config keys": "",
    "config list": "",
    "config show": "l4",
    "costs": "",
    "diagnose": "NEWER",
    "docs": "",
    "doctor": "",
    "fetch": "NEWER",
    "history": f"--case {CASE}",
    "image list": "",
    "image validate": IMAGE,
    "init": "--embedded --print gcloud",
    "logs": "NEWER",
    "man": "",
    "plan": "--gpu l4",
    "prices": "--gpu l4",
    "profile": "NEWER",
    "reap": "",
    "report": "NEWER",
    "schema": "cases",
    "site": "",
    "ssh": "NEWER --print",
    "status": "",
    "stop": "NEWER",
}
"""A call of each command that may be made again and again; what is written is written anew."""

CHANGES = {
    "baseline set": "NAME OLDER",
    "baseline rm": "NAME",
    "budget set": "--day 4",
    "budget rebuild": "",
    "cloud preempt": "VM",
    "costs add": "0.5 --category ai --note review",
    "image rm": IMAGE,
    "new": "NAME",
    "cloud stop": "",
    "cloud start": "",
}
"""Calls that change something, in an order in which they can be made."""

TAKE_A_MACHINE = {
    "mcp": "tests/integration/library/test_agents.py: what it says is a protocol's",
    "demo": "tests/integration/cli/test_demo.py",
    "costs rm": "it names the id of a cost: tests/integration/cli/test_money.py",
    "image build": "tests/integration/stories/test_images.py; its document is that of `image validate`, less the judgement",
    "tune": "tests/unit/analysis/test_tuning.py",
    "watch": "tests/integration/stories/test_sessions.py",
    "launch": "tests/integration/cli/test_real_machines.py; the live view: tests/integration/cli/test_render.py",
}
CODES: dict[str, int | None] = {"compare": 0, "doctor": None, "cloud preempt": 10, "ssh": 2}
"""The exit codes of those that do not end with 0: of a run that is over, and a machine that is not there, an error."""
DATA = {"man", "docs", "config show", "config keys", "schema", "doctor", "init"}
"""Not kept as snapshots: what they print is a document of another sort, or this machine."""


@dataclass
class Busy:
    bench: Bench
    runs: dict[str, str]

    def __call__(self, name: str, arguments: str, *more: str, width: int = 80) -> Any:
        words = [self.runs.get(word, word) for word in arguments.split()]
        return self.bench(*name.split(), *words, *more, code=CODES.get(name, 0), width=width)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    """A bucket that has something for every command to show. Tests must not change it."""
    home = tmp_path_factory.mktemp("busy")
    with at_home(home):
        made = Busy(Bench(home), {})
        made.runs = dict(zip(("OLDER", "NEWER"), fill(made.bench), strict=True))
        Path("storm.yaml").write_text("faults:\n- {fault: stockout, zone: us-central1-a}\n")
        made.bench("cloud", "weather", "storm.yaml")
        yield made


def settled(text: str, home: Path) -> str:
    """Without what is other each time: ids, moments, ages, ports, how long it took. Widths stay."""
    for pattern, instead in (
        (r"(?m)^report\s+(/\S+?)\n?(\S*\.html)$", r"report  \1\2"),  # where it breaks depends on the home's length
        (re.escape(str(home)), "HOME"),
        (r"20\d{6}-\d{6}-", "20261121-040506-"),
        (r"20\d\d-\d\d-\d\d([ T])\d\d:\d\d(:\d\d)?", r"2026-11-21\g<1>04:05"),
        (r"\b20\d\d-\d\d-\d\d\b", "2026-11-21"),
        (r"\b20\d\d-\d\d\b", "2026-11"),
        (r"\b\d+ days?", "9 days"),
        (r"\b\d+\.\d s\b", "0.1 s"),
        (r"cost-[0-9a-f]{8}", "cost-1a2b3c4d"),
        (r"\b\d written", "8 written"),  # the index tells the minute
        (r"127\.0\.0\.1:\d+", "127.0.0.1:1"),
        (r"running on this machine's .*", "running on this machine's PROCESSOR"),
        (r"(measuring this machine's CPU:\s).*", r"\1PROCESSOR"),
        (r" +$", ""),
    ):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def shape(value: Any) -> Any:
    """The keys of a document and the kinds of their values."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def uncut(*outputs: str) -> None:
    for out in outputs:
        assert "\x1b" not in out
        assert not re.search(r"\w…", out), "a cell was cut"


def test_every_command_is_looked_at() -> None:
    every = {" ".join(path) for path, _ in leaves(typer_app()) if path[0] != "fleet"}
    assert {*LOOKS, *CHANGES, *TAKE_A_MACHINE} == every
    assert len(LOOKS) + len(CHANGES) + len(TAKE_A_MACHINE) == len(every)


@pytest.mark.parametrize("name", LOOKS)
def test_in_a_pipe_at_80_columns_nothing_is_cut_and_json_follows_the_schema(
    busy: Busy, name: str, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    piped = busy(name, LOOKS[name])
    document = busy(name, LOOKS[name], "--json").document
    TypeAdapter(SHAPES["error" if "error" in document else name]).validate_python(document)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = busy(name, LOOKS[name])
    uncut(piped.out, narrow.out)
    if name in DATA:
        return
    # A pipe has room for the interval of a ratio; 80 columns have not.
    rows = [re.sub(r"\[[\d., ]+\]", "", line) for line in piped.out.splitlines() if "\t" in line]
    told = "".join(narrow.out.split())
    assert [word for row in rows for word in re.findall(r"\d+\.\d{2,}", row) if word not in told] == []
    assert settled(piped.out or piped.err, busy.bench.home) == snapshot(name="pipe")
    assert settled(narrow.out or narrow.err, busy.bench.home) == snapshot(name="80 columns")
    assert shape(document) == snapshot(name="json")


def test_what_changes_something_says_what_in_words_and_in_json(
    bench: Bench, snapshot: SnapshotAssertion, tmp_path: Path
) -> None:
    one = Busy(bench, {})
    one.runs = dict(zip(("OLDER", "NEWER"), fill(bench), strict=True))
    bench("budget", "set", "--month", "90")
    for name, arguments in CHANGES.items():
        json = name in ("image rm", "cloud stop", "cloud start")  # of these there is one, or one that does nothing
        document = one(name, arguments.replace("NAME", "my_kernels"), "--json").document
        TypeAdapter(SHAPES["error" if "error" in document else name]).validate_python(document)
        assert shape(document) == snapshot(name=f"{name} json")
        if not json:
            said = one(name, arguments.replace("NAME", "people"))
            uncut(said.out, said.err)
            assert settled(said.out or said.err, bench.home) == snapshot(name=name)


def test_a_note_is_told_whole(busy: Busy) -> None:
    assert NOTE in busy("costs", "").out
    assert NOTE in " ".join(busy("costs", "").out.split())


@pytest.mark.parametrize("name", ["history", "compare", "fetch", "status", "baseline list"])
def test_at_40_columns_a_runs_id_is_whole(busy: Busy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {run for run in busy.runs.values() if run in busy(name, LOOKS[name]).out}
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    narrow = busy(name, LOOKS[name], width=40).out
    uncut(re.sub("\x1b\\[[0-9;]*m", "", narrow))
    assert ids == {run for run in busy.runs.values() if run in narrow}
