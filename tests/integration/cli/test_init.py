"""`bench init`: a plan first, then what is missing, and a second time nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import orchestrator
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.google.credentials import Bearer, credentials_for
from orchestrator.adapters.google.rest import Rest, endpoints
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.adapters.notify import every_way
from orchestrator.adapters.setup import Setup
from orchestrator.cli.app import app
from orchestrator.core.errors import BenchError, ConfigError, NotFound, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.setup import steps as setup_steps
from orchestrator.core.setup.plan import SetupRequest
from orchestrator.core.setup.plan import plan_setup as plan
from orchestrator.core.setup.steps import EnableApis, MakeAccount, MendBucket, ShareCaps, WriteSettings
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.runs.holds import Accounts, CapSharing
from orchestrator.store.documents import LedgerStore
from tests.integration.cli.conftest import Bench
from tests.support.discovery import Recorder
from tests.support.gcloud_forks import GcloudForks
from tests.support.memory_bucket import MemoryBucket
from tests.support.patience import PATIENCE_S
from tests.support.scripted_server import google_error, in_turn, scripted_server
from tests.unit.core.test_setup import every_step

ADA = "user:ada@example.com"
PRACTISE = ("init", "--embedded", "--launcher", ADA)


@pytest.mark.usefixtures("cloud")
def test_the_plan_is_shown_and_without_a_yes_nothing_is_done(bench: Bench) -> None:
    ran = bench(*PRACTISE)
    assert "make the bucket gs://bench-embedded-practice in us-central1" in ran.out
    assert "nothing was done" in ran.out
    assert not (bench.home / "settings.yaml").exists()
    assert [step["done"] for step in bench(*PRACTISE, "--json").document["steps"]] == [False] * 14


@pytest.mark.usefixtures("cloud")
def test_a_second_time_there_is_nothing_to_do(bench: Bench) -> None:
    first = bench(*PRACTISE, "--yes")
    assert first.out.count("done: ") == 14
    assert "bench doctor" in first.out
    assert "nothing to do" in bench(*PRACTISE, "--yes").out
    assert bench(*PRACTISE, "--yes", "--json").document["steps"] == []
    caps = {"per_run_usd", "per_day_usd", "per_month_usd", "total_usd"}
    assert set(yaml.safe_load((bench.home / "settings.yaml").read_text())) == caps


@pytest.mark.usefixtures("cloud")
def test_a_yes_from_a_person_is_enough(bench: Bench) -> None:
    result = CliRunner().invoke(app, [*PRACTISE, "--per-run", "0.50"], input="y\n", prog_name="bench")
    assert result.exit_code == 0
    assert "done: write to settings.yaml: per_run_usd: 0.50" in result.stdout


def test_a_person_at_a_terminal_is_asked_for_what_was_not_said(bench: Bench) -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-m", "orchestrator.cli", "init", "--embedded"]
    root = str(Path(orchestrator.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path]), "TERM": "dumb"}
    child = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment, close_fds=True)
    os.close(there)
    # bucket is known in practice; then: where, who, four caps, and the yes
    os.write(here, b"\n" + b"user:ada@example.com\n" + b"0.75\n\n\n\n" + b"y\n")
    said = b""
    while True:
        try:
            piece = os.read(here, 4096)
        except OSError:  # the other end is closed: it has ended
            break
        if not piece:
            break
        said += piece
    os.close(here)
    assert child.wait(600) == 0, said.decode()
    text = said.decode()
    location = "location of the bucket [us-central1]"
    for words in (location, "who may launch", "cap in dollars, per run [1.00]", "do it? [y/N]"):
        assert words in text
    assert yaml.safe_load((bench.home / "settings.yaml").read_text())["per_run_usd"] == "0.75"


@pytest.mark.usefixtures("cloud")
def test_settings_are_replaced_only_when_that_was_said(bench: Bench) -> None:
    bench(*PRACTISE, "--yes")
    refused = bench(*PRACTISE, "--per-run", "9", "--yes", code=2)
    assert "settings.yaml says otherwise: per_run_usd" in refused.err
    assert "--replace" in refused.err
    assert 'per_run_usd: "1.00"' in (bench.home / "settings.yaml").read_text()
    bench(*PRACTISE, "--per-run", "9", "--yes", "--replace")
    assert 'per_run_usd: "9"' in (bench.home / "settings.yaml").read_text()


@pytest.mark.usefixtures("cloud")
def test_caps_in_the_settings_hold_where_a_configuration_of_ones_own_says_nothing(bench: Bench) -> None:
    bench("init", "--embedded", "--per-run", "0.05", "--yes")
    assert float(bench("plan", "--gpu", "l4", "--json").document["ceiling_usd"]) <= 0.05
    wide = bench("plan", "--gpu", "l4", "--set", "budget.per_run_usd=1", "--json").document
    assert float(wide["ceiling_usd"]) > 0.05
    Path("mine.yaml").write_text("gpu: l4\nbudget: {per_run_usd: 0.9}\n")
    assert float(bench("plan", "mine.yaml", "--json").document["ceiling_usd"]) > 0.05
    Path("bare.yaml").write_text("gpu: l4\n")
    assert float(bench("plan", "bare.yaml", "--json").document["ceiling_usd"]) <= 0.05


def test_the_plan_can_be_printed_without_a_network_and_without_credentials(bench: Bench) -> None:
    script = bench("init", "--project", "my-project", "--print", "gcloud").out
    assert script.startswith("#!/usr/bin/env bash")
    assert "gs://my-project-bench" in script
    made = bench("init", "--project", "my-project", "--print", "terraform").document
    assert made["resource"]["google_storage_bucket"]["bench"]["name"] == "my-project-bench"
    assert any(line.startswith("  per_day_usd") for line in made["//"])


def test_what_cannot_be_meant_is_refused(bench: Bench) -> None:
    assert "which project?" in bench("init", code=2).err
    assert "--bucket" in bench("init", "--project", "my-project", "--bucket", "NO", code=2).err


def test_a_step_that_fails_says_what_is_done_and_how_to_go_on(bench: Bench) -> None:
    bench("cloud", "start")
    bench.control("/control/weather", {"faults": [{"fault": "permission_missing", "permission": "iam.roles.create"}]})
    ran = bench(*PRACTISE, "--yes", code=6)
    assert "2 of 14 steps done; the same command does the rest" in ran.err
    told = bench(*PRACTISE, "--yes", "--json", code=6)
    assert not any(step["done"] for step in told.document["steps"])
    bench.control("/control/weather", {"faults": []})
    assert bench(*PRACTISE, "--yes").out.count("done: ") == 12


def test_an_unusable_settings_file_is_named_before_anything_is_done(bench: Bench) -> None:
    (bench.home / "settings.yaml").write_text("- a\n")
    assert "not a mapping" in bench("init", "--embedded", "--yes", code=2).err


# --- against a cloud in this process, every request judged by Google's documents ------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[EmbeddedCloud, Setup, Recorder]]:
    recorder = Recorder()
    with EmbeddedCloud(tmp_path / "cloud", observer=recorder) as cloud:
        yield cloud, set_up(cloud, tmp_path / "settings.yaml"), recorder


def set_up(cloud: EmbeddedCloud, settings: Path) -> Setup:
    waits: list[float] = []
    where = endpoints(cloud.compute_url, cloud.storage_url)
    credentials = Bearer(cloud.token)
    return Setup(
        Rest(credentials, where, changes=True, sleep=waits.append),
        credentials,
        settings,
        keeper(),
        storage=cloud.storage_url,
    )


def keeper() -> CapSharing:
    bucket, clock = MemoryBucket(), SystemClock()
    return CapSharing(Accounts(LedgerStore(bucket, clock), Caps(), every_way(print, None, None), clock), "ada")


WANTED = SetupRequest("bench-embedded", "new-bucket", "europe-west4", launcher=ADA)


def test_google_would_understand_every_request_and_all_of_it_is_there_after(site: Any) -> None:
    cloud, setup, recorder = site
    cloud.weather.add({"fault": "api_disabled", "api": "iam.googleapis.com"})
    for step in plan(WANTED, setup.survey(WANTED)):
        setup.take(step)
    assert plan(WANTED, setup.survey(WANTED)) == ()
    recorder.assert_all_valid()
    changes = {"storage.buckets.insert", "storage.buckets.setIamPolicy", "iam.projects.roles.create"}
    assert changes | {"serviceusage.services.batchEnable"} <= set(recorder.methods)
    assert yaml.safe_load(setup.settings.read_text())["project"] == "bench-embedded"


def test_two_set_ups_at_once_end_in_the_same_place(site: Any) -> None:
    cloud, setup, _recorder = site
    steps = plan(WANTED, setup.survey(WANTED))
    other = set_up(cloud, setup.settings.with_name("other.yaml"))
    for step in steps:
        setup.take(step)
        if not isinstance(step, WriteSettings) and "Bucket" not in type(step).__name__:
            other.take(step)
    assert plan(WANTED, setup.survey(WANTED)) == ()


def test_the_caps_of_a_set_up_are_the_buckets_and_bind_everybody(site: Any) -> None:
    cloud, setup, _recorder = site
    budget = (("per_day_usd", Decimal("5.00")), ("total_usd", Decimal("100.00")))
    wanted = replace(WANTED, budget=budget)
    for step in plan(wanted, setup.survey(wanted)):
        setup.take(step)
    caps = json.loads(of_the_bucket(cloud, "ledger/ledger.json"))["caps"]
    assert (caps["day"], caps["total"], caps["run"], caps["by"]) == ("5.00", "100.00", None, "ada")
    assert plan(wanted, setup.survey(wanted)) == ()


def test_a_setup_changes_no_cap_that_somebody_set_and_adds_the_missing_ones(site: Any) -> None:
    cloud, setup, _recorder = site
    first = replace(WANTED, budget=(("per_day_usd", Decimal("5.00")),))
    for step in plan(first, setup.survey(first)):
        setup.take(step)
    second = replace(WANTED, budget=(("per_day_usd", Decimal(900)), ("per_run_usd", Decimal(2))))
    steps = [step for step in plan(second, setup.survey(second)) if isinstance(step, ShareCaps)]
    assert steps == [ShareCaps("bench-embedded", "new-bucket", (("run", Decimal(2)),))]
    setup.take(replace(steps[0], caps=(("run", Decimal(2)), ("day", Decimal(900)))))  # as if nobody had looked before
    caps = json.loads(of_the_bucket(cloud, "ledger/ledger.json"))["caps"]
    assert (caps["day"], caps["run"]) == ("5.00", "2")


def test_a_ledger_that_cannot_be_read_stops_the_caps_alone_and_says_so(site: Any) -> None:
    cloud, setup, _recorder = site
    cloud.storage.store.make_bucket("new-bucket")
    objects_of(cloud).replace("ledger/ledger.json", b"not a ledger", generation=None)
    wanted = replace(WANTED, budget=(("per_day_usd", Decimal(5)),))
    *others, last = plan(wanted, setup.survey(wanted))
    for step in others:
        setup.take(step)
    assert isinstance(last, ShareCaps)
    with pytest.raises(BenchError, match="ledger"):
        setup.take(last)
    assert objects_of(cloud).read("ledger/ledger.json").data == b"not a ledger"


def objects_of(cloud: EmbeddedCloud) -> Any:
    return GoogleBucket(
        "new-bucket", endpoint=cloud.storage_url, credentials=Bearer(cloud.token), patience_s=PATIENCE_S
    )


def of_the_bucket(cloud: EmbeddedCloud, name: str) -> bytes:
    data: bytes = objects_of(cloud).read(name).data
    return data


def test_a_foreign_bucket_is_said_to_be_taken_and_ones_own_is_mended(site: Any) -> None:
    cloud, setup, recorder = site
    cloud.storage.store.make_bucket("plain-bucket")
    wanted = SetupRequest("bench-embedded", "plain-bucket")
    mend = plan(wanted, setup.survey(wanted))[0]
    assert mend == MendBucket("plain-bucket", uniform=True, private=True, lifecycle=True)
    setup.take(mend)
    assert not any(isinstance(step, MendBucket) for step in plan(wanted, setup.survey(wanted)))
    cloud.weather.add({"fault": "permission_missing", "permission": "storage.buckets.get"})
    with pytest.raises(ProviderError, match="the name is taken"):
        setup.take(plan(wanted, setup.survey(wanted))[0])
    recorder.assert_all_valid()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, PermissionDenied), (404, NotFound), (400, ProviderError), (503, Unavailable), (401, ProviderError)],
)
def test_a_step_that_is_refused_is_an_error_of_ours(tmp_path: Path, status: int, kind: type[Exception]) -> None:
    with scripted_server(in_turn(google_error(status, "because"))) as server:
        credentials = credentials_for("x")
        rest = Rest(credentials, endpoints(server.url, server.url), changes=True, sleep=lambda _s: None)
        setup = Setup(rest, credentials, tmp_path / "s.yaml", keeper())
        with pytest.raises(kind, match="cannot ") as raised:
            setup.take(MakeAccount("p", "a", "t") if status != 503 else EnableApis("p", ("a",)))
        assert raised.value.hint  # type: ignore[attr-defined]
        rest.close()


def test_a_bad_settings_file_is_found_by_the_survey(site: Any) -> None:
    _cloud, setup, _recorder = site
    setup.settings.write_text("a: [")
    with pytest.raises(ConfigError):
        setup.survey(WANTED)


# What a set-up prints for gcloud, read by gcloud itself, which takes seconds to start.


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud here")
def test_gclouds_own_parser_takes_every_printed_command(tmp_path: Path) -> None:
    spoken = tmp_path / "spoken"
    (tmp_path / "gcloud").write_text(
        f'#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done >>{spoken}; echo >>{spoken}\n'
    )
    (tmp_path / "gcloud").chmod(0o755)
    shell = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    steps = [step for step in every_step() if not isinstance(step, WriteSettings | ShareCaps)]
    # Values are the shell's: gcloud parses names, so one of each command with the same flags is enough.
    of_a_kind = {(type(step), *re.findall(r"--[a-z-]+", setup_steps.one_line_command(step))): step for step in steps}
    for step in of_a_kind.values():
        subprocess.run(["bash", "-c", setup_steps.one_line_command(step)], env=shell, check=True, timeout=600)
    commands = [line.split("\0")[:-1] for line in spoken.read_text("utf-8").splitlines()]
    assert len(commands) >= len(of_a_kind)
    with GcloudForks({**os.environ, "CLOUDSDK_CONFIG": str(tmp_path / "config")}) as gcloud:
        for arguments in commands:
            said = gcloud.run(arguments).stderr
            assert "argument" not in said.lower(), said
