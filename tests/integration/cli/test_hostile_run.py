"""A machine that writes whatever it may, in its own name: every command shows it as text, and does nothing for it."""

from __future__ import annotations

import contextlib
import json
import random
import unicodedata
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import spotbench
from orchestrator.cli.app import app
from orchestrator.core.errors import BenchError
from orchestrator.core.naming import artifacts_prefix, cases_prefix, instance_name, plan_object
from orchestrator.core.plan.resumption import plan_document
from orchestrator.core.run import events as ev
from orchestrator.runs.engine import Engine
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench, at_home
from tests.support.hostile_events import OTHERS, OWN_KINDS, TEXTS, hostile_event
from tests.unit.core.builders import planned
from tests.unit.report.written import ENVIRONMENT, csv_text, records

OVER, OTHER, OPEN = "20261120-010203-l4-00aa", "20261120-010303-l4-00ab", "20261120-010403-l4-00ac"
CASE = "b2-h8-kv8-q128-k128-d64-full-float16"
NAME = "mine[/x]\x1b[2J\u202e" + "W" * 10_000
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": ("status",),
    "status --json": ("status", "--json"),
    "costs": ("costs",),
    "fleet ls": ("fleet", "ls"),
    "history": ("history", "--case", CASE, "--implementation", "mine[/x]0"),
    "history --json": ("history", "--case", CASE, "--json", "--implementation", "mine[/x]0"),
    "compare": ("compare", OVER, OTHER, "--across-devices", "--fail-on", "never"),
    "site": ("site", "--out", "pages"),
    **{f"{name} of {run}": (name, run) for name in ("status", "logs", "diagnose", "cases") for run in (OVER, OPEN)},
    **{f"{name} of {OVER}": (name, OVER) for name in ("fetch", "report", "profile")},
    **{f"{name} of {OVER} --json": (name, OVER, "--json") for name in ("status", "diagnose", "fetch", "cases", "logs")},
    "fetch -v": ("fetch", OVER, "-v"),
    **{f"ssh {run}": ("ssh", run, "--print") for run in (OVER, OPEN)},
    "report of traces": ("report", OVER, "--format", "flashinfer-trace"),
    "launch --wait": ("launch", "--resume", OVER, "--wait", "1m", "--detach"),
    "tune --remembered": ("tune", "twice.py", "--remembered", "--apply"),
    **{f"watch --attach {run}": ("watch", "twice.py", "--attach", run) for run in (OVER, OPEN)},
    "mcp --json": ("mcp", "twice.py", "--json"),
}
KERNEL = """tune = {"by": [1, 2]}


def cases():
    return [{"n": 8}]


def inputs(n):
    import torch
    return (torch.ones(n),)


def reference(x):
    return x + x


def kernel_mine(x, *, by):
    return x * 2
"""
RIGHTLY = {
    "report": {2},
    "launch": {2},
    "tune": {2, 10},
    "watch": {2, 10},
    "mcp": {2},
    "ssh": {2, 10},
    "profile": {10},
    "compare": {13, 14},
    "diagnose": {1, 10},
    "cases": {10},
    "logs": {10},
}
"""Beside 0 and 16: there is no machine to reach, no profile, nothing that may be compared, no log."""


def damage(wiring: Wiring, run: str, dice: random.Random) -> None:
    """All that the machine of a run may store, with hostile values, thrice of every kind."""
    at = wiring.clock.now() - timedelta(minutes=5)
    known = {
        "vm": (instance_name(run, 1), instance_name(OTHER, 1)), "zone": ("us-central1-a", "host-evil-17f660"), "attempt": 1,
        "owner": (run, OTHER), "to": (run, OTHER), "phase": ("measure", "build"), "outcome": ("succeeded", "failed"),
        "case_id": CASE, "index": 1, "of": 2,
    }  # fmt: skip
    for kind in OWN_KINDS * 3:
        at += timedelta(seconds=1)
        name, data = hostile_event(run, at, dice, known, kind=kind)
        wiring.bucket.create(name, data)
    for case, name in ((CASE, "mine[/x]"), ("rows512", NAME)):
        names = {"regime": "burst", "cache": "[/x]", "torch": "[/x]", "backend": "kernel_mine", "case_id": case}
        rows = [
            row | names | {"implementation": f"{name}{place}"}
            for place in range(2)
            for row in records(run_id=run, lengths=(128,), speeds={"x": 1.0 + place}, blocks=8, seed=place)
        ]
        wiring.bucket.create(f"{cases_prefix(run)}{case}.csv", csv_text(rows).encode())
    strange = {key: dice.choice((*TEXTS, *OTHERS)) for key in ENVIRONMENT if key not in ("device", "schema")} | {
        "schema": 1,
        "device": NAME,
    }
    documents = {"environment": strange, "build": strange, "profile/summary": {"profiles": [strange], "set": NAME}}
    for name, document in documents.items():
        wiring.bucket.create(f"{artifacts_prefix(run)}{name}.json", json.dumps(document).encode())
    log = "\n".join(text for text in TEXTS).encode("utf-8", "replace")
    wiring.bucket.create(f"{artifacts_prefix(run)}log.txt", log, content_type="text/plain")


@pytest.fixture(scope="module", params=range(2))
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bucket with two runs that are over and one whose machine is gone, all three of hostile machines."""
    home, dice = tmp_path_factory.mktemp("home"), random.Random(request.param)
    with at_home(home):
        Path("twice.py").write_text(KERNEL)
        wiring = wire()
        config, name = wiring.configured(LaunchOptions("l4", None, ()))
        document = json.dumps(plan_document(wiring.plan(config, name))).encode()
        for run in (OVER, OTHER, OPEN):
            log = wiring.log(run)
            log.append(planned(mode="embedded", cases=1))
            log.append(requested(run))
            wiring.bucket.create(plan_object(run), document)
            damage(wiring, run, dice)
            if run != OPEN:
                log.append(ev.Settled(cost_usd=Decimal(0), released_usd=Decimal("0.18")))
                log.append(ev.RunClosed(outcome="succeeded"))
            engine = Engine(wiring.world(), run)
            engine.write_index(engine.look())
        yield Bench(home)


def requested(run: str) -> ev.InstanceRequested:
    return ev.InstanceRequested(
        attempt=1, vm=instance_name(run, 1), zone="us-central1-a", machine_type="g2-standard-4", provisioning="SPOT",
        usd_per_hour=Decimal("0.1"), max_run_s=60, request_id="r",
    )  # fmt: skip


def harmless(text: str) -> list[str]:
    """The characters of a text that steer a terminal or turn its direction."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"]


@pytest.mark.parametrize("title", COMMANDS)
def test_no_command_falls_over_a_hostile_run_or_is_steered_by_it(bucket: Bench, title: str) -> None:
    command = COMMANDS[title]
    ran = CliRunner().invoke(app, command, prog_name="bench", env={"COLUMNS": "100"})
    assert ran.exception is None or isinstance(ran.exception, SystemExit), (title, ran.exception)
    assert ran.exit_code in {0, 16} | RIGHTLY.get(command[0], set()), (title, ran.exit_code, ran.stderr[-2000:])
    assert harmless(ran.stdout + ran.stderr) == [], title
    assert "evil" not in ran.stdout if command[0] == "ssh" else True
    assert "Traceback" not in ran.stderr
    if "--json" in command and ran.exit_code in (0, 16):
        json.loads(ran.stdout)
    assert not [path for path in bucket.home.rglob("*") if path.name == "x"], "nothing was run"


def test_names_of_a_hostile_run_are_shown_letter_by_letter(bucket: Bench) -> None:
    for command in (COMMANDS["history"], COMMANDS["compare"], COMMANDS["fetch -v"]):
        ran = CliRunner().invoke(app, command, prog_name="bench", env={"COLUMNS": "400"})
        assert "[/x]" in ran.stdout, (command, ran.stdout[-500:], ran.stderr[-500:])


@pytest.mark.parametrize("run", [OVER, OPEN])
def test_the_library_answers_about_a_hostile_run_or_raises_an_error_of_ours(bucket: Bench, run: str) -> None:
    def ask(call: Any) -> None:
        with contextlib.suppress(BenchError):
            call()

    ask(lambda: spotbench.find(run).status)
    ask(lambda: spotbench.results(run).headlines)
    ask(lambda: [str(one) for one in spotbench.results(run).timings])


def test_what_was_found_in_the_bucket_stays_in_the_folder_of_results(bucket: Bench) -> None:
    CliRunner().invoke(app, ["fetch", OVER, "--into", "elsewhere"], prog_name="bench")
    inside = Path(bucket.home, "elsewhere").resolve()
    strays = [path for path in inside.rglob("*") if not path.resolve().is_relative_to(inside)]
    assert strays == []
