"""What a command costs before it does anything: heavy libraries stay out, and a listing stays one listing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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
from orchestrator.store.index import RunIndex
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench, at_home
from tests.support.store_bucket import StoreBucket
from tests.unit.core.builders import planned as planned_run
from tests.unit.site.written import store

HEAVY = (
    "google.cloud.compute_v1", "google.cloud.batch_v1", "fabric", "torch", "google.cloud.storage", "numpy",
    "orchestrator.embedded.server",
)  # fmt: skip
STORAGE = {"google.cloud.storage"}
"""What every command that looks at the bucket loads."""
DRIVING = ("orchestrator.runs.engine", "orchestrator.runs.kinds", "orchestrator.store.fleets")
"""What drives runs and fleets."""
ROOT = Path(__file__).resolve().parents[3]
IN_TURN = """
import json, sys
from orchestrator.cli.app import app
found = []
for arguments in json.loads(sys.argv[2]):
    try:
        app(arguments, prog_name="bench")
    except SystemExit:
        pass
    foreign = sum(name.split('.')[0] not in sys.stdlib_module_names for name in sys.modules)
    found.append([[name for name in json.loads(sys.argv[1]) if name in sys.modules], foreign])
print(json.dumps(found), file=sys.stderr)
"""


def loaded_by(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> set[str]:
    """Which of the heavy modules a command loads."""
    program = [sys.executable, "-c", IN_TURN, json.dumps(heavy), json.dumps([arguments])]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    ((found, _),) = json.loads(done.stderr.splitlines()[-1])
    return set(found)


@pytest.fixture(scope="module")
def thousand_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A home whose bucket has a thousand finished runs, two of them with results."""
    home = tmp_path_factory.mktemp("looks")
    with at_home(home) as cloud:
        wiring = wire()
        fill(RunIndex(StoreBucket(wiring.bucket.name, cloud.storage.store, wiring.clock)), 998)
        for number in range(2):
            store(wiring.bucket, number, events=True, mode="embedded", first=wiring.clock.now() - timedelta(days=2))
        yield Bench(home)


Loaded = dict[tuple[str, ...], tuple[set[str], int]]
"""By command: the heavy modules that are loaded after it, and how many modules that are not Python's own."""
HELPS = [("--help",), ("--version",)]
HELPS += [(name, "--help") for name in ("launch", "costs", "status", "doctor", "init", "stop")]
NUMERIC = ["report", "compare", "history", "baseline"]
LOOKS: dict[tuple[str, ...], set[str]] = {
    ("prices",): set(),
    ("cloud", "status"): set(),
    ("config", "keys"): set(),
    ("status",): STORAGE,
    ("status", "--json"): STORAGE,
    ("costs",): STORAGE,
    ("budget",): STORAGE,
}
"""What each may load."""
DOCTOR, PLAN, FETCH = ("doctor", "--json"), ("plan", "--gpu", "l4"), ("fetch", "last", "--into", "results")


@pytest.fixture(scope="module")
def loaded_after(thousand_runs: Bench) -> Loaded:
    """What two processes have loaded after each command, one after another: those that may load less come first."""
    light = [*HELPS, ("prices",), ("cloud", "status"), ("config", "keys")]
    first = in_turn([*light, *((command, "--help") for command in NUMERIC)])
    return first | in_turn([("status",), ("status", "--json"), PLAN, ("costs",), ("budget",), DOCTOR, FETCH])


def in_turn(commands: list[tuple[str, ...]]) -> Loaded:
    names = (*HEAVY, *DRIVING, "jinja2")
    program = [sys.executable, "-c", IN_TURN, json.dumps(names), json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    rows = json.loads(done.stderr.splitlines()[-1])
    return {command: (set(heavy), foreign) for command, (heavy, foreign) in zip(commands, rows, strict=True)}


@pytest.mark.parametrize("arguments", HELPS)
def test_help_loads_nothing_heavy(loaded_after: Loaded, arguments: tuple[str, ...]) -> None:
    assert loaded_after[arguments][0] & set(HEAVY) == set()


@pytest.mark.parametrize("command", NUMERIC)
def test_the_help_of_what_calculates_loads_numpy_and_nothing_heavier(loaded_after: Loaded, command: str) -> None:
    assert loaded_after[command, "--help"][0] & set(HEAVY) <= {"numpy"}


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


def test_what_is_asked_every_day_loads_few_modules_and_the_storage_client_alone(loaded_after: Loaded) -> None:
    for arguments, most in ((("status",), 800), (PLAN, 850), (FETCH, 950)):
        heavy, foreign = loaded_after[arguments]
        assert heavy - set(DRIVING) <= STORAGE | ({"jinja2", "numpy"} if arguments == FETCH else set())
        assert foreign <= most, arguments


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_a_look_that_finds_nothing_to_do_loads_no_client_but_its_own(
    loaded_after: Loaded, arguments: tuple[str, ...]
) -> None:
    drivers = DRIVING if arguments[0] == "status" else ()
    assert loaded_after[arguments][0] & {*HEAVY, *drivers} <= LOOKS[arguments]


def test_a_plan_waits_for_no_client_of_compute_engine(loaded_after: Loaded) -> None:
    assert loaded_after[PLAN][0] & set(HEAVY) == STORAGE, "the plan reads the ledger"


def test_the_doctor_of_practice_loads_the_storage_client_alone(loaded_after: Loaded) -> None:
    assert loaded_after[DOCTOR][0] & set(HEAVY) <= STORAGE


def fill(index: RunIndex, runs: int) -> None:
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
        index.write(name, encode_status(status_line(state, at)), status_body(state, at))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(runs)))


def test_a_thousand_finished_runs_take_three_storage_calls_and_no_compute_client(
    thousand_runs: Bench, loaded_after: Loaded
) -> None:
    fresh = wire()
    lines = fresh.index.list_runs()
    assert len(lines) == 1000
    assert fresh.bucket.calls <= 3  # type: ignore[attr-defined]
    assert loaded_after["status",][0] & set(HEAVY) == STORAGE
    document = thousand_runs("status", "--json", "--limit", "1000").document
    assert len(document["runs"]) == 1000
    assert "… and 980 older runs" in thousand_runs("status").out


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
