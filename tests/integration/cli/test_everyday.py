"""What is asked for every day: ids to complete, configurations to begin with, answers checked as they are given."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from orchestrator.api.finding import SEEN, SEEN_FLEETS
from orchestrator.cli import init
from orchestrator.cli.app import app
from orchestrator.cli.config_keys import known_keys, walk
from orchestrator.cli.launch import tell_of_the_end
from orchestrator.cli.options import known_cases, known_configs, known_fleets, known_gpus, known_runs
from orchestrator.core.config.load import load
from orchestrator.core.config.model import Alerts, Config
from orchestrator.core.ledger.budget import Ledger, LedgerEntry
from orchestrator.core.names import listing_object
from orchestrator.core.naming import LEDGER, cases_prefix
from orchestrator.core.run import events as ev
from orchestrator.core.setup import plan as setup_plan
from orchestrator.core.workload import sketch_workload
from orchestrator.wiring import configs_folder, wire
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_render import measuring, replayed
from tests.integration.cli.test_start_up import ROOT, fill
from tests.unit.core.builders import gone, planned
from tests.unit.report.written import csv_text, folder, records

RUN = "20261001-000000-l4-0000"


@pytest.mark.usefixtures("cloud")
def test_the_cases_of_a_run_are_listed_as_history_takes_them(bench: Bench, tmp_path: Path) -> None:
    wiring = wire()
    fill(wiring.index, 1)
    bench("cases", RUN, code=10)
    for case in ("b1-a", "b1-b"):
        wiring.bucket.create(f"{cases_prefix(RUN)}{case}.csv", b"x")
    assert bench("cases", "last").out.split() == ["b1-a", "b1-b"]
    assert bench("cases", "last", "--json").document == {"schema": 1, "run_id": RUN, "cases": ["b1-a", "b1-b"]}
    here = folder(tmp_path / "fetched", csv_text(records(lengths=(128, 1024))))
    assert len(bench("cases", str(here)).out.split()) == 2


def test_each_bundled_configuration_is_shown_and_can_be_launched_again(bench: Bench) -> None:
    listed = bench("config", "list").out.split()
    assert "l4" in listed
    assert not {"prices", "grids"} & set(listed)
    grids = yaml.safe_load((configs_folder() / "grids.yaml").read_text())
    for name in listed:
        text = bench("config", "show", name).out
        assert load(text, source=name, grids=grids).gpu
    whole = yaml.safe_load(bench("config", "show", "l4", "--whole").out)
    assert whole["run"]["attempts"] == 3
    assert "bundled configurations: " in bench("config", "show", "prices", code=2).err


def test_every_key_that_is_listed_is_one_that_set_takes(bench: Bench) -> None:
    keys = [one["key"] for one in bench("config", "keys", "--json").document["keys"]]
    assert {"gpu", "run.max_minutes", "measure.repeats", "budget.per_run_usd", "alerts.done"} <= set(keys)
    assert keys == [one.key for one in walk(Config)]
    written = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    assert [key for key in keys if f"`{key}`" not in written and not key.startswith("workload.")] == []


@pytest.mark.usefixtures("cloud")
def test_a_shell_is_offered_runs_cases_gpus_configurations_and_keys(bench: Bench) -> None:
    fill(wire().index, 3)
    bench("status")
    assert json.loads((bench.home / SEEN).read_text())[0] == RUN
    assert known_runs("")[0] == "last"
    assert RUN in known_runs("2026")
    assert known_gpus("l") == ["l4"]
    assert known_configs("cp") == ["cpu"]
    assert known_keys("run.max") == ["run.max_minutes="]
    case = Path("results/local") / RUN / "cases" / "b1-h2.csv"
    case.parent.mkdir(parents=True)
    case.touch()
    assert known_cases("b1") == ["b1-h2"]


@pytest.mark.usefixtures("cloud")
def test_a_shell_is_offered_the_fleets_that_were_listed_last_newest_first(bench: Bench) -> None:
    assert known_fleets("") == ["last"]
    fleets = [f"fleet-20261122-04050{second}-7f3a" for second in range(3)]
    for fleet in (*fleets, "fleet-; rm -rf"):
        wire().bucket.replace(listing_object(fleet), b"{}", generation=None, metadata={"state": "over"})
    bench("fleet", "ls")
    assert known_fleets("") == ["last", *reversed(fleets)]
    (bench.home / SEEN_FLEETS).unlink()
    bench("fleet", "fetch", "last", code=None)
    assert known_fleets("fleet-20261122-040501") == [fleets[1]]


def test_a_note_that_is_damaged_offers_none(bench: Bench) -> None:
    for note, known in ((SEEN, known_runs), (SEEN_FLEETS, known_fleets)):
        for text in ('{"a": 1}', '["; rm -rf", 1]', "[torn", ""):
            (bench.home / note).write_text(text)
            assert known("") == ["last"]


@pytest.mark.parametrize(
    ("shell", "words", "offered"),
    [
        *((shell, "bench status la", "last") for shell in ("bash", "zsh", "fish")),
        *((shell, "bench plan --set run.att", "run.attempts=") for shell in ("bash", "zsh", "fish")),
        ("bash", "bench fleet status la", "last"),
        ("bash", "bench fleet sql la", "last"),
        ("bash", "bench fleet plan --set run.att", "run.attempts="),
    ],
)
def test_each_shell_gets_what_fits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, shell: str, words: str, offered: str
) -> None:
    asked_ = {
        "_BENCH_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, [], prog_name="bench", env=asked_)  # a process of its own: test_start_up.py
    assert offered in done.stdout, done.stderr
    assert not (bench.home / "cloud").exists(), "a shell that completes starts nothing"


def test_an_answer_that_cannot_be_right_is_asked_for_again_where_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["clear", "bench init --project x", "my-project-1"])
    monkeypatch.setattr(typer, "prompt", lambda *_args, **_kwargs: next(answers))
    assert init.ask_until_valid("project id", setup_plan.a_project) == "my-project-1"
    assert capsys.readouterr().err.count("a project id has 6 to 30") == 2


def test_the_doctor_goes_on_where_a_project_has_no_bucket_yet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_PROJECT", "some-project")
    found = bench("doctor", "--json", code=None).document
    assert len(found["checks"]) > 15
    assert {one["level"] for one in found["checks"] if one["area"] == "here"} & {"ok"}
    assert "no bucket is" in bench("status", code=2).err


def test_a_look_at_the_timer_writes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "systemctl"
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ran = bench("reap", "--install-timer", "--dry-run", width=300)
    assert ran.out.count("would write") == 2
    assert not (tmp_path / "config").exists()
    assert not (tmp_path / "called").exists()
    assert bench("reap", "--install-timer", "--dry-run", "--json").document["written"] is False


@pytest.mark.usefixtures("cloud")
def test_the_end_of_a_run_is_told_to_the_command_that_is_told_of_alerts(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "tell"
    script.write_text(f'#!/bin/sh\nprintf "%s|" "$BENCH_NOTICE_KIND" >> {tmp_path}/told\ncat >> {tmp_path}/told\n')
    script.chmod(0o755)
    over = replayed(measuring().add(70, gone(64)).add(71, ev.RunClosed(outcome="succeeded")))
    tell_of_the_end(wire(), Alerts(command=str(script), done=False), over)
    tell_of_the_end(wire(), Alerts(command=str(script)), replayed(measuring()))
    assert not (tmp_path / "told").exists()
    tell_of_the_end(wire(), Alerts(command=str(script)), over)
    kind, _, document = (tmp_path / "told").read_text().partition("|")
    assert kind == "run"
    assert json.loads(document)["data"]["outcome"] == "succeeded"


@pytest.mark.usefixtures("cloud")
def test_a_run_whose_machine_is_gone_is_closed_by_the_very_look_that_finds_it_gone(bench: Bench) -> None:
    """Its client died; one look at all runs records that the machine is gone, settles, closes and shows it so."""
    wiring, now = wire(), datetime.now(UTC)
    vm = f"bench-{RUN}-1"
    asked_for = ev.InstanceRequested(
        attempt=1, vm=vm, zone="us-central1-a", machine_type="g2-standard-4", provisioning="SPOT",
        usd_per_hour=Decimal("0.36"), max_run_s=600, request_id="r",
    )  # fmt: skip
    made = ev.InstanceCreated(
        attempt=1, vm=vm, zone="us-central1-a", instance_id="4711", started_at=now - timedelta(minutes=30),
        deadline_at=now - timedelta(minutes=20), request_id="r",
    )  # fmt: skip
    facts: tuple[tuple[str, ev.Fact], ...] = (
        ("client-000000", planned(mode="embedded")),
        ("client-000000", ev.BudgetHeld(hold_usd=Decimal("0.18"))),
        ("client-000000", asked_for),
        ("client-000000", made),
        ("vm-1", ev.VmBooted(vm=vm, zone="us-central1-a", attempt=1)),
        ("vm-1", ev.Finished(outcome="succeeded")),
    )
    for seq, (writer, fact) in enumerate(facts, 1):
        event = ev.Event(run_id=RUN, time=now - timedelta(minutes=31 - seq), writer=writer, seq=seq, fact=fact)
        wiring.bucket.create(event.object_name, ev.encode_event(event))
    held = LedgerEntry(
        hold_usd=Decimal("0.18"), held_at=now - timedelta(minutes=31), attempt=1, ttl_s=600, pretend=True
    )
    wiring.bucket.replace(LEDGER, Ledger(runs={RUN: held}).dump(), generation=None)
    wiring.index.write(RUN, {})
    assert [line["phase"] for line in bench("status", "--json").document["runs"]] == ["succeeded"]
    assert wire().ledger.read().runs[RUN].settled_usd is not None


def test_a_new_workload_never_hides_a_module_and_begins_with_its_best_kernel(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("torch", "random", "rich", "class", "a b"):
        refused = bench("new", name, code=2).err
        assert "would be imported in its place" in refused or "not a valid name for a Python file" in refused
    assert list(tmp_path.glob("*.py")) == []
    bench("new", "größe")
    text = (tmp_path / "größe.py").read_text(encoding="utf-8")
    assert text.index("def kernel_triton") < text.index("def kernel_by_hand")
    assert sketch_workload(text, "größe.py").implementations == ("torch", "triton", "by_hand")
