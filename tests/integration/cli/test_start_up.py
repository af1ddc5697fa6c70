"""What a command costs before it does anything: heavy libraries stay out, and a listing stays one listing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.cli.app import COMMANDS
from orchestrator.cli.lazy import load
from orchestrator.core.naming import run_id
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay
from orchestrator.core.run.status import encode_status, status_body, status_line
from orchestrator.wiring import Wiring, wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_real_machines import SMALL
from tests.unit.core.builders import planned as planned_run

HEAVY = (
    "google.cloud.compute_v1", "google.cloud.batch_v1", "fabric", "torch", "google.cloud.storage", "numpy",
    "orchestrator.embedded.server",
)  # fmt: skip
STORAGE = {"google.cloud.storage"}
"""What every command that looks at the bucket loads."""
ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import json, sys
from orchestrator.cli.app import app
try:
    app(sys.argv[2:], prog_name="bench")
except SystemExit:
    pass
foreign = sum(name.split('.')[0] not in sys.stdlib_module_names for name in sys.modules)
print(json.dumps([[name for name in json.loads(sys.argv[1]) if name in sys.modules], foreign]), file=sys.stderr)
"""


def loaded_by(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> set[str]:
    """Which of the heavy modules a command loads."""
    return loaded(*arguments, heavy=heavy)[0]


def loaded(*arguments: str, heavy: tuple[str, ...]) -> tuple[set[str], int]:
    """The same, and how many modules it loads that are not Python's own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(heavy), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    found, foreign = json.loads(done.stderr.splitlines()[-1])
    return set(found), foreign


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("launch", "--help"),
        ("--version",),
        ("costs", "--help"),
        ("status", "--help"),
        ("doctor", "--help"),
        ("init", "--help"),
    ],
)
def test_help_loads_nothing_heavy(bench: Bench, arguments: tuple[str, ...]) -> None:
    assert loaded_by(*arguments) == set()


@pytest.mark.parametrize("command", ["report", "compare", "history", "baseline"])
def test_the_help_of_what_calculates_loads_numpy_and_nothing_heavier(bench: Bench, command: str) -> None:
    assert loaded_by(command, "--help") <= {"numpy"}


def test_the_list_of_commands_loads_none_of_them(bench: Bench) -> None:
    others = [f"orchestrator.cli.{name}" for name in (*COMMANDS, "options")]
    assert loaded_by("--help", heavy=("pydantic", "rich", "yaml", *others)) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_of_each_what_its_own_help_says(name: str) -> None:
    assert load(name).get_short_help_str(limit=1000) == COMMANDS[name]


@pytest.mark.parametrize(
    ("words", "offered"), [("bench lau", "launch"), ("bench launch --gp", "--gpu"), ("bench costs a", "add")]
)
def test_a_command_is_completed_though_its_module_is_not_loaded(bench: Bench, words: str, offered: str) -> None:
    asked = {"_BENCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, **asked},
    )
    assert done.stdout.split() == [offered]


@pytest.mark.usefixtures("cloud")
def test_a_plan_waits_for_no_client_of_compute_engine() -> None:
    assert loaded_by("plan", "--gpu", "l4") == STORAGE, "the plan reads the ledger"


@pytest.mark.usefixtures("cloud")
def test_what_is_asked_every_day_loads_few_modules_and_the_storage_client_alone(
    bench: Bench, paced: Callable[..., tuple[str, ...]]
) -> None:
    bench("launch", "--gpu", "l4", *SMALL, *paced())
    into = ("fetch", "last", "--into", str(bench.home / "results"))
    for arguments, most in ((("status",), 800), (("plan", "--gpu", "l4"), 850), (into, 950)):
        found, foreign = loaded(*arguments, heavy=(*HEAVY, "jinja2"))
        assert found <= STORAGE | ({"jinja2", "numpy"} if arguments == into else set())
        assert foreign <= most, arguments


DRIVING = ("orchestrator.runs.engine", "orchestrator.runs.kinds", "orchestrator.store.fleets")
"""What drives runs and fleets."""
LOOKS: dict[tuple[str, ...], set[str]] = {
    ("status",): STORAGE,
    ("status", "--json"): STORAGE,
    ("costs",): STORAGE,
    ("budget",): STORAGE,
    ("prices",): set(),
    ("cloud", "status"): set(),
    ("config", "keys"): set(),
    ("stop", "--help"): set(),
}


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
@pytest.mark.usefixtures("cloud")
def test_a_look_that_finds_nothing_to_do_loads_no_client_but_its_own(arguments: tuple[str, ...]) -> None:
    drivers = DRIVING if arguments[0] == "status" else ()
    assert loaded_by(*arguments, heavy=(*HEAVY, *drivers)) <= LOOKS[arguments]


@pytest.mark.usefixtures("cloud")
def test_the_doctor_of_practice_loads_the_storage_client_alone() -> None:
    assert loaded_by("doctor", "--json") <= STORAGE


def fill(wiring: Wiring, runs: int) -> None:
    begin = datetime(2026, 10, 1, tzinfo=UTC)

    def write(number: int) -> None:
        at = begin + timedelta(minutes=20 * number)
        name = run_id(at, "l4", f"{number:04x}")
        facts = (
            planned_run(mode="embedded", cases=12),
            ev.Settled(cost_usd=Decimal("0.01"), released_usd=Decimal("0.17")),
            ev.RunClosed(outcome="succeeded"),
        )
        log = [
            ev.Event(run_id=name, time=at, writer="client-000000", seq=i, fact=fact) for i, fact in enumerate(facts, 1)
        ]
        state = replay(log)
        assert state is not None
        wiring.index.write(name, encode_status(status_line(state, at)), status_body(state, at))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(runs)))


@pytest.mark.usefixtures("cloud")
def test_a_thousand_finished_runs_take_three_storage_calls_and_no_compute_client(bench: Bench) -> None:
    wiring = wire()
    fill(wiring, 1000)
    fresh = wire()
    lines = fresh.index.list_runs()
    assert len(lines) == 1000
    assert fresh.bucket.calls <= 3  # type: ignore[attr-defined]
    assert loaded_by("status") == STORAGE
    document = bench("status", "--json", "--limit", "1000").document
    assert len(document["runs"]) == 1000
    assert "… and 980 older runs" in bench("status").out


@pytest.mark.parametrize("during", ["typer", "orchestrator.cli.app", "yaml", "orchestrator.core.errors"])
def test_an_interrupt_while_it_loads_is_no_traceback(during: str) -> None:
    code = f"""
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {during!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = ["bench", "config", "keys"]
from orchestrator.cli.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
